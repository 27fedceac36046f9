"""vector_add through cupy: z = x + y, with the kernels of ``kernels/vector_add.cuh``."""

from __future__ import annotations

import numpy as np
import torch

from compare.arguments import check_same
from compare.registry import implementation
from cuda_impl.loader import kernel

CTYPES = {torch.float32: "float", torch.float16: "__half", torch.bfloat16: "__nv_bfloat16"}
SIZES = (64, 128, 256, 512, 1024)  # threads per block


@implementation("vector_add", "cupy.scalar", level="naive", tunable={"THREADS": SIZES})
def scalar(x: torch.Tensor, y: torch.Tensor, *, THREADS: int = 256) -> torch.Tensor:
    """``z[N] = x[N] + y[N]``, one element per thread."""
    check_same("vector_add", 1, x=x, y=y)
    x, y = x.contiguous(), y.contiguous()
    z = torch.empty_like(x)
    N = x.numel()
    if N == 0:
        return z
    add = kernel("vector_add", f"vector_add_scalar_kernel<{CTYPES[x.dtype]}>", x.device)
    add((-(-N // THREADS),), (THREADS,), (x.data_ptr(), y.data_ptr(), z.data_ptr(), np.int64(N)))
    return z


@implementation(
    "vector_add",
    "cupy.vectorized",
    level="tiled",
    tunable={"THREADS": SIZES, "PACKS": (1, 2, 4)},
    matches="triton.blocked",
)
def vectorized(x: torch.Tensor, y: torch.Tensor, *, THREADS: int = 256, PACKS: int = 2) -> torch.Tensor:
    """``z[N] = x[N] + y[N]``, 16-byte vectorized; inputs that are not 16-byte aligned use `scalar`.

    Two 16-byte vectors per thread put four loads in flight.
    """
    check_same("vector_add", 1, x=x, y=y)
    x, y = x.contiguous(), y.contiguous()
    if (x.data_ptr() | y.data_ptr()) % 16 != 0:
        return scalar(x, y)
    z = torch.empty_like(x)
    N = x.numel()
    if N == 0:
        return z
    elements = THREADS * PACKS * 16 // x.element_size()  # per block
    add = kernel("vector_add", f"vector_add_vectorized_kernel<{CTYPES[x.dtype]}, {PACKS}>", x.device)
    add((-(-N // elements),), (THREADS,), (x.data_ptr(), y.data_ptr(), z.data_ptr(), np.int64(N)))
    return z
