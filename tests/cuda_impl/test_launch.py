"""Launch tables: what a plan may hold, when it is made anew, and the kernels that its module has."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
import torch

import case_sets
from compare import registry
from compare.capture import capture_call, meta_inputs
from compare.device import runs_on, supports
from compare.inputs import TORCH_DTYPES
from compare.model.op import Case, Implementation
from cuda_impl import pybind
from cuda_impl.buffers import copied, empty, empty_like
from cuda_impl.launch import (
    Argument,
    Launch,
    Mapped,
    Offset,
    Plan,
    Planned,
    Plans,
    Run,
    Variant,
    _zeroed_on_gpu,
    int64,
    module_text,
)
from cuda_impl.launches import vector_add
from loops import for_each, for_each_of_group
from rows import labelled

CPU = torch.device("cpu")
ARCHS = ("sm_75", "sm_90")
BY_HAND = {
    op: [impl for impl in registry.implementations(op, ["pybind.*"]) if supports(impl, CPU) is None]
    for op in ("vector_add", "softmax")
}
"""Their C++ host code is written by hand beside the launch table."""


# --------------------------------------------------------------------------- the kernels of a module


@functools.cache
def kernels_of(op: str, dtype: str) -> frozenset[str]:
    return frozenset(re.findall(r'kernels\["(.+?)"\] =', module_text(op, dtype)))


@for_each_of_group(
    "impl",
    {op: registry.implementations(op, ["cupy.*"]) for op in registry.op_names()},
    ids=lambda impl: impl.label,
    thorough=lambda op: op != case_sets.WHOLE,
)
def test_a_module_has_every_kernel_that_a_table_launches(impl: Implementation) -> None:
    op = registry.get_op(impl.op)
    missing = set()
    for case in dict.fromkeys((op.cases.default, *op.cases.smoke, *op.cases.edge, *op.cases.sweep)):
        inputs = meta_inputs(op, case)
        known = kernels_of(op.name, pybind._dtype(op.name, inputs))
        for arch in (arch for arch in ARCHS if runs_on(impl, arch) is None):
            with suppress(NotImplementedError):
                launches = capture_call(impl.given(op.options(case)), inputs, arch)
                missing |= {launch.kernel for launch in launches} - known
    assert not missing, "add these to the choices of the table's kernels"


# --------------------------------------------------------------------------- plans


def launch(*args: Argument, grid: int = 1) -> Launch:
    return Launch(vector_add.SCALAR(torch.float32), grid, 32, args)


@for_each(
    "argument_of", [lambda x: x, lambda x: Offset(x, 4), lambda x: Mapped(x, int64), copied], ids=lambda _: ""
)
def test_a_tensor_that_a_plan_neither_gets_nor_allocates_is_refused(
    argument_of: Callable[[torch.Tensor], Argument],
) -> None:
    x, other = torch.ones(2, 4)
    y = empty_like(x)
    Planned("vector_add", Plan(y, launch(argument_of(x), y)), [x])
    with pytest.raises(ValueError, match="vector_add: a launch takes a tensor that the plan did not"):
        Planned("vector_add", Plan(y, launch(argument_of(other), y)), [x])


def test_without_elements_to_write_nothing_is_launched() -> None:
    some, none = (empty((4, columns), torch.float32, CPU) for columns in (3, 0))
    assert Plan(none, launch()).launches == Plan((none, none), launch()).launches == ()
    assert len(Plan((none, some), launch(), launch(grid=0), launch()).launches) == 2


@pytest.mark.parametrize("current", [-1, 0])
def test_memory_is_zeroed_on_its_own_device(current: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU's number is -1. Kernels would not wait for a memset on stream 0 of another device."""
    filled: list[tuple[object, ...]] = []
    for name, answer in (
        ("_cuda_getDevice", lambda: current),
        ("_cuda_getCurrentRawStream", lambda device: 0),
    ):
        monkeypatch.setattr(torch._C, name, answer, raising=False)
    memory = _zeroed_on_gpu(lambda: torch.ones(3), lambda *args: filled.append(args), 12)
    if current == memory.get_device():
        assert filled == [(memory.data_ptr(), 0, 12, 0)]
    else:
        assert (filled, memory.tolist()) == ([], [0, 0, 0])


# --------------------------------------------------------------------------- kept plans


@pytest.fixture(params=["python", "cpp"])
def through(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[[Plans], Run]:
    """Makes a plan a function of tensors, from Python or C++, as on a GPU: there plans are kept."""
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)

    def function_of(plan: Plans) -> Run:
        table = Variant("vector_add", plan, [])
        return table.run if request.param == "python" else pybind.through_cpp(table)

    return function_of


