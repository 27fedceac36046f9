"""From a plan to a folder with C files and a Makefile, and to the program that make and gcc build of them."""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compare.aot.kernel_code import KernelCode, compiled
from compare.aot.plan import Pointer, ProgramPlan
from compare.model.op import UsageError
from cuda_impl import build

_MARK = "Makefile"
"""Written first: a folder that holds it is one of ours."""
_FILES = Path(__file__).parent / "program"
"""What a program is made of, with ``@word@`` for what differs."""

_PORTABLE_SHARED_BYTES = 48 * 1024
_PORTABLE_CLUSTER = 8


@dataclass(frozen=True)
class Program:
    """A program that has been built."""

    label: str
    arch: str
    kernel: str
    tool: str
    """What made the kernel's machine code."""
    folder: Path
    executable: Path
    files: tuple[str, ...]
    """Its arguments: files with the inputs' bytes, and the file that gets the output's."""
    code_bytes: int
    """Of the image that it carries: a cubin, or a fat binary."""
    program_bytes: int
    """Of the executable, machine code included."""


def make(plan: ProgramPlan, folder: Path) -> Program:
    """Write everything into ``folder``, in place of an earlier program there, and build it.

    Raises:
        NotImplementedError: no such program is possible; the text says why.
        build.BuildError: a compiler is missing or failed.
        OSError: the folder cannot be written.
        UsageError: it holds something else.
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
    words = {"CUDA_INCLUDE": str(build.driver_include()), "usage": " ".join(files)}
    words |= _of_plan(plan, kernel) | _of_kernel(plan, kernel)
    for file in _FILES.iterdir():
        name = file.name.removesuffix(".in").replace("kernel.", f"{kernel.name}.")
        (folder / name).write_text(re.sub(r"@(\w+)@", lambda word: words[word[1]], file.read_text()))
    build.run([make_tool, "--no-print-directory", "-C", folder, f"CC={compiler}"], plan.label)
    executable = folder / "program"
    sizes = len(kernel.image), executable.stat().st_size
    return Program(plan.label, plan.arch, kernel.name, kernel.tool, folder, executable, files, *sizes)


def _of_plan(plan: ProgramPlan, kernel: KernelCode) -> dict[str, str]:
    return {
        "label": plan.label,
        "case": str(plan.case),
        "arch": plan.arch,
        "inputs": str(len(plan.memory) - 1),
        "sizes": ", ".join(str(memory.bytes) for memory in plan.memory),
        "names": ", ".join(memory.name for memory in plan.memory),
        "arguments": ", ".join(["stream", *(_handed(plan, name) for name in kernel.ctypes)]),
    }


def _handed(plan: ProgramPlan, name: str) -> str:
    argument = plan.arguments[name]
    if isinstance(argument, Pointer):
        offset = f" + {argument.offset_bytes}" if argument.offset_bytes else ""
        return f"memory[{argument.memory}]{offset}"
    value: Any = argument if isinstance(argument, int | float) else argument.item()
    if isinstance(value, float):
        return value.hex()
    return f"{int(value)}{'LL' if abs(value) >= 1 << 31 else ''}"


def _of_kernel(plan: ProgramPlan, kernel: KernelCode) -> dict[str, str]:
    attributes = {
        f"MAX_DYNAMIC_SHARED_SIZE_BYTES, {kernel.shared_bytes}": kernel.shared_bytes > _PORTABLE_SHARED_BYTES,
        "NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1": kernel.cluster > _PORTABLE_CLUSTER,
    }
    setting = "    CHECK(cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_{}));\n"
    addresses = [*(f"&{name}" for name in kernel.ctypes), *(["&(CUdeviceptr){0}"] * kernel.hidden)]
    data = ", ".join(f"0x{byte:02x}" for byte in kernel.image)
    return {
        "title": f"{kernel.title} for {plan.arch}",
        "name": kernel.name,
        "symbol": kernel.symbol,
        "parameters": ", ".join(f"{ctype} {name}" for name, ctype in kernel.ctypes.items()),
        "bytes": str(len(kernel.image)),
        "data": textwrap.fill(data, 100, break_on_hyphens=False),
        "attributes": "".join(setting.format(what) for what, needed in attributes.items() if needed),
        "addresses": ", ".join(addresses),
        "grid": ", ".join(map(str, plan.launch.grid)),
        "block": ", ".join(map(str, kernel.block)),
        "shared": str(kernel.shared_bytes),
    }
