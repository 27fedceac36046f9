"""layer_norm and rms_norm: properties that no test over all ops covers."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch.nn.functional import layer_norm, rms_norm

from compare import capture, registry
from compare.checking.check import check
from compare.model.op import Implementation, case
from on_device import assert_correct, each_of
from rows import labelled

pytestmark = pytest.mark.thorough

NORMS = ("layer_norm", "rms_norm")
LONG = 128
"""Columns of a row that every variant takes."""


def inputs(impl: Implementation, M: int, N: int, device: torch.device) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator(device).manual_seed(0)
    return registry.get_op(impl.op).make_inputs(case("fp32", M=M, N=N), generator, device)


@each_of(*NORMS)
def test_eps_is_its_last_argument(impl: Implementation, device: torch.device) -> None:
    x, weight, *bias = inputs(impl, 4, LONG, device)
    for eps in (1e-5, 3.0):
        expected = (layer_norm if bias else rms_norm)(x, weight.shape, weight, *bias, eps=eps)
        torch.testing.assert_close(impl.run(x, weight, *bias, eps), expected, rtol=1e-4, atol=0.02)
    assert not torch.allclose(impl.run(x, weight, *bias), expected, rtol=0.1)


@each_of("rms_norm")
def test_an_infinite_element_of_rms_norm_alone_is_nan(impl: Implementation, device: torch.device) -> None:
    """The op leaves it undefined: PyTorch's kernel for rows of no whole vectors gives NaN throughout."""
    N = 520 if impl.way == "torch" or impl.variant in ("cluster", "gluon") else 517  # 520: whole vectors
    x, weight = inputs(impl, 3, N, device)
    x[0, 3], x[1, N - 1] = math.inf, -math.inf
    infinite = x.isinf()
    y = impl.run(x, weight)
    assert torch.equal(y.isnan(), infinite)
    assert bool((y[:2][~infinite[:2]] == 0).all())
    assert bool((y[2] != 0).all())


@each_of("layer_norm", where=lambda impl: impl.label != "torch.eager")
def test_a_row_whose_mean_has_no_square_is_not_nan(impl: Implementation, device: torch.device) -> None:
    """All elements are equal, so the variance is 0; PyTorch's own kernel gives NaN."""
    x, weight, bias = inputs(impl, 4, LONG, device)
    assert torch.equal(impl.run(x.fill_(2.0**67), weight, bias), bias.expand(4, LONG))


def by_subtraction(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    mean = wide.mean(dim=1, keepdim=True)
    variance = (wide.square().mean(dim=1, keepdim=True) - mean.square()).clamp(min=0)
    return ((wide - mean) * torch.rsqrt(variance + 1e-5) * weight + bias).to(x.dtype)


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
def test_a_variance_by_subtraction_is_caught(dtype: str, device: torch.device) -> None:
    """Visible in every fourth row only, which is far from 0."""
    op = registry.get_op("layer_norm")
    impl = Implementation("layer_norm", "torch.subtracting", "naive", by_subtraction)
    far, near = case(dtype, M=6, N=1024), case(dtype, M=1, N=1024)
    assert not check(op, impl, far, device, (0, 1)).passed
    assert check(op, impl, near, device, (0, 1)).passed


@pytest.mark.parametrize(
    ("op", "M", "N", "blocks", "clusters", "slots"),
    [
        ("rms_norm", 1024, 131072, 8, 342, 3),  # three rows each
        ("rms_norm", 2048, 65536, 8, 683, 4),
        ("layer_norm", 2048, 65536, 8, 45, 4),  # persistent: as many as are resident
        *((op, 512, 262144, 16, 14, 3) for op in NORMS),
        *((op, 1, 131072, 8, 1, 3) for op in NORMS),
        *((op, 180, 4096, 2, 180, 4) for op in NORMS),  # few rows: none waits for another
        *((op, 4, 10000, 2, 4, 4) for op in NORMS),  # 1250 vectors of 16 bytes
    ],
)
def test_the_rows_of_a_cluster_share_the_weights(
    op: str, M: int, N: int, blocks: int, clusters: int, slots: int
) -> None:
    launch = only_launch(op, "cupy.cluster", M, N)
    assert launch.kernel.endswith(f", {blocks}>")
    assert launch.grid == (blocks * clusters, 1, 1)
    line = 128
    assert launch.dynamic_shared_bytes == slots * math.ceil(N * 2 / blocks / line) * line


@pytest.mark.parametrize("op", NORMS)
@pytest.mark.parametrize(
    ("N", "shape"),
    [
        (128, "1, 128, 8"),
        (256, "1, 128, 4"),
        (1024, "4, 128, 4"),
        (2048, "4, 64, 1"),
        (4096, "2, 256, 1"),
        (8192, "2, 512, 1"),
        (16384, "4, 512, 1"),
        (32768, "4, 1024, 1"),
    ],
)
def test_a_row_has_as_many_threads_as_hold_it(op: str, N: int, shape: str) -> None:
    launch = only_launch(op, "cupy.onepass", 64, N)
    assert launch.kernel.endswith(f"true, {shape}>")
    rows = int(shape.rpartition(" ")[2])
    assert launch.grid == (64 // rows, 1, 1)


def only_launch(op: str, label: str, M: int, N: int) -> Any:
    (launch,) = capture.capture(labelled(op, label), registry.get_op(op), case("bf16", M=M, N=N), "sm_90")
    return launch


@pytest.mark.gpu
@pytest.mark.parametrize("op", NORMS)
@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize(
    ("M", "N"),
    [
        *((1, 131072), (259, 4096), (258, 10000), (257, 65536), (300, 131072), (7, 8), (256, 98312)),
        *((258, 3001), (5, 50257), (3, 524301)),  # rows that start anywhere between 16-byte boundaries
    ],
)
def test_clusters_agree(op: str, dtype: str, M: int, N: int, device: torch.device) -> None:
    """Rows that are no multiple of BLOCK_M, unequal slices, idle blocks."""
    for label in ("cupy.cluster", "pybind.cluster"):
        assert_correct(labelled(op, label), case(dtype, M=M, N=N), device, (0, 1))
