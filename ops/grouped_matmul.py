"""grouped_matmul: rows in groups, each group times a matrix of its own, as in a mixture of experts.

Tokens are sorted by expert: ``a[M,K]`` has the rows of group 0, then those of group 1, and so on.  Group g
ends before row ``offsets[g]``, and the last one at M.  Offsets are int32 on the device; no kernel's launch
waits for them on the host.  ``b[G,K,N]`` are the experts' weights.  Its memory may be ``[G,N,K]`` too, the
layout of linear layers: the case says ``b_transposed``.  All three are as ``torch._grouped_mm`` takes them.

A case's SKEW is the size of the largest group over that of the smallest: 1 for equal groups.  Sizes between
are a geometric series, in a shuffled order; a great SKEW leaves groups without a row.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

import torch

from compare.inputs import ITEM_BYTES, laid_out, of_input, stored_bytes, tensor
from compare.model.op import LAYOUTS, Case, Cases, Cost, Op, SensitiveInputs, Tolerance, UsageError, case
from ops.matmul import few_terms, of_sum

_SHUFFLE = 2654435761
"""An odd number: multiples of it, modulo 2^32, are in no order."""


def sizes_of(case: Case) -> list[int]:
    """Rows of each group; what rounding leaves is the largest group's."""
    M, G, SKEW = case["M"], case["G"], case["SKEW"]
    weights = [SKEW ** (-place / max(G - 1, 1)) for place in range(G)]
    sizes = [int(M * weight / sum(weights)) for weight in weights]
    sizes[:1] = [M - sum(sizes[1:])] * min(G, 1)
    order = sorted(range(G), key=lambda g: (g + 1) * _SHUFFLE % 2**32)
    return [sizes[place] for place in order]


