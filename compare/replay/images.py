"""Machine code of a recording's sources, compiled by a process that never ran the user's host code."""

from __future__ import annotations

import re
import struct
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import triton
from triton.backends.compiler import GPUTarget

from compare.replay.nodes import CudaSource, Source, TritonSource
from compare.replay.sources import OPTIONS
from compare.resources.sass.disassembly import disassembled
from cuda_impl import build

_WARP = 32
_VARIABLES = (".nv.global", ".nv.managed", ".nv.constant3")
"""Beginnings of the names of sections with variables that host code can reach.  Triton has none."""
_READS_ONE = re.compile(r"\bc\[0x[34]\]")
"""In machine code, an access to a variable or its address.  The sections hold unused constants too."""
_SECTION = struct.Struct("<IIQQQQ")
"""Of a 64-bit ELF file's section header: name, type, flags, address, offset, size."""


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
    made = build.compile_nvrtc(source.code, source.names, source.options)
    if not made.cubin:
        raise ValueError("it was compiled for no architecture: leave -arch to cupy")
    has_variables = any(name.startswith(_VARIABLES) for name in sections(made.cubin))
    if has_variables and _READS_ONE.search(disassembled(made.cubin)):
        raise NotImplementedError(
            "its CUDA source uses a __device__ or __constant__ variable, or printf: host code or an earlier "
            "call may have changed it. Pass a tensor instead"
        )
    return made.cubin


def sections(image: bytes) -> Iterator[str]:
    """The names of an ELF file's sections.

    Raises:
        ValueError, struct.error: it is no 64-bit ELF file.
    """
    if image[:5] != b"\x7fELF\x02":
        raise ValueError("machine code that is no 64-bit ELF file")
    (table,) = struct.unpack_from("<Q", image, 40)
    size, count, of_names = struct.unpack_from("<HHH", image, 58)
    _, _, _, _, names, _ = _SECTION.unpack_from(image, table + of_names * size)
    for number in range(count):
        begin = names + _SECTION.unpack_from(image, table + number * size)[0]
        yield image[begin : image.index(b"\0", begin)].decode()
