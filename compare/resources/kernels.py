"""What both readers do with the kernels they found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from compare.occupancy import occupancy
from compare.spec import KernelResources


def with_occupancy(kernel: KernelResources) -> KernelResources:
    """The same kernel with its theoretical occupancy and what limits it, from its own figures."""
    assert kernel.block is not None
    threads = kernel.block[0] * kernel.block[1] * kernel.block[2]
    shared_bytes = kernel.static_shared_bytes + kernel.dynamic_shared_bytes
    fits = occupancy(kernel.arch, threads, kernel.registers, shared_bytes)
    return replace(kernel, occupancy=fits.share, limiter=fits.limiter)


def merged(kernels: Iterable[KernelResources]) -> tuple[KernelResources, ...]:
    """Equal launches as one, counted; in the order of their first launch."""
    return tuple(replace(kernel, launches=count) for kernel, count in Counter(kernels).items())
