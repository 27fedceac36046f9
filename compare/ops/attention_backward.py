"""attention_backward: gradients of attention for its queries, keys and values, from the saved log-sum-exp."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import replace

import torch

from compare.inputs import ITEM_BYTES, laid_out, stored_bytes, stored_shape, tensor
from compare.spec import Case, Cases, Cost, Op, Output, Tolerance, UsageError, case

Tensors = tuple[torch.Tensor, ...]

_FP16_LEAST = 2.0**-14
"""Below this, rounding p or ds to fp16 loses as much as rounding this number: fp16 has subnormals there."""

_CHUNK = 1 << 25
"""Scores in memory at a time: the oracle works through the queries in chunks."""


def make_inputs(case: Case, generator: torch.Generator, device: torch.device) -> Tensors:
    """``q[B,Sq,Hq,D]``, ``k[B,Skv,Hk,D]``, ``v``, and from these ``o`` and ``lse[B,Hq,Sq]``; then ``do``.

    A special fill applies to q alone: gradients of other heads keep their values.
    """
    B, Sq, Skv, Hq, Hk, D, causal = case.shape
    if Hk == 0 or Hq % Hk != 0:
        raise UsageError(f"case {case}: query heads share key heads evenly. Choose an Hq that Hk divides")
    plain = replace(case, fill="normal")
    q = tensor((B, Sq, Hq, D), case, generator, device)
    k, v = (tensor((B, Skv, Hk, D), plain, generator, device) for _ in range(2))
    do = tensor((B, Sq, Hq, D), plain, generator, device)
    stored = stored_shape(q.shape, case.layout)
    if device.type == "meta":
        o, lse = q.new_empty(stored), q.new_empty((stored[0], Hq, Sq), dtype=torch.float32)
    else:
        o, lse = _forward(*(x[: stored[0]] for x in (q, k, v)), causal=bool(causal))
    return q, k, v, laid_out(o, q.shape, case.layout), lse.expand(B, Hq, Sq), do


def _forward(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """o in the dtype of q, and lse in fp32; 0 and -inf in rows without keys."""
    o, lse = (
        torch.empty_like(q, memory_format=torch.contiguous_format),
        q.new_empty((q.shape[0], q.shape[2], q.shape[1]), dtype=torch.float32),
    )
    wide_k, wide_v = k.float(), v.float()
    for rows in _chunks(q, k):
        scores = _masked(_scores(q[:, rows].float(), wide_k), rows.start, q.shape[1], causal)
        of_rows = scores.logsumexp(-1)
        p = torch.where(of_rows.isneginf()[..., None], 0.0, (scores - of_rows[..., None]).exp())
        o[:, rows] = _to_queries(p, wide_v).to(q.dtype)
        lse[:, :, rows] = of_rows.flatten(1, 2)
    return o, lse


def _chunks(q: torch.Tensor, k: torch.Tensor) -> list[slice]:
    """Slices of the queries; one where nothing is computed."""
    B, Sq, Hq, _ = q.shape
    rows = Sq if q.is_meta else max(1, _CHUNK // max(1, B * Hq * k.shape[1]))
    return [slice(begin, min(begin + rows, Sq)) for begin in range(0, Sq, max(rows, 1))]


def _grouped(x: torch.Tensor, Hk: int) -> torch.Tensor:
    """``x[B,S,Hq,D]`` as ``[B,Hk,Hq/Hk,S,D]``."""
    return x.unflatten(2, (Hk, x.shape[2] // Hk)).permute(0, 2, 3, 1, 4)


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


def _gradient(
    of: str,
    sizes: bool,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    o: torch.Tensor,
    lse: torch.Tensor,
    do: torch.Tensor,
    causal: bool = False,
) -> torch.Tensor:
    """dq, dk or dv; of the terms' magnitudes if ``sizes``.

    dv = p^T do.  With dp = do v^T and delta = sum(do * o), ds = p * (dp - delta).  Then dq = scale * ds k and
    dk = scale * ds^T q.
    """
    made = torch.zeros_like(q if of == "dq" else k)
    if q.is_meta:
        return made
    factor, Sq, Hk = 1 / math.sqrt(q.shape[3]), q.shape[1], k.shape[2]
    size: Callable[[torch.Tensor], torch.Tensor] = torch.abs if sizes else torch.positive
    for rows in _chunks(q, k):
        q_rows, do_rows = q[:, rows], do[:, rows]
        p = _probabilities(q_rows, k, lse[:, :, rows], rows.start, Sq, causal)
        least = _FP16_LEAST * (p > 0) if sizes else 0.0
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
    """Five products of 2 D operations for each pair of a query and a key that it sees."""
    B, Sq, Skv, Hq, Hk, D, causal = case.shape
    hidden = min(Sq, Skv) if causal else 0  # the last rows of the mask's triangle
    pairs = Sq * Skv - hidden * (hidden - 1) // 2 - (max(Sq - Skv, 0) * Skv if causal else 0)
    queries, keys = (B, Sq, Hq, D), (B, Skv, Hk, D)
    return Cost(
        flops=10 * B * Hq * D * pairs,
        read_bytes=3 * stored_bytes(queries, case)
        + 2 * stored_bytes(keys, case)
        + stored_bytes((B, Hq, Sq), case, item_bytes=4),
        written_bytes=(math.prod(queries) + 2 * math.prod(keys)) * ITEM_BYTES[case.dtype],
    )


def tolerance(case: Case) -> Tolerance:
    """In fp32: a score is off by some roundings of |q||k|, and exp passes that on to p, here 32 at most.

    In 16 bits tensor cores take p and ds as rounded values: a term is off by one rounding of the dtype at
    most, 2^13 roundings of fp32 for fp16 and 2^16 for bf16.  The output's own rounding is not counted.
    """
    return Tolerance(least=128.0 + {"fp32": 0.0, "fp16": 2.0**13, "bf16": 2.0**16}[case.dtype])


DTYPES = ("fp32", "fp16", "bf16")
_LAYOUTS = ("padded", "transposed", "sliced", "misaligned", "expanded")


def heads(
    dtype: str,
    B: int,
    Sq: int,
    Skv: int,
    Hq: int,
    Hk: int,
    D: int,
    causal: int,
    *words: str,
    fill: str = "normal",
) -> Case:
    layout = words[0] if words else "contiguous"
    return case(dtype, layout, fill, B=B, Sq=Sq, Skv=Skv, Hq=Hq, Hk=Hk, D=D, causal=causal)


def tokens(dtype: str, S: int, D: int, causal: int, group: int = 1) -> Case:
    """16k tokens of 2048 features."""
    return heads(dtype, 16384 // S, S, S, 2048 // D, 2048 // D // group, D, causal)


CASES = Cases(
    default=tokens("bf16", 4096, 128, 1),
    smoke=(
        heads("fp32", 1, 19, 37, 2, 1, 64, 1),
        heads("fp16", 2, 9, 70, 2, 2, 64, 0),
        # 5 queries see no key.
        heads("bf16", 1, 23, 18, 2, 1, 128, 1),
    ),
    edge=(
        *(
            heads(dtype, *sizes)
            for dtype in DTYPES
            for sizes in (
                *(
                    (0, 3, 4, 1, 1, 64, 0),
                    (2, 0, 3, 1, 1, 64, 1),
                    (1, 3, 0, 2, 1, 64, 1),
                    (1, 1, 1, 1, 1, 64, 0),
                ),
                # More than one tile of keys, of queries, of both.
                *((1, 6, 130, 1, 1, 64, 1), (1, 130, 6, 1, 1, 64, 1), (1, 67, 70, 1, 1, 64, 1)),
                # Four query heads of a key head.
                (1, 5, 9, 8, 2, 64, 1),
            )
        ),
        heads("fp16", 1, 66, 7, 1, 1, 128, 0),
        heads("bf16", 1, 5, 133, 1, 1, 128, 0),
        *(heads(dtype, 2, 6, 9, 2, 1, 64, 0, layout) for dtype in DTYPES for layout in _LAYOUTS),
        *(heads(dtype, 1, 6, 9, 2, 2, 64, 0, fill=fill) for dtype in DTYPES for fill in ("neg_inf", "nan")),
        # Many tiles, for a GPU.
        heads("bf16", 3, 799, 799, 4, 4, 128, 1),
        heads("fp16", 2, 1023, 1024, 8, 1, 64, 1),
        heads("bf16", 1, 1024, 1023, 16, 1, 128, 1),
        heads("bf16", 1, 4224, 4224, 2, 2, 64, 0),
        # More than 2^31 elements of q, and of k.
        heads("bf16", 1, 2**19 + 3, 5, 32, 32, 128, 0),
        heads("fp16", 1, 7, 2**20 + 3, 32, 32, 64, 1),
    ),
    sweep=(
        *(tokens("bf16", S, 128, causal) for S in (4096, 16384) for causal in (0, 1)),
        *(tokens("bf16", 16384, 64, causal) for causal in (0, 1)),
        tokens("bf16", 4096, 128, 1, group=8),
        tokens("fp16", 4096, 128, 0),
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
    options=lambda case: {"causal": bool(case["causal"])},
    cost=cost,
    tolerance=tolerance,
    cases=CASES,
    further=tuple(
        Output(functools.partial(_gradient, of, False), tolerance, functools.partial(_gradient, of, True))
        for of in ("dk", "dv")
    ),
    independent="B",
)
