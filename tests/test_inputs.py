"""Inputs have the layout and the fill that their case names, and are the same for the same seed."""

from __future__ import annotations

import math

import pytest
import torch

from compare.inputs import ITEM_BYTES, TORCH_DTYPES, indices, stored_bytes, tensor
from compare.model.op import DTYPES, FILLS, FP8, INTEGER_DTYPES, LAYOUTS, NO_INFINITY, Case, UsageError, case
from loops import for_each

SHAPE = (6, 130)
CPU = torch.device("cpu")


def make(c: Case, shape: tuple[int, ...] = SHAPE, seed: int = 0, device: torch.device = CPU) -> torch.Tensor:
    return tensor(shape, c, torch.Generator().manual_seed(seed), device)


FILLED = [
    *((dtype, fill) for dtype in DTYPES for fill in FILLS),
    *((FP8, fill) for fill in NO_INFINITY),
    ("int8", "normal"),
]


@for_each("layout, dtype, fill", [(layout, *filled) for layout in LAYOUTS for filled in FILLED])
def test_layouts_hold_the_same_values(layout: str, fill: str, dtype: str) -> None:
    x = make(case(dtype, layout, fill))
    assert x.shape == SHAPE
    assert x.dtype is TORCH_DTYPES[dtype]
    plain = make(case(dtype, fill=fill), (1, *SHAPE[1:]) if layout == "expanded" else SHAPE)
    assert torch.equal(*(y.double().nan_to_num(nan=3.0) for y in (x, plain.expand(SHAPE))))


@for_each(
    "layout, strides, offset",
    [
        ("contiguous", (130, 1), 0),
        ("transposed", (1, 6), 0),
        ("sliced", (260, 2), 0),
        ("misaligned", (130, 1), 1),
        ("expanded", (0, 1), 0),
    ],
)
def test_how_layouts_lie_in_memory(layout: str, strides: tuple[int, ...], offset: int) -> None:
    x = make(case("fp16", layout))
    assert (x.stride(), x.storage_offset()) == (strides, offset)


def test_padded_rows_lie_further_apart_and_off_alignment() -> None:
    x = make(case("fp16", "padded"))
    assert x.stride(0) > SHAPE[1]
    assert x.stride(1) == 1
    assert x.stride(0) * x.itemsize % 4 != 0


@for_each("dtype, layout", [(dtype, layout) for dtype in ("fp32", "fp8") for layout in ("padded", "sliced")])
def test_gaps_are_nan(dtype: str, layout: str) -> None:
    x = make(case(dtype, layout))
    everything = torch.empty(0, dtype=x.dtype).set_(x.untyped_storage())
    assert int(everything.isnan().sum()) == len(everything) - x.numel() > 0


@for_each("dtype", DTYPES)
def test_normal_values_are_varied_and_every_row_has_its_outliers(dtype: str) -> None:
    x = make(case(dtype)).float()
    assert x.isfinite().all()
    inner = x.abs() < 4.5
    assert 0.8 < float(x[inner].std()) < 1.2
    assert ((x[:, 1:-1] >= 8).sum(dim=1) == 1).all()
    assert (x[:, 0] == -5).all()
    assert (x[:, -1] == 6).all()
    assert len({tuple(row.tolist()) for row in x}) == len(x)


def test_bytes_take_every_value_and_reach_both_ends_in_every_row() -> None:
    for dtype in ("int8", "uint8"):
        assert dtype in INTEGER_DTYPES
        x = make(case(dtype), (9, 4000))
        limits = torch.iinfo(x.dtype)
        assert len(x.unique()) == 256
        assert (x[:, 0] == limits.min).all()
        assert (x[:, -1] == limits.max).all()
        assert abs(float(x[:, 1:-1].double().mean()) - (limits.min + limits.max) / 2) < 2


def test_values_of_fp8_are_rounded_normal_ones_with_subnormals() -> None:
    x = make(case(FP8), (9, 4000))
    wide = x.float()
    assert len(x.view(torch.uint8).unique()) > 150
    assert ((wide != 0) & (wide.abs() < 2.0**-6)).sum() > 100
    assert 0.9 < float(wide[:, 1:-1].std()) < 1.1
    assert make(case(FP8, fill="nan")).isnan().any(dim=1).sum() == 4


