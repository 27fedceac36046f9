"""rotary: rotary position embedding of queries and keys, both in one launch.  Bound by memory traffic."""

from __future__ import annotations

from dataclasses import replace

import torch

from compare.inputs import ITEM_BYTES, stored_bytes, tensor
from compare.model.op import Case, Cases, Cost, Op, Tolerance, UsageError, case


def make_inputs(
    case: Case, generator: torch.Generator, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """``q[B,S,H,D]``, ``k[B,S,Hk,D]``, ``cos[S,D/2]``, ``sin[S,D/2]``; a special fill applies to q and k.

    Angles are Llama's for positions 1 to S: at position 0 the rotation is the identity.
    """
    B, S, H, Hk, D = case.shape
    if D % 2 != 0:
        raise UsageError(f"case {case}: halves of a head are rotated together. Choose an even D")
    q = tensor((B, S, H, D), case, generator, device)
    k = tensor((B, S, Hk, D), case, generator, device)
    plain = replace(case, fill="normal")
    cos, sin = (tensor((S, D // 2), plain, generator, device) for _ in range(2))
    frequency = 10000.0 ** (-torch.arange(D // 2, dtype=torch.float64, device=device) / max(D // 2, 1))
    angle = torch.arange(1, S + 1, dtype=torch.float64, device=device)[:, None] * frequency
    for values, table in ((cos, angle.cos()), (sin, angle.sin())):
        rows = values[:1] if values.stride(0) == 0 else values  # expanded
        rows.copy_(table[: len(rows)])  # in place, which keeps every layout
    return q, k, cos, sin


def oracle(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """The halves of a head form pairs: (first, second) is rotated by its position's angle."""
    first, second = torch.cat((q, k), dim=2).chunk(2, dim=-1)
    cos, sin = cos[:, None], sin[:, None]  # broadcast over heads
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def magnitude(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """The sum of the two products' magnitudes."""
    first, second = torch.cat((q, k), dim=2).abs().chunk(2, dim=-1)
    cos, sin = cos.abs()[:, None], sin.abs()[:, None]
    return torch.cat((first * cos + second * sin, second * cos + first * sin), dim=-1)


def cost(case: Case) -> Cost:
    """Two products and an addition per element."""
    B, S, H, Hk, D = case.shape
    elements = B * S * (H + Hk) * D
    return Cost(
        flops=3 * elements,
        read_bytes=stored_bytes((B, S, H, D), case)
        + stored_bytes((B, S, Hk, D), case)
        + 2 * stored_bytes((S, D // 2), case),
        written_bytes=elements * ITEM_BYTES[case.dtype],
    )


def tolerance(case: Case) -> Tolerance:
    """Two products, each rounded to fp32: half a unit of each, which is at most 1 of all magnitudes."""
    return Tolerance(least=1.0)


DTYPES = ("fp32", "fp16", "bf16")
_LAYOUTS = ("padded", "transposed", "sliced", "misaligned", "expanded")


def heads(dtype: str, B: int, S: int, H: int, Hk: int, D: int, layout: str = "contiguous") -> Case:
    return case(dtype, layout, B=B, S=S, H=H, Hk=Hk, D=D)


CASES = Cases(
    # Llama 3 8B: four query heads share a key head.
    default=heads("bf16", 8, 4096, 32, 8, 128),
    smoke=(
        heads("fp32", 2, 3, 4, 2, 64),
        heads("fp16", 2, 5, 3, 1, 80),
        heads("bf16", 2, 2, 6, 6, 32),
    ),
    edge=(
        *(
            heads(dtype, *sizes)
            for dtype in DTYPES
            for sizes in (
                *((0, 4, 2, 1, 16), (1, 1, 0, 0, 2), (2, 3, 2, 0, 8), (2, 3, 0, 2, 8), (2, 3, 2, 1, 0)),
                *((1, 1, 1, 1, 2), (3, 5, 1, 1, 6), (2, 3, 5, 3, 34), (1, 2, 33, 1, 16)),
            )
        ),
        *(heads(dtype, 2, 3, 4, 2, 32, layout) for dtype in DTYPES for layout in _LAYOUTS),
        # A head with more elements than a block has threads, and one with more 16-byte vectors.
        heads("fp32", 1, 2, 1, 1, 1030),
        heads("bf16", 1, 2, 5, 2, 4112),
        # Rows of cosines with stride 0, whose length is no multiple of 16 bytes.
        heads("fp16", 2, 3, 2, 1, 24, "expanded"),
        *(
            case(dtype, fill=fill, B=2, S=3, H=4, Hk=2, D=16)
            for dtype in DTYPES
            for fill in ("huge", "neg_inf", "nan")
        ),
        # More than 2^31 elements.
        heads("bf16", 4097, 128, 32, 8, 128),
        heads("fp32", 1, 131073, 128, 1, 128),
    ),
    sweep=(
        heads("bf16", 8, 4096, 32, 8, 128),
        heads("bf16", 1, 32768, 32, 8, 128),
        heads("bf16", 4, 4096, 64, 8, 128),
        # One key head per query head.
        heads("bf16", 4, 4096, 32, 32, 128),
        heads("bf16", 16, 4096, 32, 8, 64),
        heads("bf16", 16, 4096, 8, 4, 256),
        # Half of D = 80 is five 16-byte vectors: not a power of two.
        heads("bf16", 8, 4096, 32, 32, 80),
        heads("fp16", 8, 4096, 32, 8, 128),
        heads("fp32", 8, 4096, 32, 8, 128),
        heads("bf16", 8, 4096, 32, 8, 128, "misaligned"),
        # A decoding step, and a short prompt.
        heads("bf16", 64, 1, 32, 8, 128),
        heads("bf16", 1, 512, 32, 8, 128),
    ),
)

OP = Op(
    name="rotary",
    summary="out = heads of q and k, their halves turned by an angle for each position",
    signature="q[B,S,H,D], k[B,S,Hk,D], cos[S,D/2], sin[S,D/2] -> out[B,S,H+Hk,D]",
    dims=("B", "S", "H", "Hk", "D"),
    dtypes=DTYPES,
    make_inputs=make_inputs,
    oracle=oracle,
    magnitude=magnitude,
    cost=cost,
    tolerance=tolerance,
    cases=CASES,
    independent="S",
)
