"""An op with two outputs, as ``--load`` takes it: x[M,N] -> y[M,N], peak[M], y = x - peak, peak = max of x.

Written as a user would, in PyTorch and Triton, and tests/checking/test_outputs.py breaks it.
"""

import torch
import triton
import triton.language as tl

from compare.inputs import tensor
from compare.registry import implementation, register_op
from compare.spec import Cases, Cost, Op, Output, Tolerance, case


def peak_of(x: torch.Tensor) -> torch.Tensor:
    return x.amax(1)


register_op(
    Op(
        name="below_peak",
        summary="y = x - peak, peak = max(x) of each row",
        signature="x[M,N] -> y[M,N], peak[M]",
        dims=("M", "N"),
        dtypes=("fp32", "fp16"),
        make_inputs=lambda case, generator, device: (tensor(case.shape, case, generator, device),),
        oracle=lambda x: x - x.amax(1, keepdim=True),
        cost=lambda case: Cost(case["M"] * case["N"], 4 * case["M"] * case["N"], 4 * case["M"] * case["N"]),
        tolerance=lambda case: Tolerance(least=4.0),
        cases=Cases(
            default=case(M=64, N=96),
            smoke=(case(M=5, N=33), case("fp16", M=4, N=16)),
            edge=(case(M=0, N=16),),
            sweep=(case(M=64, N=1024),),
        ),
        further=(Output(peak_of, lambda case: Tolerance(least=0.0), dtype="fp32"),),
        independent="M",
    )
)


@implementation("below_peak", "torch.eager", level="vendor")
def eager(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    peak = x.float().amax(1)
    return (x.float() - peak[:, None]).to(x.dtype), peak


@triton.jit
def below_peak_kernel(x_ptr, y_ptr, peak_ptr, N, BLOCK_N: tl.constexpr):
    m, n = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK_N)
    x = tl.load(x_ptr + m * N + n, mask=n < N, other=-float("inf")).to(tl.float32)
    peak = tl.max(x, axis=0)
    tl.store(y_ptr + m * N + n, x - peak, mask=n < N)
    tl.store(peak_ptr + m, peak)


@implementation("below_peak", "triton.onepass", level="tiled")
def onepass(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    x = x.contiguous()
    M, N = x.shape
    y = torch.empty_like(x)
    peak = torch.empty(M, dtype=torch.float32, device=x.device)
    if y.numel() > 0:
        below_peak_kernel[(M,)](x, y, peak, N, BLOCK_N=triton.next_power_of_2(N))
    return y, peak
