"""attention_backward: gradients of attention for its queries, keys and values, from the saved log-sum-exp."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import replace

import torch

from compare.inputs import ITEM_BYTES, laid_out, stored_bytes
from compare.model.op import LAYOUTS, Case, Cases, Cost, Op, Output, Tolerance
from ops import attention
from ops.attention import DTYPES, FP16_LEAST, heads, of_16k_tokens, score_rounding, visible_pairs

Tensors = tuple[torch.Tensor, ...]

_CHUNK = 1 << 25
"""Scores in memory at a time: the oracle works through the queries in chunks."""


def make_inputs(case: Case, generator: torch.Generator, device: torch.device) -> Tensors:
    """``q[B,Sq,Hq,D]``, ``k[B,Skv,Hk,D]``, ``v``, their attention ``o`` and ``lse[B,Hq,Sq]``, and ``do``.

    Heads of k and do are turned: outliers in the same element of v and do would cancel in dp - delta, and
    where an element is the same in all keys, that of dq is 0.  Special fills apply to q alone.  The largest
    numbers apply to do alone: the exponential of a score as large is mostly rounding error.
    """
    usual = replace(case, fill="normal")
    q, k, v = attention.make_inputs(usual if case.fill == "huge" else case, generator, device)
    without_keys = tuple((name, 0 if name == "Skv" else size) for name, size in case.dims)
    of_do = replace(case if case.fill == "huge" else usual, dims=without_keys)
    do = attention.make_inputs(of_do, generator, device)[0]
    B, Sq, Hq, _ = q.shape
    for x, places in ((k, 11), (do, 7)):
        _turn(x, places)
    stored = min(B, 1) if case.layout == "expanded" else B
    if device.type == "meta":
        o, lse = q.new_empty((stored, *q.shape[1:])), q.new_empty((stored, Hq, Sq), dtype=torch.float32)
    else:
        o, lse = _forward(q[:stored], k[:stored], v[:stored], bool(case["causal"]))
    if case.layout == "heads_first":
        o = o.transpose(1, 2).contiguous().transpose(1, 2)
    else:
        o = laid_out(o, (B, Sq, Hq, q.shape[3]), case.layout)
    return q, k, v, o, lse.expand(B, Hq, Sq), do


def _turn(x: torch.Tensor, places: int) -> None:
    """Move each element of a head by so many places, in memory."""
    if not x.is_meta:
        stored = x[:1] if x.stride(0) == 0 else x
        stored.copy_(stored.roll(places, -1))


def _forward(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """o in the dtype of q, and lse in fp32; 0 and -inf in rows without keys."""
    B, Sq, Hq, _ = q.shape
    o, lse = q.new_zeros(q.shape), q.new_full((B, Hq, Sq), -math.inf, dtype=torch.float32)
    if o.numel() == 0 or k.numel() == 0:
        return o, lse
    wide_k, wide_v = k.float(), v.float()
    for rows in _chunks(q, k):
        scores = _masked(_scores(q[:, rows].float(), wide_k), rows.start, Sq, causal)
        of_rows = scores.logsumexp(-1)
        p = torch.where(of_rows.isneginf()[..., None], 0.0, (scores - of_rows[..., None]).exp())
        o[:, rows] = _to_queries(p, wide_v).to(q.dtype)
        lse[:, :, rows] = of_rows.flatten(1, 2)
    return o, lse


def _chunks(q: torch.Tensor, k: torch.Tensor) -> list[slice]:
    """Slices of the queries, whose scores fit in memory."""
    B, Sq, Hq, _ = q.shape
    rows = max(1, _CHUNK // (B * Hq * k.shape[1]))
    return [slice(begin, min(begin + rows, Sq)) for begin in range(0, Sq, rows)]


def _grouped(x: torch.Tensor, Hk: int) -> torch.Tensor:
    """``x[B,S,Hq,D]`` as ``[B,Hk,Hq/Hk,S,D]``."""
    B, S, Hq, D = x.shape
    return x.reshape(B, S, Hk, Hq // Hk, D).permute(0, 2, 3, 1, 4)


def _scores(q: torch.Tensor, k: torch.Tensor, scale: bool = True) -> torch.Tensor:
    """``q @ k^T`` as ``[B,Hk,Hq/Hk,Sq,Skv]``."""
    products = _grouped(q, k.shape[2]) @ k.permute(0, 2, 3, 1)[:, :, None]
    return products / math.sqrt(q.shape[3]) if scale else products


def _masked(scores: torch.Tensor, begin: int, Sq: int, causal: bool) -> torch.Tensor:
    """-inf where a key lies behind its query; the last query sees all keys."""
    if not causal:
        return scores
    rows, Skv = scores.shape[-2:]
    i = torch.arange(begin, begin + rows, device=scores.device)[:, None]
    return scores.masked_fill(torch.arange(Skv, device=scores.device) > i + (Skv - Sq), -math.inf)


def _to_queries(p: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """``p @ k`` as ``[B,Sq,Hq,D]``."""
    return (p @ k.permute(0, 2, 1, 3)[:, :, None]).permute(0, 3, 1, 2, 4).flatten(2, 3)


def _to_keys(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """``p^T @ q``, summed over the query heads of a key head, as ``[B,Skv,Hk,D]``."""
    return (p.mT @ _grouped(q, p.shape[1])).sum(2).permute(0, 2, 1, 3)


def _probabilities(
    q: torch.Tensor, k: torch.Tensor, lse: torch.Tensor, begin: int, Sq: int, causal: bool
) -> torch.Tensor:
    """``exp(s - lse)``; 0 in rows without keys."""
    lse = lse.unflatten(1, (k.shape[2], -1))[..., None]
    scores = _masked(_scores(q, k), begin, Sq, causal)
    return torch.where(lse.isneginf(), 0.0, (scores - lse).exp())


def _gradient(of: str, sizes: bool, *inputs: torch.Tensor, causal: bool = False) -> torch.Tensor:
    """dq, dk or dv; of the terms' magnitudes if ``sizes``.

    dv = p^T do.  With dp = do v^T and delta = sum(do * o), ds = p * (dp - delta).  Then dq = scale * ds k and
    dk = scale * ds^T q.  Magnitudes are larger by `score_rounding`.
    """
    q, k, v, o, lse, do = inputs
    made = torch.zeros_like(q if of == "dq" else k)
    if q.is_meta or q.numel() == 0 or k.numel() == 0:
        return made
    factor, Sq, Hk = 1 / math.sqrt(q.shape[3]), q.shape[1], k.shape[2]
    size: Callable[[torch.Tensor], torch.Tensor] = torch.abs if sizes else torch.positive
    for rows in _chunks(q, k):
        q_rows, do_rows = q[:, rows], do[:, rows]
        p = _probabilities(q_rows, k, lse[:, :, rows], rows.start, Sq, causal)
        least = FP16_LEAST * (p > 0) if sizes else 0.0
        if sizes:
            p = p * score_rounding(p, _scores(q_rows.abs(), k.abs()))
        if of == "dv":
            made += _to_keys(p + least, size(do_rows))
            continue
        delta = _grouped(do_rows * o[:, rows], Hk).sum(-1, keepdim=True)
        dp = _scores(do_rows, v, scale=False)
        ds = p * (dp.abs() + delta.abs() if sizes else dp - delta) + least
        if of == "dq":
            made[:, rows] = factor * _to_queries(ds, size(k))
        else:
            made += factor * _to_keys(ds, size(q_rows))
    return made


def cost(case: Case) -> Cost:
    """Five products of 2 * D operations for each visible pair of a query and a key."""
    B, Sq, Skv, Hq, Hk, D, causal = case.shape
    queries, keys = (B, Sq, Hq, D), (B, Skv, Hk, D)
    of_lse = replace(case, layout="expanded" if case.layout == "expanded" else "contiguous")
    return Cost(
        flops=10 * B * Hq * D * visible_pairs(Sq, Skv, causal),
        read_bytes=3 * stored_bytes(queries, case)
        + 2 * stored_bytes(keys, case)
        + stored_bytes((B, Hq, Sq), of_lse, item_bytes=4),
        written_bytes=(math.prod(queries) + 2 * math.prod(keys)) * ITEM_BYTES[case.dtype],
    )


def tolerance(roundings: int, case: Case) -> Tolerance:
    """In fp32: a score is off by some roundings of |q||k|, and exp passes that on to p, here 32 at most.

    In 16 bits tensor cores take p and ds as rounded values, and ds may be computed from the rounded p: a term
    of dv is off by one rounding of the dtype at most, one of dq and dk by two.  A rounding of the dtype is
    2^13 of fp32 for fp16 and 2^16 for bf16.  The output's own rounding is not counted.
    """
    of_dtype = {"fp32": 0.0, "fp16": 2.0**13, "bf16": 2.0**16}[case.dtype]
    return Tolerance(least=128.0 + roundings * of_dtype)


_LAYOUTS = (*LAYOUTS, "heads_first")

CASES = Cases(
    default=of_16k_tokens("bf16", 16384, 0),
    smoke=(
        heads("fp16", 9, 30, 0, B=2, Hq=2, Hk=2),
        heads("fp32", 12, 19, 1, B=2, Hq=2),
        # Five queries see no key.
        heads("bf16", 19, 14, 1, B=2, Hq=2, D=128),
    ),
    edge=(
        *(
            heads(dtype, *sizes, B=B, Hq=H, Hk=H)
            for dtype in DTYPES
            for B, H, *sizes in (
                (0, 1, 3, 3, 0),
                (1, 1, 0, 3, 1),
                (1, 2, 3, 0, 0),
                (1, 0, 3, 3, 0),
                (1, 1, 1, 1, 0),
            )
        ),
        # More than one tile of keys, of queries, of both.
        *(heads(dtype, *sizes, 1) for dtype in DTYPES for sizes in ((6, 130), (130, 6), (67, 70))),
        heads("fp16", 66, 7, 0, D=128),
        heads("bf16", 5, 133, 0, D=128),
        # Four query heads share a key head.
        *(heads(dtype, 5, 9, 1, Hq=8, Hk=2) for dtype in DTYPES),
        *(
            heads(dtype, 6, 9, 0, B=2, Hq=2, layout=layout)
            for dtype in DTYPES
            for layout in _LAYOUTS
            if layout != "contiguous"
        ),
        *(heads(dtype, 6, 9, 0, Hq=2, Hk=2, fill=fill) for dtype in DTYPES for fill in ("neg_inf", "nan")),
        # Only fp16: products of the others' largest numbers overflow in fp32.  A single key has p = 1.
        heads("fp16", 5, 1, 0, Hq=2, Hk=2, fill="huge"),
        # For a GPU: more elements than a CPU checks.
        heads("bf16", 799, 799, 1, B=3, Hq=4, Hk=4, D=128),
        heads("fp16", 1023, 1024, 1, B=2, Hq=8, Hk=1),
        heads("bf16", 1024, 1023, 1, Hq=16, Hk=1, D=128),
        *(heads("bf16", 4224, 4224, causal, Hq=2, Hk=2) for causal in (0, 1)),
        # More than 2^31 elements of q, and of k and v.
        heads("bf16", 2**19 + 3, 5, 0, Hq=32, Hk=32, D=128),
        heads("fp16", 7, 2**20 + 3, 1, Hq=32, Hk=32),
    ),
    sweep=(
        *(of_16k_tokens("bf16", S, causal) for S in (16384, 4096) for causal in (0, 1)),
        *(of_16k_tokens("bf16", 16384, causal, D=64) for causal in (0, 1)),
        of_16k_tokens("bf16", 1024, 0),
        # Eight query heads share a key head.
        of_16k_tokens("bf16", 4096, 1, Hk=2),
        of_16k_tokens("fp16", 4096, 0),
    ),
)

OP = Op(
    name="attention_backward",
    summary="gradients dq, dk, dv of softmax(q k^T / sqrt(D)) v, recomputing the probabilities from lse",
    signature=(
        "q[B,Sq,Hq,D], k[B,Skv,Hk,D], v[B,Skv,Hk,D], o[B,Sq,Hq,D], lse[B,Hq,Sq], do[B,Sq,Hq,D] "
        "-> dq[B,Sq,Hq,D], dk[B,Skv,Hk,D], dv[B,Skv,Hk,D]"
    ),
    dims=("B", "Sq", "Skv", "Hq", "Hk", "D", "causal"),
    dtypes=DTYPES,
    make_inputs=make_inputs,
    oracle=functools.partial(_gradient, "dq", False),
    magnitude=functools.partial(_gradient, "dq", True),
    layouts=_LAYOUTS,
    options=attention.options,
    cost=cost,
    tolerance=functools.partial(tolerance, 2),
    cases=CASES,
    further=tuple(
        Output(
            functools.partial(_gradient, of, False),
            functools.partial(tolerance, roundings),
            functools.partial(_gradient, of, True),
        )
        for of, roundings in (("dk", 2), ("dv", 1))
    ),
    independent="B",
)
