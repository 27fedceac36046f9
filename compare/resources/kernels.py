"""What both readers do with the kernels they found."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import replace

from compare.model.result import KernelResources
from compare.resources.occupancy import occupancy


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


_PYTORCHS = re.compile(
    r"(vectorized_|unrolled_)?elementwise_kernel|reduce_kernel|cunn_|softmax_warp_|CatArray"
    r"|.*(nvjet|xmma|cublas|cudnn)"
)
"""Kernels of PyTorch and of the libraries it calls, by how their names begin."""

_FILLS = re.compile(r"(?i)fill|memset|arange")
_COPIES = re.compile(r"(?i)copy|memcpy|\bcat")


_OF_HELPERS = re.compile(r"(vectorized_|unrolled_)?elementwise_kernel|reduce_kernel")
"""Kernels of PyTorch's that compute sums, maxima and arithmetic for any op."""


def borrowed(
    ran: Iterable[str], own: Iterable[str], pytorchs: Iterable[str], is_copy_only: bool = False
) -> list[str]:
    """Kernels that an implementation ran and did not launch itself, though they do work that it is to do.

    Args:
        ran: names of what ran on the GPU, as the profiler has them.
        own: names of what its host code launches, with or without template arguments.
        pytorchs: what PyTorch's implementations of the same op ran.
        is_copy_only: to copy is the work.
    """
    of_its_own = {name.partition("<")[0] for name in own}
    theirs = set(pytorchs)
    return [
        name
        for name in dict.fromkeys(ran)
        if name.partition("<")[0] not in of_its_own
        and not _FILLS.search(name)
        and (is_copy_only or not _COPIES.search(name))
        and (name in theirs or _PYTORCHS.match(name))
    ]


def helped(
    kernels: Iterable[KernelResources], theirs: Collection[str], baseline: Iterable[str]
) -> tuple[int, int] | None:
    """How many launches PyTorch's kernels ``theirs`` and those of others make; None: they are no helpers.

    A helper's sum, maximum or arithmetic runs beside a kernel of the implementation's own, and is nothing
    that the op's ``baseline`` runs.
    """
    of_the_op = set(baseline)
    if not all(_OF_HELPERS.match(name) and name not in of_the_op for name in theirs):
        return None
    launches: Counter[bool] = Counter()
    for kernel in kernels:
        if kernel.kernel in theirs or not _PYTORCHS.match(kernel.kernel):
            launches[kernel.kernel in theirs] += kernel.launches
    return (launches[True], launches[False]) if launches[False] else None
