"""batched_matmul: many products of small square matrices, accumulated in fp32."""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from compare.inputs import ITEM_BYTES, of_input, stored_bytes, tensor
from compare.model.op import LAYOUTS, Case, Cases, Cost, Op, Tolerance, case
from ops.matmul import of_sum


def make_inputs(
    case: Case, generator: torch.Generator, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """``a[B,N,N]`` and ``b[B,N,N]``; a special fill applies to a alone, so it spoils rows of c, not all."""
    a = tensor(_shape(case), of_input(case, "a"), generator, device)
    return a, tensor(_shape(case), replace(of_input(case, "b"), fill="normal"), generator, device)


def _shape(case: Case) -> tuple[int, int, int]:
    return case["B"], case["N"], case["N"]


def oracle(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a @ b


def magnitude(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The sum of the terms' magnitudes: where terms cancel, their rounding errors do not."""
    return a.abs() @ b.abs()


def cost(case: Case) -> Cost:
    """A multiplication and an addition for each of B * N^3 terms: N / 3 operations per byte in 16 bits."""
    return Cost(
        flops=2 * case["B"] * case["N"] ** 3,
        read_bytes=sum(stored_bytes(_shape(case), of_input(case, name)) for name in ("a", "b")),
        written_bytes=math.prod(_shape(case)) * ITEM_BYTES[case.dtype],
    )


def tolerance(case: Case) -> Tolerance:
    """Error of an fp32 sum of N products, relative to the sum of the products' magnitudes."""
    return Tolerance(least=of_sum(case["N"], case.dtype))


DTYPES = ("fp32", "fp16", "bf16")
# Layouts of one operand alone: equal layouts would hide a kernel that uses the other operand's stride.
_LAYOUTS = (*LAYOUTS, "a_transposed", "b_transposed", "a_expanded", "b_expanded")
_EDGES = ((0, 16), (1, 0), (1, 1), (5, 3), (2, 17), (1, 127))

CASES = Cases(
    default=case("fp16", B=65536, N=48),
    smoke=(
        case("fp32", B=3, N=24),
        case("fp16", B=5, N=48),
        case("bf16", B=9, N=16),
    ),
    edge=(
        *(case(dtype, B=count, N=size) for dtype in DTYPES for count, size in _EDGES),
        # Every tile size, rows of whole 16-byte vectors shorter than the tile, and a partial last group of
        # matrices.
        *(case("fp16", B=3, N=size) for size in (32, 40, 64, 80, 96, 128)),
        # A later group starts at an address that is not 16-byte aligned.
        case("fp16", B=5, N=17),
        # A block takes more groups than it has pipeline stages.
        case("fp16", B=13, N=112),
        *(
            case(dtype, layout, B=3, N=size)
            for layout in _LAYOUTS
            if layout != "contiguous"
            for dtype, size in (("fp32", 20), ("fp16", 32), ("bf16", 19))
        ),
        # Where a tile is larger than the matrix, the padding must add 0; vectorized and element by element.
        *(
            case(dtype, fill=fill, B=3, N=size)
            for dtype, size in (("fp32", 20), ("fp16", 24), ("bf16", 20))
            for fill in ("neg_inf", "nan")
        ),
        # Only fp16: fp32 sums hold the products of its largest numbers.
        case("fp16", fill="huge", B=3, N=48),
        # The same for a GPU, which runs thousands of groups at a time.
        case("fp16", B=20011, N=16),
        # More than 2^31 elements.
        case("bf16", B=2**20 + 3, N=48),
        case("bf16", B=2**18 + 3, N=91),
    ),
    sweep=(
        *(
            case("fp16", B=count, N=size)
            for count, size in (
                (524288, 16),
                (65536, 48),
                (65536, 64),
                (16384, 128),
            )
        ),
        *(case(dtype, B=65536, N=48) for dtype in ("bf16", "fp32")),
        # Rows of whole 16-byte vectors but no multiple of any tile; unaligned rows.
        case("fp16", B=65536, N=40),
        case("fp16", B=65536, N=47),
        case("fp16", "transposed", B=65536, N=48),
        # Few matrices: launch latency.
        case("fp16", B=1024, N=48),
        case("fp16", B=64, N=64),
    ),
)

OP = Op(
    name="batched_matmul",
    summary="c = a @ b for many small square matrices, of sizes that are no powers of two",
    signature="a[B,N,N], b[B,N,N] -> c[B,N,N]",
    dims=("B", "N"),
    dtypes=DTYPES,
    layouts=_LAYOUTS,
    make_inputs=make_inputs,
    oracle=oracle,
    magnitude=magnitude,
    cost=cost,
    tolerance=tolerance,
    cases=CASES,
    independent="B",
)
