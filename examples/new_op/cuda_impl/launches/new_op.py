"""new_op in CUDA: y = x * x, with the kernel of ``kernels/new_op.cuh``."""

from __future__ import annotations

from compare.arguments import check_same
from cuda_impl.buffers import Tensor, empty_like
from cuda_impl.launch import Kernel, Launch, Plan, ceil_div, int64, variant
from cuda_impl.layouts import contiguous

THREADS = 256  # per block
SCALAR = Kernel("new_op_scalar_kernel<{T}>")


@variant("new_op", "scalar", kernels=[SCALAR], level="naive")
def scalar(x: Tensor) -> Plan:
    """``y[N] = x[N] * x[N]``, one element per thread."""
    check_same("new_op", 1, x=x)
    y, N = empty_like(x), x.numel()
    return Plan(y, Launch(SCALAR(x.dtype), ceil_div(N, THREADS), THREADS, (contiguous(x), y, *int64(N))))
