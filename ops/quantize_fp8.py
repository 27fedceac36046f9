"""quantize_fp8: rows, or groups of their columns, as e4m3 with a scale each.

``scale = max(|x|) / 448`` of a row (``group=0``) or of ``group`` columns of it, and ``values = x / scale``,
rounded to e4m3, whose largest number is 448.  With ``group=128`` the scales are those of DeepSeek-V3's
activations, with ``group=0`` those of a rowwise-scaled matrix product.

Rounding is the work, so every code counts: the quotient is rounded to fp32, as PyTorch divides, and then to
e4m3, both to nearest even.  A maximum below 1e-12 counts as 1e-12, so that a row of zeros has a scale.  An
infinity makes the scale of its group infinite: finite elements become 0 and infinite ones NaN.  NaN makes the
scale NaN, and with it the group.  The sign of a zero is open.
"""

from __future__ import annotations

import torch
from torch.nn.functional import pad

from compare.inputs import ITEM_BYTES, stored_bytes, tensor
from compare.model.op import FP8, Case, Cases, Cost, Op, Output, Tolerance, case

LARGEST = 448.0
LEAST = 1e-12
"""The least maximum that a scale is made of."""

_FACTORS = (1 / 3, 2.0**-20 / 3, 2.0**-45 / 3, 1.0)
"""Rows take turns: the third's maximum counts as `LEAST`, and only the fourth's has few digits."""

_TIED = 1.75 / 64
"""The scale of rows with ties.  A product of a tie with its rounded reciprocal is no tie."""


def make_inputs(case: Case, generator: torch.Generator, device: torch.device) -> tuple[torch.Tensor]:
    """``x[M,K]``; with the default fill, rows of four magnitudes, and rows with ties.

    A tie is a quotient in the middle between two codes.  A division that is off by one rounding misses it.
    """
    x = tensor((case["M"], case["K"]), case, generator, device)
    if case.fill == "normal" and case.layout != "expanded" and device.type != "meta":
        for row, factor in enumerate(_FACTORS):
            x[row::4] *= factor
        tied = x[3::8]
        tied[:, ::64] = _TIED * LARGEST
        ties = _midpoints().to(x.device, x.dtype) * _TIED
        tied[:, 2::5] = ties[torch.arange(tied[:, 2::5].shape[1], device=x.device) % len(ties)]
    return (x,)


def _midpoints() -> torch.Tensor:
    """The middle between each two neighbouring positive codes."""
    positive = torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    return (positive[1:] + positive[:-1]) / 2


def options(case: Case) -> dict[str, int]:
    return {"group": case["group"]}


def _groups(x: torch.Tensor, group: int) -> torch.Tensor:
    """``x[M,K]`` as ``[M, groups, columns]``; zeros fill the last group."""
    M, K = x.shape
    columns = group or max(K, 1)
    groups = -(-K // columns) if group else 1
    return pad(x, (0, groups * columns - K)).view(M, groups, columns)


def _scales(grouped: torch.Tensor) -> torch.Tensor:
    """Of `_groups`, in fp32: ``[M, groups]``."""
    largest = grouped.abs().amax(2).float().clamp(min=LEAST)
    return largest / torch.full_like(largest, LARGEST)  # a GPU multiplies by the reciprocal of a number


def oracle(x: torch.Tensor, group: int) -> torch.Tensor:
    grouped = _groups(x, group)
    quotients = grouped.float() / _scales(grouped)[:, :, None]
    return quotients.to(torch.float8_e4m3fn).double().flatten(1)[:, : x.shape[1]]


def oracle_scales(x: torch.Tensor, group: int) -> torch.Tensor:
    found = _scales(_groups(x, group)).double()
    return found if group else found[:, 0]


def cost(case: Case) -> Cost:
    """A magnitude, a maximum and a division of each element."""
    M, K, group = case.shape
    scales = M * -(-K // group) if group else M
    return Cost(
        flops=3 * M * K,
        read_bytes=stored_bytes((M, K), case),
        written_bytes=M * K * ITEM_BYTES[FP8] + scales * ITEM_BYTES["fp32"],
    )


def exact(case: Case) -> Tolerance:
    return Tolerance(least=0.0, exact=True)


DTYPES = ("fp32", "fp16", "bf16")
_LAYOUTS = ("padded", "transposed", "sliced", "misaligned", "expanded")

CASES = Cases(
    default=case("bf16", M=8192, K=8192, group=0),
    smoke=(
        case("fp32", M=6, K=1024, group=128),
        case("fp16", M=5, K=781, group=0),
        case("bf16", M=5, K=1200, group=128),
    ),
    edge=(
        *(
            case(dtype, M=rows, K=columns, group=group)
            for dtype in DTYPES
            for rows, columns, group in (
                *((0, 16, 0), (16, 0, 0), (16, 0, 128), (1, 1, 0), (3, 1, 128)),
                *((5, 127, 0), (4, 128, 128), (3, 129, 128), (3, 131, 5), (4, 96, 8)),
            )
        ),
        *(case(dtype, layout, M=4, K=133, group=0) for dtype in DTYPES for layout in _LAYOUTS),
        # Rows of whole 16-byte vectors that are not 16-byte aligned.
        *(
            case(dtype, layout, M=4, K=256, group=128)
            for dtype in DTYPES
            for layout in ("padded", "misaligned")
        ),
        # Several rows per block, and a partial last block.
        *(case(dtype, M=29, K=16, group=0) for dtype in DTYPES),
        *(
            case(dtype, fill=fill, M=6, K=K, group=group)
            for dtype in DTYPES
            for fill in ("huge", "neg_inf", "nan")
            for K, group in ((517, 0), (512, 128))  # the second in whole vectors
        ),
        # Rows that need many threads.
        case("bf16", M=2, K=16392, group=0),
        case("fp32", M=2, K=9001, group=0),
        case("bf16", M=65537, K=32768, group=0),
        case("bf16", M=2, K=2**30 + 3, group=128),
    ),
    sweep=(
        *(case("bf16", M=8192, K=K, group=group) for K in (1024, 4096, 8192, 16384) for group in (0, 128)),
        *(case("bf16", M=128, K=7168, group=group) for group in (0, 128)),
        case("fp16", M=8192, K=8192, group=0),
        case("fp32", M=8192, K=8192, group=0),
        case("bf16", M=4096, K=7169, group=0),
    ),
)

OP = Op(
    name="quantize_fp8",
    summary="values = x / scales in e4m3, scales = max(|x|) / 448: of each row or group of columns",
    signature="x[M,K] -> values[M,K], scales[M,K/group]",
    dims=("M", "K", "group"),
    dtypes=DTYPES,
    make_inputs=make_inputs,
    oracle=oracle,
    options=options,
    cost=cost,
    tolerance=exact,
    cases=CASES,
    output_dtype=FP8,
    further=(Output(oracle_scales, exact, dtype="fp32"),),
    independent="M",
)
