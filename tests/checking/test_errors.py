"""Wrong values are caught for every op and dtype, and correct ones pass."""

from __future__ import annotations

import functools
import math

import pytest
import torch

from compare import registry
from compare.inputs import TORCH_DTYPES
from compare.model.op import FP8, INTEGER_DTYPES, ROUNDOFF, Case, Op, case
from loops import for_each
from mutants import (
    Run,
    baseline,
    checked,
    every_op_and_case,
    failed,
    rounded_oracle,
    skip_where_the_end_is_open,
    skip_whole_numbers,
)


def rolled(right: torch.Tensor, dim: int) -> torch.Tensor:
    """By one; `torch.roll` takes no fp8 on a GPU."""
    return right.index_select(dim, torch.arange(right.shape[dim], device=right.device).roll(1))


def swapped(right: torch.Tensor) -> torch.Tensor:
    right[..., [2, 3]] = right[..., [3, 2]]
    return right


def scaled(right: torch.Tensor, factor: float) -> torch.Tensor:
    return (right.double() * factor).to(right.dtype)


def last_element_lost(right: torch.Tensor) -> torch.Tensor:
    (right if right.dim() > 0 else right[None])[..., -1] = 0
    return right


def shuffled(right: torch.Tensor) -> torch.Tensor:
    """Not at random, which could leave a short row as it is: odd places first, then even ones."""
    places = torch.arange(right.shape[-1])
    return right[..., torch.cat((places[1::2], places[::2]))]


OF_MANY: dict[str, Run] = {
    "shuffled_along_the_row": shuffled,
    "rolled_by_one": lambda right: rolled(right, -1),
    "two_neighbours_swapped": swapped,
    "shuffled_rows": lambda right: rolled(right, 0),
}
WRONG_VALUES: dict[str, Run] = OF_MANY | {
    "zeros": torch.zeros_like,
    "last_element_lost": last_element_lost,
    # By 1/16000 in fp32, and by two units in the last place in the others.
    "slightly_scaled": lambda right: scaled(right, 1 + max(2 * torch.finfo(right.dtype).eps, 2**-14)),
}


@pytest.mark.parametrize("wrong", WRONG_VALUES)
@every_op_and_case
def test_wrong_values_are_caught(op: Op, c: Case, wrong: str, device: torch.device) -> None:
    right, mutate = baseline(op), WRONG_VALUES[wrong]
    if wrong == "last_element_lost":
        skip_where_the_end_is_open(op)
    if wrong == "slightly_scaled":
        skip_whole_numbers(op)
    if wrong in OF_MANY and op.signature.endswith("[]"):
        pytest.skip("a single number has no order")
    agreement = checked(op, c, device, lambda *inputs: mutate(right(*inputs)).clone())
    assert "values" in failed(agreement)
    assert agreement.error > agreement.limit
    assert agreement.within < 1


@pytest.mark.parametrize("value", [math.nan, math.inf])
@every_op_and_case
def test_nan_and_infinity_are_caught(op: Op, c: Case, value: float, device: torch.device) -> None:
    skip_whole_numbers(op)
    if op.output_dtype == FP8 and math.isinf(value):
        pytest.skip("e4m3 has no infinity")
    right = baseline(op)

    def run(*inputs: torch.Tensor) -> torch.Tensor:
        output = right(*inputs)
        output.view(-1)[min(5, output.numel() - 1)] = value
        return output

    agreement = checked(op, c, device, run)
    assert "NaN and infinity" in failed(agreement)
    assert agreement.within < 1


ROUNDED_ONCE_ULP = 0.27
"""The median of an error that is uniform up to half a unit in the last place is a quarter."""


@every_op_and_case
def test_one_intermediate_rounding_is_caught(op: Op, c: Case, device: torch.device) -> None:
    """As if a factor of the result had been stored in the narrow dtype, before the last rounding."""
    skip_whole_numbers(op)
    wide = TORCH_DTYPES[op.output_dtype or c.dtype]
    narrow = torch.bfloat16 if wide is torch.float32 else wide
    roundoff = ROUNDOFF.get(op.output_dtype or c.dtype, 1.0)
    if narrow is wide and op.tolerance(c).least >= roundoff / ROUNDOFF["fp32"]:
        pytest.skip("every implementation rounds intermediate results, and the tolerance allows it")
    if narrow is wide and checked(op, c, device, baseline(op)).ulp_p50 > ROUNDED_ONCE_ULP:
        pytest.skip("PyTorch's own rounds intermediate results as well, which sets the tolerance")

    def run(*inputs: torch.Tensor) -> torch.Tensor:
        exact = op.oracle(*(x.double() for x in inputs))
        return ((exact * 3).to(narrow).double() / 3).to(wide)

    assert "values" in failed(checked(op, c, device, run))


NARROWER = {
    "fp32": (torch.float16, torch.bfloat16),
    "fp16": (torch.bfloat16,),
    "bf16": (torch.float8_e4m3fn,),
    "fp8": (torch.float8_e5m2,),
}


