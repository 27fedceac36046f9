"""A kernel's machine code, and what its launch without Python needs: Triton's cubin, or nvcc's fat binary."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from compare.aot.plan import Pointer, ProgramPlan
from compare.model.op import CudaLaunch, TritonLaunch
from compare.resources.compiler import compile_triton
from compare.resources.occupancy import WARP
from cuda_impl import build

_BITS = (8, 16, 32, 64)
_CTYPES = {
    **{name: f"int{bits}_t" for bits in _BITS for name in (f"int{bits}", f"i{bits}")},
    **{name: f"uint{bits}_t" for bits in _BITS for name in (f"uint{bits}", f"u{bits}")},
    "float32": "float",
    "fp32": "float",
    "float64": "double",
    "fp64": "double",
}
"""By numpy's name and by Triton's."""


@dataclass(frozen=True)
class KernelCode:
    """A kernel that has been compiled."""

    name: str
    """Of the C function that launches it."""
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


def compiled(plan: ProgramPlan) -> KernelCode:
    """Compile a plan's kernel.

    Raises:
        NotImplementedError: it needs more than one launch with pointers and numbers; the text says what.
        build.BuildError: nvcc is missing or refuses the source.
        Exception: whatever Triton's compiler raises.
    """
    if isinstance(plan.launch, TritonLaunch):
        return _by_triton(plan, plan.launch)
    return _by_nvcc(plan, plan.launch)


def _by_nvcc(plan: ProgramPlan, launch: CudaLaunch) -> KernelCode:
    image, symbol = build.fatbin(launch.source, launch.kernel, plan.arch)
    kinds = {
        name: "*" if isinstance(argument, Pointer) else np.dtype(type(argument)).name
        for name, argument in plan.arguments.items()
    }
    return KernelCode(
        name=re.sub(r"\W+", "_", launch.kernel.partition("<")[0]),
        title=launch.kernel,
        tool="nvcc -fatbin",
        image=image,
        symbol=symbol,
        block=launch.block,
        shared_bytes=launch.dynamic_shared_bytes,
        ctypes=_ctypes(kinds),
        cluster=launch.cluster,
    )


def _by_triton(plan: ProgramPlan, launch: TritonLaunch) -> KernelCode:
    made, _ = compile_triton(launch, plan.arch)
    metadata = made.metadata
    needs = {
        "in clusters": metadata.num_ctas > 1,
        "with memory of its own": any(
            getattr(metadata, name, 0) for name in ("global_scratch_size", "profile_scratch_size")
        ),
        "cooperatively": getattr(metadata, "launch_cooperative_grid", False),
    }
    if how := [how for how, needed in needs.items() if needed]:
        raise NotImplementedError(f"it is launched {', '.join(how)}, which the program does not do")
    kinds = {name: kind for name, kind in made.src.signature.items() if kind != "constexpr"}
    ctypes = _ctypes(kinds)
    head = re.search(r"\.entry\s+\w+\(([^)]*)\)", made.asm["ptx"])
    assert head is not None
    return KernelCode(
        name=launch.kernel.fn.__name__,
        title=launch.kernel.fn.__name__,
        tool="Triton's compiler",
        image=made.asm["cubin"],
        symbol=metadata.name,
        block=(WARP * metadata.num_warps, 1, 1),
        shared_bytes=metadata.shared,
        ctypes=ctypes,
        hidden=head[1].count(".param") - len(ctypes),
    )


def _ctypes(kinds: dict[str, Any]) -> dict[str, str]:
    found = {}
    for name, kind in kinds.items():
        found[name] = "CUdeviceptr" if str(kind).startswith("*") else _CTYPES.get(str(kind), "")
        if not found[name]:
            raise NotImplementedError(f"argument {name} of its kernel is {kind}, which C does not have")
    return found
