"""scan: the inclusive sum along each row.  The output has x's dtype, sums are in fp32."""

from __future__ import annotations

import torch

from compare.inputs import ITEM_BYTES, stored_bytes, tensor
from compare.model.op import Case, Cases, Cost, Op, SensitiveInputs, Tolerance, case


def make_inputs(case: Case, generator: torch.Generator, device: torch.device) -> tuple[torch.Tensor]:
    """``x[M,N]``."""
    return (tensor(case.shape, case, generator, device),)


def oracle(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x) if x.is_meta else x.cumsum(dim=1)  # on meta, PyTorch makes a mask of N x N


def magnitude(x: torch.Tensor) -> torch.Tensor:
    """The same sums of magnitudes: where terms cancel, their rounding errors do not."""
    return oracle(x.abs())


def cost(case: Case) -> Cost:
    elements = case["M"] * case["N"]
    return Cost(
        flops=elements,
        read_bytes=stored_bytes(case.shape, case),
        written_bytes=elements * ITEM_BYTES[case.dtype],
    )


def tolerance(case: Case) -> Tolerance:
    """Error of a sum in parts, relative to the sum of magnitudes, at any of its columns.

    An output adds the sums of a vector, a lane, a warp, a tile and the tiles before: some 20 additions, whose
    errors have random signs.  Sums of few terms lose most of their magnitude, up to 1.3 roundings.
    """
    return Tolerance(least=2.5)


_PIECE = 1 << 24
_MOST = 120


def whole_steps(inputs: tuple[torch.Tensor, ...]) -> None:
    """Steps from one whole number of at most 120 to the next: these numbers are the output.

    So every sum of neighbours is exact in fp32, and every output in each dtype, however long the row.  A term
    shows that is lost, counted twice, rounded, or in another's place.
    """
    (x,) = inputs
    x.mul_(_MOST / 3).round_().clamp_(-_MOST, _MOST)
    for begin in reversed(range(1, x.shape[1], _PIECE)):
        piece = slice(begin, begin + _PIECE)
        before = x[:, begin - 1 : begin + _PIECE - 1]
        x[:, piece] = x[:, piece] - before[:, : x[:, piece].shape[1]]


DTYPES = ("fp32", "fp16", "bf16")
_LAYOUTS = ("padded", "transposed", "sliced", "misaligned", "expanded")

CASES = Cases(
    default=case("fp32", M=1, N=2**28),
    smoke=(
        case("fp32", M=2, N=8191),  # two tiles of cupy.row too, as rows start between 16-byte boundaries
        case("fp16", M=5, N=781),
        case("bf16", M=2, N=8003),
    ),
    edge=(
        *(
            case(dtype, M=rows, N=columns)
            for dtype in DTYPES
            for rows, columns in ((0, 16), (16, 0), (1, 1), (3, 1), (5, 127), (4, 128), (3, 129), (37, 16))
        ),
        *(case(dtype, layout, M=4, N=133) for dtype in DTYPES for layout in _LAYOUTS),
        # Rows of several tiles, that start and end on 16-byte boundaries and anywhere between.
        *(case(dtype, M=2, N=24576) for dtype in DTYPES),
        *(case(dtype, M=3, N=17003) for dtype in DTYPES),
        *(case("bf16", layout, M=3, N=17003) for layout in _LAYOUTS),
        *(case(dtype, "misaligned", M=2, N=24576) for dtype in ("fp32", "fp16")),
        # More than 32 tiles a row, and more than 32 x 32.
        case("fp32", M=2, N=140001),
        case("fp32", M=1, N=2**21 + 5001),
        *(
            case(dtype, fill=fill, M=6, N=size)
            for dtype in DTYPES
            for fill in ("neg_inf", "nan")
            for size in (517, 17003)
        ),
        # Sums of the largest numbers of fp32 and bf16 overflow in some orders and not in others.
        case("fp16", fill="huge", M=6, N=517),
        # More than 2^31 elements.
        case("bf16", M=65537, N=32768),
        case("bf16", M=1, N=2**31 + 5),
    ),
    sweep=(
        *(case("fp32", M=1, N=2**power) for power in (12, 16, 20, 24, 28)),
        *(case("fp16", M=1, N=2**power) for power in (20, 24, 28)),
        case("bf16", M=1, N=2**28),
        case("fp32", "misaligned", M=1, N=2**26 + 3),
        *(case("fp32", M=2 ** (26 - power), N=2**power) for power in (6, 8, 10, 12, 16, 20)),
        *(case("fp16", M=2 ** (26 - power), N=2**power) for power in (6, 10, 16)),
        case("fp16", M=65536, N=781),
    ),
)

OP = Op(
    name="scan",
    summary="y[n] = x[0] + ... + x[n] along each row: a sum that every element needs",
    signature="x[M,N] -> y[M,N]",
    dims=("M", "N"),
    dtypes=DTYPES,
    make_inputs=make_inputs,
    oracle=oracle,
    cost=cost,
    tolerance=tolerance,
    cases=CASES,
    magnitude=magnitude,
    sensitive_inputs=SensitiveInputs(whole_steps, exact=True),
    independent="M",
)
