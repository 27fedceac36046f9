"""Machine code as text, and what its instructions multiply by."""

from __future__ import annotations

import doctest
from types import ModuleType

import pytest

from compare.resources.sass import disassembly, instruction_mix
from compare.resources.sass.instruction_mix import multiplications


@pytest.mark.parametrize("module", [disassembly, instruction_mix])
def test_examples_in_docstrings(module: ModuleType) -> None:
    result = doctest.testmod(module)
    assert result.attempted > 0
    assert result.failed == 0


@pytest.mark.parametrize(
    ("opcodes", "expected"),
    [
        (["HGMMA.64x256x16.F32.BF16", "HMMA.16816.F32", "FFMA"], {"HGMMA.64x256x16": 1}),
        (["HMMA.16816.F32", "HMMA.1688.F32", "HMMA.16816.F32"], {"HMMA.16816": 2, "HMMA.1688": 1}),
        (["FFMA.FTZ", "HFMA2.MMA"], {"FFMA": 1}),
        (["IMAD.MOV.U32"], {}),
    ],
)
def test_the_mightiest_multiplication_counts(opcodes: list[str], expected: dict[str, int]) -> None:
    assert multiplications(opcodes) == expected
