"""A whole op in one file, as ``--load`` takes it: scale_shift, ``x[N] -> y[N]``, y = 2 x + 1.

tests/test_house.py compares it.  Written as a user would, all three ways.
"""

import numpy as np
import torch
import triton
import triton.language as tl

from compare.inputs import ITEM_BYTES, tensor
from compare.model.op import Cases, Cost, Op, Tolerance, case
from compare.registry import implementation, register_op
from cuda_impl.loader import kernel

register_op(
    Op(
        name="scale_shift",
        summary="y = 2 x + 1",
        signature="x[N] -> y[N]",
        dims=("N",),
        dtypes=("fp32",),
        make_inputs=lambda case, generator, device: (tensor(case.shape, case, generator, device),),
        oracle=lambda x: 2 * x + 1,
        cost=lambda case: Cost(2 * case["N"], case["N"] * ITEM_BYTES["fp32"], case["N"] * ITEM_BYTES["fp32"]),
        tolerance=lambda case: Tolerance(least=2.0),
        cases=Cases(
            default=case(N=1000), smoke=(case(N=1000),), edge=(case(N=0), case(N=1)), sweep=(case(N=1 << 20),)
        ),
        independent="N",
    )
)


@implementation("scale_shift", "torch.eager", level="vendor")
def eager(x: torch.Tensor) -> torch.Tensor:
    return torch.add(torch.ones_like(x), x, alpha=2)


@triton.jit
def scale_shift_kernel(x_ptr, y_ptr, N, BLOCK_N: tl.constexpr):
    n = tl.program_id(0).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    x = tl.load(x_ptr + n, mask=n < N)
    tl.store(y_ptr + n, 2 * x + 1, mask=n < N)


@implementation("scale_shift", "triton.blocked", level="tiled")
def blocked(x: torch.Tensor) -> torch.Tensor:
    x = x.contiguous()
    y = torch.empty_like(x)
    if x.numel() > 0:
        scale_shift_kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK_N=256)
    return y


SOURCE = r"""
__global__ void scale_shift_kernel(const float* x_ptr, float* y_ptr, long long N) {
    const long long n = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (n < N) y_ptr[n] = 2.0f * x_ptr[n] + 1.0f;
}
"""


@implementation("scale_shift", "cupy.scalar", level="naive")
def scalar(x: torch.Tensor) -> torch.Tensor:
    x = x.contiguous()
    y = torch.empty_like(x)
    if x.numel() > 0:
        launch = kernel(SOURCE, "scale_shift_kernel", x.device)
        launch((-(-x.numel() // 256),), (256,), (x.data_ptr(), y.data_ptr(), np.int64(x.numel())))
    return y
