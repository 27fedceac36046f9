"""What a call does beside its values is caught: its kind of output, its memory, its operators."""

from __future__ import annotations

import dataclasses
import math
from unittest import mock

import pytest
import torch

from compare import registry
from compare.checking.check import CheckOptions, check
from compare.model.op import Implementation, Op, case
from compare.model.result import Agreement
from conftest import HAS_GPU
from mutants import Run, baseline, checked, every_op, failed


@pytest.mark.parametrize("layout", ["contiguous", "sliced"])
@every_op
def test_a_mutated_input_is_caught(op: Op, layout: str, device: torch.device) -> None:
    right = baseline(op)

    def run(*inputs: torch.Tensor) -> torch.Tensor:
        output = right(*inputs)
        # In a gap between the elements where there is one.
        last = inputs[-1].untyped_storage().nbytes() // inputs[-1].itemsize - 1
        inputs[-1].as_strided((1,), (1,), last).fill_(77)
        return output

    agreement = checked(op, dataclasses.replace(op.cases.smoke[0], layout=layout), device, run)
    assert failed(agreement) == {"inputs unchanged"}


@every_op
def test_an_output_in_an_inputs_memory_is_caught(op: Op, device: torch.device) -> None:
    right, changed = baseline(op), set[bool]()

    def run(*inputs: torch.Tensor) -> torch.Tensor:
        values = right(*inputs)
        memory = inputs[0].flatten()[: values.numel() * values.itemsize // inputs[0].itemsize]
        output, before = memory.view(values.dtype), memory.clone()
        output.copy_(values.flatten()[: output.numel()])
        changed.add(not torch.equal(memory, before))  # a copy of the input changes nothing there
        if output.numel() < values.numel():  # no room: one element for all
            output = output[:1].expand(values.numel())
        return output.view(values.shape)

    agreement = checked(op, op.cases.smoke[0], device, run)
    assert failed(agreement) >= {"output is fresh"} | ({"inputs unchanged"} if True in changed else set())
    assert True in changed or op.is_copy_only


@every_op
def test_an_output_buffer_kept_between_calls_is_caught(op: Op, device: torch.device) -> None:
    right = baseline(op)
    kept: list[torch.Tensor] = []

    def run(*inputs: torch.Tensor) -> torch.Tensor:
        if not kept:
            kept.append(torch.empty_like(right(*inputs)))
        return kept[0].copy_(right(*inputs))

    assert failed(checked(op, op.cases.smoke[0], device, run, seeds=(0, 1))) == {"output is fresh"}


def test_an_output_remembered_for_an_address_is_caught(device: torch.device) -> None:
    op = registry.get_op("softmax")
    remembered: dict[torch.Size, torch.Tensor] = {}

    def run(x: torch.Tensor) -> torch.Tensor:
        return remembered.setdefault(x.shape, torch.softmax(x, -1)).clone()

    assert failed(checked(op, op.cases.smoke[0], device, run, seeds=(0, 1))) >= {"values"}


COPIES: tuple[Run, ...] = (
    lambda x: x.clone(),
    lambda x: torch.empty_like(x).copy_(x),
    lambda x: torch.cat((x,)),
)


@every_op
def test_a_copy_by_pytorch_counts_where_copying_is_the_work(op: Op, device: torch.device) -> None:
    for copy in COPIES:
        impl = Implementation(op.name, "triton.mutant", "tiled", lambda x, *_, copy=copy: copy(x))
        with mock.patch("compare.checking.check._idling", return_value=None):  # it launches no kernel
            agreement = check(op, impl, op.cases.smoke[0], device, (0,), CheckOptions(own_work=True))
        assert ("own work" in failed(agreement)) == op.is_copy_only
        assert (f"moving data is all that {op.name} does" in agreement.reason) == op.is_copy_only


WRONG_KINDS: dict[str, Run] = {
    "no tensor": lambda right: right.tolist(),
    "nothing": lambda right: None,
    "subclass": lambda right: torch.nn.Parameter(right, requires_grad=right.is_floating_point()),
    "wider": lambda right: right.double(),
    "narrower": lambda right: right.to(torch.float8_e5m2 if right.itemsize == 1 else torch.float8_e4m3fn),
    "one row more": lambda right: right[None],
    "short": lambda right: right.flatten()[:-1],
    "flat": lambda right: right.new_zeros(right.numel() + 1),
    "elsewhere": lambda right: right.to("meta"),
    "sparse": lambda right: (right.float() if right.itemsize == 1 else right).to_sparse(),
}


@every_op
def test_the_wrong_kind_of_output_is_caught(op: Op, device: torch.device) -> None:
    right = baseline(op)
    for kind, spoil in WRONG_KINDS.items():
        agreement = checked(op, op.cases.smoke[0], device, lambda *inputs, spoil=spoil: spoil(right(*inputs)))
        assert failed(agreement) == {"output"}, kind
        assert agreement.error == math.inf
        assert agreement.within == 0
        assert_unmeasured(agreement)


def assert_unmeasured(agreement: Agreement) -> None:
    """There is no error to show, which differs from an error of 0."""
    shown = (agreement.max_abs, agreement.max_rel, agreement.ulp_p50, agreement.ulp_p99, agreement.ulp_max)
    assert all(map(math.isnan, shown))


def test_where_all_elements_are_nan_there_is_no_error_to_show(device: torch.device) -> None:
    op = registry.get_op("vector_add")
    agreement = checked(op, op.cases.smoke[0], device, lambda x, y: torch.full_like(x, math.nan))
    assert "NaN and infinity" in failed(agreement)
    assert_unmeasured(agreement)


def test_a_small_case_takes_one_thread_of_a_cpu_and_gives_the_others_back() -> None:
    op, cpu = registry.get_op("vector_add"), torch.device("cpu")
    threads = torch.get_num_threads()
    seen = []

    def run(*inputs: torch.Tensor) -> torch.Tensor:
        seen.append(torch.get_num_threads())
        if len(seen) == 5:
            raise RuntimeError("boom")
        return baseline(op)(*inputs)

    try:
        torch.set_num_threads(2)
        for c in (op.cases.smoke[0], case("fp32", N=2**20)):
            assert checked(op, c, cpu, run).passed
            assert torch.get_num_threads() == 2
        with pytest.raises(RuntimeError, match="boom"):  # what an implementation raises is passed on
            checked(op, op.cases.smoke[0], cpu, run)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
    assert seen == [1, 1, 2, 2, 1]  # each case is called twice on equal inputs


@pytest.mark.skipif(HAS_GPU, reason="a GPU's profiler sees the kernels")
@pytest.mark.parametrize("label", ["triton.blocked", "cupy.scalar"])
def test_a_call_that_runs_no_kernel_of_its_own_is_caught(label: str, device: torch.device) -> None:
    op = registry.get_op("vector_add")
    (impl,) = (i for i in registry.implementations(op.name) if i.label == label)

    def added(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        z = torch.empty_like(x)
        z.numpy()[:] = x.numpy() + y.numpy()
        return z

    idle = dataclasses.replace(impl, run=added)
    for each, c, caught in (
        (impl, case(N=16), set()),
        (idle, case(N=16), {"own work"}),
        (idle, case(N=0), set()),  # there is nothing to launch
    ):
        assert failed(check(op, each, c, device, (0,), CheckOptions(own_work=True))) == caught
