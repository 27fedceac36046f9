"""What a hand-in's kernels take, read by a process that never ran its code.

The process that ran it tells sources and launches only; it could tell any figure.
"""

from __future__ import annotations

import contextlib
import io
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import triton
from msgspec import Struct
from triton.backends.compiler import GPUTarget

from compare import registry
from compare.capture import capture
from compare.device import capability
from compare.model.op import Case, CudaLaunch, Implementation, TritonLaunch
from compare.model.result import KernelResources
from compare.replay.nodes import CudaSource, Source
from compare.replay.sources import OPTIONS, of_triton
from compare.resources.compiler import Compiled, Compiler, described, instructions_of, of_cuda
from compare.resources.kernels import merged
from compare.resources.machine_code import read_report
from compare.resources.occupancy import WARP


class KernelSource(Struct, frozen=True):
    """A launch, and what its kernel is compiled from."""

    name: str
    source: Source
    grid: tuple[int, int, int]
    block: tuple[int, int, int] = (1, 1, 1)
    """Of CUDA: Triton's is in its options."""
    shared_bytes: int = 0
    """Dynamic, of CUDA."""


def sources(impl: Implementation, case: str, arch: str) -> tuple[KernelSource, ...]:
    """The launches of one call, in order; raises as `Compiler.resources`."""
    op = registry.get_op(impl.op)
    return tuple(_source(each, arch) for each in capture(impl, op, Case.parse(case, op), arch, untuned=True))


def _source(launch: CudaLaunch | TritonLaunch, arch: str) -> KernelSource:
    if isinstance(launch, CudaLaunch):
        source = CudaSource(launch.source, (launch.kernel,), ())
        return KernelSource(launch.kernel, source, launch.grid, launch.block, launch.dynamic_shared_bytes)
    compiled, _ = Compiler.compiled(launch, arch)
    return KernelSource(launch.kernel.fn.__name__, of_triton(compiled.metadata_group), launch.grid)


def read(kernels: Sequence[KernelSource], arch: str, *, multiplies: bool) -> tuple[KernelResources, ...]:
    """Compile the kernels and read what each takes.

    Args:
        kernels: as `sources` tells them.
        arch: ``sm_90``.
        multiplies: read what they multiply by, too.
    """
    resources = []
    known: dict[str, tuple[KernelResources, Compiled]] = {}
    for each in kernels:
        if (key := repr(each)) not in known:  # Triton reports once
            known[key] = _read(each, arch)
        kernel, code = known[key]
        instruction, bits = instructions_of(code)
        resources.append(replace(kernel, instruction=instruction if multiplies else "", load_bits=bits))
    return merged(resources)


def _read(each: KernelSource, arch: str) -> tuple[KernelResources, Compiled]:
    if isinstance(each.source, CudaSource):
        (name,) = each.source.names
        return of_cuda(CudaLaunch(each.source.code, name, each.grid, each.block, each.shared_bytes), arch)
    target = GPUTarget("cuda", capability(arch), WARP)
    options = {name: value for name, value in each.source.options.items() if name in OPTIONS}
    log = io.StringIO()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(log):
        file = Path(folder) / f"kernel.{each.source.stage}"
        file.write_text(each.source.ir)
        compiled = triton.compile(str(file), target=target, options=options)
    metadata = compiled.metadata
    code = Compiled(metadata.name, read_report(log.getvalue())[metadata.name], compiled.asm["cubin"])
    x, y, z = each.grid
    grid, block = (x * getattr(metadata, "num_ctas", 1), y, z), (metadata.num_warps * WARP, 1, 1)
    return described(each.name, arch, code, metadata.shared, grid, block), code
