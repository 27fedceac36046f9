"""Kernels as compiled for an architecture, or as the profiler saw them: what is asked for, and kept on disk.

A result's name is a hash of all that it depends on: sources, case, architecture and compilers.  Asking again
takes milliseconds; compiling and starting the profiler take seconds.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import asdict, dataclass

from compare.code_size.hashes import rests_on
from compare.model.op import Case, Implementation, Op
from compare.model.result import KernelResources
from compare.records import result_cache
from compare.records.encoding import decode

_CODE = (
    *("compare/resources/*.py", "compare/resources/sass/*.py", "compare/capture.py", "compare/device.py"),
    "cuda_impl/build.py",
)
"""What asks the compilers and reads their answers."""

_COMPILERS = ("torch", "triton", "cupy-cuda13x", "cupy-cuda12x", "nvidia-cuda-nvrtc")

Resources = tuple[KernelResources, ...] | Exception
"""Of each kernel in launch order, or why they are not known: `NotImplementedError` of what does not take the
case or the architecture, `Refused`, or another `CompileError`.  Empty for PyTorch's own kernels."""


class CompileError(RuntimeError):
    """A kernel could not be captured or compiled; the text is the compiler's."""


class Refused(CompileError):
    """A compiler does not take the kernel, so nothing could run it on that architecture."""


@dataclass(frozen=True)
class Request:
    """Resources of one implementation on one case, as compiled for one architecture."""

    op: Op
    impl: Implementation
    case: Case
    arch: str
    """``sm_90``"""


def key_of(request: Request, device: str = "") -> str:
    """A name for results of a request: a hash of everything that they depend on.

    Args:
        request: what is read.
        device: the name of the GPU whose profiler reads it; empty where it is compiled.
    """
    return result_cache.key(
        device,
        request.op.name,
        request.impl.label,
        str(request.impl.parameters),
        rests_on(request.impl),
        str(request.case),
        str(bool(request.impl.hidden)),
        request.arch,
        result_cache.versions(*_COMPILERS),
        result_cache.code(*_CODE),
        *_settings(),
    )


def _settings() -> list[str]:
    """What the environment tells Triton's compiler, such as which ptxas to use."""
    # Where kernels are kept, and the interpreter, are other matters for the process that compiles.
    others = ("TRITON_CACHE_DIR", "TRITON_INTERPRET")
    return sorted(f"{n}={v}" for n, v in os.environ.items() if n.startswith("TRITON_") and n not in others)


def kept(key: str) -> Resources | None:
    """What an earlier run has left under a key; None where nothing is."""
    with suppress(KeyError, TypeError, ValueError, OverflowError):  # damaged, or of another version
        value = result_cache.read("resources", key)
        if "unavailable" in value:
            return NotImplementedError(value["unavailable"])
        return tuple(decode(KernelResources, kernel) for kernel in value["kernels"])
    return None


def keep(key: str, result: Resources) -> None:
    """Keep a result for later runs; an error may not come again."""
    if isinstance(result, NotImplementedError):
        result_cache.write("resources", key, {"unavailable": str(result)})
    elif not isinstance(result, Exception):
        result_cache.write("resources", key, {"kernels": [asdict(kernel) for kernel in result]})
