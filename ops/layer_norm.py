"""layer_norm: each row normalised to mean 0 and variance 1, then scaled and shifted per column."""

from __future__ import annotations

from dataclasses import replace

import torch

from compare.inputs import ITEM_BYTES, ROWS_OF_FEW, of_input, spared, stored_bytes, tensor
from compare.model.op import LAYOUTS, Case, Cases, Cost, Op, SensitiveInputs, Tolerance, case

EPS = 1e-5
"""Added to the variance: PyTorch's default."""

FAR = 1000.0
"""The mean of every fourth row, whose variance is about 1, as after some layers."""


def make_inputs(
    case: Case, generator: torch.Generator, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """``x[M,N]``, ``weight[N]`` and ``bias[N]``; a special fill applies to x alone.

    Every fourth row has a mean far from 0.  There E[x^2] - E[x]^2, equal to the variance only in exact
    arithmetic, has no correct digit in fp32.
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
    """|x| and |mean|, scaled.  The mean's own error is covered by its terms' magnitudes."""
    variance = x.var(dim=1, keepdim=True, correction=0)
    terms = x.abs()
    # In place: for a row of a billion elements a GPU has memory for only a few fp64 copies.
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
    """Root, scale and shift: on a GPU up to 1.3 roundings where the sums are accurate, and 2.4 in all."""
    return Tolerance(least=4.0)


def few_terms(inputs: tuple[torch.Tensor, ...]) -> None:
    """Most elements of a row are 0 and the others pairs of opposites: an error of few terms' variance shows.

    PyTorch's own sums of 2^18 squares lose as much as a division by N - 1 does; its sums of these do not.
    """
    x = inputs[0]
    index = spared(x, min(ROWS_OF_FEW, len(x)))
    kept = x.gather(1, index)
    kept[:, 1::2] = -kept[:, ::2]
    x.zero_().scatter_(1, index, kept)


DTYPES = ("fp32", "fp16", "bf16")
NORM_LAYOUTS = (*LAYOUTS, "weight_misaligned", "weight_sliced")
_SWEPT = (
    (1, 131072),
    (4096, 128),
    (4096, 1024),
    (4096, 4096),
    # 2^27 elements in all, with rows of many lengths.
    *((2 ** (27 - power), 2**power) for power in (12, 13, 15, 16, 17, 18)),
)

UNALIGNED = ((4096, 50257), (4096, 32001), (40000, 3001))

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
        # Rows of whole 16-byte vectors that are not 16-byte aligned, and weights that are not.
        *(
            case(dtype, layout, M=4, N=128)
            for dtype in ("fp32", "fp16")
            for layout in ("padded", "misaligned", "weight_misaligned")
        ),
        *(case("bf16", layout, M=4, N=133) for layout in NORM_LAYOUTS if layout != "contiguous"),
        # Rows that start and end between 16-byte boundaries: without a whole vector, and of many. A long row
        # has several tiles in each block of a cluster, and clusters of 260 rows have several rows each.
        *(case(dtype, M=7, N=15) for dtype in DTYPES),
        case("fp32", M=2, N=262147),
        case("bf16", M=260, N=779),
        # Several rows per block, and a partial last block.
        *(case(dtype, M=29, N=16) for dtype in DTYPES),
        *(case(dtype, fill=fill, M=6, N=517) for dtype in DTYPES for fill in ("neg_inf", "nan")),
        # The largest numbers of fp16; those of the other types have squares beyond fp32.
        case("fp16", fill="huge", M=6, N=517),
        # A row that needs many threads, and one larger than a block's registers.
        case("bf16", M=2, N=16392),
        case("fp32", M=2, N=20011),
        # One that a program's registers hold in part, and which is not aligned.
        case("fp32", M=2, N=40001),
        case("bf16", M=65537, N=32768),
        case("fp32", M=16385, N=131072),
        case("bf16", M=2, N=2**30 + 3),
    ),
    sweep=(
        *(case("bf16", M=m, N=n) for m, n in _SWEPT),
        case("fp16", M=4096, N=781),
        case("fp32", M=1024, N=131072),
        case("fp32", M=512, N=262144),
        # Rows that start anywhere between 16-byte boundaries.
        *(case("bf16", M=m, N=n) for m, n in UNALIGNED),
        case("fp32", M=4096, N=50257),
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
    sensitive_inputs=SensitiveInputs(few_terms),
    cases=CASES,
    independent="M",
)
