"""fp8_block_matmul: where scales apply, and which tiles are chosen."""

from __future__ import annotations

import pytest
import torch

import triton_impl.fp8_block_matmul
from compare import registry
from compare.model.op import Implementation, case
from cuda_impl.launches.fp8_block_matmul import prefetched
from cuda_impl.launches.scaled_matmul import TILES
from loops import for_each
from on_device import each_of
from torch_impl.quantize_fp8 import naive as quantized

pytestmark = pytest.mark.thorough

OP = registry.get_op("fp8_block_matmul")


@each_of(OP.name)
def test_it_takes_what_quantize_fp8_makes(impl: Implementation) -> None:
    """The product of quantized activations is near that of the activations."""
    generator = torch.Generator().manual_seed(2)
    x, w = (torch.randn(size, 384, generator=generator) for size in (17, 128))
    a, scale_a = quantized(x, group=128)
    blocks = w.view(128, 3, 128).abs().amax((0, 2)) / 448
    b = (w / blocks.repeat_interleave(128)).to(torch.float8_e4m3fn)
    found = impl.run(a, b, scale_a, blocks[None]).float()
    wanted = x @ w.T
    assert float((found - wanted).norm() / wanted.norm()) < 0.05


@each_of(OP.name)
def test_each_scale_counts_where_it_applies(impl: Implementation) -> None:
    """Of ones, c is 128 times the sum of a block's scales."""
    a, b = (torch.ones(size, 256).to(torch.float8_e4m3fn) for size in (2, 130))
    scale_a = torch.tensor([[1.0, 2.0], [4.0, 8.0]])
    scale_b = torch.tensor([[1.0, 16.0], [32.0, 64.0]])
    found = impl.run(a, b, scale_a, scale_b).float() / 128
    wanted = scale_a @ scale_b.T
    assert torch.equal(found[:, :128], wanted[:, :1].expand(2, 128))
    assert torch.equal(found[:, 128:], wanted[:, 1:].expand(2, 2))


@each_of(OP.name)
def test_what_lies_beyond_the_columns_of_b_does_not_count(impl: Implementation) -> None:
    """It is NaN, and a's rows are such that a copy with a zero in its place may be made of them."""
    ones = torch.ones(66, 264).to(torch.float8_e4m3fn)
    memory = torch.full((272, 136), float("nan")).to(torch.float8_e4m3fn)
    memory[:264] = torch.ones(264, 136).to(torch.float8_e4m3fn)
    product = impl.run(ones, memory.t()[:, :264], torch.ones(66, 3), torch.ones(2, 3))
    assert torch.equal(product.float(), torch.full((66, 136), 264.0))


# Several tiles, blocks of b that end inside a tile, and numbers of blocks of K that four do not divide.
@pytest.mark.parametrize("sizes", [(20, 200, 1100), (270, 131, 645)])
@pytest.mark.parametrize("BLOCK_N", [tile.BLOCK_N for tile in TILES])
def test_every_tile_is_correct(BLOCK_N: int, sizes: tuple[int, int, int]) -> None:
    c = case("fp8", **dict(zip("MNK", sizes, strict=True)))
    inputs = OP.make_inputs(c, torch.Generator().manual_seed(0), torch.device("cpu"))
    wanted = OP.oracle(*(x.double() for x in inputs))
    found = prefetched(*inputs, BLOCK_N=BLOCK_N).double()
    torch.testing.assert_close(found, wanted, rtol=2**-8, atol=float(wanted.abs().max()) * 2**-8)


@for_each(
    "M, N, tile",
    [(4096, 4096, (128, 128)), (128, 8192, (64, 128)), (128, 7168, (64, 128)), (64, 8192, (64, 64))],
)
def test_triton_tiles_keep_four_fifths_of_an_h200_at_work(M: int, N: int, tile: tuple[int, int]) -> None:
    found = triton_impl.fp8_block_matmul.tile_of(M, N, processors=132)
    assert (found["BLOCK_M"], found["BLOCK_N"]) == tile


def test_misaligned_rows_are_copied_for_vectorized_loads() -> None:
    whole = torch.ones(4, 512).to(torch.float8_e4m3fn)
    for taken in (whole, whole[:, :256], whole.t(), whole[:, :9]):
        assert triton_impl.fp8_block_matmul.vectorizable(taken) is taken
    found = triton_impl.fp8_block_matmul.vectorizable(whole[:, :201]).float()
    assert found.shape == (4, 208)
    assert torch.equal(found[:, :201], torch.ones(4, 201))
    assert not found[:, 201:].any()
