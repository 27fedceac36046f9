"""rms_norm: each row divided by its root mean square, then scaled per column.

Cases and eps are layer_norm's, of which this is a part.

A row with both infinite and finite elements is left undefined, because PyTorch's own two kernels differ.  The
kernel for rows of whole 16-byte vectors gives 0 where x is finite, as the formula does.  The other, which
derives the mean square from mean and variance, gives NaN throughout.  A row with a NaN is NaN throughout, and
so is a row of infinities only.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from compare.inputs import ITEM_BYTES, of_input, stored_bytes, tensor
from compare.model.op import Case, Cost, Op, SensitiveInputs, Tolerance
from ops.layer_norm import CASES, DTYPES, EPS, FAR, NORM_LAYOUTS, few_terms


def make_inputs(
    case: Case, generator: torch.Generator, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """``x[M,N]`` and ``weight[N]``; a special fill applies to x alone.

    No row mixes infinite and finite elements: there `FAR` replaces infinity.
    """
    x = tensor((case["M"], case["N"]), of_input(case, "x"), generator, device)
    if case.fill != "normal" and case.layout != "expanded" and device.type != "meta":
        undefined = x.isinf() & x.isfinite().any(dim=1, keepdim=True)
        x[undefined] = x[undefined].sign() * FAR
    weight = tensor((case["N"],), of_input(replace(case, fill="normal"), "weight", dims=1), generator, device)
    return x, weight


def oracle(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    mean_square = x.square().mean(dim=1, keepdim=True)
    return x / torch.sqrt(mean_square + EPS) * weight


def cost(case: Case) -> Cost:
    """A square and an addition for the mean square, two multiplications for y."""
    elements = case["M"] * case["N"]
    return Cost(
        flops=4 * elements,
        read_bytes=stored_bytes(case.shape, of_input(case, "x"))
        + stored_bytes((case["N"],), of_input(case, "weight", dims=1)),
        written_bytes=elements * ITEM_BYTES[case.dtype],
    )


def tolerance(case: Case) -> Tolerance:
    """Root and scale, relative to the element itself: on a GPU up to 3.4 roundings, and 4.1 in all."""
    return Tolerance(least=7.0)


OP = Op(
    name="rms_norm",
    summary="y = x / sqrt(mean(x^2) + eps) * weight along each row",
    signature="x[M,N], weight[N] -> y[M,N]",
    dims=("M", "N"),
    dtypes=DTYPES,
    layouts=NORM_LAYOUTS,
    make_inputs=make_inputs,
    oracle=oracle,
    cost=cost,
    tolerance=tolerance,
    sensitive_inputs=SensitiveInputs(few_terms),
    cases=CASES,
    independent="M",
)
