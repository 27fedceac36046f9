"""rms_norm_backward: gradients of rms_norm for x and weight, from the saved 1 / rms of each row."""

from __future__ import annotations

import functools
from dataclasses import replace

import torch

from compare.inputs import ITEM_BYTES, of_input, spared, stored_bytes, tensor
from compare.model.op import Case, Cases, Cost, Op, Output, SensitiveInputs, Tolerance, case
from ops.layer_norm import DTYPES, EPS, NORM_LAYOUTS

Tensors = tuple[torch.Tensor, ...]


def make_inputs(case: Case, generator: torch.Generator, device: torch.device) -> Tensors:
    """``dy[M,N]``, ``x[M,N]``, ``weight[N]`` and ``rstd[M]``, in fp32; a special fill applies to dy alone."""
    usual = replace(case, fill="normal")
    dy = tensor((case["M"], case["N"]), of_input(case, "dy"), generator, device)
    x = tensor((case["M"], case["N"]), of_input(usual, "x"), generator, device)
    weight = tensor((case["N"],), of_input(usual, "weight", dims=1), generator, device)
    # An empty row has no mean.
    rstd = torch.rsqrt(x.float().square().mean(dim=1) + EPS).nan_to_num()
    return dy, x, weight, rstd


def _dx(dy: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, rstd: torch.Tensor) -> torch.Tensor:
    x_hat, dx_hat = x * rstd[:, None], dy * weight
    return rstd[:, None] * (dx_hat - x_hat * (dx_hat * x_hat).mean(dim=1, keepdim=True))


def _dx_terms(dy: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, rstd: torch.Tensor) -> torch.Tensor:
    x_hat, dx_hat = (x * rstd[:, None]).abs(), (dy * weight).abs()
    return rstd[:, None] * (dx_hat + x_hat * (dx_hat * x_hat).mean(dim=1, keepdim=True))


def _dweight(dy: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, rstd: torch.Tensor) -> torch.Tensor:
    return (dy * (x * rstd[:, None])).sum(dim=0)


def _dweight_terms(
    dy: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, rstd: torch.Tensor
) -> torch.Tensor:
    return (dy * (x * rstd[:, None])).abs().sum(dim=0)


def cost(case: Case) -> Cost:
    """Three multiplications and an addition for the mean, four for dx, one addition more for dweight."""
    elements, columns = case["M"] * case["N"], (case["N"],)
    return Cost(
        flops=9 * elements,
        read_bytes=stored_bytes(case.shape, of_input(case, "dy"))
        + stored_bytes(case.shape, of_input(case, "x"))
        + stored_bytes(columns, of_input(case, "weight", dims=1))
        + case["M"] * 4,
        written_bytes=(elements + case["N"]) * ITEM_BYTES[case.dtype],
    )


def tolerance(least: float, case: Case) -> Tolerance:
    """Products and a mean for dx; for dweight a sum over all rows, relative to its terms' magnitudes."""
    return Tolerance(least=least)


def few_terms(inputs: Tensors) -> None:
    """Most elements of dy are 0, along rows and columns: an error of few terms shows."""
    dy = inputs[0]
    index = spared(dy, max(1, dy.shape[1] // 4))
    kept = dy.gather(1, index)
    dy.zero_().scatter_(1, index, kept)


CASES = Cases(
    default=case("bf16", M=8192, N=4096),
    smoke=(
        case("fp32", M=6, N=1024),
        case("fp16", M=5, N=781),
        case("bf16", M=3, N=4100),
    ),
    edge=(
        *(
            case(dtype, M=rows, N=columns)
            for dtype in DTYPES
            for rows, columns in ((0, 0), (0, 16), (16, 0), (1, 1), (3, 1), (5, 127), (4, 128), (130, 33))
        ),
        *(case("bf16", layout, M=4, N=133) for layout in NORM_LAYOUTS if layout != "contiguous"),
        *(case(dtype, "misaligned", M=4, N=128) for dtype in ("fp32", "fp16")),
        *(case(dtype, fill=fill, M=6, N=517) for dtype in DTYPES for fill in ("neg_inf", "nan")),
        case("bf16", M=37, N=136),
        # The largest numbers of fp16; those of the other types have products beyond fp32.
        case("fp16", fill="huge", M=6, N=517),
        # More rows than programs; rows longer than a block's registers.
        case("bf16", M=600, N=72),
        case("fp32", M=2, N=20011),
        case("bf16", M=3, N=40000),
        # More than 2^31 elements.
        case("bf16", M=65537, N=32768),
    ),
    sweep=(
        *(case("bf16", M=8192, N=n) for n in (1024, 2048, 4096, 8192, 16384)),
        case("bf16", M=32768, N=4096),
        case("bf16", M=65536, N=256),
        case("fp16", M=4096, N=781),
        case("fp32", M=8192, N=4096),
        case("bf16", M=1024, N=131072),
    ),
)

OP = Op(
    name="rms_norm_backward",
    summary="gradients dx and dweight of y = x * rstd * weight, with rstd = 1 / rms(x) of each row",
    signature="dy[M,N], x[M,N], weight[N], rstd[M] -> dx[M,N], dweight[N]",
    dims=("M", "N"),
    dtypes=DTYPES,
    layouts=NORM_LAYOUTS,
    make_inputs=make_inputs,
    oracle=_dx,
    magnitude=_dx_terms,
    cost=cost,
    tolerance=functools.partial(tolerance, 8.0),
    sensitive_inputs=SensitiveInputs(few_terms),
    cases=CASES,
    further=(Output(_dweight, functools.partial(tolerance, 8.0), _dweight_terms),),
)
