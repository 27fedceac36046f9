"""Machine code of a recording's sources, compiled by a process that never ran the user's host code."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from pathlib import Path

import triton
from triton.backends.compiler import GPUTarget

from compare.replay.nodes import CudaSource, Source, TritonSource
from compare.replay.sources import OPTIONS
from compare.resources.sass.disassembly import disassembled
from cuda_impl import build

_WARP = 32
_VARIABLES = (b".nv.global", b".nv.managed", b".nv.constant3")
"""Beginnings of the names of sections with variables that host code can reach.  Triton has none."""
_READS_ONE = re.compile(r"\bc\[0x[34]\]")
"""In machine code, an access to a variable or its address.  The sections hold unused constants too."""


def compiled(sources: Sequence[Source], arch: str) -> list[bytes]:
    """The ELF image of each source for ``arch`` (``sm_90``).  Needs no GPU.

    Raises:
        NotImplementedError: it reads variables, whose values are not in its source.
        Exception: what the compiler raised.
    """
    return [_of_triton(each, arch) if isinstance(each, TritonSource) else _of_cuda(each) for each in sources]


def _of_triton(source: TritonSource, arch: str) -> bytes:
    options = {name: value for name, value in source.options.items() if name in OPTIONS}
    target = GPUTarget("cuda", int(arch.removeprefix("sm_")), _WARP)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / f"kernel.{source.stage}"
        file.write_text(source.ir)
        image: bytes = triton.compile(str(file), target=target, options=options).asm["cubin"]
    return image


def _of_cuda(source: CudaSource) -> bytes:
    program = build.compile_nvrtc(source.code, source.names, source.options)
    if not program.cubin:
        raise ValueError("it was compiled for no architecture: leave -arch to cupy")
    may_have_variables = any(name in program.cubin for name in _VARIABLES)
    if may_have_variables and _READS_ONE.search(disassembled(program.cubin)):
        raise NotImplementedError(
            "its CUDA source uses a __device__ or __constant__ variable, or printf: host code or an earlier "
            "call may have changed it. Pass a tensor instead"
        )
    return program.cubin
