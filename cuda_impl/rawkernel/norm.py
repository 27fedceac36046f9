"""What layer_norm and rms_norm share: their launch through cupy."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from compare.arguments import check_norm
from cuda_impl.loader import kernel

CTYPES = {torch.float32: "float", torch.float16: "__half", torch.bfloat16: "__nv_bfloat16"}


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


class Rows(NamedTuple):
    """The kernels' tensor arguments, and an output."""

    x: torch.Tensor
    parameters: tuple[torch.Tensor, ...]
    """Weight, and bias if the op has one."""
    y: torch.Tensor

    @property
    def pointers(self) -> tuple[int, ...]:
        return tuple(tensor.data_ptr() for tensor in (self.x, *self.parameters, self.y))


def checked(op: str, x: torch.Tensor, **parameters: torch.Tensor) -> Rows:
    """The arguments, copied where the kernels need it."""
    check_norm(op, x, **parameters)
    x = x if x.stride(1) == 1 or x.size(1) <= 1 else x.contiguous()
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    return Rows(x, tuple(map(packed, parameters.values())), y)


def packed(parameter: torch.Tensor) -> torch.Tensor:
    """The vector if it is contiguous and 16-byte aligned, else such a copy."""
    dense = parameter.stride(0) == 1 and parameter.data_ptr() % 16 == 0
    return parameter if dense else parameter.clone(memory_format=torch.contiguous_format)


def vec(x: torch.Tensor) -> int:
    """Elements per access: 16 bytes' worth if all rows of x and y are 16-byte aligned, else 1."""
    pack = 16 // x.element_size()
    aligned = x.data_ptr() % 16 == 0 and x.stride(0) % pack == 0 and x.size(1) % pack == 0
    return pack if aligned else 1


def online(op: str, eps: float, x: torch.Tensor, **parameters: torch.Tensor) -> torch.Tensor:
    rows = checked(op, x, **parameters)
    x, y = rows.x, rows.y
    M, N = x.shape
    if y.numel() == 0:
        return y
    THREADS = 1024
    name = f"{op}_online_kernel<{CTYPES[x.dtype]}, {vec(x)}, {THREADS}>"
    run = kernel(op, name, x.device)
    run((M,), (THREADS,), (*rows.pointers, np.int64(N), np.int64(x.stride(0)), np.float32(eps)))
    return y


def onepass_shape(packs: int, VEC: int) -> tuple[int, int, int]:
    """The smallest PACKS and THREADS, and BLOCK_M, for rows of ``packs`` vectors."""
    PACKS = 4 if VEC > 1 else 8  # single elements need more loads in flight
    if packs <= 16:
        return 1, 128, 8
    if packs <= 32 * PACKS:  # one row per warp
        return (1 if packs <= 32 else PACKS), 128, 4
    if VEC > 1 and 64 * PACKS < packs <= 256 * PACKS:
        PACKS //= 2  # and twice the threads: fewer registers each, so 1.5 times as many are resident
    return PACKS, max(64, 1 << (ceil_div(packs, PACKS) - 1).bit_length()), 1


def onepass(op: str, eps: float, x: torch.Tensor, **parameters: torch.Tensor) -> torch.Tensor:
    rows = checked(op, x, **parameters)
    x, y = rows.x, rows.y
    M, N = x.shape
    if y.numel() == 0:
        return y
    VEC = vec(x)
    PACKS, THREADS, BLOCK_M = onepass_shape(ceil_div(N, VEC), VEC)
    if THREADS > 1024:
        raise NotImplementedError(f"N={N}: registers hold rows of up to {1024 * PACKS * VEC} such columns")
    name = f"{op}_onepass_kernel<{CTYPES[x.dtype]}, {VEC}, {PACKS}, {THREADS}, {BLOCK_M}>"
    run = kernel(op, name, x.device)
    sizes = (np.int64(M), np.int64(N), np.int64(x.stride(0)))
    run((ceil_div(M, BLOCK_M),), (THREADS,), (*rows.pointers, *sizes, np.float32(eps)))
    return y


FEW_ROWS = 256  # from here on, one cluster per row keeps a GPU busy


def cluster(op: str, eps: float, x: torch.Tensor, **parameters: torch.Tensor) -> torch.Tensor:
    rows = checked(op, x, **parameters)
    x, y = rows.x, rows.y
    M, N = x.shape
    if y.numel() == 0:
        return y
    VEC, PACKS = 16 // x.element_size(), 4
    if N % VEC != 0:
        raise NotImplementedError(f"N={N}: TMA copies 16 bytes, {VEC} columns, at a time")
    if vec(x) == 1:
        x = x.clone(memory_format=torch.contiguous_format)
    packs = N // VEC
    of_128 = ceil_div(packs, 128 * PACKS)  # blocks of 128 threads needed
    CLUSTER = 4 if of_128 <= 8 else 8 if of_128 <= 16 else 16
    THREADS = 128 if of_128 <= 4 else 256 if of_128 <= 32 else 512
    if of_128 > 64:
        raise NotImplementedError(f"N={N}: 16 blocks hold rows of {16 * 512 * PACKS * VEC} columns")
    slice_packs = ceil_div(packs, CLUSTER)
    # Several rows per cluster reuse the weights; few, so that the last clusters finish together.
    BLOCK_M = 1 if M < FEW_ROWS else 4 if slice_packs <= 512 else 2
    name = f"{op}_cluster_kernel<{CTYPES[x.dtype]}, {PACKS}, {THREADS}, {CLUSTER}>"
    run = kernel(op, name, x.device, cluster=CLUSTER)
    sizes = (np.int64(M), np.int64(N), np.int64(x.stride(0)), np.int32(slice_packs * VEC), np.int32(BLOCK_M))
    grid = (ceil_div(M, BLOCK_M) * CLUSTER,)
    pointers = rows._replace(x=x).pointers
    run(grid, (THREADS,), (*pointers, *sizes, np.float32(eps)), shared_mem=BLOCK_M * slice_packs * 16)
    return y