@pytest.mark.parametrize("which", [0, 1])
@every_op_and_case
def test_inputs_rounded_to_a_lower_precision_are_caught(
    op: Op, c: Case, which: int, device: torch.device
) -> None:
    if c.dtype in INTEGER_DTYPES:
        pytest.skip("integers are not rounded")
    if which >= len(NARROWER[c.dtype]):
        pytest.skip("only fp32 has two next lower precisions")
    narrow = NARROWER[c.dtype][which]
    right = baseline(op)

    def rounded(x: torch.Tensor) -> torch.Tensor:
        # Not fp32 sums beside 16-bit inputs: e4m3 makes NaN of the -inf in lse.
        return x.to(narrow).to(x.dtype) if x.dtype is TORCH_DTYPES[c.dtype] else x

    agreement = checked(op, c, device, lambda *inputs: right(*map(rounded, inputs)))
    assert "values" in failed(agreement)


@every_op_and_case
def test_the_correctly_rounded_oracle_passes(op: Op, c: Case, device: torch.device) -> None:
    agreement = checked(op, c, device, functools.partial(rounded_oracle, op), seeds=(0, 1))
    assert agreement.passed, agreement.reason
    assert agreement.error < 1
    # Of many rounded values one lies nearly in the middle; values that are only moved are not rounded.
    whole = op.output_dtype in INTEGER_DTYPES or op.tolerance(c).exact
    rounded = op.cost(c).flops > 0 and not op.signature.endswith("[]") and not whole
    # The GPU's sums differ in their order from call to call.
    assert (0.4 if rounded else 0) <= agreement.ulp_max <= 0.5 + 1e-4
    assert agreement.ulp_p50 <= agreement.ulp_p99 <= agreement.ulp_max
    assert agreement.within == 1
    assert agreement.seeds == 2


@for_each("rows", [1, 3, 1000])
def test_a_case_is_compared_whole_whatever_the_pieces(
    rows: int, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error in the last element is found, and the figures are the same, with pieces of any size."""
    op = registry.get_op("softmax")
    c = case("fp32", M=7, N=100)

    def run(x: torch.Tensor) -> torch.Tensor:
        output = torch.softmax(x, -1)
        output[-1, -1] *= 1.5
        return output

    whole = checked(op, c, device, run)
    with monkeypatch.context() as patch:
        patch.setattr("compare.checking.reference._PIECE_ELEMENTS", rows * 33)
        pieces = checked(op, c, device, run)
    assert pieces.findings == whole.findings
    assert (pieces.error, pieces.within, pieces.max_abs) == (whole.error, whole.within, whole.max_abs)
    assert whole.within == 699 / 700


# ----------------------------------------------------------------------- softmax's own mutants


def exp_in_the_inputs_dtype(x: torch.Tensor) -> torch.Tensor:
    e = (x - x.amax(1, keepdim=True)).exp()
    return (e.float() / e.float().sum(1, keepdim=True)).to(x.dtype)


def sum_in_the_inputs_dtype(x: torch.Tensor) -> torch.Tensor:
    """128 lanes, each of which accumulates its share of the row in the narrow dtype."""
    wide = x.float()
    e = (wide - wide.amax(1, keepdim=True)).exp()
    lanes = torch.zeros(x.shape[0], 128, dtype=x.dtype, device=x.device)
    for part in e.split(128, dim=1):
        lanes[:, : part.shape[1]] += part.to(x.dtype)
    return (e / lanes.float().sum(1, keepdim=True)).to(x.dtype)


@for_each("dtype, N", [(dtype, N) for dtype in ("fp16", "bf16") for N in (781, 2**18)])
def test_softmax_in_low_precision_is_caught(dtype: str, N: int, device: torch.device) -> None:
    for run in (exp_in_the_inputs_dtype, sum_in_the_inputs_dtype):
        agreement = checked(registry.get_op("softmax"), case(dtype, M=2, N=N), device, run)
        assert "values" in failed(agreement), run.__name__


def test_softmax_without_the_shift_is_caught_where_it_overflows(device: torch.device) -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        e = x.float().exp()
        return (e / e.sum(1, keepdim=True)).to(x.dtype)

    assert not checked(registry.get_op("softmax"), case("fp16", fill="huge", M=6, N=517), device, run).passed


def test_softmax_that_hides_nan_is_caught(device: torch.device) -> None:
    for fill in ("nan", "neg_inf"):
        c = case(fill=fill, M=6, N=517)
        agreement = checked(
            registry.get_op("softmax"), c, device, lambda x: torch.softmax(x, 1).nan_to_num(0.0)
        )
        assert "NaN and infinity" in failed(agreement)


# ----------------------------------------------------------------------- matmul's own mutants


def summed_in(dtype: torch.dtype, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """16 products at a time, as a tensor core adds them; the sum so far in ``dtype``."""
    total = torch.zeros(a.shape[0], b.shape[1], dtype=dtype, device=a.device)
    for k in range(0, a.shape[1], 16):
        total = (total.float() + a[:, k : k + 16].float() @ b[k : k + 16].float()).to(dtype)
    return total.to(a.dtype)


@for_each("c", [case(dtype, M=24, N=32, K=k) for dtype in ("fp16", "bf16") for k in (70, 2048, 16384)])
def test_products_summed_in_their_own_dtype_are_caught(c: Case, device: torch.device) -> None:
    op = registry.get_op("matmul")
    narrow = checked(op, c, device, lambda a, b: summed_in(a.dtype, a, b))
    assert failed(narrow) == {"values"}
    assert narrow.error > 4 * narrow.limit
    wide = checked(op, c, device, lambda a, b: torch.empty_like(b).set_(summed_in(torch.float32, a, b)))
    assert failed(wide) == set()
