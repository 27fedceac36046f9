"""all_reduce: every GPU of a host has a vector, and gets the sum of all.  NVLink traffic only."""

from __future__ import annotations

import torch

from compare.inputs import ITEM_BYTES, tensor
from compare.model.op import ROUNDOFF, Case, Cases, Cost, Op, Tolerance, case


def make_inputs(case: Case, generator: torch.Generator, device: torch.device) -> tuple[torch.Tensor]:
    """``x[D,N]``: rank d has x[d]."""
    return (tensor(case.shape, case, generator, device),)


def of_rank(inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """``x[N]``, the addresses ``peers[3,D]`` and the counters ``epochs[2,BLOCKS]`` of a rank."""
    (x,) = inputs
    peers = x.new_empty(3, len(x), dtype=torch.int64)
    return x[0], peers, x.new_empty(2, 1, dtype=torch.int32)


def oracle(x: torch.Tensor) -> torch.Tensor:
    return x.sum(0)


def magnitude(x: torch.Tensor) -> torch.Tensor:
    return x.abs().sum(0)


def cost(case: Case) -> Cost:
    """Of one GPU: what it has to get from the others and to send them, as in a ring."""
    nbytes = 2 * (case["D"] - 1) * case["N"] * ITEM_BYTES[case.dtype] // max(1, case["D"])
    return Cost(flops=(case["D"] - 1) * case["N"], read_bytes=nbytes, written_bytes=nbytes)


def tolerance(case: Case) -> Tolerance:
    """Two terms are rounded once.  More may be rounded to x's dtype at every step, as in NCCL's ring."""
    steps = max(0, case["D"] - 2)
    return Tolerance(least=1.0 + steps * ROUNDOFF[case.dtype] / ROUNDOFF["fp32"], from_baseline=False)


DTYPES = ("fp32", "fp16", "bf16")

CASES = Cases(
    default=case("bf16", D=2, N=2**15),
    smoke=tuple(case(dtype, D=2, N=20_013) for dtype in DTYPES),
    edge=(
        *(case(dtype, D=2, N=size) for dtype in DTYPES for size in (0, 1, 2, 7, 1025, 300_001)),
        *(case(dtype, fill=fill, D=2, N=5003) for dtype in DTYPES for fill in ("huge", "neg_inf", "nan")),
        case("bf16", D=2, N=2**25 + 3),
    ),
    sweep=tuple(case("bf16", D=2, N=2**power) for power in (11, 13, 15, 17, 18, 19, 21, 23, 25, 27, 29)),
)

OP = Op(
    name="all_reduce",
    summary="y[n] = sum over GPUs d of x[d,n], on each: traffic between GPUs",
    signature="x[D,N] -> y[N]",
    dims=("D", "N"),
    dtypes=DTYPES,
    make_inputs=make_inputs,
    oracle=oracle,
    magnitude=magnitude,
    cost=cost,
    tolerance=tolerance,
    cases=CASES,
    baseline="torch.nccl",
    layouts=("contiguous",),
    of_rank=of_rank,
    independent="N",
)
