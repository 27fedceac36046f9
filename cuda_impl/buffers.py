"""Tensors of a launch table: the arguments of a call, and the memory that it allocates, described alike."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch


@dataclass(frozen=True, eq=False)
class Buffer:
    """Memory that a call allocates, with as much of a tensor's interface as describes its layout."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    strides: tuple[int, ...] = ()
    """In elements; none: contiguous."""
    zeroed: bool = False
    source: Tensor | None = None
    """What it is a copy of."""

    def size(self, dim: int) -> int:
        return self.shape[dim]

    def stride(self, dim: int | None = None) -> Any:
        strides = self.strides or dense_strides(self.shape)
        return strides if dim is None else strides[dim]

    def dim(self) -> int:
        return len(self.shape)

    def numel(self) -> int:
        return math.prod(self.shape)

    def element_size(self) -> int:
        return self.dtype.itemsize

    def data_ptr(self) -> int:
        """0: PyTorch aligns what it allocates to 64 bytes or more."""
        return 0


Tensor = torch.Tensor
"""An argument of a call, or a `Buffer` in its place: the functions below return one as a tensor."""


New = Callable[[], torch.Tensor]


def dense_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Of a contiguous tensor."""
    steps = [max(size, 1) for size in shape[1:]]
    return tuple(math.prod(steps[i:]) for i in range(len(shape)))


def empty(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    return cast(Tensor, Buffer(tuple(shape), dtype, device))


def empty_like(x: Tensor) -> Tensor:
    """Contiguous, of x's shape and dtype."""
    return empty(x.shape, x.dtype, x.device)


def zeros(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    return cast(Tensor, Buffer(tuple(shape), dtype, device, zeroed=True))


def zeros_like(x: Tensor) -> Tensor:
    return zeros(x.shape, x.dtype, x.device)


def copied(x: Tensor, strides: Sequence[int] = (), *, zeroed: bool = False) -> Tensor:
    """A copy of x with these strides, contiguous without; zeros between rows if ``zeroed``."""
    return cast(Tensor, Buffer(tuple(x.shape), x.dtype, x.device, tuple(strides), zeroed, source=x))


def allocation(
    shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> New:
    """A function that returns new memory; ``x.new_empty`` would take half as long again."""
    if device.type == "meta":  # there other functions import sympy, which takes seconds
        return functools.partial(torch.empty, shape, dtype=dtype, device=device)
    return functools.partial(torch.empty_strided, shape, strides, dtype=dtype, device=device)


def copy_of(x: torch.Tensor, buffer: Buffer) -> torch.Tensor:
    """A copy of x in the layout of a buffer; rows are padded to whole strides."""
    strides = buffer.stride()
    extent = max(map(math.prod, zip(buffer.shape, strides, strict=True)), default=1)
    memory = allocation((extent if buffer.numel() else 0,), (1,), x.dtype, x.device)()
    if buffer.zeroed:
        memory.zero_()
    return memory.as_strided(buffer.shape, strides).copy_(x)
