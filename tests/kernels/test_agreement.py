"""Every implementation is correct on smoke and edge cases.

Without a GPU: PyTorch on the CPU, Triton in its interpreter, CUDA through the host build, on one small case
each; thoroughly on all, where the dtypes take turns in cases that differ in their dtype only.  pybind's host
code is in `test_cuda_routes`: the same bits as cupy's.  With a GPU: all cases, and those of more than 2^31
elements where its memory allows.
"""

from __future__ import annotations

import contextlib
import functools
import math
import re
import traceback
import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar
from unittest import mock

import pytest
import torch
from triton.runtime.errors import OutOfResources

import case_sets
from compare import registry
from compare.checking.check import CheckOptions, check
from compare.checking.probes import Probes
from compare.checking.reference import Reference
from compare.checking.tolerance import ToleranceFromBaseline
from compare.model.op import Case, Implementation, Op
from conftest import HAS_GPU
from cuda_impl import build
from loops import for_each_of_group
from on_device import argument_names, outputs_of, skip_unless_supported


def implementations() -> list[Any]:
    return [
        pytest.param(registry.get_op(name), impl, id=f"{name}-{impl.label}")
        for name in registry.op_names()
        for impl in registry.implementations(name)
    ]


def agreements(cases: Callable[[Op, Implementation], list[Case]]) -> list[Any]:
    """One test a case on a GPU, because a crash ends the process."""
    return [
        pytest.param(*param.values, [c], id=f"{param.id}-{c}")
        for param in implementations()
        for c in cases(*param.values)
    ]


def tracing_only() -> Any:
    return mock.patch("torch.compile", functools.partial(torch.compile, backend="eager"))


WRONG_IN_PYTORCH = {("torch.flex", "nan"), ("torch.flex", "neg_inf"), ("torch.flex", "sliced")}
"""PyTorch 2.11 on an H100: FlexAttention loses NaN in lse, and takes elements of a head for contiguous."""


def run_or_skip(
    op: Op,
    impl: Implementation,
    cases: Sequence[Case],
    device: torch.device,
    seeds: Callable[[Case], tuple[int, ...]],
    probes: Callable[[Op, Case], Probes | None] = lambda op, c: None,
) -> None:
    skip_unless_supported(impl, device)
    on_cpu = impl.label == "torch.compile" and device.type == "cpu"
    if on_cpu:  # tracing takes a second a shape, and runs no kernel of ours
        cases = [c for c in cases if c == op.cases.smoke[0]]
    wrong, refusals = [], []
    for c in cases:
        print(c, flush=True)  # the last is the one that raised
        # A CPU runs programs one after another: twice the same, but for what reads memory before it writes.
        repeated = device.type == "cuda" or c in op.cases.smoke
        options = CheckOptions(probes=probes(op, c), repeated=repeated)
        try:
            with tracing_only() if on_cpu else contextlib.nullcontext():
                agreement = check(op, impl, c, device, seeds(c), options)
        except NotImplementedError as error:
            refusals.append(str(error))
            continue
        if not agreement.passed and {(impl.label, c.fill), (impl.label, c.layout)} & WRONG_IN_PYTORCH:
            pytest.xfail(agreement.reason)
        if not agreement.passed:
            wrong.append(f"{c}: {agreement.reason}")
        elif impl.way != "torch":
            assert "around the output" in [finding.detail for finding in agreement.findings]
    assert wrong == []
    if len(refusals) == len(cases):
        pytest.skip(f"not taken: {refusals[0]}")


def everywhere() -> list[Any]:
    """All small cases on a GPU; on a CPU one test for fewer, and none of pybind: its bits are cupy's."""
    if HAS_GPU:
        return agreements(lambda op, impl: case_sets.small(op))
    return [
        pytest.param(*param.values, [], id=param.id)
        for param in implementations()
        if param.values[1].route != "pybind"
    ]


@functools.lru_cache(maxsize=64)
def on_a_cpu(op: str, c: Case) -> Probes:
    """Inputs, oracle and PyTorch's own error, computed once for all implementations."""
    device = torch.device("cpu")
    found = registry.get_op(op)
    return Probes(found, c, device, ToleranceFromBaseline.local(found, c, device), (0,))


def one_dtype(op: Op, impl: Implementation) -> list[Case]:
    """The op's smoke cases, in the dtype of the kernel's turn first; then others, if it does not take that.

    Its label's hash decides on its turn, so that an op's kernels have all dtypes.
    """
    labels = [each.label for each in registry.implementations(op.name) if each.route in ("triton", "cupy")]
    turn = sorted(labels, key=lambda label: zlib.crc32(label.encode())).index(impl.label) % len(op.dtypes)
    dtypes = (*op.dtypes[turn:], *op.dtypes[:turn])
    return [replace(c, dtype=dtype) for dtype in dtypes for c in op.cases.smoke]


