"""attention: softmax(q k^T / sqrt(D)) v for each head, and the log-sum-exp of each row of scores."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import torch

from compare.inputs import ITEM_BYTES, keep_one_of_each, stored_bytes, tensor
from compare.model.op import (
    LAYOUTS,
    ROUNDOFF,
    Case,
    Cases,
    Cost,
    Op,
    Output,
    SensitiveInputs,
    Tolerance,
    UsageError,
    case,
)

HEAD_SIZES = (64, 128)


def make_inputs(
    case: Case, generator: torch.Generator, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """``q[B,Sq,Hq,D]``, ``k[B,Skv,Hk,D]`` and ``v[B,Skv,Hk,D]``.

    A special fill applies to q alone, so it spoils rows of the output, not all.
    """
    B, Sq, Skv, Hq, Hk, D, causal = case.shape
    if D not in HEAD_SIZES:
        raise UsageError(f"case {case}: D={D}. Choose one of {', '.join(map(str, HEAD_SIZES))}")
    if Hq % max(Hk, 1) != 0 or (Hk == 0) != (Hq == 0):
        raise UsageError(f"case {case}: Hq={Hq} and Hk={Hk}. Choose an Hq that is a multiple of Hk")
    if causal not in (0, 1):
        raise UsageError(f"case {case}: causal={causal}. Choose 0 or 1")
    usual = replace(case, fill="normal")
    k = _heads("k", (B, Skv, Hk, D), usual, generator, device)
    if 0 not in k.stride():
        k[:, _OUTLIERS] *= _LONG
    return (
        _heads("q", (B, Sq, Hq, D), case, generator, device),
        k,
        _heads("v", (B, Skv, Hk, D), usual, generator, device),
    )


_LONG = 6
_OUTLIERS = slice(66, None, 97)
"""Keys of long vectors: a row's maximum grows by much in a later tile, so earlier sums must be rescaled."""


def _heads(
    name: str, shape: tuple[int, int, int, int], case: Case, generator: torch.Generator, device: torch.device
) -> torch.Tensor:
    """A tensor with the case's layout; with ``heads_first`` [B,S,H,D] is a view of a [B,H,S,D] in memory."""
    if "heads_first" not in case.layout:
        return tensor(shape, case, generator, device)
    B, S, H, D = shape
    plain = replace(case, layout="contiguous")
    if case.layout in ("heads_first", f"{name}_heads_first"):
        return tensor((B, H, S, D), plain, generator, device).transpose(1, 2)
    return tensor(shape, plain, generator, device)


def options(case: Case) -> dict[str, bool]:
    return {"causal": bool(case["causal"])}


_SCORES = 1 << 26
"""Scores of a block of queries: 0.5 GB in fp64."""


