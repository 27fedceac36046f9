"""topk: the K largest elements of each row, in descending order, and the columns they come from.

NaN counts as the largest, as in ``torch.topk``.  Of equal elements those with the lowest index come first, so
that the result is unique; here every kernel of Triton and CUDA returns it, and -0 counts as less than 0.
``torch.topk`` promises no order of equal elements.  Indices are therefore compared up to that order: a row's
are right if they are distinct and their elements are the K largest, in order.
"""

from __future__ import annotations

import math

import torch

from compare.inputs import ITEM_BYTES, stored_bytes, tensor
from compare.model.op import Case, Cases, Cost, Op, Output, Tolerance, UsageError, case


def make_inputs(case: Case, generator: torch.Generator, device: torch.device) -> tuple[torch.Tensor]:
    """``x[M,N]``; the fill ``nan`` has rows with several NaN, of both signs.

    Raises:
        UsageError: K is greater than N.
    """
    M, N, K = case.shape
    if K > N:
        raise UsageError(f"case {case}: a row of N={N} has no K={K} largest elements. Say K={N} or less")
    x = tensor((M, N), case, generator, device)
    if case.layout == "expanded" or device.type == "meta":
        return (x,)
    if case.fill == "normal" and N >= 16:
        # Below the last column's 6: a lower precision would make them equal, and so change their order.
        for i in range(1, 4):
            x[:, -1 - i] = 6.0 - i * 4 * torch.finfo(x.dtype).eps
    if case.fill == "nan":
        x[2::5, ::16] = math.nan
        bits = x.view(torch.int32 if x.dtype is torch.float32 else torch.int16)
        bits[2::5, ::32] = -1  # a negative NaN
    return (x,)


def options(case: Case) -> dict[str, int]:
    return {"K": case["K"]}


def _sorted(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """On a GPU, torch.sort calls a NaN whose sign bit is set the least."""
    values, indices = torch.sort(x.masked_fill(x.isnan(), math.nan), dim=1, descending=True, stable=True)
    return values, indices


def oracle(x: torch.Tensor, K: int) -> torch.Tensor:
    return _sorted(x)[0][:, :K]


def oracle_indices(x: torch.Tensor, K: int) -> torch.Tensor:
    return _sorted(x)[1][:, :K].double()


_PIECE = 1 << 24
"""Elements whose rows are sorted together."""


def order_of_equals(inputs: tuple[torch.Tensor, ...], indices: torch.Tensor) -> None:
    """The oracle's indices in rows whose indices are distinct and have the K largest elements in order."""
    (x,) = inputs
    (M, N), K = x.shape, indices.shape[1]
    if indices.numel() == 0 or x.is_meta:
        return
    rows = max(1, _PIECE // N)
    for begin in range(0, M, rows):
        piece, given = x[begin : begin + rows], indices[begin : begin + rows]
        values, expected = _sorted(piece)
        inside = ((given >= 0) & (given < N)).all(dim=1)
        chosen = piece.gather(1, given.clamp(0, N - 1))
        largest = values[:, :K]
        same = ((chosen == largest) | (chosen.isnan() & largest.isnan())).all(dim=1)
        in_order = given.sort(dim=1).values
        distinct = (in_order[:, 1:] != in_order[:, :-1]).all(dim=1)
        right = inside & same & distinct
        given[right] = expected[right, :K]


def cost(case: Case) -> Cost:
    """A comparison of each element; values, and indices in 64 bits, written."""
    M, N, K = case.shape
    written = M * K * (ITEM_BYTES[case.dtype] + ITEM_BYTES["int64"])
    return Cost(flops=M * N if K > 0 else 0, read_bytes=stored_bytes((M, N), case), written_bytes=written)


def exact(case: Case) -> Tolerance:
    """Values are moved, not computed."""
    return Tolerance(least=0.0, exact=True)


def ascending_rows(inputs: tuple[torch.Tensor, ...]) -> None:
    """Each element is greater than all before it, and the largest are neighbours."""
    (x,) = inputs
    x.copy_(x.sort(dim=1).values)


DTYPES = ("fp32", "fp16", "bf16")
_LAYOUTS = ("padded", "transposed", "sliced", "misaligned", "expanded")

CASES = Cases(
    default=case("fp32", M=1024, N=32768, K=64),
    smoke=(
        case("fp32", M=2, N=256, K=8),
        case("fp16", M=2, N=333, K=50),
        case("bf16", M=2, N=2056, K=16),
    ),
    edge=(
        # More rows than blocks run at a time without a GPU: a block of filtered loops over tiles.
        case("fp16", M=24, N=9401, K=3),
        case("bf16", M=8, N=10240, K=40),
        *(
            case(dtype, M=rows, N=columns, K=k)
            for dtype in DTYPES
            for rows, columns, k in (
                *((0, 16, 4), (4, 16, 0), (4, 0, 0), (1, 1, 1), (3, 5, 5), (5, 127, 1), (4, 128, 128)),
                *((1, 300, 256), (3, 129, 32)),
            )
        ),
        *(case(dtype, layout, M=4, N=133, K=9) for dtype in DTYPES for layout in _LAYOUTS),
        *(case("bf16", layout, M=3, N=256, K=20) for layout in ("padded", "misaligned")),
        *(
            case(dtype, fill=fill, M=3, N=197, K=20)
            for dtype in DTYPES
            for fill in ("huge", "neg_inf", "nan")
        ),
        # More equal elements than the candidates that a block keeps.
        *(case(dtype, fill="zero", M=1, N=2100, K=5) for dtype in DTYPES),
        # Rows that several blocks share.
        case("fp32", M=1, N=9001, K=33),
        case("bf16", M=2, N=16640, K=3),
        # More than 2^31 elements.
        case("bf16", M=65537, N=32768, K=8),
    ),
    sweep=(
        *(case("fp32", M=1024, N=32768, K=k) for k in (1, 8, 64, 256)),
        *(case("fp32", M=2**25 // n, N=n, K=64) for n in (4096, 16384, 131072, 262144)),
        *(case(dtype, M=1024, N=32768, K=64) for dtype in ("fp16", "bf16")),
        case("fp32", M=64, N=32768, K=50),
        case("fp32", M=1, N=262144, K=256),
        case("bf16", M=256, N=50257, K=50),
        case("bf16", M=8192, N=1024, K=8),
    ),
)

OP = Op(
    name="topk",
    summary="values = the K largest x of each row, with indices: where do they come from?",
    signature="x[M,N] -> values[M,K], indices[M,K]",
    dims=("M", "N", "K"),
    dtypes=DTYPES,
    make_inputs=make_inputs,
    oracle=oracle,
    options=options,
    cost=cost,
    tolerance=exact,
    extreme_inputs=ascending_rows,
    cases=CASES,
    further=(Output(oracle_indices, exact, dtype="int64", mask_unspecified=order_of_equals),),
    independent="M",
)
