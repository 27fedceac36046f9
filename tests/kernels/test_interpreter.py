"""Triton's interpreter, patched, behaves like a GPU where the original differs."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import triton
import triton.language as tl

import made_up
import triton_impl  # noqa: F401  patches the interpreter
from compare import registry
from compare import run as running
from compare.model import op as model
from compare.model.result import Options
from loops import for_each
from rows import labelled

pytestmark = pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="kernels are compiled here")


@triton.jit
def copy_kernel(x_ptr, y_ptr, N, BLOCK_SIZE: tl.constexpr):
    n = tl.arange(0, BLOCK_SIZE)
    tl.store(y_ptr + n, tl.load(x_ptr + n, mask=n < N), mask=n < N)


@triton.jit
def overflow_kernel(y_ptr):
    x = tl.load(y_ptr)
    tl.store(y_ptr, (x * x) - (x * x))


def copied(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    y = torch.empty(len(x), dtype=dtype)
    copy_kernel[(1,)](x, y, len(x), BLOCK_SIZE=triton.next_power_of_2(len(x)))
    return y


@for_each("dtype", [torch.bfloat16, torch.float16])
def test_narrowing_rounds_to_nearest_even(dtype: torch.dtype) -> None:
    ties = 1 + torch.arange(64) * torch.finfo(dtype).eps / 4
    special = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 3.4e38, 1e-39, 6e-8])
    x = torch.cat([ties, -ties, special, torch.randn(1000, generator=torch.Generator().manual_seed(0))])
    assert torch.equal(copied(x, dtype).nan_to_num(7.0), x.to(dtype).nan_to_num(7.0))
    assert torch.equal(copied(x, dtype).isnan(), x.isnan())


E4M3 = torch.float8_e4m3fn


@for_each(
    "narrow, wide",
    [(torch.bfloat16, torch.float32), (torch.float16, torch.float32)]
    + [(E4M3, wide) for wide in (torch.float32, torch.float16, torch.bfloat16)],
)
def test_widening_is_exact(narrow: torch.dtype, wide: torch.dtype) -> None:
    """For every number of the dtype."""
    integers = torch.uint8 if narrow is E4M3 else torch.int16
    x = torch.arange(256**narrow.itemsize, dtype=torch.int32).to(integers).view(narrow)
    y, expected = copied(x, wide).float(), x.float()
    assert torch.equal(y.isnan(), expected.isnan())
    assert torch.equal(y[~y.isnan()], expected[~y.isnan()])


def test_overflow_is_silent() -> None:
    y = torch.full((1,), 3e38)
    overflow_kernel[(1,)](y)  # a warning is an error here
    assert y.isnan()


@triton.jit
def bf16_kernel(x_ptr, y_ptr, out_ptr, WHAT: tl.constexpr, N: tl.constexpr):
    n = tl.arange(0, N)
    x = tl.load(x_ptr + n)
    y = tl.load(y_ptr + n)
    if WHAT == "sum":
        z = x + y
    elif WHAT == "difference":
        z = x - y
    elif WHAT == "product":
        z = x * y
    elif WHAT == "quotient":
        z = x / y
    elif WHAT == "negative":
        z = -x
    elif WHAT == "multiply-add":
        z = tl.fma(x, y, x)
    elif WHAT == "larger":
        z = tl.where(x > y, x, y)
    elif WHAT == "clamped":
        z = tl.clamp(x, -y, y)
    elif WHAT == "with constants":
        z = 2 * x + 1.5
    elif WHAT == "constant":
        z = tl.full((N,), 1.7, tl.bfloat16)
    elif WHAT == "whole numbers":
        z = n.to(tl.bfloat16)
    elif WHAT == "total":
        z = tl.zeros((N,), tl.bfloat16) + tl.sum(x, axis=0)
    elif WHAT == "largest":
        z = tl.zeros((N,), tl.bfloat16) + tl.max(x, axis=0)
    elif WHAT == "where it is":
        z = tl.zeros((N,), tl.bfloat16) + tl.argmax(x, axis=0)
    tl.store(out_ptr + n, z)


@for_each(
    "what, exact",
    [
        ("sum", lambda x, y: x + y),
        ("difference", lambda x, y: x - y),
        ("product", lambda x, y: x * y),
        ("quotient", lambda x, y: x / y),
        ("negative", lambda x, y: -x),
        ("multiply-add", lambda x, y: x * y + x),
        ("larger", torch.maximum),
        ("clamped", lambda x, y: torch.clamp(x, -y, y)),
        ("with constants", lambda x, y: (2 * x).bfloat16().double() + 1.5),
        ("constant", lambda x, y: torch.full_like(x, 1.7)),
        ("whole numbers", lambda x, y: torch.arange(len(x)).double()),
        ("total", lambda x, y: x.sum().expand(len(x))),
        ("largest", lambda x, y: x.max().expand(len(x))),
        ("where it is", lambda x, y: x.argmax().double().expand(len(x))),
    ],
)
def test_bf16_is_computed_with_as_numbers(
    what: str, exact: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
) -> None:
    """A user's kernel need not convert to fp32 first, as the project's own do."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(256, generator=generator).bfloat16()
    y = torch.randn(256, generator=generator).abs().add(0.5).bfloat16()
    z = torch.full_like(x, float("nan"))
    bf16_kernel[(1,)](x, y, z, WHAT=what, N=len(x))
    assert torch.equal(z, exact(x.double(), y.double()).bfloat16())


