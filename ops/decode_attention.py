"""decode_attention: one new query of each sequence attends to a paged key-value cache.  Memory bound.

The cache is a pool of pages of PAGE tokens.  Row b of the block table names the pages of sequence b, in
order: token n is in slot n % PAGE of page block_table[b, n / PAGE].  Only the first lengths[b] tokens exist.
Entries of the table and slots behind them hold anything, and no kernel may use them.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from compare.inputs import (
    ITEM_BYTES,
    MATRICES_ALONE,
    keep_one_of_each,
    laid_out,
    stored_bytes,
    stored_shape,
    tensor,
)
from compare.model.op import (
    LAYOUTS,
    ROUNDOFF,
    Case,
    Cases,
    Cost,
    Op,
    SensitiveInputs,
    Tolerance,
    UsageError,
    case,
)
from ops.attention import score_rounding, scores_far_below_zero

HEAD_SIZES = (64, 128)
PAGE_SIZES = (16, 64)

NO_PAGE = -1
"""What the block table holds behind the last page of a sequence."""


RAGGED = 4
"""With the layout ``ragged``, sequence b has 0, S, S/3 or S - S/4 tokens, by b % RAGGED."""


def lengths_of(case: Case) -> tuple[tuple[int, int], ...]:
    """Lengths, and how many sequences have each; of ``ragged`` in the order of b % RAGGED."""
    B, S = case["B"], case["S"]
    if case.layout != "ragged":
        return ((S, B),)
    return tuple((length, -(-(B - b) // RAGGED)) for b, length in enumerate((0, S, S // 3, S - S // 4)))


def pages_of(case: Case) -> int:
    """P: pages that hold a token."""
    return sum(count * -(-length // case["PAGE"]) for length, count in lengths_of(case))


def make_inputs(
    case: Case, generator: torch.Generator, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """``q[B,1,Hq,D]``, ``k_pages`` and ``v_pages[P,PAGE,Hk,D]``; in int32 ``block_table`` and ``lengths``.

    The pages of all sequences are shuffled.  Slots behind the end of a sequence hold NaN.  A special fill
    applies to q alone.
    """
    B, S, Hq, Hk, D, PAGE = case.shape
    if D not in HEAD_SIZES:
        raise UsageError(f"case {case}: D={D}. Choose one of {', '.join(map(str, HEAD_SIZES))}")
    if PAGE not in PAGE_SIZES:
        raise UsageError(f"case {case}: PAGE={PAGE}. Choose one of {', '.join(map(str, PAGE_SIZES))}")
    if Hq % max(Hk, 1) != 0 or (Hk == 0) != (Hq == 0):
        raise UsageError(f"case {case}: Hq={Hq} and Hk={Hk}. Choose an Hq that is a multiple of Hk")
    layout = "contiguous" if case.layout == "ragged" else case.layout
    P, pages = pages_of(case), -(-S // PAGE)
    q = tensor((B, 1, Hq, D), replace(case, layout=layout), generator, device)
    usual = replace(case, layout=layout, fill="normal")
    k, v = (tensor((P, PAGE, Hk, D), usual, generator, device) for _ in range(2))
    rows, *_ = stored_shape((B, pages), layout)
    table = torch.full((rows, pages), NO_PAGE, dtype=torch.int32, device=device)
    lengths = torch.empty(stored_shape((B,), layout), dtype=torch.int32, device=device)
    if device.type != "meta":
        for b, (length, _) in enumerate(lengths_of(case)):
            lengths[b :: len(lengths_of(case))] = length
        n = torch.arange(pages * PAGE, device=device)
        behind = n >= lengths[:rows, None]
        shuffled = torch.randperm(P, generator=generator, device=generator.device).to(device, torch.int32)
        needed = ~behind[:, ::PAGE]
        table[needed] = shuffled[: int(needed.sum())]
        page = table.long().repeat_interleave(PAGE, dim=1)
        poisoned = behind & (page != NO_PAGE)
        if layout != "expanded" and poisoned.any():  # expanded: all pages are one in memory
            k[page[poisoned], (n % PAGE).expand(behind.shape)[poisoned]] = math.nan
            v[page[poisoned], (n % PAGE).expand(behind.shape)[poisoned]] = math.nan
    of_vector = "contiguous" if layout in MATRICES_ALONE else layout
    return q, k, v, laid_out(table, (B, pages), layout), laid_out(lengths, (B,), of_vector)


def gathered(
    pages: torch.Tensor, block_table: torch.Tensor, lengths: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """The tokens of each sequence [B,S,Hk,D], 0 behind its end, and which of them exist [B,S]."""
    PAGE = pages.shape[1]
    n = torch.arange(block_table.shape[1] * PAGE, device=pages.device)
    inside = n < lengths[:, None]
    page = torch.where(inside, block_table.long().repeat_interleave(PAGE, dim=1), 0)
    tokens = pages[page.clamp(0, max(len(pages) - 1, 0)), n % PAGE]
    return tokens.masked_fill(~inside[:, :, None, None], 0.0), inside


def oracle(
    q: torch.Tensor,
    k_pages: torch.Tensor,
    v_pages: torch.Tensor,
    block_table: torch.Tensor,
    lengths: torch.Tensor,
) -> torch.Tensor:
    """A head that sees no token, or none with a score above -inf, has an output of 0."""
    return _weighted_sums(q, k_pages, v_pages, block_table, lengths)


def _weighted_sums(
    q: torch.Tensor,
    k_pages: torch.Tensor,
    v_pages: torch.Tensor,
    block_table: torch.Tensor,
    lengths: torch.Tensor,
    sizes: bool = False,
) -> torch.Tensor:
    """The output; with ``sizes`` that of the values' magnitudes, larger by `score_rounding`."""
    B, _, Hq, D = q.shape
    k, inside = gathered(k_pages, block_table, lengths)
    v, _ = gathered(v_pages, block_table, lengths)
    Hk = k.shape[2]
    grouped = q.reshape(B, Hk, Hq // max(Hk, 1), D)
    scores = torch.einsum("bhgd,bshd->bhgs", grouped, k) / math.sqrt(D)
    scores = scores.masked_fill(~inside[:, None, None], -math.inf)
    row_max = scores.amax(-1, keepdim=True) if scores.shape[-1] > 0 else scores.sum(-1, keepdim=True)
    weights = (scores - row_max.masked_fill(row_max == -math.inf, 0.0)).exp()
    row_sum = weights.sum(-1, keepdim=True)
    p = weights / row_sum.masked_fill(row_sum == 0, 1.0)
    if sizes:
        terms = torch.einsum("bhgd,bshd->bhgs", grouped.abs(), k.abs()) / math.sqrt(D)
        p, v = p * score_rounding(p, terms), v.abs()
    o = torch.einsum("bhgs,bshd->bhgd", p, v)
    return o.reshape(B, 1, Hq, D)


def magnitude(
    q: torch.Tensor,
    k_pages: torch.Tensor,
    v_pages: torch.Tensor,
    block_table: torch.Tensor,
    lengths: torch.Tensor,
) -> torch.Tensor:
    """The same with the values' magnitudes: where terms cancel, their rounding errors do not."""
    return _weighted_sums(q, k_pages, v_pages, block_table, lengths, sizes=True)


def cost(case: Case) -> Cost:
    """Two products, of q and k and of p and v: 4 * D operations per query head and token."""
    B, S, Hq, Hk, D, PAGE = case.shape
    return Cost(
        flops=4 * Hq * D * sum(length * count for length, count in lengths_of(case)),
        read_bytes=stored_bytes((B, 1, Hq, D), case)
        + 2 * stored_bytes((pages_of(case), PAGE, Hk, D), case)
        + stored_bytes((B, -(-S // PAGE)), case, torch.int32.itemsize)
        + stored_bytes((B,), case, torch.int32.itemsize),
        written_bytes=B * Hq * D * ITEM_BYTES[case.dtype],
    )


def tolerance(case: Case) -> Tolerance:
    """As attention's: errors of scores, and of probabilities rounded to 16 bits for the second product.

    Those of many tokens average out: exact sums of probabilities rounded to bf16 need 56% of this limit on
    sensitive inputs of 8192 tokens, and 70% of 131072.
    """
    rounded = 0.0 if case.dtype == "fp32" else ROUNDOFF[case.dtype] / ROUNDOFF["fp32"]
    return Tolerance(least=256.0 + rounded * min(1.0, 32 / math.sqrt(max(case["S"], 1))))


def few_values(inputs: tuple[torch.Tensor, ...]) -> None:
    """Each token counts for one element of each head's output: it shows there if it is lost."""
    keep_one_of_each(inputs[2])


DTYPES = ("fp32", "fp16", "bf16")
_LAYOUTS = (*LAYOUTS, "ragged")


def cached(dtype: str, *sizes: int, layout: str = "contiguous", fill: str = "normal") -> Case:
    """A case of sizes B, S, Hq, Hk, D and PAGE; those left out are the last ones of 2, 1, 64 and 16."""
    names, defaults = ("B", "S", "Hq", "Hk", "D", "PAGE"), (2, 1, 64, 16)
    sizes = (*sizes, *defaults[len(sizes) - 2 :])
    return case(dtype, layout, fill, **dict(zip(names, sizes, strict=True)))


CASES = Cases(
    # 2 GiB of keys and values.  Llama 3 70B: eight query heads share a key head.
    default=cached("bf16", 16, 32768, 64, 8, 128),
    smoke=(
        cached("fp32", 2, 37, 4, 2),
        cached("fp16", 2, 70, 8, 1),
        cached("bf16", 3, 45, 4, 1, layout="ragged"),
    ),
    edge=(
        *(cached(dtype, *sizes) for dtype in DTYPES for sizes in ((0, 9, 2, 1), (2, 0, 2, 1), (1, 1, 0, 0))),
        *(cached(dtype, 1, 1, 1, 1) for dtype in DTYPES),
        # A page, or a tile of 64 tokens, more or less by one; several splits.
        *(cached(dtype, 1, S) for dtype in DTYPES for S in (16, 65, 150)),
        *(cached(dtype, 3, 130, 4, 2, 128, 64, layout="ragged") for dtype in DTYPES),
        # On few multiprocessors: several iterations of every warp; more splits than are combined at once.
        cached("bf16", 2, 405, 16, 8),
        cached("fp16", 1, 1100, 1, 1, 64, 64),
        # More query heads share a key head than a tile of 16 has rows.
        *(cached(dtype, 1, 20, 17, 1) for dtype in DTYPES),
        *(cached(dtype, 2, 19, 6, 2, layout=layout) for dtype in DTYPES for layout in _LAYOUTS[1:]),
        *(cached(dtype, 2, 21, 6, 2, fill=fill) for dtype in DTYPES for fill in ("neg_inf", "nan")),
        # Only fp16: the scores of the largest numbers of the others overflow in fp32.
        cached("fp16", 2, 21, 6, 2, fill="huge"),
        # More than 2^31 elements of keys, by the number of pages.
        cached("bf16", 33, 65536, 16, 8, 128),
        cached("fp16", 33, 65552, 8, 8, 128, 64, layout="ragged"),
    ),
    sweep=(
        *(
            cached("bf16", B, S, 64, 8, 128)
            for B, S in ((1, 8192), (64, 8192), (16, 32768), (1, 2**17), (4, 2**17))
        ),
        cached("bf16", 16, 32768, 64, 8, 128, 64),
        cached("bf16", 16, 32768, 32, 8, 128),
        cached("bf16", 32, 32768, 64, 8, 64),
        cached("bf16", 64, 8192, 64, 8, 128, layout="ragged"),
        cached("fp16", 16, 32768, 64, 8, 128),
    ),
)

OP = Op(
    name="decode_attention",
    summary="o = softmax(q @ k.T / sqrt(D)) @ v for one new token a sequence, keys and values in pages",
    signature="q[B,1,Hq,D], k_pages[B*S/PAGE,PAGE,Hk,D], v_pages[B*S/PAGE,PAGE,Hk,D], "
    "block_table[B,S/PAGE], lengths[B] -> o[B,1,Hq,D]",
    dims=("B", "S", "Hq", "Hk", "D", "PAGE"),
    dtypes=DTYPES,
    layouts=_LAYOUTS,
    make_inputs=make_inputs,
    oracle=oracle,
    magnitude=magnitude,
    cost=cost,
    tolerance=tolerance,
    sensitive_inputs=SensitiveInputs(few_values),
    extreme_inputs=scores_far_below_zero,
    cases=CASES,
    independent="B",
)
