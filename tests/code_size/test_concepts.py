"""Concepts are found in code, not in comments, and by the same name in both languages."""

from __future__ import annotations

import pytest

from compare.code_size.concepts import concepts_of
from compare.code_size.pieces import Piece


def test_concepts_are_not_found_in_comments() -> None:
    assert concepts_of([Piece("int x; // __shared__ and asm\n", "cuda")]) == ()
    assert concepts_of([Piece("__shared__ int x;", "cuda")]) == ("shared memory",)


@pytest.mark.parametrize(
    ("triton", "gluon"),
    [
        ("tl.sum(x)", "gl.sum(x)"),
        ("tl.debug_barrier()", "gl.barrier()"),
        ("tl.atomic_add(x, 1)", "gl.atomic_add(x, 1)"),
        ("tl.arange(0, 8)", "gl.arange(0, 8)"),
    ],
)
def test_what_is_said_in_both_is_the_same_concept(triton: str, gluon: str) -> None:
    found = concepts_of([Piece(triton, "python")])
    assert found
    assert concepts_of([Piece(gluon, "python")]) == found


def test_a_layout_of_registers_is_one_to_know() -> None:
    assert concepts_of([Piece("gl.BlockedLayout([1], [32], [4], [0])", "python")]) == ("register layouts",)
    assert concepts_of([Piece("gl.SwizzledSharedLayout(1, 1, 1, [0])", "python")]) == ()
