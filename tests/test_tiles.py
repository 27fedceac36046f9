"""The tile of the least predicted time, and the launches of every tile."""

from __future__ import annotations

import pytest
import torch

from compare.capture import meta_inputs
from compare.checking.check import check
from compare.model.architecture import LIMITS
from compare.model.op import case
from compare.registry import get_op
from compare.tiles import Machine, Tile, fastest, possible, predicted_us
from cuda_impl.launches import matmul as cuda
from rows import labelled
from triton_impl import matmul as triton

PROCESSORS = 132
WAYS = {"cuda": (cuda.H200, cuda.SPLIT_K_TILES), "triton": (triton.H200, triton.SPLIT_K_TILES)}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("M", "N", "K", "is_split", "is_large"),
    [
        (16, 1280, 8192, True, False),  # 20 tiles of 64 columns, each of 128 steps
        (1, 11008, 4096, False, False),  # enough tiles
        (4096, 4096, 4096, False, True),
        (1, 64, 64, False, False),  # one step: nothing to split
    ],
)
def test_few_tiles_are_split_and_large_products_have_large_tiles(
    way: str, M: int, N: int, K: int, is_split: bool, is_large: bool
) -> None:
    tile = fastest(*WAYS[way], M, N, K, (K, N), PROCESSORS)
    assert (tile.SPLIT > 1, tile.BLOCK_M * tile.BLOCK_N >= 128 * 128) == (is_split, is_large)


@pytest.mark.parametrize(
    ("sizes", "by_rows", "aligned"),
    [
        ((3000, 5000, 2056), (True, True), (16, 128)),
        ((3000, 5000, 2056), (True, False), (16, 16)),  # both along K
        ((3000, 5000, 2056), (False, False), (128, 16)),
        ((3000, 5120, 2056), (True, True), (16, 16)),  # on lines
        ((1000, 1000, 1000), (True, True), (16, 16)),  # the copy would take longer than it saves
    ],
)
def test_an_operand_across_the_terms_is_copied_to_lines_where_that_pays(
    sizes: tuple[int, int, int], by_rows: tuple[bool, bool], aligned: tuple[int, int]
) -> None:
    M, N, K = sizes
    lines = (K if by_rows[0] else M, N if by_rows[1] else K)
    chosen = triton.fastest_tile(triton.SPLIT_K_TILES, M, N, K, lines, by_rows, PROCESSORS)
    assert chosen[1] == aligned


@pytest.mark.parametrize(("M", "rows"), [(1, {16}), (40, {16, 32, 48}), (100, {96, 112, 128})])
def test_tiles_much_higher_than_c_are_left_out(M: int, rows: set[int]) -> None:
    possible_rows = {tile.BLOCK_M for tile in possible(cuda.SPLIT_K_TILES, M, 4096)}
    assert rows <= possible_rows
    assert max(possible_rows) == max(rows)


def test_a_prediction_is_steps_and_waves_or_else_bytes() -> None:
    machine = Machine(LAUNCH_US=4.0, START_US=2.0, DRAM=1e6, L2=1e9, UNALIGNED=2.0, OVERLAP=64.0)
    tile = Tile(128, 128, 6, 1, 1, step_us=1.0, tile_us=3.0)
    split = tile._replace(SPLIT=2)
    lines = (1024, 1024)
    # 1 tile of 16 steps; 133 tiles are two waves; a pair of blocks halves the steps.
    assert predicted_us(machine, tile, 128, 128, 1024, lines, 132) == pytest.approx(4 + 16 + 3, rel=0.01)
    two_waves = predicted_us(machine, tile, 128, 133 * 128, 1024, lines, 132)
    assert two_waves == pytest.approx(4 + 2 * (16 + 3), rel=0.01)
    assert predicted_us(machine, split, 128, 128, 1024, lines, 132) == pytest.approx(4 + 8 + 3, rel=0.01)
    # 2 bytes of 64 K + 128 K elements, at 1e6 bytes per microsecond.
    fast = tile._replace(step_us=0.0, tile_us=0.0)
    bytes_us = 2 * (1 + 128) * 1024 * 1024 / 1e6
    assert predicted_us(machine, fast, 1024, 1024, 64 * 1024, lines, 132) == pytest.approx(
        2 + bytes_us, rel=0.02
    )


def test_lines_that_rows_do_not_start_on_cost_more() -> None:
    aligned, others = (
        predicted_us(*WAYS["cuda"][:1], WAYS["cuda"][1][-1], 4096, 4096, 4096, lines, 132)
        for lines in ((4096, 4096), (4100, 4100))
    )
    assert others > aligned


@pytest.mark.parametrize("layout", ["contiguous", "transposed"])
@pytest.mark.parametrize("number", range(1, len(cuda.SPLIT_K_TILES) + 1))
def test_every_tile_s_launch_is_possible(number: int, layout: str) -> None:
    a, b = meta_inputs(get_op("matmul"), case("bf16", M=3000, N=2600, K=1000, layout=layout))
    (launch,) = cuda.split_k.plan(a, b, TILE=number).launches
    tile = cuda.SPLIT_K_TILES[number - 1]
    assert launch.shared_bytes <= LIMITS[90].block_shared_bytes
    assert launch.grid % (tile.SHARING * tile.SPLIT) == 0
    assert launch.block == 128 * (1 + (tile.BLOCK_N if tile.exchanged else tile.BLOCK_M) // 64)


@pytest.mark.thorough
@pytest.mark.parametrize("number", range(1, len(cuda.SPLIT_K_TILES) + 1))
def test_every_tile_is_right_in_the_host_build(number: int) -> None:
    op, layout = get_op("matmul"), ("contiguous", "transposed", "a_transposed", "b_transposed")[number % 4]
    product = case(("bf16", "fp16")[number // 4 % 2], layout, M=136, N=296, K=456)
    impl = labelled("matmul", "cupy.split_k").given({"TILE": number})
    agreement = check(op, impl, product, torch.device("cpu"), seeds=(0,))
    assert agreement.passed, agreement.reason


def test_a_split_of_fewer_steps_than_blocks_is_refused() -> None:
    a, b = (
        torch.empty(64, 64, device="meta", dtype=torch.bfloat16),
        torch.empty(64, 64, device="meta", dtype=torch.bfloat16),
    )
    number = next(number for number, tile in enumerate(cuda.SPLIT_K_TILES, 1) if tile.SPLIT == 4)
    with pytest.raises(NotImplementedError, match="K=64: SPLIT=4 needs at least 193"):
        cuda.split_k.plan(a, b, TILE=number)