@for_each("op", ["softmax", "layer_norm", "rms_norm"])
def test_a_row_that_programs_would_share_is_refused_where_they_run_one_after_another(op: str) -> None:
    """A single program takes a row as one chunk, up to Triton's limit of a tensor's elements."""
    case = model.case("fp32", M=1, N=tl.TRITON_MAX_TENSOR_NUMEL + 4)
    inputs = registry.get_op(op).make_inputs(case, torch.Generator(), torch.device("cpu"))
    with pytest.raises(NotImplementedError, match="2 chunks take as many programs at a time: 1 fit"):
        labelled(op, "triton.split").run(*inputs)


def test_what_it_rounds_counts_as_no_call_of_pytorch_s(tmp_path: Path) -> None:
    """A kernel's own constants are rounded to bf16 as well."""
    described = registry.get_op("vector_add")
    options = Options(cases=(model.case("bf16", N=100),), device="cpu", only=("triton.*",))
    with made_up.compiled_by(made_up.NoCompilation):
        comparison = running.run(described, options, results=tmp_path)
    wrong = {r.label: r.reason for r in comparison.cases[0].rows if r.status not in ("ok", "unavailable")}
    assert wrong == {}


def test_e4m3_rounds_to_nearest_even_and_saturates() -> None:
    values = torch.arange(127, dtype=torch.uint8).view(E4M3).float()
    middle = (values[1:] + values[:-1]) / 2
    x = torch.cat((values, middle, -middle, torch.tensor([448.1, 500.0, 1e9, torch.inf, 1e-30])))
    y = copied(x, E4M3)
    assert torch.equal(y.float(), x.clamp(-448, 448).to(E4M3).float())
    assert copied(torch.tensor([torch.nan]), E4M3).float().isnan().all()


@triton.jit
def fma_kernel(x_ptr, y_ptr, z_ptr, out_ptr, N: tl.constexpr):
    n = tl.arange(0, N)
    tl.store(out_ptr + n, tl.fma(tl.load(x_ptr + n), tl.load(y_ptr + n), tl.load(z_ptr + n)))


def test_fma_rounds_once() -> None:
    x, y = (torch.rand(64, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1))
    z, out = -(x * y), torch.empty(64)
    fma_kernel[(1,)](x, y, z, out, N=64)
    assert torch.equal(out.double(), x.double() * y.double() + z.double())
    assert out.any()