@for_each("dtype", [*DTYPES, FP8])
def test_huge_values_reach_the_largest_finite(dtype: str) -> None:
    x = make(case(dtype, fill="huge"))
    limits, x = torch.finfo(x.dtype), x.float()
    assert x.isfinite().all()
    assert float(x.max()) == limits.max
    assert float(x.min()) == limits.min
    assert (x.amax(dim=1) < 0).tolist() == [row % 3 == 2 for row in range(len(x))]


def test_some_rows_are_all_minus_infinity_and_some_partly() -> None:
    infinite = (make(case("fp32", fill="neg_inf")) == -math.inf).float().mean(dim=1)
    assert (infinite == 1).sum() == 2
    assert ((infinite > 0.5) & (infinite < 1)).sum() == 2
    assert (infinite == 0).sum() == 2


def test_some_rows_hold_nan_some_infinity_and_some_neither() -> None:
    x = make(case("fp32", fill="nan"))
    assert x.isnan().any(dim=1).sum() == x.isinf().any(dim=1).sum() == 2
    assert x.isfinite().all(dim=1).sum() == 2


@for_each(
    "layout, dtype, fill, shape",
    [
        (layout, dtype, fill, shape)
        for layout in LAYOUTS
        for dtype, fill in FILLED
        if dtype in ("bf16", FP8, "int8")
        for shape in ((0,), (1,), (0, 5), (5, 0), (1, 1), (2, 3, 4))
    ],
)
def test_every_shape_on_meta_as_on_the_cpu(
    layout: str, dtype: str, fill: str, shape: tuple[int, ...]
) -> None:
    if layout in ("padded", "transposed") and len(shape) < 2:
        with pytest.raises(UsageError, match="needs two dimensions"):
            make(case(dtype, layout, fill), shape)
        return
    x = make(case(dtype, layout, fill), shape)
    meta = make(case(dtype, layout, fill), shape, device=torch.device("meta"))
    assert (x.shape, x.stride(), x.storage_offset()) == (shape, meta.stride(), meta.storage_offset())
    assert meta.device.type == "meta"


def make_indices(c: Case, below: int = 9, device: torch.device = CPU) -> torch.Tensor:
    return indices((40,), below, c, torch.Generator().manual_seed(0), device, none=-100)


@for_each("layout", LAYOUTS)
def test_indices_are_columns_and_reach_both_ends(layout: str) -> None:
    x = make_indices(case("fp16", layout))
    meta = make_indices(case("fp16", layout), device=torch.device("meta"))
    assert x.dtype is meta.dtype is torch.int64
    assert (x.shape, x.stride(), x.storage_offset()) == ((40,), meta.stride(), meta.storage_offset())
    if layout == "expanded":
        assert x.stride() == (0,)
    else:
        assert (int(x.min()), int(x.max())) == (0, 8)
        assert x[1::4].eq(8).all()
        assert x[2::4].eq(0).all()
        assert len(x.unique()) > 4


def test_gaps_between_indices_are_no_columns() -> None:
    x = make_indices(case(layout="sliced"))
    everything = torch.empty(0, dtype=torch.int64).set_(x.untyped_storage())
    assert int((everything < 0).sum()) == 40


def test_where_the_fill_is_unusual_some_are_no_index() -> None:
    assert not make_indices(case()).eq(-100).any()
    assert make_indices(case(fill="nan")).eq(-100).nonzero().flatten().tolist() == list(range(0, 40, 5))
    assert make_indices(case(), below=0).eq(-100).all()


def test_the_seed_decides() -> None:
    assert torch.equal(make(case()), make(case()))
    assert not torch.equal(make(case()), make(case(), seed=1))


@for_each("dtype", [*DTYPES, FP8, *INTEGER_DTYPES])
def test_stored_bytes_count_each_element_once(dtype: str) -> None:
    for layout in LAYOUTS:
        elements = SHAPE[1] if layout == "expanded" else math.prod(SHAPE)
        assert stored_bytes(SHAPE, case(dtype, layout)) == elements * ITEM_BYTES[dtype]


@pytest.mark.gpu
def test_values_drawn_on_the_cpu_move_to_the_gpu() -> None:
    x = make(case("fp16", "sliced"), device=torch.device("cuda"))
    assert x.is_cuda
    assert torch.equal(x.cpu(), make(case("fp16", "sliced")))
