"""An op with two outputs and an option, as ``--load`` takes it: y = x - peak, peak = max or min of each row.

Written as a user would, in PyTorch and Triton, and tests/checking/test_outputs.py breaks it.
"""

import torch
import triton
import triton.language as tl

from compare.inputs import tensor
from compare.model.op import Cases, Cost, Op, Output, Tolerance, case
from compare.registry import implementation, register_op


def peak_of(x: torch.Tensor, lowest: bool) -> torch.Tensor:
    return x.amin(1) if lowest else x.amax(1)


register_op(
    Op(
        name="below_peak",
        summary="y = x - peak, peak = max(x) of each row",
        signature="x[M,N] -> y[M,N], peak[M]",
        dims=("M", "N", "LOWEST"),
        dtypes=("fp32", "fp16"),
        make_inputs=lambda case, generator, device: (
            tensor((case["M"], case["N"]), case, generator, device),
        ),
        oracle=lambda x, lowest: x - peak_of(x, lowest)[:, None],
        options=lambda case: {"lowest": bool(case["LOWEST"])},
        cost=lambda case: Cost(case["M"] * case["N"], 4 * case["M"] * case["N"], 4 * case["M"] * case["N"]),
        tolerance=lambda case: Tolerance(least=4.0),
        cases=Cases(
            default=case(M=64, N=96, LOWEST=0),
            smoke=(case(M=5, N=33, LOWEST=1), case("fp16", M=4, N=16, LOWEST=0)),
            edge=(case(M=0, N=16, LOWEST=0),),
            sweep=(case(M=64, N=1024, LOWEST=1),),
        ),
        further=(Output(peak_of, lambda case: Tolerance(least=0.0), dtype="fp32"),),
        independent="M",
    )
)


@implementation("below_peak", "torch.eager", level="vendor")
def eager(x: torch.Tensor, *, lowest: bool) -> tuple[torch.Tensor, torch.Tensor]:
    peak = peak_of(x.float(), lowest)
    return (x.float() - peak[:, None]).to(x.dtype), peak


@triton.jit
def below_peak_kernel(x_ptr, y_ptr, peak_ptr, N, LOWEST: tl.constexpr, BLOCK_N: tl.constexpr):
    m, n = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK_N)
    sign = -1.0 if LOWEST else 1.0
    x = tl.load(x_ptr + m * N + n, mask=n < N, other=-sign * float("inf")).to(tl.float32)
    peak = sign * tl.max(sign * x, axis=0)
    tl.store(y_ptr + m * N + n, x - peak, mask=n < N)
    tl.store(peak_ptr + m, peak)


@implementation("below_peak", "triton.onepass", level="tiled")
def onepass(x: torch.Tensor, *, lowest: bool) -> tuple[torch.Tensor, torch.Tensor]:
    x = x.contiguous()
    M, N = x.shape
    y = torch.empty_like(x)
    peak = torch.empty(M, dtype=torch.float32, device=x.device)
    if y.numel() > 0:
        below_peak_kernel[(M,)](x, y, peak, N, LOWEST=lowest, BLOCK_N=triton.next_power_of_2(N))
    return y, peak
