"""Cases are printed and parsed the same, and a mistyped one says what is wrong."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from compare import registry
from compare.model.op import DTYPES, FILLS, FP8, NO_INFINITY, Case, UsageError, case
from loops import for_each

OPS = registry.op_names()


@st.composite
def ops_and_cases(draw: Any) -> tuple[Any, Case]:
    op = registry.get_op(draw(st.sampled_from(OPS)))
    dims = tuple((name, draw(st.integers(0, 2**13))) for name in op.dims)
    dtype = draw(st.sampled_from(op.dtypes))
    fills = NO_INFINITY if dtype == FP8 else FILLS
    return op, Case(dims, dtype, draw(st.sampled_from(op.layouts)), draw(st.sampled_from(fills)))


@given(ops_and_cases())
def test_a_case_is_parsed_as_it_is_printed(op_and_case: tuple[Any, Case]) -> None:
    op, c = op_and_case
    assert Case.parse(str(c), op) == c


@given(ops_and_cases(), st.randoms(use_true_random=False))
def test_words_come_in_any_order_and_with_spaces(op_and_case: tuple[Any, Case], random: Any) -> None:
    op, c = op_and_case
    words = str(c).split(",")
    random.shuffle(words)
    assert Case.parse(" , ".join(words), op) == c


@given(st.text(max_size=40))
def test_any_other_text_is_a_usage_error_or_a_case(text: str) -> None:
    op = registry.get_op("softmax")
    try:
        parsed = Case.parse(text, op)
    except UsageError:
        return
    assert Case.parse(str(parsed), op) == parsed


@for_each(
    "text, said",
    [
        ("M=4", "N is missing"),
        ("M=4,N=3,K=2", "'K' is no dimension; there are M, N"),
        ("M=4,M=4,N=2", "M is given twice"),
        ("M=-4,N=2", "M='-4' is not a whole number"),
        ("M=4,N=2.5", "N='2.5' is not a whole number"),
        ("M=4,N=٣", "is not a whole number"),
        ("M=4,N=2,fp64", "'fp64' is neither NAME=SIZE nor one of fp32, fp16, bf16, contiguous, padded,"),
        ("M=4,N=2,uint8", "softmax takes fp32, fp16, bf16, not uint8"),
        (f"M={2**60},N=2", "M is 2^60 or more"),
        ("M=0,N=100000000000000000000000", "N is 2^60 or more"),
        (f"M={'9' * 5000},N=2", "M is 2^60 or more"),
        (
            f"M={2**30},N={2**30}",
            "its inputs and outputs take 9.2e+18 bytes, and that has to be less than 2^60",
        ),
        (f"M={2**30},N={2**30},expanded", "less than 2^60"),
        ("M=4,N=2,fp16,bf16", "two words for the dtype: fp16 and bf16"),
        ("M=4,N=2,sliced,padded", "two words for the layout"),
        ("M=4,N=2,huge,nan", "two words for the fill"),
        ("", "is neither"),
        ("M=,N=2", "M='' is not a whole number"),
    ],
)
def test_what_is_wrong_with_a_case_is_said(text: str, said: str) -> None:
    with pytest.raises(UsageError, match="of softmax: ") as caught:
        Case.parse(text, registry.get_op("softmax"))
    assert said in str(caught.value)
    assert "A case reads like M=" in str(caught.value)


@for_each(
    "name, text",
    [
        ("softmax", f"M=2,N={2**30 + 3},fp32"),
        ("softmax", f"M={2**40},N=0,fp32"),
        ("vector_add", f"N={2**56},fp32,expanded"),
        ("matmul", f"M={2**24},N={2**24},K={2**24},bf16"),
        ("histogram", f"N={2**60 - 2**20},SKEW=0,uint8"),
    ],
)
def test_a_huge_case_whose_tensors_can_be_is_a_case(name: str, text: str) -> None:
    """No machine has the memory, but anything can be said of them, as how a kernel is compiled for them."""
    op = registry.get_op(name)
    parsed = Case.parse(text, op)
    assert str(parsed) == text
    meta = torch.device("meta")
    inputs = op.make_inputs(parsed, torch.Generator(), meta)
    assert all(x.to(torch.float64).device == meta for x in inputs)


def test_fp8_has_no_infinity() -> None:
    op = dataclasses.replace(registry.get_op("softmax"), dtypes=("fp8",))
    assert Case.parse("M=4,N=2,fp8,nan", op).fill == "nan"
    with pytest.raises(UsageError, match="no infinity; its fills are normal, huge, nan, zero"):
        Case.parse("M=4,N=2,fp8,neg_inf", op)


def test_dtype_defaults_to_the_ops_first() -> None:
    op = registry.get_op("softmax")
    assert Case.parse("M=4,N=2", op).dtype == op.dtypes[0]
    assert set(op.dtypes) <= set(DTYPES)


def test_case_gives_sizes_by_name_and_in_order() -> None:
    c = case("fp16", M=4, N=781)
    assert (c["M"], c["N"], c.shape) == (4, 781, (4, 781))
    with pytest.raises(KeyError):
        c["K"]


@for_each(
    "summary, formula",
    [
        (
            "y = exp(x - max(x)) / sum(exp(x - max(x))) along each row",
            "y = exp(x - max(x)) / sum(exp(x - max(x)))",
        ),
        ("c = a @ b, with fp32 sums: each element read is used often", "c = a @ b"),
        ("gradients dq, dk of q k^T, recomputing what lse tells", "gradients dq, dk of q k^T"),
        ("y = the x[n] above 0, in order: where does each go?", "y = the x[n] above 0, in order"),
        ("z = x + y", "z = x + y"),
    ],
)
def test_a_summary_begins_with_the_formula(summary: str, formula: str) -> None:
    assert dataclasses.replace(registry.get_op("softmax"), summary=summary).formula == formula
