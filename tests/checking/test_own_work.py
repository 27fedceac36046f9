"""A user's own operators are its work, PyTorch's within them are not, and helpers are told from the work."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from compare import registry
from compare.capture import capture_call
from compare.checking.check import CheckOptions, check
from compare.checking.guarded_memory import Borrowed, GuardedMemory
from compare.checking.reference import Outputs
from compare.checking.stage import CallResult
from compare.model.op import Case, CudaLaunch, Implementation, case
from compare.model.result import KernelResources
from compare.resources.kernels import helped
from cuda_impl import loader
from loops import for_each
from mutants import baseline, failed

CPU = torch.device("cpu")
SMALL = case("fp32", M=6, N=33)


def softmax_into(x: torch.Tensor) -> torch.Tensor:
    """In new memory, with a call that is nothing but others (``contiguous``), and one that computes."""
    output = torch.empty_like(x)
    output.copy_(torch.softmax(x.contiguous(), -1))
    return output


class Differentiable(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return softmax_into(x)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> None:
        raise NotImplementedError


def annotated(x: torch.Tensor) -> torch.Tensor:
    return softmax_into(x)


@pytest.fixture(scope="module")
def operators() -> dict[str, Callable[[torch.Tensor], torch.Tensor]]:
    """An operator of the user's own for each way to make one; all have the same code."""
    library = torch.library.Library("own_work", "FRAGMENT")
    keys = "CPU", "CompositeExplicitAutograd", "CompositeImplicitAutograd", "Autograd"
    for key in keys:
        library.define(f"{key.lower()}(Tensor x) -> Tensor")
        library.impl(key.lower(), softmax_into, key)
    torch.library.define("own_work::defined", "(Tensor x) -> Tensor", lib=library)
    torch.library.impl("own_work::defined", "cpu", softmax_into, lib=library)
    found = {name: getattr(torch.ops.own_work, name) for name in (*map(str.lower, keys), "defined")}
    found["custom_op"] = torch.library.custom_op("own_work::custom", annotated, mutates_args=())
    found["of_a_device"] = torch.library.custom_op(
        "own_work::of_a_device", annotated, mutates_args=(), device_types="cpu"
    )
    found["triton_op"] = torch.library.triton_op("own_work::by_triton", annotated, mutates_args={})
    found["within_another"] = torch.library.custom_op(
        "own_work::outer", lambda x: found["custom_op"](x), mutates_args=(), schema="(Tensor x) -> Tensor"
    )
    found["autograd.Function"] = Differentiable.apply
    found["library"] = lambda x, _=library: softmax_into(x)  # keeps it
    return found


def test_what_an_operator_of_ones_own_calls_is_seen(
    operators: dict[str, Callable[[torch.Tensor], torch.Tensor]],
) -> None:
    x = torch.randn(6, 33)
    for name, operator in operators.items():
        guard = GuardedMemory(CPU)
        with guard:
            output = operator(x)
        assert torch.equal(output, torch.softmax(x, -1)), name
        assert guard.borrowed == {"aten::_softmax": Borrowed(1, 198), "aten::copy_": Borrowed(1, 198)}, name
        assert guard.owns(output), name


def test_an_operator_in_pytorchs_namespaces_is_not_ones_own() -> None:
    library = torch.library.Library("aten", "FRAGMENT")
    library.define("own_work_add(Tensor x) -> Tensor")
    library.impl("own_work_add", lambda x: torch.add(x, x), "CPU")
    guard = GuardedMemory(CPU)
    with guard:
        torch.ops.aten.own_work_add(torch.ones(3))
    assert guard.borrowed == {"aten::own_work_add": Borrowed(1, 3)}


def test_launches_within_an_operator_of_ones_own_are_captured() -> None:
    """Though it says what shapes it returns, which is all that PyTorch would run on meta tensors."""
    source = 'extern "C" __global__ void f(float* x) {}'

    def launching(x: torch.Tensor) -> torch.Tensor:
        output = torch.empty_like(x)
        loader.kernel(source, "f", x.device)((2,), (32,), (output.data_ptr(),))
        return output

    schema = "(Tensor x) -> Tensor"
    operator = torch.library.custom_op("own_work::launching", launching, mutates_args=(), schema=schema)
    operator.register_fake(torch.empty_like)
    impl = Implementation("softmax", "cupy.mine", "tiled", operator)
    (launch,) = capture_call(impl, [torch.empty(6, 33, device="meta")], "sm_90")
    assert isinstance(launch, CudaLaunch)
    assert (launch.kernel, launch.grid) == ("f", (2, 1, 1))