KERNELS = [param for param in implementations() if param.values[1].route in ("triton", "cupy")]


@pytest.mark.skipif(HAS_GPU, reason="test_it_agrees has this case")
@pytest.mark.parametrize(("op", "impl"), KERNELS)
def test_each_kernel_is_correct_on_one_small_case(op: Op, impl: Implementation) -> None:
    device = torch.device("cpu")
    skip_unless_supported(impl, device)
    for c in one_dtype(op, impl):
        with contextlib.suppress(NotImplementedError):
            agreement = check(op, impl, c, device, (0,), CheckOptions(probes=on_a_cpu(op.name, c)))
            assert agreement.passed, f"{c}: {agreement.reason}"
            assert "around the output" in [finding.detail for finding in agreement.findings]
            return
    pytest.fail("it takes no smoke case in any dtype")


@pytest.mark.thorough
@pytest.mark.parametrize(("op", "impl", "cases"), everywhere())
def test_it_agrees(op: Op, impl: Implementation, cases: list[Case], device: torch.device) -> None:
    """With several inputs at the same addresses on every case of a GPU, and on one case of a slow CPU."""

    def seeds(c: Case) -> tuple[int, ...]:
        return (0, 1, 2) if device.type == "cuda" else (0, 1) if c == op.cases.smoke[0] else (0,)

    def probes(op: Op, c: Case) -> Probes | None:
        # Kept inputs have addresses of their own.
        return on_a_cpu(op.name, c) if seeds(c) == (0,) else None

    run_or_skip(op, impl, cases or case_sets.brief(op), device, seeds, probes)


IGNORED = (("triton", "WARPS"), ("triton", "STAGES"))


def chosen() -> list[Any]:
    """Every implementation with the least and the largest value of each of its parameters.

    On a CPU, which compiles each for a second, one of the two by default, and none that Triton's interpreter
    ignores.
    """
    return [
        pytest.param(
            op,
            registry.with_parameters(impl, impl.label, {name: value}),
            id=f"{of}-{name}={value}",
            marks=[] if HAS_GPU or value in here else [pytest.mark.exhaustive],
        )
        for param in implementations()
        for of, (op, impl) in [(param.id, param.values)]
        for name, values in impl.tunable
        for here in [() if (impl.way, name) in IGNORED else ((min, max)[len(of) % 2](values),)]
        for value in sorted({min(values), max(values)})
        if name in registry.keywords(impl.run)
    ]


@pytest.mark.thorough
@pytest.mark.parametrize(("op", "impl"), chosen())
def test_it_agrees_whatever_is_chosen(op: Op, impl: Implementation, device: torch.device) -> None:
    def probes(op: Op, c: Case) -> Probes | None:
        return on_a_cpu(op.name, c) if device.type == "cpu" else None

    try:
        run_or_skip(op, impl, case_sets.briefest(op), device, lambda c: (0,), probes)
    except build.BuildError as error:
        if "static assertion failed" not in str(error):
            raise
        pytest.skip(str(error).partition("\n")[0])
    except OutOfResources as error:
        pytest.skip(str(error))


class Known(ToleranceFromBaseline):
    """The cached limit of a huge case with one seed: computing it takes as long as a check."""

    _limits: ClassVar[dict[tuple[str, str, Case], float]] = {}

    def __init__(self, op: Op) -> None:
        super().__init__(op, None)

    def limit(self, case: Case, reference: Reference) -> float:
        key = (self._op.name, reference.op.output, case)
        if key not in self._limits:
            local = ToleranceFromBaseline.local(self._op, case, torch.device("cuda"))
            self._limits[key] = local.limit(case, reference)
        return self._limits[key]


def huge_agreements() -> list[Any]:
    """A huge case for each of our kernels, in turn, as each takes seconds; the others are exhaustive."""
    found = []
    for param in agreements(lambda op, impl: case_sets.huge(op)) if HAS_GPU else ():
        op, impl, cases = param.values
        huge = case_sets.huge(op)
        its_turn = huge[registry.implementations(op.name).index(impl) % len(huge)] in cases
        marks = [] if impl.way != "torch" and its_turn else [pytest.mark.exhaustive]
        found.append(pytest.param(*param.values, id=param.id, marks=marks))
    return found


