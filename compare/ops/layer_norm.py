"""layer_norm: each row brought to mean 0 and variance 1, then scaled and shifted column by column."""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from compare.inputs import ITEM_BYTES, of_input, stored_bytes, tensor
from compare.spec import LAYOUTS, Case, Cases, Cost, Op, Tolerance, case

EPS = 1e-5
"""Added to the variance: PyTorch's own default."""

FAR = 1000.0
"""The mean of every fourth row, whose variance is about 1, as the activations behind some layers are."""


def make_inputs(
    case: Case, generator: torch.Generator, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """``x[M,N]``, ``weight[N]`` and ``bias[N]``; a fill other than the usual is x's alone.

    Every fourth row lies far from 0: there the mean of the squares less the square of the mean, which is the
    variance only on paper, has none of its digits right in fp32.
    """
    x = tensor((case["M"], case["N"]), of_input(case, "x"), generator, device)
    if case.fill == "normal" and case.layout != "expanded" and device.type != "meta":
        x[1::4] += FAR
    weight, bias = (
        tensor((case["N"],), of_input(replace(case, fill="normal"), "weight", dims=1), generator, device)
        for _ in range(2)
    )
    return x, weight, bias


def oracle(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    deviation = x - x.mean(dim=1, keepdim=True)
    variance = deviation.square().mean(dim=1, keepdim=True)
    return deviation / torch.sqrt(variance + EPS) * weight + bias


def magnitude(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """x and the mean taken from it, scaled; what the mean itself may be off by goes with its terms."""
    variance = x.var(dim=1, keepdim=True, correction=0)
    terms = x.abs()
    # In place: of a row of a billion elements a GPU's memory holds but few in fp64.
    terms += terms.mean(dim=1, keepdim=True)
    terms /= torch.sqrt(variance + EPS)
    terms *= weight.abs()
    terms += bias.abs()
    return terms


def cost(case: Case) -> Cost:
    """An addition for the mean; a subtraction, a square and an addition for the variance; four for y."""
    elements = case["M"] * case["N"]
    parameter_bytes = stored_bytes((case["N"],), of_input(case, "weight", dims=1))
    return Cost(
        flops=8 * elements,
        read_bytes=stored_bytes(case.shape, of_input(case, "x")) + 2 * parameter_bytes,
        written_bytes=elements * ITEM_BYTES[case.dtype],
    )


def tolerance(case: Case) -> Tolerance:
    """Two sums by halves lose log2(N) at worst; root, scaling and shifting a few roundings."""
    return Tolerance(least=8.0 + math.log2(max(case["N"], 1)))


DTYPES = ("fp32", "fp16", "bf16")
NORM_LAYOUTS = (*LAYOUTS, "weight_misaligned", "weight_sliced")
_SWEPT = (
    (1, 131072),
    (32, 1024),
    (4096, 128),
    (4096, 1024),
    (4096, 4096),
    # Rows of every length with 2^27 elements in all.
    *((2 ** (27 - power), 2**power) for power in (10, 12, 13, 14, 15, 16, 17, 18)),
)

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
            for rows, columns in ((0, 16), (16, 0), (1, 1), (3, 1), (5, 127), (4, 128), (3, 129))
        ),
        # Rows of whole packs that start between two 16-byte boundaries, and weights that do.
        *(
            case(dtype, layout, M=4, N=128)
            for dtype in ("fp32", "fp16")
            for layout in ("padded", "misaligned", "weight_misaligned")
        ),
        *(case("bf16", layout, M=4, N=133) for layout in NORM_LAYOUTS if layout != "contiguous"),
        # Rows that share a block, and the last are not as many as it takes.
        *(case(dtype, M=29, N=16) for dtype in DTYPES),
        *(case(dtype, fill=fill, M=6, N=517) for dtype in DTYPES for fill in ("neg_inf", "nan")),
        # The largest numbers of fp16; the squares of the others' are beyond fp32.
        case("fp16", fill="huge", M=6, N=517),
        # A row for many threads, and one that outgrows the registers of a block.
        case("bf16", M=2, N=16392),
        case("fp32", M=2, N=20011),
        case("bf16", M=65537, N=32768),
        case("fp32", M=16385, N=131072),
        case("bf16", M=2, N=2**30 + 3),
    ),
    sweep=(
        *(case("bf16", M=m, N=n) for m, n in _SWEPT),
        case("fp16", M=4096, N=781),
        case("fp32", M=32768, N=4096),
        case("fp32", M=1024, N=131072),
    ),
)

OP = Op(
    name="layer_norm",
    summary="y = (x - mean(x)) / sqrt(variance(x) + eps) * weight + bias along each row",
    signature="x[M,N], weight[N], bias[N] -> y[M,N]",
    dims=("M", "N"),
    dtypes=DTYPES,
    layouts=NORM_LAYOUTS,
    make_inputs=make_inputs,
    oracle=oracle,
    magnitude=magnitude,
    cost=cost,
    tolerance=tolerance,
    cases=CASES,
    independent="M",
)
