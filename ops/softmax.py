"""softmax: each row's exponentials over their sum, shifted by the row's maximum to avoid overflow."""

from __future__ import annotations

import torch

from compare.inputs import ITEM_BYTES, keep_few_exponentials, stored_bytes, tensor
from compare.model.op import Case, Cases, Cost, Invariant, Op, SensitiveInputs, Tolerance, case


def make_inputs(case: Case, generator: torch.Generator, device: torch.device) -> tuple[torch.Tensor]:
    """``x[M,N]``."""
    return (tensor(case.shape, case, generator, device),)


def oracle(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, dim=-1)


def cost(case: Case) -> Cost:
    """Maximum, subtraction, exponential, sum and division: one operation each per element."""
    elements = case["M"] * case["N"]
    return Cost(
        flops=5 * elements,
        read_bytes=stored_bytes(case.shape, case),
        written_bytes=elements * ITEM_BYTES[case.dtype],
    )


def tolerance(case: Case) -> Tolerance:
    """Errors of the hardware's approximations: those of a long sum average out.

    exp(-t) is off by t roundings for the shift and t more for the factor log2(e).  With a floor of 2^-10 that
    is at most 9 units.  Exponential, division and scaling add 2 or 3 each.  On a GPU the best lose up to 10,
    all at most 14; outputs of 16 bits show half of that at most.
    """
    return Tolerance(least=22.0 if case.dtype == "fp32" else 12.0, reduced_dim=-1, floor=2.0**-10)


def few_terms(inputs: tuple[torch.Tensor, ...]) -> None:
    """Few elements of a row count in its sum, so that one which is lost shows."""
    keep_few_exponentials(*inputs)


def rows_sum_to_one(inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> str | None:
    """Every row without NaN sums to 1, up to the rounding of its elements."""
    if output.numel() == 0:
        return None
    sums = output.sum(dim=-1, dtype=torch.float64)
    # Rounding moves an element by half a unit in the last place, or by half the smallest subnormal.
    finfo = torch.finfo(output.dtype)
    slack = finfo.eps / 2 + output.shape[-1] * finfo.smallest_normal * finfo.eps / 2 + 1e-4
    wrong = (sums.isfinite() & ~((sums - 1).abs() <= slack)).nonzero()
    if len(wrong) == 0:
        return None
    row = int(wrong[0])
    return f"row {row} sums to {float(sums[row]):.6g} ({len(wrong)} of {len(sums)} rows are off)"


DTYPES = ("fp32", "fp16", "bf16")
_LAYOUTS = ("padded", "transposed", "sliced", "misaligned", "expanded")
_SWEPT = {
    # 4096 rows, up to 2^26 elements; then 2^27 elements in all with rows of many lengths.
    "fp32": (
        *((4096, 2**power) for power in (7, 10, 12, 13, 14)),
        *((2 ** (27 - power), 2**power) for power in (12, 15, 16, 17, 18, 20)),
    ),
    "bf16": (
        *((4096, 2**power) for power in (10, 12)),
        *((2 ** (27 - power), 2**power) for power in (12, 15, 17, 20)),
    ),
}

CASES = Cases(
    default=case("fp32", M=4096, N=4096),
    smoke=(
        case("fp32", M=8, N=1024),
        case("fp16", M=5, N=781),
        case("bf16", M=3, N=4099),
    ),
    edge=(
        *(
            case(dtype, M=rows, N=columns)
            for dtype in DTYPES
            for rows, columns in ((0, 16), (16, 0), (1, 1), (3, 1), (5, 127), (4, 128), (3, 129), (1, 20011))
        ),
        *(case(dtype, layout, M=4, N=133) for dtype in DTYPES for layout in _LAYOUTS),
        # Rows of whole 16-byte vectors that are not 16-byte aligned.
        *(case(dtype, layout, M=4, N=128) for dtype in DTYPES for layout in ("padded", "misaligned")),
        # Rows that start and end between 16-byte boundaries: without a whole vector, and of many.
        *(case(dtype, M=7, N=15) for dtype in DTYPES),
        *(case(dtype, M=3, N=40001) for dtype in ("fp32", "bf16")),
        # Several rows per block, or several blocks' worth of rows, with a partial last one.
        *(case(dtype, M=29, N=16) for dtype in DTYPES),
        *(case(dtype, fill=fill, M=6, N=517) for dtype in DTYPES for fill in ("huge", "neg_inf", "nan")),
        case("fp32", "padded", "neg_inf", M=3, N=4101),
        case("bf16", M=65537, N=32768),
        case("fp32", M=16385, N=131072),
        case("bf16", M=2, N=2**30 + 3),
    ),
    sweep=(
        case("fp32", M=1, N=1024),
        *(case(dtype, M=1, N=131072) for dtype in _SWEPT),
        *(case(dtype, M=m, N=n) for dtype, sizes in _SWEPT.items() for m, n in sizes),
        case("fp16", M=4096, N=4096),
        case("fp16", M=4096, N=781),
        # Rows that start anywhere between 16-byte boundaries.
        *(case("bf16", M=m, N=n) for m, n in ((4096, 50257), (4096, 32001), (40000, 3001))),
        case("fp32", M=4096, N=50257),
    ),
)

OP = Op(
    name="softmax",
    summary="y = exp(x - max(x)) / sum(exp(x - max(x))) along each row",
    signature="x[M,N] -> y[M,N]",
    dims=("M", "N"),
    dtypes=DTYPES,
    make_inputs=make_inputs,
    oracle=oracle,
    cost=cost,
    tolerance=tolerance,
    cases=CASES,
    invariants=(Invariant("rows sum to 1", rows_sum_to_one),),
    sensitive_inputs=SensitiveInputs(few_terms),
    independent="M",
)