def make_inputs(
    case: Case, generator: torch.Generator, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """``a[M,K]``, ``b[G,K,N]`` and int32 ``offsets[G]``; a special fill applies to a alone.

    Raises:
        UsageError: SKEW is 0, or rows have no group.
    """
    M, N, K, G, SKEW = case.shape
    if SKEW < 1 or (G == 0 and M > 0):
        raise UsageError(f"case {case}: choose a SKEW of 1 or more, and a G of 1 or more where M is not 0")
    a = tensor((M, K), of_input(case, "a"), generator, device)
    b = tensor((G, K, N), replace(of_input(case, "b"), fill="normal"), generator, device)
    offsets = torch.empty((G,), dtype=torch.int32, device=device)
    if device.type != "meta":
        offsets.copy_(torch.tensor([*itertools.accumulate(sizes_of(case))], dtype=torch.int32))
    layout = of_input(case, "offsets", dims=1).layout
    if layout == "expanded":
        layout = "contiguous"  # equal offsets would leave all groups but one empty
    return a, b, laid_out(offsets, (G,), layout)


def oracle(a: torch.Tensor, b: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    c = a.new_zeros((a.shape[0], b.shape[2]))
    begin = 0
    for g, end in enumerate([] if offsets.is_meta else offsets.int().tolist()):
        c[begin:end] = a[begin:end] @ b[g]
        begin = end
    return c


def magnitude(a: torch.Tensor, b: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """The sum of the terms' magnitudes: where terms cancel, their rounding errors do not."""
    return oracle(a.abs(), b.abs(), offsets)


def cost(case: Case) -> Cost:
    """A multiplication and an addition for each of M * N * K terms, however the rows are grouped."""
    M, N, K, G, _ = case.shape
    a, b = stored_bytes((M, K), of_input(case, "a")), stored_bytes((G, K, N), of_input(case, "b"))
    return Cost(2 * M * N * K, a + b + G * torch.int32.itemsize, M * N * ITEM_BYTES[case.dtype])


def tolerance(case: Case) -> Tolerance:
    """Error of an fp32 sum of K products, relative to the sum of the products' magnitudes."""
    return Tolerance(least=of_sum(case["K"], case.dtype))


DTYPES = ("bf16", "fp16")
_LAYOUTS = (*LAYOUTS, "a_transposed", "b_transposed", "b_expanded", "offsets_sliced")
_EMPTY = ((0, 16, 8, 2), (16, 0, 8, 2), (16, 8, 0, 2), (0, 8, 8, 0))
_ODD = ((1, 1, 1, 1), (5, 1, 17, 2), (130, 33, 70, 3), (33, 130, 131, 4), (200, 40, 1, 5))


def routed(*sizes: int, dtype: str = "bf16", layout: str = "contiguous", fill: str = "normal") -> Case:
    """A case of sizes M, N, K, G and SKEW; a SKEW left out is 1."""
    dims = dict(zip(("M", "N", "K", "G", "SKEW"), (*sizes, 1), strict=False))
    return case(dtype, layout, fill, **dims)


CASES = Cases(
    default=routed(16384, 4096, 4096, 8, 4),
    smoke=(
        routed(150, 136, 40, 2, 6, dtype="fp16"),
        routed(100, 48, 40, 4, 3),
        routed(40, 66, 70, 3, 2),
    ),
    edge=(
        *(routed(*sizes, dtype=dtype) for dtype in DTYPES for sizes in (*_EMPTY, *_ODD)),
        *(routed(70, 40, 56, 3, 2, layout=layout) for layout in _LAYOUTS if layout != "contiguous"),
        *(routed(60, 35, 37, 3, 2, layout=layout) for layout in ("transposed", "b_transposed")),
        *(
            routed(40, 40, 48, 3, 2, dtype=dtype, fill=fill)
            for dtype in DTYPES
            for fill in ("neg_inf", "nan")
        ),
        # Only fp16: fp32 sums hold the products of its largest numbers.
        routed(40, 40, 48, 3, 2, dtype="fp16", fill="huge"),
        # Groups of some rows, of one and of none; all rows in one group.
        routed(50, 24, 40, 40, 100),
        routed(131, 24, 40, 5, 2**59),
        # Several tiles of a group in both dimensions, and more terms than a pipeline has stages for.
        routed(700, 264, 328, 3, 3),
        routed(700, 256, 328, 3, 3, dtype="fp16", layout="b_transposed"),
        # More than 2^31 elements in a, in b and in c.
        routed(65537, 48, 32768, 3),
        routed(48, 32768, 8192, 9),
        routed(65537, 32768, 64, 3),
    ),
    sweep=(
        *(routed(16384, 4096, 4096, G, SKEW) for G in (8, 64) for SKEW in (1, 4)),
        routed(16384, 4096, 4096, 16, 16),
        routed(16384, 4096, 4096, 8, 2**59),
        # Layers of Mixtral 8x7B, of DeepSeek-V3 on 8 GPUs, and of Qwen3-30B-A3B.
        routed(8192, 14336, 4096, 8, 4),
        routed(8192, 4096, 14336, 8, 4),
        routed(16384, 4096, 7168, 32, 4),
        routed(32768, 1536, 2048, 128, 4),
        # Few tokens: memory bound, the weights are read once.
        routed(256, 4096, 4096, 64, 4),
        routed(16384, 4096, 4096, 8, 4, layout="b_transposed"),
        routed(16384, 4096, 4096, 8, 4, dtype="fp16"),
    ),
)

OP = Op(
    name="grouped_matmul",
    summary="c[m] = a[m] @ b[group of m] for rows in groups: tokens of a mixture of experts, sorted",
    signature="a[M,K], b[G,K,N], offsets[G] of groups 1 to SKEW -> c[M,N]",
    dims=("M", "N", "K", "G", "SKEW"),
    dtypes=DTYPES,
    layouts=_LAYOUTS,
    make_inputs=make_inputs,
    oracle=oracle,
    magnitude=magnitude,
    cost=cost,
    tolerance=tolerance,
    sensitive_inputs=SensitiveInputs(few_terms),
    cases=CASES,
    independent="N",
)