def other_calls() -> Iterator[tuple[tuple[torch.Tensor, ...], dict[str, Any]]]:
    """Each differs from the first in one thing that a plan may depend on."""
    x = torch.zeros(8, 8)
    yield (x,), {}
    yield (x, x), {}
    for other in (x[:4], x.view(64), x.half(), x.int(), x.t(), x[:, ::2], torch.zeros(65)[1:].view(8, 8)):
        yield (other,), {}
    for value in (1, 2, 1.0, True, False, None, (1, 2), x, (x, x)):
        yield (x,), {"option": value}
    yield (x,), {"another": 1}
    yield (x,), {"option": 1, "another": 1}


def test_a_plan_is_kept_for_calls_of_equal_layout_only(through: Callable[[Plans], Run]) -> None:
    planned = 0

    def plan(x: torch.Tensor, *more: torch.Tensor, **options: object) -> Plan:
        nonlocal planned
        planned += 1
        return Plan(empty_like(x))

    run, calls = through(plan), [*other_calls()]
    for number, (args, options) in enumerate((*calls, *calls), 1):
        y = run(*args, **options)
        assert (y.shape, y.dtype, y.is_contiguous()) == (args[0].shape, args[0].dtype, True)
        assert planned == min(number, len(calls)), (number, options)


def test_a_kept_plan_copies_what_this_call_is_given(through: Callable[[Plans], Run]) -> None:
    run = through(lambda x: Plan(copied(x)))
    x = torch.arange(12.0).view(3, 4)[:, ::2]
    first = run(x)
    x.neg_()
    assert torch.equal(run(x), x)
    assert torch.equal(first, -x), "the memory of another call"
    assert torch.equal(run(x + 1), x + 1)


def test_a_kept_plan_takes_a_tensor_given_twice_for_two(through: Callable[[Plans], Run]) -> None:
    run = through(lambda x, other: Plan(copied(x)))
    x, y = torch.ones(3, 4)[:, ::2], torch.zeros(3, 4)[:, ::2]
    run(x, x)
    assert torch.equal(run(x, y), x), "the plan of one tensor was used for two"


# --------------------------------------------------------------------------- C++ by hand


def rows(dims: tuple[int, ...], dtype: str, layout: str) -> tuple[torch.Tensor, ...]:
    """One row of numbers, or some, as a case's inputs lie."""
    op = registry.get_op("softmax" if len(dims) == 2 else "vector_add")
    case = Case(tuple(zip(op.dims, dims, strict=True)), dtype, layout)
    return op.make_inputs(case, torch.Generator().manual_seed(0), CPU)


@for_each_of_group("impl", BY_HAND, ids=lambda impl: impl.label, thorough=lambda op: op == "softmax")
def test_cpp_by_hand_does_what_the_launch_table_says(impl: Implementation) -> None:
    """The same bits, and the same words of refusal."""
    table = labelled(impl.op, f"cupy.{impl.variant}").run.table  # type: ignore[attr-defined]
    generated = pybind.through_cpp(table)
    dims = (5, 36) if impl.op == "softmax" else (1031,)
    calls: list[tuple[Any, ...]] = [rows(dims, "fp32", how) for how in ("contiguous", "sliced", "misaligned")]
    refused: list[tuple[Any, ...]] = [
        tuple(x.double() for x in calls[0]),
        tuple(x[None] for x in calls[0]),
        (None, *calls[0][1:]),
    ]
    calls.append(tuple(x[:0] for x in calls[0]))
    for call in calls:
        assert torch.equal(impl.run(*call), generated(*call))
    for call in refused:
        with pytest.raises((TypeError, ValueError)) as expected:
            impl.run(*call)
        with pytest.raises(type(expected.value), match=rf"^{re.escape(str(expected.value))}$"):
            generated(*call)


def test_rows_that_registers_cannot_hold_are_refused_in_the_same_words() -> None:
    x = torch.empty(1, 1, dtype=TORCH_DTYPES["fp32"]).expand(1, 40000)
    table = labelled("softmax", "cupy.onepass").run.table  # type: ignore[attr-defined]
    for run in (labelled("softmax", "pybind.onepass").run, pybind.through_cpp(table)):
        with pytest.raises(NotImplementedError, match="N=40000: registers hold rows of up to 32768 columns"):
            run(x)