@pytest.mark.gpu
@pytest.mark.alone
@pytest.mark.parametrize(("op", "impl", "cases"), huge_agreements())
def test_it_agrees_on_huge_cases(op: Op, impl: Implementation, cases: list[Case]) -> None:
    device, (c,) = torch.device("cuda"), cases
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info(device)
    # At least: inputs and their copies, two outputs, poison.  The oracle needs more.
    inputs = sum(x.nbytes for x in op.make_inputs(c, torch.Generator(), torch.device("meta")))
    needed = 2 * inputs + 3 * op.cost(c).written_bytes
    if needed > free:
        pytest.skip(f"needs {needed >> 30} GiB and {free >> 30} are free")
    try:
        run_or_skip(
            op, impl, cases, device, lambda c: (0,), lambda op, c: Probes(op, c, device, Known(op), ())
        )
    except torch.OutOfMemoryError as error:
        traceback.clear_frames(error.__traceback__)  # frees their tensors for the next cases
        pytest.skip(str(error).partition(". GPU")[0])
    finally:
        torch.cuda.empty_cache()


@pytest.mark.gpu
@pytest.mark.parametrize(("op", "impl"), implementations())
def test_it_agrees_on_the_default_case(op: Op, impl: Implementation) -> None:
    run_or_skip(op, impl, [op.cases.default], torch.device("cuda"), lambda c: (0, 1))


@pytest.mark.gpu
@pytest.mark.parametrize(("op", "impl"), implementations())
def test_it_works_on_the_current_stream(op: Op, impl: Implementation) -> None:
    """Its inputs arrive late on a side stream: a kernel on another stream reads NaN, or 0."""
    device = torch.device("cuda")
    skip_unless_supported(impl, device)
    for c in op.cases.smoke:
        inputs = op.make_inputs(c, torch.Generator(device).manual_seed(0), device)
        impl = impl.given(op.options(c))
        try:
            expected = outputs_of(impl, inputs)  # compiles
        except NotImplementedError:
            continue
        break
    else:
        pytest.skip("takes no smoke case")
    late = [torch.full_like(x, math.nan if x.is_floating_point() else 0) for x in inputs]
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda._sleep(50_000_000)  # clock cycles: some 30 ms
        for x, values in zip(late, inputs, strict=True):
            x.copy_(values)
        copied = [output.clone() for output in outputs_of(impl, late)]
    torch.cuda.synchronize()
    for outputs in (copied, expected):
        op.mask_unspecified(inputs, outputs[0])
    for got, wanted in zip(copied, expected, strict=True):
        if impl.deterministic:
            assert torch.equal(*(output.reshape(-1).view(torch.uint8) for output in (got, wanted)))
        else:
            torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-2)


# ----------------------------------------------------------------------- arguments it does not take


BAD: dict[str, Any] = {
    "a list": lambda x: x.tolist(),
    "a number": lambda x: 3.0,
    "0-d": lambda x: x.flatten()[0],
    "one dimension more": lambda x: x[None],
    "int64": lambda x: x.long(),
    "bool": lambda x: x.bool(),
    "fp64": lambda x: x.double(),
    "complex": lambda x: x.to(torch.complex64),
    "sparse": lambda x: (x.float() if x.itemsize == 1 else x).to_sparse(),
}
"""By kind, an argument spoiled."""

ODD_ONE_OUT: dict[str, Any] = {
    "another dtype": lambda x: x.bfloat16() if x.dtype is torch.float16 else x.half(),
    "another length": lambda x: x[1:],
    "another device": lambda x: x.to("meta"),
}
"""Unlike the first argument."""


@for_each_of_group(
    "op, impl",
    {
        name: [(registry.get_op(name), i) for i in registry.implementations(name) if i.route != "pybind"]
        for name in registry.op_names()
    },
    ids=lambda found: found[1].label,
)
def test_it_says_which_argument_it_does_not_take(op: Op, impl: Implementation, device: torch.device) -> None:
    skip_unless_supported(impl, device)
    inputs = op.make_inputs(op.cases.smoke[0], torch.Generator(), device)
    impl = impl.given(op.options(op.cases.smoke[0]))
    names = argument_names(op)
    for kind, spoil in (BAD | ODD_ONE_OUT).items():
        for i, name in list(enumerate(names))[kind in ODD_ONE_OUT :]:
            arguments = list(inputs)
            arguments[i] = spoil(arguments[i])
            if arguments[i] is inputs[i]:  # int64 where it is taken
                continue
            with pytest.raises((TypeError, ValueError)) as said:
                impl.call(*arguments)
            assert re.search(rf"\b{name}\b.* takes ", str(said.value)), (kind, str(said.value))
