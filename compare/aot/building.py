"""From a plan to a folder with C files and a Makefile, and to the program that make and gcc build of them."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, FileSystemLoader

from compare.aot.plan import Pointer, ProgramPlan
from compare.model.op import CudaLaunch, TritonLaunch, UsageError
from compare.resources.compiler import compile_triton
from compare.resources.occupancy import WARP
from cuda_impl import build

_MARK = "Makefile"
"""Written first: a folder that holds it is one of ours."""
_FILES = Path(__file__).parent / "program"
"""What a program is made of, as templates."""

_BITS = (8, 16, 32, 64)
_CTYPES = {
    **{name: f"int{bits}_t" for bits in _BITS for name in (f"int{bits}", f"i{bits}")},
    **{name: f"uint{bits}_t" for bits in _BITS for name in (f"uint{bits}", f"u{bits}")},
    **dict.fromkeys(("float32", "fp32"), "float"),
    **dict.fromkeys(("float64", "fp64"), "double"),
}
"""By numpy's name and by Triton's."""


@dataclass(frozen=True)
class Program:
    """A program that has been built."""

    label: str
    arch: str
    kernel: str
    tool: str
    """What made the kernel's machine code."""
    folder: Path
    files: tuple[str, ...]
    """Its arguments: files with the inputs' bytes, and the file that gets the output's."""
    code_bytes: int
    """Of the image that it carries: a cubin, or a fat binary."""
    program_bytes: int
    """Of the executable, machine code included."""

    @property
    def executable(self) -> Path:
        return self.folder / "program"


@dataclass(frozen=True)
class KernelCode:
    """A kernel's machine code, and what its launch without Python needs."""

    title: str
    tool: str
    """What made it."""
    image: bytes
    symbol: str
    """Its name in the image."""
    block: tuple[int, int, int]
    shared_bytes: int
    """Dynamic shared memory."""
    ctypes: dict[str, str]
    """The C types of its arguments, in order, by the names of `compare.aot.plan.ProgramPlan.arguments`."""
    hidden: int = 0
    """Further arguments that the compiler added: addresses of memory that the kernel does not use."""
    cluster: int = 1

    @property
    def name(self) -> str:
        """Of the C function that launches it."""
        return re.sub(r"\W+", "_", self.title.partition("<")[0])


def make(plan: ProgramPlan, folder: Path) -> Program:
    """Write everything into ``folder``, in place of an earlier program there, and build it.

    Raises:
        NotImplementedError: no such program is possible; the text says why.
        build.BuildError: a compiler is missing or failed.
        OSError: the folder cannot be written.
        UsageError: it holds something else.
        Exception: whatever Triton's compiler raises.
    """
    compiler, make_tool = build.gcc(), build.make_tool()
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()) and not (folder / _MARK).is_file():
        raise UsageError(f"{folder} holds files that are not of an earlier program; name another folder")
    (folder / _MARK).touch()
    for stale in (*folder.glob("*.[cho]"), folder / "program"):
        stale.unlink(missing_ok=True)
    kernel = compiled(plan)
    files = tuple(f"{memory.name}.bin" for memory in plan.memory)
    environment = Environment(loader=FileSystemLoader(_FILES), trim_blocks=True, keep_trailing_newline=True)
    environment.filters["in_c"] = _in_c
    data = textwrap.fill(", ".join(f"0x{byte:02x}" for byte in kernel.image), 100, break_on_hyphens=False)
    words = {"plan": plan, "kernel": kernel, "data": data, "files": files, "include": build.driver_include()}
    for template in environment.list_templates():
        name = template.removesuffix(".in").replace("kernel.", f"{kernel.name}.")
        (folder / name).write_text(environment.get_template(template).render(words))
    build.run([make_tool, "--no-print-directory", "-C", folder, f"CC={compiler}"], plan.label)
    sizes = len(kernel.image), (folder / "program").stat().st_size
    return Program(plan.label, plan.arch, kernel.name, kernel.tool, folder, files, *sizes)


def _in_c(argument: Any) -> str:
    """An argument as C writes it."""
    if isinstance(argument, Pointer):
        offset = f" + {argument.offset_bytes}" if argument.offset_bytes else ""
        return f"memory[{argument.memory}]{offset}"
    value = argument.item() if isinstance(argument, np.number) else argument
    if isinstance(value, float):
        return value.hex()
    return f"{int(value)}{'LL' if abs(value) >= 1 << 31 else ''}"


# --------------------------------------------------------------------------- machine code


def compiled(plan: ProgramPlan) -> KernelCode:
    """Compile a plan's kernel: Triton's cubin, or nvcc's fat binary.

    Raises:
        NotImplementedError: it needs more than one launch with pointers and numbers; the text says what.
        build.BuildError: nvcc is missing or refuses the source.
        Exception: whatever Triton's compiler raises.
    """
    if isinstance(plan.launch, TritonLaunch):
        return _by_triton(plan.launch, plan.arch)
    return _by_nvcc(plan, plan.launch)


def _by_nvcc(plan: ProgramPlan, launch: CudaLaunch) -> KernelCode:
    image, symbol = build.fatbin(launch.source, launch.kernel, plan.arch)
    ctypes = _ctypes(
        {
            name: "*" if isinstance(argument, Pointer) else np.dtype(type(argument)).name
            for name, argument in plan.arguments.items()
        }
    )
    launched = launch.block, launch.dynamic_shared_bytes, ctypes
    return KernelCode(launch.kernel, "nvcc -fatbin", image, symbol, *launched, cluster=launch.cluster)


def _by_triton(launch: TritonLaunch, arch: str) -> KernelCode:
    kernel, _ = compile_triton(launch, arch)
    metadata = kernel.metadata
    scratch = ("global_scratch_size", "profile_scratch_size")
    needs = {
        "in clusters": metadata.num_ctas > 1,
        "with memory of its own": any(getattr(metadata, name, 0) for name in scratch),
        "cooperatively": getattr(metadata, "launch_cooperative_grid", False),
    }
    if how := [how for how, needed in needs.items() if needed]:
        raise NotImplementedError(f"it is launched {', '.join(how)}, which the program does not do")
    ctypes = _ctypes({name: kind for name, kind in kernel.src.signature.items() if kind != "constexpr"})
    head = re.search(r"\.entry\s+\w+\(([^)]*)\)", kernel.asm["ptx"])
    assert head is not None
    return KernelCode(
        title=launch.kernel.fn.__name__,
        tool="Triton's compiler",
        image=kernel.asm["cubin"],
        symbol=metadata.name,
        block=(WARP * metadata.num_warps, 1, 1),
        shared_bytes=metadata.shared,
        ctypes=ctypes,
        hidden=head[1].count(".param") - len(ctypes),
    )


def _ctypes(kinds: Mapping[str, Any]) -> dict[str, str]:
    for name, kind in kinds.items():
        if not str(kind).startswith("*") and str(kind) not in _CTYPES:
            raise NotImplementedError(f"argument {name} of its kernel is {kind}, which C does not have")
    return {name: _CTYPES.get(str(kind), "CUdeviceptr") for name, kind in kinds.items()}