def _probabilities(
    q: torch.Tensor, k: torch.Tensor, causal: bool
) -> Iterator[tuple[slice, torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Blocks of rows: which, queries [B,Hq,rows,D], probabilities [B,Hq,rows,Skv] and lse [B,Hq,rows].

    Row i of a causal case sees the keys j <= i + Skv - Sq.  A row that sees none, or none with a score above
    -inf, has probabilities of 0 and an lse of -inf.
    """
    B, Sq, Hq, D = q.shape
    Skv = k.shape[1]
    queries, keys = q.transpose(1, 2), per_query_head(k, Hq).transpose(1, 2)
    rows = max(1, _SCORES // max(B * Hq * Skv, 1))
    for begin in range(0, Sq, rows):
        block = queries[:, :, begin : begin + rows]
        scores = block @ keys.mT / math.sqrt(D)
        if causal:
            i = torch.arange(begin, begin + block.shape[2], device=q.device)[:, None]
            j = torch.arange(Skv, device=q.device)
            scores = scores.masked_fill(j > i + Skv - Sq, -math.inf)
        row_max = scores.amax(-1, keepdim=True) if Skv > 0 else scores.sum(-1, keepdim=True)
        shift = row_max.masked_fill(row_max == -math.inf, 0.0)
        weights = (scores - shift).exp()
        row_sum = weights.sum(-1, keepdim=True)
        lse = (shift + row_sum.log())[..., 0]
        yield slice(begin, begin + rows), block, weights / row_sum.masked_fill(row_sum == 0, 1.0), lse


def per_query_head(x: torch.Tensor, Hq: int) -> torch.Tensor:
    """``x[B,S,Hk,D]`` with each key head repeated for the query heads that share it: [B,S,Hq,D]."""
    return x.repeat_interleave(Hq // max(x.shape[2], 1), dim=2)


def oracle(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
    return _weighted_sums(q, k, v, causal)


def magnitude(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
    """The same with the values' magnitudes: where terms cancel, their rounding errors do not.

    Larger by `score_rounding`, and with probabilities that fp16 cannot round to less.
    """
    return _weighted_sums(q, k, v.abs(), causal, sizes=True)


FP16_LEAST = 2.0**-14
"""Below this, rounding a number to fp16 loses as much as rounding this number: fp16 has subnormals there."""
_ORDINARY = 128.0
"""Sum of the magnitudes of a score's terms, up to which tolerances allow for its rounding: two outliers'."""


def score_rounding(p: torch.Tensor, terms: torch.Tensor) -> torch.Tensor:
    """How much larger a row's tolerance is than for ordinary scores, at least 1: [..., rows, 1].

    Rounding a score near 1e4 to fp32 changes its probability by up to 5e-4, in any implementation.

    Args:
        p: probabilities [..., rows, keys].
        terms: sums of the magnitudes of each score's terms, of the same shape.
    """
    mean = torch.where(p > 0, p * terms, 0.0).sum(-1, keepdim=True)
    excess = (mean - _ORDINARY).nan_to_num(nan=0.0, posinf=0.0).clamp(min=0.0)
    return 1 + excess / 64  # 4 roundings of a score, where `tolerance` is 256


def _weighted_sums(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, sizes: bool = False
) -> torch.Tensor:
    """The output; with ``sizes`` each visible key's probability allows for its roundings."""
    values = per_query_head(v, q.shape[2]).transpose(1, 2)
    o = torch.empty_like(q, memory_format=torch.contiguous_format)
    for rows, block, p, _ in _probabilities(q, k, causal):
        if sizes and p.shape[-1] > 0:
            keys = per_query_head(k, q.shape[2]).transpose(1, 2).abs()
            factor = score_rounding(p, block.abs() @ keys.mT / math.sqrt(q.shape[3]))
            p = factor * (p + FP16_LEAST * p.amax(-1, keepdim=True) * (p > 0))
        o[:, rows] = (p @ values).transpose(1, 2)
    return o


def oracle_lse(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
    """The natural logarithm of each row's sum of exponentials of scaled scores."""
    lse = q.new_empty((q.shape[0], q.shape[2], q.shape[1]))
    for rows, _, _, of_rows in _probabilities(q, k, causal):
        lse[:, :, rows] = of_rows
    return lse


def magnitude_lse(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
    """The mean of the scores' sums of magnitudes: an error of score j changes lse by p_j of it."""
    keys = per_query_head(k, q.shape[2]).transpose(1, 2).abs()
    magnitude = q.new_empty((q.shape[0], q.shape[2], q.shape[1]))
    for rows, block, p, _ in _probabilities(q, k, causal):
        magnitude[:, :, rows] = (p * (block.abs() @ keys.mT)).sum(-1) / math.sqrt(q.shape[3])
    return magnitude


def visible_pairs(Sq: int, Skv: int, causal: int) -> int:
    """Pairs of a query and a key that it sees."""
    if not causal:
        return Sq * Skv
    rows = min(Sq, Skv)  # those that see a key: the last one all of them, each before it one less
    return rows * (2 * Skv - rows + 1) // 2


def cost(case: Case) -> Cost:
    """Two products, of q and k and of p and v: 4 * D operations for each visible pair."""
    B, Sq, Skv, Hq, Hk, D, causal = case.shape
    return Cost(
        flops=4 * B * Hq * D * visible_pairs(Sq, Skv, causal),
        read_bytes=stored_bytes((B, Sq, Hq, D), case) + 2 * stored_bytes((B, Skv, Hk, D), case),
        written_bytes=B * Sq * Hq * (D * ITEM_BYTES[case.dtype] + 4),
    )


def tolerance(case: Case) -> Tolerance:
    """Errors of the scores, and of probabilities rounded to 16 bits, relative to the output's magnitude.

    A score's terms sum up to 35 in magnitude, so that an fp32 score is off by a few times 35 roundings, and
    its shifted exponent as well.  Both are relative errors of the probability.  `magnitude` allows for more
    where scores are larger.  With 16-bit inputs the second product is one of 16-bit numbers too: each
    probability is off by half a unit in its last place, 2^-8 for bf16.  Where one or two keys dominate,
    errors of many terms do not average out.  In fp16 the small probabilities of the others are subnormal:
    `FP16_LEAST` allows for that.
    """
    rounded = 0.0 if case.dtype == "fp32" else ROUNDOFF[case.dtype] / ROUNDOFF["fp32"]
    return Tolerance(least=256.0 + rounded)


def equal_keys(inputs: tuple[torch.Tensor, ...]) -> None:
    """All keys count about as much, and each most in one element of the output."""
    _, k, v = inputs
    k[:, _OUTLIERS] /= _LONG
    keep_one_of_each(v)


def scores_far_below_zero(inputs: tuple[torch.Tensor, ...]) -> None:
    """Scores near -160, whose exponentials are 0 in fp32: a maximum that starts at 0 shows."""
    q, k, *_ = inputs
    # The last term of a score: what is added to a large one loses digits.
    q[..., -1], k[..., -1] = -2.5 * math.sqrt(q.shape[-1]), 64.0


def tolerance_lse(case: Case) -> Tolerance:
    """Error of an fp32 sum of D products, relative to their magnitudes, and of a logarithm.

    Probabilities are added before they are rounded to 16 bits.
    """
    return Tolerance(least=16.0 + (0.0 if case.dtype == "fp32" else math.sqrt(case["D"]) / 4))


DTYPES = ("fp32", "fp16", "bf16")
_LAYOUTS = (*LAYOUTS, "heads_first", "v_heads_first")


def heads(dtype: str, *sizes: int, layout: str = "contiguous", fill: str = "normal", **more: int) -> Case:
    """Sq, Skv and causal of one head of 64 elements; ``more`` are other values of B, Hq, Hk and D."""
    Sq, Skv, causal = sizes
    dims = {"B": 1, "Sq": Sq, "Skv": Skv, "Hq": 1, "Hk": 1, "D": 64, "causal": causal}
    return case(dtype, layout, fill, **dims | more)


def of_16k_tokens(dtype: str, S: int, causal: int, D: int = 128, Hk: int = 0) -> Case:
    """Heads of 2048 elements in all, as many sequences of S as make 16384 tokens."""
    Hq = 2048 // D
    return heads(dtype, S, S, causal, B=16384 // S, Hq=Hq, Hk=Hk or Hq, D=D)


CASES = Cases(
    default=of_16k_tokens("bf16", 16384, 0),
    smoke=(
        heads("fp32", 37, 70, 1, B=2),
        heads("fp16", 70, 67, 0, B=2),
        heads("bf16", 17, 40, 1, B=2, Hq=4, Hk=2),
    ),
    edge=(
        *(
            heads(dtype, *sizes, B=B, Hq=H, Hk=H)
            for dtype in DTYPES
            for B, H, *sizes in ((0, 1, 3, 3, 0), (1, 1, 0, 3, 1), (1, 2, 3, 0, 0), (1, 0, 3, 3, 0))
        ),
        # Rows that see no key: all but the last one and the last three.
        *(heads(dtype, *sizes) for dtype in DTYPES for sizes in ((1, 1, 0), (239, 1, 1), (99, 3, 1))),
        # Several tiles of both: the diagonal crosses tiles, and a whole tile of rows sees no key.
        *(heads(dtype, *sizes, 1) for dtype in DTYPES for sizes in ((113, 203), (203, 113), (130, 128))),
        heads("fp32", 33, 33, 1),  # both corners are one
        heads("fp32", 20, 70, 0, D=128),
        heads("fp16", 70, 130, 1, D=128),
        heads("bf16", 67, 70, 1, D=128),
        # Query heads that share a key head.
        *(heads(dtype, 5, 9, 1, Hq=Hq, Hk=Hk) for dtype in DTYPES for Hq, Hk in ((8, 1), (16, 4))),
        *(
            heads(dtype, 9, 20, 1, B=2, Hq=2, Hk=2, layout=layout)
            for dtype in DTYPES
            for layout in _LAYOUTS
            if layout != "contiguous"
        ),
        *(heads(dtype, 5, 17, 0, Hq=2, Hk=2, fill=fill) for dtype in DTYPES for fill in ("neg_inf", "nan")),
        # Only fp16: the scores of the largest numbers of the others overflow in fp32.
        heads("fp16", 5, 17, 0, Hq=2, Hk=2, fill="huge"),
        # For a GPU: more elements than a CPU checks.
        heads("bf16", 799, 3, 1, B=2, Hq=8, Hk=8, D=128),
        heads("fp16", 1023, 1024, 1, Hq=16, Hk=4, D=128),
        heads("bf16", 1024, 1023, 1, Hq=16, Hk=16, D=128),
        *(heads("bf16", 4224, 4224, causal, Hq=4, Hk=4) for causal in (0, 1)),
        # More than 2^31 elements in q, by the batch and by the length, and in k and v.
        heads("bf16", 16, 16, 1, B=65537, Hq=16, Hk=1, D=128),
        heads("bf16", 2**20 + 1, 17, 0, Hq=16, Hk=1, D=128),
        heads("bf16", 1, 16, 0, B=65537, Hq=16, Hk=16, D=128),
    ),
    sweep=(
        *(of_16k_tokens("bf16", S, causal) for S in (16384, 4096, 1024, 2048) for causal in (0, 1)),
        *(of_16k_tokens("bf16", 16384, causal, D=64) for causal in (0, 1)),
        *(heads("bf16", 4099, 4099, causal, B=4, Hq=16, Hk=16, D=128) for causal in (0, 1)),
        # Eight query heads share a key head.
        of_16k_tokens("bf16", 4096, 1, Hk=2),
        of_16k_tokens("fp16", 4096, 1),
        heads("bf16", 799, 3, 0, B=16, Hq=16, Hk=16, D=128),
        heads("fp32", 1024, 1024, 1, B=4, Hq=16, Hk=16),
    ),
)

OP = Op(
    name="attention",
    summary="o = softmax(q @ k.T / sqrt(D)) @ v for each head, without writing the scores to memory",
    signature="q[B,Sq,Hq,D], k[B,Skv,Hk,D], v[B,Skv,Hk,D] -> o[B,Sq,Hq,D], lse[B,Hq,Sq]",
    dims=("B", "Sq", "Skv", "Hq", "Hk", "D", "causal"),
    dtypes=DTYPES,
    layouts=_LAYOUTS,
    make_inputs=make_inputs,
    oracle=oracle,
    magnitude=magnitude,
    options=options,
    cost=cost,
    tolerance=tolerance,
    sensitive_inputs=SensitiveInputs(equal_keys),
    extreme_inputs=scores_far_below_zero,
    cases=CASES,
    further=(Output(oracle_lse, tolerance_lse, magnitude_lse, dtype="fp32"),),
    independent="B",
)
