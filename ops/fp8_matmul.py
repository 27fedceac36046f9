"""fp8_matmul: the product of two fp8 matrices with a scale for each row of a and each row of b.

The layout of rowwise fp8 training and inference: scales are constant along K, so they are applied once, to
the finished sum.  b is stored by its columns, ``b[N,K]``, as Hopper's 8-bit tensor cores read it.

How the sum is accumulated is part of an implementation's terms.  Hopper's tensor cores add products of fp8
with 13 bits behind the leading one (``fp22``, which PyTorch calls fast accumulation).  ``fp32``: such sums
end after 128 terms and are added in fp32 registers.

Source: Micikevicius et al., "FP8 Formats for Deep Learning" (2022); DeepSeek-AI, "DeepSeek-V3 Technical
Report" (2024), section 3.3.2, on the accumulator.
"""

from __future__ import annotations

import math

import torch

from compare.model.op import FP8, Case, Op, Tolerance
from ops.int8_matmul import LAYOUTS_TAKEN, cases_of, cost, matrices_and_scales, oracle


def make_inputs(case: Case, generator: torch.Generator, device: torch.device) -> tuple[torch.Tensor, ...]:
    """``a[M,K]``, ``b[N,K]``, ``scale_a[M]`` and ``scale_b[N]``, as int8_matmul's."""
    return matrices_and_scales(case, generator, device)


def magnitude(a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor) -> torch.Tensor:
    """The sum of the terms' magnitudes: where terms cancel, their rounding errors do not."""
    return oracle(a.abs(), b.abs(), scale_a.abs(), scale_b.abs())


def tolerance(case: Case) -> Tolerance:
    """Error of sums on Hopper's tensor cores, relative to the sum of the products' magnitudes.

    They align the products of 32 of K and the sum so far to the largest of these, and cut off what lies below
    2^-13 of it.  A sum of k terms of random signs is about k^1/2 of one, so each product loses k^1/2 * 2^-14
    on average, and K products, whose signs are random too, K^1/2 times that: 2^-14 of K terms, however many.
    The largest of millions of elements is off by 6 times as much, and 16 are allowed.

    Sums that end after 128 terms lose (128 / K)^1/2 of that.  But if one product is as large as the 127
    others together, each of them loses 2^-14 of it: 2^-11 is allowed to short sums.
    """
    walk = math.sqrt(max(case["K"], 1))
    return Tolerance(least=2.0**13 * min(1.0, 24 / walk), least_rounded=16.0, from_baseline=False)


OP = Op(
    name="fp8_matmul",
    summary="c = a @ b.T of fp8 matrices, with a scale for each row of a and of b",
    signature="a[M,K], b[N,K], scale_a[M], scale_b[N] -> c[M,N]",
    dims=("M", "N", "K"),
    dtypes=(FP8,),
    layouts=LAYOUTS_TAKEN,
    make_inputs=make_inputs,
    oracle=oracle,
    magnitude=magnitude,
    cost=cost,
    tolerance=tolerance,
    cases=cases_of(FP8, fills=("huge", "nan")),
    output_dtype="bf16",
    baseline="torch.fast",
    independent="M",
)
