"""attention's Gluon kernel on the CPU: its ring, phases, masks and stores, by `gluon_units`."""

from __future__ import annotations

import math
import re
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
        re.sub(r"\w+\.type\.layout", "None", part)
        .replace("(b * Hq + h).to(gl.int64)", "(b * Hq + h)")
        .replace("b.to(gl.int64)", "b")
    )


def attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, programs: int, tile: tuple[int, int, int], causal: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    (B, Sq, Hq, D), (_, Skv, Hk, _), (BLOCK_N, STAGES, CONSUMERS) = q.shape, k.shape, tile
    o, lse = torch.full_like(q, math.nan), torch.full((B, Hq, Sq), math.nan)
    q_desc, k_desc, v_desc, o_desc = (
        Descriptor(x.transpose(1, 2), rows) for x, rows in ((q, 64), (k, BLOCK_N), (v, BLOCK_N), (o, 64))
    )
    scale = math.log2(math.e) / math.sqrt(D)
    next_tile = TensorPointer(torch.zeros((), dtype=torch.int32))
    gluon_units.run(
        source(), "attention_gluon_kernel", programs,
        q_desc, k_desc, v_desc, o_desc, TensorPointer(lse), next_tile, B, Sq, Skv, Hq, Hq // Hk, scale,
        causal, True, D, BLOCK_N, STAGES, CONSUMERS,
    )  # fmt: skip
    return o, lse


def assert_right(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, programs: int, tile: tuple[int, int, int], causal: bool
) -> None:
    o, lse = attention(q, k, v, programs, tile, causal)
    expected = oracle(q.double(), k.double(), v.double(), causal)
    assert (o.double() - expected).abs().max() < 0.04
    of_rows = oracle_lse(q.double(), k.double(), v.double(), causal)
    torch.testing.assert_close(lse.double(), of_rows, rtol=1e-5, atol=1e-5)


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
    torch.manual_seed(0)
    B, Sq, Skv, Hq, Hk, D = sizes
    q, k, v = (torch.randn(B, S, H, D).bfloat16() for S, H in ((Sq, Hq), (Skv, Hk), (Skv, Hk)))
    assert_right(q, k, v, programs, tile, causal)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("growth", [-1.0, 1.0])  # the tiles of keys are visited from the last to the first
def test_a_guessed_maximum_that_is_wrong_is_not_used(growth: float, causal: bool) -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 320, 2, 64) for _ in range(3))
    k = k + growth * torch.arange(320)[None, :, None, None] / 2 * q.mean(1, keepdim=True).sign()
    q = q.abs() * q.mean(1, keepdim=True).sign()
    q, k, v = q.bfloat16(), k.bfloat16(), v.bfloat16()
    assert_right(q, k, v, 2, (64, 3, 2), causal)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("rise", [40, 80, 118])  # of scores in base 2, from a tile of keys to the next
def test_weights_far_above_one_are_divided_with_all_sums_of_their_row(rise: int, causal: bool) -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 256, 2, 64) for _ in range(3))
    q *= 0.1
    q[..., 0], k[..., 0] = 8 * math.log(2), 0
    q[:, ::3, :, 0] = 0  # rows whose weights stay low
    k[0, 2::8, :, 0] = (3 - torch.arange(256) // 64)[2::8, None].float() * rise  # keys of one of four lanes
    q, k, v = q.bfloat16(), k.bfloat16(), v.bfloat16()
    assert_right(q, k, v, 2, (64, 3, 2), causal)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_nan_and_infinity_of_a_key_reach_the_rows_that_see_it(value: float) -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 256, 1, 64).bfloat16() for _ in range(3))
    k[0, 100, 0, 0] = value
    o, lse = attention(q, k, v, 2, (64, 3, 2), causal=False)
    scores = q[0, :, 0].float() @ k[0, :, 0].float().T / 8
    expected = scores.softmax(1) @ v[0, :, 0].float()
    assert torch.equal(o[0, :, 0].isnan(), expected.isnan())
    assert torch.equal(lse[0, 0].isnan(), expected.isnan().any(1))
    finite = ~expected.isnan()
    assert ((o[0, :, 0] - expected)[finite].abs() < 0.04).all()
