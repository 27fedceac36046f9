"""attention's Gluon kernel on the CPU: its ring, phases, masks and stores, by `gluon_units`."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

import gluon_units
from compare import registry
from gluon_units import Descriptor, TensorPointer
from ops.attention import oracle, oracle_lse

pytestmark = pytest.mark.thorough

FILE = Path(registry.ROOT) / "triton_impl" / "attention.py"


def source() -> str:
    """The part of the file that is Gluon."""
    text = FILE.read_text(encoding="utf-8")
    part = text[text.index("async_load = tma.") : text.index("\nOutputs = ")]
    # A tensor of the CPU has no layout.
    return (
        part.replace("s.type.layout", "None")
        .replace("(b * Hq + h).to(gl.int64)", "(b * Hq + h)")
        .replace("b.to(gl.int64)", "b")
    )


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("sizes", "programs", "tile"),
    [
        ((1, 300, 300, 2, 1, 64), 3, (64, 3, 2)),
        ((2, 130, 259, 2, 2, 64), 2, (64, 4, 3)),  # other numbers of tiles for each program
        ((1, 400, 300, 2, 2, 128), 3, (128, 4, 2)),  # causal: rows that see no key
        ((3, 1, 1, 2, 2, 64), 6, (128, 4, 2)),  # a tile for each program
        ((1, 640, 64, 4, 4, 64), 3, (64, 5, 2)),  # one step for each tile
    ],
)
def test_every_tile_is_computed_once_and_no_stage_is_released_early(
    sizes: tuple[int, ...], programs: int, tile: tuple[int, int, int], causal: bool
) -> None:
    (B, Sq, Skv, Hq, Hk, D), (BLOCK_N, STAGES, CONSUMERS) = sizes, tile
    torch.manual_seed(0)
    q, k, v = (torch.randn(B, S, H, D).bfloat16() for S, H in ((Sq, Hq), (Skv, Hk), (Skv, Hk)))
    o, lse = torch.full_like(q, math.nan), torch.full((B, Hq, Sq), math.nan)
    q_desc, k_desc, v_desc, o_desc = (
        Descriptor(x.transpose(1, 2), rows) for x, rows in ((q, 64), (k, BLOCK_N), (v, BLOCK_N), (o, 64))
    )
    scale = math.log2(math.e) / math.sqrt(D)
    next_tile = TensorPointer(torch.zeros((), dtype=torch.int32))
    gluon_units.run(
        source(), "attention_gluon_kernel", programs,
        q_desc, k_desc, v_desc, o_desc, TensorPointer(lse), next_tile, B, Sq, Skv, Hq, Hq // Hk, scale,
        causal, D, BLOCK_N, STAGES, CONSUMERS,
    )  # fmt: skip
    expected = oracle(q.double(), k.double(), v.double(), causal)
    assert (o.double() - expected).abs().max() < 0.04
    of_rows = oracle_lse(q.double(), k.double(), v.double(), causal)
    torch.testing.assert_close(lse.double(), of_rows, rtol=1e-5, atol=1e-5)
