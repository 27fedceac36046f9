"""Rows that start and end anywhere between 16-byte boundaries, in Triton (`Parts` in CUDA's common.cuh).

A row has a body of whole vectors, one fewer than its elements make, so that there are as many in every row.
Before it are the elements of its head and behind it those of its tail, fewer than two vectors together:
``edges``, a small tensor of their own, where CUDA has one element per thread.

The compiler makes 16-byte accesses of a body by itself.  It sees that `start_of_body` is a multiple of VEC,
and that a mask of ``n < columns_of_body(...)`` is the same for all elements of a vector.  VEC of 1: the body
is the row.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def start_of_body(start, VEC: tl.constexpr):
    """Where the body of a row begins that starts ``start`` elements behind a 16-byte boundary."""
    return tl.cdiv(start, VEC) * VEC


@triton.jit
def columns_of_body(N, VEC: tl.constexpr):
    if VEC > 1:
        N = tl.maximum(N // VEC - 1, 0) * VEC
    return N


@triton.jit
def edges(head, N, VEC: tl.constexpr):
    """The columns of a row's edges if it has ``head`` of them before its body; N and more: none."""
    e = tl.arange(0, 2 * VEC)
    return tl.where(e < head, e, e + columns_of_body(N, VEC))


def contiguous_rows(x: torch.Tensor) -> torch.Tensor:
    """``x[M,N]``; a copy if its rows are not contiguous."""
    return x if x.stride(1) == 1 or x.size(1) <= 1 else x.contiguous()


def starts_as_output(x: torch.Tensor) -> bool:
    """Whether rows start as far from 16-byte boundaries as a contiguous output's."""
    return x.data_ptr() % 16 == 0 and (x.stride(0) - x.size(1)) * x.element_size() % 16 == 0


def as_output(x: torch.Tensor) -> torch.Tensor:
    """``x`` if its rows start as far from 16-byte boundaries as a contiguous output's, else a copy."""
    return x if starts_as_output(x) else x.clone(memory_format=torch.contiguous_format)


def vec(x: torch.Tensor) -> int:
    """VEC for rows of ``x[M,N]``: 1 unless they are unaligned in the same way as a contiguous output's."""
    VEC, N = 16 // x.element_size(), x.size(1)
    return VEC if starts_as_output(x) and N % VEC != 0 and N >= 2 * VEC else 1


def vec_of_narrow(x: torch.Tensor) -> int:
    """`vec` of 16-bit elements; 1 of 32-bit ones.

    There is no need for vectors of 32-bit elements: neighbouring threads access 128 bytes at a time anyway.
    """
    return vec(x) if x.element_size() == 2 else 1
