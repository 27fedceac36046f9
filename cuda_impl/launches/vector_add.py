"""vector_add in CUDA: ``z = x + y``, with the kernels of ``kernels/vector_add.cuh``."""

from __future__ import annotations

from compare.arguments import check_same
from cuda_impl.buffers import Tensor, empty_like
from cuda_impl.launch import Kernel, Launch, Plan, ceil_div, int64, variant
from cuda_impl.layouts import contiguous

SIZES = (64, 128, 256, 512, 1024)  # threads per block
SCALAR = Kernel("vector_add_scalar_kernel<{T}>")
VECTORIZED = Kernel(
    "vector_add_vectorized_kernel<{T}, {VEC_AND_VECTORS}>",
    VEC_AND_VECTORS=lambda T: [(16 // T.itemsize, 2), (1, 32 // T.itemsize)],
)


@variant("vector_add", "scalar", kernels=[SCALAR], level="naive", tunable={"THREADS": SIZES})
def scalar(x: Tensor, y: Tensor, *, THREADS: int = 256) -> Plan:
    """``z[N] = x[N] + y[N]``, one element per thread."""
    check_same("vector_add", 1, x=x, y=y)
    z, N = empty_like(x), x.numel()
    args = (contiguous(x), contiguous(y), z, *int64(N))
    return Plan(z, Launch(SCALAR(x.dtype), ceil_div(N, THREADS), THREADS, args))


@variant(
    "vector_add",
    "vectorized",
    kernels=[VECTORIZED],
    level="tiled",
    tunable={"THREADS": SIZES, "VECTORS": (1, 2, 4)},
    matches="triton.blocked",
)
def vectorized(x: Tensor, y: Tensor, *, THREADS: int = 256, VECTORS: int = 2) -> Plan:
    """``z[N] = x[N] + y[N]``, 16-byte vectorized; inputs that are not 16-byte aligned element by element.

    Two 16-byte vectors per thread put four loads in flight.
    """
    check_same("vector_add", 1, x=x, y=y)
    dense = (contiguous(x), contiguous(y))
    VEC = 16 // x.element_size()
    if any(operand.data_ptr() % 16 != 0 for operand in dense):
        VEC, VECTORS = 1, VECTORS * VEC
    z, N = empty_like(x), x.numel()
    args = (*dense, z, *int64(N))
    run = VECTORIZED(x.dtype, VEC_AND_VECTORS=(VEC, VECTORS))
    return Plan(z, Launch(run, ceil_div(N, THREADS * VECTORS * VEC), THREADS, args))
