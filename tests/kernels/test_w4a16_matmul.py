"""w4a16_matmul: nibbles, scales, zero points and prepared weights."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from compare import registry
from compare.model.op import Implementation, case
from cuda_impl.launches.w4a16_matmul import repack, repack_pieces
from on_device import each_of
from rows import labelled
from torch_impl.w4a16_matmul import dequantize
from triton_impl import w4a16_matmul as in_triton

pytestmark = pytest.mark.thorough

CPU = torch.device("cpu")
OP = registry.get_op("w4a16_matmul")


def inputs_of(M: int, N: int, K: int, dtype: str = "fp16", fill: str = "normal") -> tuple[torch.Tensor, ...]:
    return OP.make_inputs(case(dtype, fill=fill, M=M, N=N, K=K), torch.Generator().manual_seed(0), CPU)


def packed_of(q: np.ndarray[Any, Any]) -> torch.Tensor:
    """q[N,K] as words, for a K that is a multiple of 8."""
    words = (q.astype(np.uint32).reshape(len(q), -1, 8) << np.arange(0, 32, 4, dtype=np.uint32)).sum(2)
    return torch.from_numpy(words.astype(np.uint32).view(np.int32))


@pytest.mark.parametrize("dtype", OP.dtypes)
def test_its_weights_are_exact_in_the_dtype_of_a(dtype: str) -> None:
    """So a product of weights that were dequantized offline has the same terms."""
    _, packed, scales, zeros = inputs_of(1, 64, 512, dtype)
    w = OP.magnitude(torch.eye(512).double(), packed.double(), scales.double(), zeros.double()).T  # type: ignore[misc]
    assert torch.equal(dequantize(packed, scales, zeros).double().abs(), w)
    assert len(w.unique()) > 200


@each_of(OP.name)
def test_each_weight_counts_once(impl: Implementation) -> None:
    """Rows of the identity find every weight where it belongs."""
    N, K = 9, 136
    _, packed, scales, zeros = inputs_of(1, N, K)
    found = impl.run(torch.eye(K, dtype=torch.float16), packed, scales, zeros)
    assert torch.equal(found, dequantize(packed, scales, zeros).t())


@each_of(OP.name)
def test_each_value_of_a_nibble_and_a_zero_point(impl: Implementation) -> None:
    q = np.tile(np.arange(16), (16, 8))
    zeros = torch.arange(16, dtype=torch.uint8)[:, None]
    for dtype in (torch.float16, torch.bfloat16):
        a = torch.zeros(16, 128, dtype=dtype)
        a[:, :16] = torch.eye(16)
        found = impl.run(a, packed_of(q), torch.ones(16, 1, dtype=dtype), zeros).float()
        assert torch.equal(found, torch.arange(16.0)[:, None] - torch.arange(16.0))


@each_of(OP.name)
def test_special_scales(impl: Implementation) -> None:
    """0, infinity, NaN and the least subnormal number, which is not flushed to 0."""
    scales = torch.tensor([0.0, math.inf, math.nan, 2.0**-24])[:, None].half()
    q, zeros = np.full((4, 128), 15), torch.zeros(4, 1, dtype=torch.uint8)
    found = impl.run(torch.ones(1, 128).half(), packed_of(q), scales, zeros)
    wanted = torch.tensor([[0.0, math.inf, math.nan, 1920 * 2.0**-24]]).half()
    torch.testing.assert_close(found, wanted, rtol=0, atol=0, equal_nan=True)


PREPARED = [
    "cupy.streamk",
    "pybind.streamk",
    "cupy.transposed",
    "pybind.transposed",
    "cupy.wide",
    "pybind.wide",
    "triton.transposed",
]


@pytest.mark.parametrize("label", ["torch.fp16", *PREPARED])
@pytest.mark.parametrize("sizes", [(1, 8, 128), (5, 67, 300), (40, 300, 700), (70, 130, 300)])
def test_a_call_with_prepared_weights_gives_the_same_bits(label: str, sizes: tuple[int, int, int]) -> None:
    impl, inputs = labelled(OP.name, label), inputs_of(*sizes)
    wanted, call = impl.run(*inputs), impl.ready(OP, inputs)
    for _ in range(2):  # after the first, flags and counters are 0 again
        assert torch.equal(call(), wanted)


@pytest.mark.parametrize("label", PREPARED)
def test_prepared_weights_of_another_size_are_refused(label: str) -> None:
    impl = labelled(OP.name, label)
    assert impl.prepare is not None
    other = impl.prepare(*inputs_of(1, 24, 256)[1:])
    with pytest.raises(ValueError, match="it takes what repack"):
        impl.run(*inputs_of(1, 80, 256), prepared=other)


def test_both_routes_repack_alike() -> None:
    for sizes in ((1, 8, 128), (5, 67, 300)):
        weights = inputs_of(*sizes)[1:]
        for repacked, label in ((repack, "pybind.streamk"), (repack_pieces, "pybind.transposed")):
            other = labelled(OP.name, label)
            for mine, theirs in zip(repacked(*weights), other.prepare(*weights), strict=True):  # type: ignore[misc]
                assert torch.equal(mine, theirs)


def test_triton_and_cuda_have_the_same_pieces() -> None:
    weights = inputs_of(5, 200, 384)[1:]
    assert torch.equal(in_triton.repack_pieces(*weights)[0], repack_pieces(*weights)[0])


TILES = [
    ("cupy.transposed", {"BLOCK_M": 8, "WARPGROUPS": 2, "STAGES": 3, "BLOCKS": 2}),
    ("cupy.transposed", {"BLOCK_M": 32, "WARPGROUPS": 4, "STAGES": 5}),
    ("cupy.transposed", {"BLOCK_M": 128, "WARPGROUPS": 1, "STAGES": 4}),
    ("cupy.wide", {"BLOCK_M": 64, "WARPGROUPS": 1, "STAGES": 2, "EVICT_FIRST": 0}),
    ("triton.transposed", {"BLOCK_M": 16, "PIECES": 2, "PROGRAMS": 2}),
    ("triton.transposed", {"BLOCK_M": 128, "PIECES": 4, "PROGRAMS": 1}),
]


@pytest.mark.parametrize(("label", "tile"), TILES)
def test_every_tile_gives_the_same_product(label: str, tile: dict[str, int]) -> None:
    """Rows, columns and groups end inside a tile."""
    impl, inputs = labelled(OP.name, label), inputs_of(11, 150, 700)
    wanted = OP.oracle(*(x.double() if x.is_floating_point() else x for x in inputs))
    torch.testing.assert_close(impl.run(*inputs, **tile).double(), wanted, rtol=2**-10, atol=2**-10)
