"""Guarded memory: every allocation has guard zones, and poison shows what was not written."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import pytest
import torch

from compare import registry
from compare.checking.guarded_memory import POISON, SECOND_POISON, GuardedMemory, untouched
from compare.inputs import TORCH_DTYPES
from compare.model.op import DTYPES, FP8, INTEGER_DTYPES, Case, Op, case
from loops import for_each
from mutants import (
    baseline,
    checked,
    every_op,
    every_op_and_case,
    failed,
    skip_where_the_end_is_open,
)


@every_op_and_case
def test_one_unwritten_element_is_caught(op: Op, c: Case, device: torch.device) -> None:
    skip_where_the_end_is_open(op)
    right = baseline(op)

    def run(*inputs: torch.Tensor) -> torch.Tensor:
        values = right(*inputs).flatten()
        output = torch.empty_like(values)
        output[:-1] = values[:-1]
        return output.view_as(right(*inputs))

    agreement = checked(op, c, device, run)
    found = failed(agreement)
    if op.output_dtype == FP8:  # a byte of poison may be NaN or a number
        assert "all written" in found
        return
    special = "values" if op.output_dtype in INTEGER_DTYPES else "NaN and infinity"
    assert {"all written", special} <= found


def test_an_unwritten_element_is_caught_even_where_nan_belongs(device: torch.device) -> None:
    op = registry.get_op("softmax")

    def run(x: torch.Tensor) -> torch.Tensor:
        values = torch.softmax(x, -1)
        output = torch.empty_like(x)
        output[1:] = values[1:]  # row 0 is NaN anyway
        return output

    assert failed(checked(op, case(fill="neg_inf", M=6, N=33), device, run)) == {"all written"}


@pytest.mark.parametrize("offset", [-1, 0, 100])
@every_op
def test_a_write_out_of_bounds_is_caught(op: Op, offset: int, device: torch.device) -> None:
    right = baseline(op)

    def run(*inputs: torch.Tensor) -> torch.Tensor:
        values = right(*inputs)
        output = torch.empty_like(values)
        output.copy_(values)
        at = output.storage_offset() + (offset if offset < 0 else output.numel() + offset)
        output.as_strided((1,), (1,), at).fill_(1.0)
        return output

    agreement = checked(op, op.cases.smoke[0], device, run)
    assert failed(agreement) == {"guard zones"}
    assert ("before" if offset < 0 else "past") in agreement.reason


ALLOCATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "empty": lambda x: torch.empty(3, 5, dtype=x.dtype, device=x.device),
    "empty_like": torch.empty_like,
    "empty_strided": lambda x: torch.empty_strided((3, 5), (1, 3), dtype=x.dtype, device=x.device),
    "new_empty": lambda x: x.new_empty(3, 5),
    "new_empty_strided": lambda x: x.new_empty_strided((3, 5), (7, 1)),
    "zero_size": lambda x: x.new_empty(0, 5),
    "channels_last": lambda x: torch.empty(
        2, 3, 4, 5, dtype=x.dtype, device=x.device, memory_format=torch.channels_last
    ),
}


@for_each("how, dtype", list(itertools.product(ALLOCATIONS, TORCH_DTYPES.values())))
def test_every_way_to_allocate_is_guarded(how: str, dtype: torch.dtype, device: torch.device) -> None:
    x = torch.ones(3, 5, dtype=dtype, device=device)
    plain = ALLOCATIONS[how](x)
    guard = GuardedMemory(device)
    with guard:
        guarded = ALLOCATIONS[how](x)
    assert type(guarded) is torch.Tensor
    assert (guarded.shape, guarded.stride(), guarded.dtype) == (plain.shape, plain.stride(), plain.dtype)
    assert guarded.device == plain.device
    assert guarded.data_ptr() % 512 == 0 or guarded.numel() == 0 or device.type == "cpu"
    assert guard.owns(guarded)
    assert not guard.owns(plain)
    guarded.fill_(1)
    assert guard.violations() == []


def test_poison_is_nan_and_told_from_other_nan(device: torch.device) -> None:
    for dtype in map(TORCH_DTYPES.__getitem__, DTYPES):
        guard = GuardedMemory(device)
        with guard:
            x = torch.empty(4, dtype=dtype, device=device)
        assert x.isnan().all()
        x[:3] = torch.tensor([math.nan, 0.0, math.inf], dtype=dtype)
        assert untouched(x).tolist() == [False, False, False, True]
    assert POISON < 2**15
    assert SECOND_POISON >= -(2**15)


@for_each("dtype", [torch.float8_e4m3fn, torch.int8, torch.uint8])
def test_bytes_that_were_not_written_are_known_after_two_calls(
    dtype: torch.dtype, device: torch.device
) -> None:
    """Whatever is written to the others, the poisons' own bytes too."""
    every = torch.arange(256, dtype=torch.uint8, device=device)
    for begin in (0, 1):  # of a copy that begins at an odd byte too
        outputs = []
        for poison in (POISON, SECOND_POISON):
            guard = GuardedMemory(device, poison)
            with guard:
                x = torch.empty(260, dtype=dtype, device=device)
            x.view(torch.uint8)[:256] = every
            assert guard.violations() == []
            outputs.append(x[begin:])
        found = untouched(*outputs)
        assert found.nonzero().flatten().tolist() == [place - begin for place in range(256, 260)]
        assert not untouched(outputs[0]).any()


@for_each("poison", [POISON, SECOND_POISON])
def test_the_bytes_behind_an_odd_number_of_bytes_are_guarded(poison: int, device: torch.device) -> None:
    for byte in (5, 6, 9):
        guard = GuardedMemory(device, poison)
        with guard:
            x = torch.empty(5, dtype=torch.int8, device=device)
            torch.empty(3, device="meta")  # which is left alone
        assert len(guard.allocations) == 1
        assert guard.violations() == []
        x.as_strided((1,), (1,), byte + x.storage_offset()).fill_(1)
        problem = f"wrote past its 5 bytes, at byte {byte}: is a mask or a bound missing?"
        assert guard.violations() == [problem]
