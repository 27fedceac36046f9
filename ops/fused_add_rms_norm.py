"""fused_add_rms_norm: x added to the residual stream, then rms_norm of the sum, as in each transformer layer.

The sum h is rounded to the inputs' dtype, and it is the rounded h that is squared and normalised: then y is
the norm of the h that is returned, and fusing changes no bit of what `x + residual` and rms_norm compute.  So
vLLM's fused_add_rms_norm defines it.  QuACK's rmsnorm normalises the sum in fp32 and rounds it only to store
it: another y, by up to a rounding of the dtype.

Cases and eps are layer_norm's.  As in rms_norm, no row mixes infinite and finite elements.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from compare.inputs import ITEM_BYTES, ROWS_OF_FEW, TORCH_DTYPES, keep_few, of_input, stored_bytes, tensor
from compare.model.op import Case, Cost, Op, Output, SensitiveInputs, Tolerance, case
from ops import layer_norm, rms_norm

Tensors = tuple[torch.Tensor, ...]

STREAM = 16.0
"""How much larger than x the residual is in every fourth row, as after many layers: h loses digits of x."""

SMALL = 2.0**-9
"""What every fourth row is multiplied by: its mean square is about eps."""


def make_inputs(case: Case, generator: torch.Generator, device: torch.device) -> Tensors:
    """``x[M,N]``, ``residual[M,N]`` and ``weight[N]``; a special fill but zeros applies to x alone."""
    x, weight = rms_norm.make_inputs(case, generator, device)
    fill = case.fill if case.fill == "zero" else "normal"
    of_residual = of_input(replace(case, fill=fill), "residual")
    residual = tensor((case["M"], case["N"]), of_residual, generator, device)
    if case.fill == "normal" and case.layout != "expanded" and device.type != "meta":
        residual[1::4] *= STREAM
        x[2::4] *= SMALL
        residual[2::4] *= SMALL
    return x, residual, weight


def oracle_options(case: Case) -> dict[str, torch.dtype]:
    return {"dtype": TORCH_DTYPES[case.dtype]}


def _h(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return (x + residual).to(dtype).double()


def _y(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return rms_norm.oracle(_h(x, residual, weight, dtype), weight)


def cost(case: Case) -> Cost:
    """An addition more than rms_norm."""
    elements, columns = case["M"] * case["N"], (case["N"],)
    return Cost(
        flops=5 * elements,
        read_bytes=stored_bytes(case.shape, of_input(case, "x"))
        + stored_bytes(case.shape, of_input(case, "residual"))
        + stored_bytes(columns, of_input(case, "weight", dims=1)),
        written_bytes=2 * elements * ITEM_BYTES[case.dtype],
    )


def exact(case: Case) -> Tolerance:
    """A sum in fp32, rounded to fp16 or bf16, is the rounded sum: 24 digits are enough for both."""
    return Tolerance(least=0.0, exact=True)


def few_terms(inputs: Tensors) -> None:
    """Most elements of a row of x and residual are 0: an error of few terms shows."""
    x, residual, _ = inputs
    layer_norm.few_terms((x,))
    keep_few(residual, min(ROWS_OF_FEW, len(residual)))


LAYOUTS = (*layer_norm.NORM_LAYOUTS, "residual_misaligned", "residual_padded")

CASES = replace(
    layer_norm.CASES,
    edge=(
        *layer_norm.CASES.edge,
        # Only one of the two inputs starts where the outputs' rows do.
        *(
            case(dtype, layout, M=5, N=columns)
            for dtype in layer_norm.DTYPES
            for layout in ("residual_misaligned", "residual_padded")
            for columns in (128, 133)
        ),
    ),
)

OP = Op(
    name="fused_add_rms_norm",
    summary="y = h / sqrt(mean(h^2) + eps) * weight with h = x + residual, rounded, along each row",
    signature="x[M,N], residual[M,N], weight[N] -> y[M,N], h[M,N]",
    dims=("M", "N"),
    dtypes=layer_norm.DTYPES,
    layouts=LAYOUTS,
    make_inputs=make_inputs,
    oracle=_y,
    oracle_options=oracle_options,
    cost=cost,
    tolerance=rms_norm.tolerance,
    sensitive_inputs=SensitiveInputs(few_terms),
    cases=CASES,
    further=(Output(_h, exact),),
    independent="M",
)