def test_what_is_written_in_place_counts_once() -> None:
    x, out, guard = torch.rand(4, 5), torch.empty(4, 5), GuardedMemory(CPU)
    with guard:
        x.exp_()
        torch.exp(x, out=out)
        torch._foreach_exp_([x, out])
    values = {name: did.values for name, did in guard.borrowed.items()}
    assert values == {"aten::exp_": 20, "aten::exp": 20, "aten::_foreach_exp_": 40}


@dataclass
class SeenStage:
    """A stage whose calls are right, and seen to do this."""

    op: str
    borrowed: dict[str, Borrowed]
    launched: int | None = 1
    inputs: tuple[torch.Tensor, ...] = ()

    def place(self, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        self.inputs = inputs
        return inputs

    def call(self, expected: Outputs, poison: int = 0) -> CallResult:
        right = baseline(registry.get_op(self.op))(*self.inputs)
        outputs = dict(zip(expected, (right,), strict=True))
        return CallResult(outputs, borrowed=self.borrowed, launched=self.launched, notes=("of a worker",))


ROWS, ALL = Borrowed(1, 6), Borrowed(1, 198)


@for_each(
    "op, at, borrowed, launched, correct",
    [
        ("softmax", SMALL, {"aten::sum": ROWS}, 2, True),
        ("softmax", SMALL, {"aten::sum": Borrowed(1, 1), "aten::max": Borrowed(2, 12)}, 1, True),
        ("softmax", SMALL, {"aten::sum": ROWS}, None, True),  # a GPU's profiler sees the launches
        ("softmax", SMALL, {"aten::sum": ROWS}, 0, False),
        ("softmax", SMALL, {"aten::exp": ALL}, 1, False),
        ("softmax", SMALL, {"aten::exp": Borrowed(6, 198)}, 1, False),  # row by row
        ("softmax", case("fp32", M=6, N=1), {"aten::sum": ROWS}, 1, True),
        ("softmax", case("fp32", M=0, N=33), {"aten::sum": Borrowed(1, 1)}, 0, True),
        ("reduce_sum", case("fp32", N=999), {"aten::sum": Borrowed(1, 1)}, 1, False),  # all of the work
        ("cross_entropy", case("fp32", M=4, V=99), {"aten::logsumexp": Borrowed(1, 4)}, 1, False),
        ("transpose", case("fp32", M=9, N=1), {"aten::amax": Borrowed(1, 1)}, 1, False),
        ("softmax", SMALL, {"aten::clone": ALL}, 1, True),  # a copy is no help
    ],
)
def test_a_helper_is_told_from_the_work(
    op: str, at: Case, borrowed: dict[str, Borrowed], launched: int | None, correct: bool
) -> None:
    impl = Implementation(op, "triton.mine", "tiled", baseline(registry.get_op(op)))
    for helpers in (False, True):
        options = CheckOptions(SeenStage(op, borrowed, launched), own_work=True, helpers=helpers)
        agreement = check(registry.get_op(op), impl, at, CPU, (0,), options)
        only_copies = "aten::clone" in borrowed
        assert failed(agreement) == (set() if correct and (helpers or only_copies) else {"own work"})
        notes = [note for note in agreement.notes if note != "of a worker"]
        assert len(notes) == (correct and helpers and not only_copies)
        assert len(agreement.notes) == len(notes) + 1


def test_the_note_counts_launches() -> None:
    seen = SeenStage("softmax", {"aten::sum": Borrowed(2, 12)})
    impl = Implementation("softmax", "triton.mine", "tiled", baseline(registry.get_op("softmax")))
    options = CheckOptions(seen, own_work=True, helpers=True)
    notes = check(registry.get_op("softmax"), impl, SMALL, CPU, (0,), options).notes
    assert notes[1] == "2 of 3 launches are PyTorch's (torch.sum): label it torch.NAME to compare it"


def test_on_a_gpu_a_helpers_kernels_are_told_from_the_baselines() -> None:
    kernel = KernelResources("mine", "sm_90", "profiler", 32, 0, 0, 1024)
    mine, fill = kernel, replace(kernel, kernel="vectorized_elementwise_kernel<Fill>")
    total = replace(kernel, kernel="reduce_kernel<512, 1>", launches=2)
    library = replace(kernel, kernel="nvjet_tst_128x8")
    assert helped([mine, fill, total], [total.kernel], ["cunn_SoftMaxForward"]) == (2, 1)
    assert helped([fill, total], [total.kernel], []) is None  # no kernel of its own
    assert helped([mine, total], [total.kernel], [total.kernel]) is None
    assert helped([mine, library], [library.kernel], []) is None
