"""Launches are captured from host code on meta tensors, without running a kernel."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from triton.runtime.interpreter import InterpretedFunction
from triton.runtime.jit import JITFunction

from compare import capture, device, registry
from compare.model.architecture import LIMITS
from compare.model.op import Case, CudaLaunch, Implementation, Op, TritonLaunch, case
from loops import for_each
from rows import EVERY, labelled, op_by_op

LAUNCHED = {"triton": TritonLaunch, "cuda": CudaLaunch}
ADD = registry.get_op("vector_add")


def written(run: Callable[..., Any], label: str = "triton.mine") -> Implementation:
    return Implementation("vector_add", label, "tiled", run)


@op_by_op
def test_every_implementation_is_captured_on_every_case(impl: Implementation) -> None:
    op, captured, refusals = registry.get_op(impl.op), 0, []
    impl = replace(impl, triton="")  # nothing is compiled
    for each in (op.cases.default, *op.cases.smoke, *op.cases.edge, *op.cases.sweep):
        try:
            launches = capture.capture(impl, op, each, impl.requires or "sm_80")
        except NotImplementedError as error:
            refusals.append(str(error))
            continue
        captured += len(launches)
        cost = op.cost(each)
        if impl.way in ("torch", "library") or cost.written_bytes == 0:
            assert launches == [], each
            continue
        if cost.flops == 0:
            continue  # all zeros, by whatever launch
        assert launches, each
        for launch in launches:
            assert isinstance(launch, LAUNCHED[impl.way])
            assert all(size >= 1 for size in launch.grid)
    autotuned = bool(refusals) and all("is autotuned" in why for why in refusals)
    assert captured or autotuned or impl.way in ("torch", "library")
    assert all(refusals), "an implementation that does not take a case says why"


@for_each("impl", [i for i in EVERY if i.route == "pybind"], ids=lambda i: f"{i.op} {i.label}")
def test_pybind_is_captured_as_its_cupy_twin(impl: Implementation) -> None:
    op, twin = registry.get_op(impl.op), labelled(impl.op, f"cupy.{impl.variant}")
    compared = 0
    for each in op.cases.smoke:
        with contextlib.suppress(NotImplementedError):
            expected = capture.capture(twin, op, each, "sm_90a")
            assert capture.capture(impl, op, each, "sm_90a") == expected
            compared += 1
    assert compared


def test_pybind_alone_says_what_is_missing() -> None:
    lonely = written(lambda x, y: x, "pybind.lonely")
    with pytest.raises(NotImplementedError, match=r"cupy\.lonely"):
        capture.capture(lonely, ADD, ADD.cases.default, "sm_80")


@triton.jit
def scale_kernel(x_ptr, N, factor=2.0, BLOCK: tl.constexpr = 64):  # type: ignore[no-untyped-def]
    n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + n, tl.load(x_ptr + n, mask=n < N) * factor, mask=n < N)


def test_a_users_kernel_is_recorded_as_triton_binds_it() -> None:
    def run(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        scale_kernel[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, N=x.numel(), num_warps=2)
        return x

    (launch,) = capture.capture(written(run), ADD, case("fp16", N=1000), "sm_80")
    assert isinstance(launch, TritonLaunch)
    assert launch.kernel is scale_kernel
    assert launch.grid == (16, 1, 1)
    assert launch.options == {"num_warps": 2}
    arguments = dict(launch.arguments)
    pointer = arguments.pop("x_ptr")
    assert (pointer.device.type, pointer.dtype, tuple(pointer.shape)) == ("meta", torch.float16, (1000,))
    assert arguments == {"N": 1000, "factor": 2.0, "BLOCK": 64}


def test_an_autotuned_kernel_is_not_guessed_at() -> None:
    configs = [triton.Config({"BLOCK": 64}), triton.Config({"BLOCK": 128})]
    tuned = triton.autotune(configs, key=["N"])(scale_kernel)

    def run(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        tuned[(1,)](x, x.numel())
        return x

    with pytest.raises(NotImplementedError, match=r"scale_kernel is autotuned: .* one of its 2 "):
        capture.capture(written(run), ADD, ADD.cases.default, "sm_80")
    (launch,) = capture.capture(written(run), ADD, ADD.cases.default, "sm_80", untuned=True)
    assert isinstance(launch, TritonLaunch)
    assert launch.arguments["BLOCK"] == 64

    tuned.early_config_prune = lambda configs, named, **_: configs[1:] if named["N"] else configs
    (launch,) = capture.capture(written(run), ADD, ADD.cases.default, "sm_80", untuned=True)
    assert isinstance(launch, TritonLaunch)
    assert launch.arguments["BLOCK"] == 128, "the first that is left after pruning, as in the interpreter"


def test_the_captured_architecture_decides_how_many_multiprocessors_there_are() -> None:
    seen = []

    def run(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        seen.append((device.arch(x.device), device.multiprocessors(x.device)))
        return x

    for arch in ("sm_75", "sm_90a"):
        capture.capture(written(run), ADD, ADD.cases.default, arch)
    assert seen == [
        ("sm_75", LIMITS[75].multiprocessors),
        ("sm_90a", LIMITS[90].multiprocessors),
    ]


def test_all_is_as_before_after_an_error() -> None:
    runs = JITFunction.run, InterpretedFunction.run

    def run(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        assert (JITFunction.run, InterpretedFunction.run) != runs
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        capture.capture(written(run), ADD, ADD.cases.default, "sm_80")
    assert (JITFunction.run, InterpretedFunction.run) == runs
    assert device.arch(torch.device("meta")) is None
    with pytest.raises(RuntimeError, match="meta tensors outside"):
        capture.record(CudaLaunch("vector_add", "f", (1, 1, 1), (1, 1, 1)))


def drawn_on_the_device(
    each: Case, generator: torch.Generator, where: torch.device
) -> tuple[torch.Tensor, ...]:
    x = torch.randn(each["N"] * 2 + 1, generator=generator, device=where)
    x[0] = 100.0
    return x[1::2], x[:-1:2]


def test_inputs_that_cannot_be_drawn_on_meta_keep_their_layout() -> None:
    op = replace(ADD, make_inputs=drawn_on_the_device)
    x, y = capture.meta_inputs(op, case(N=8))
    assert x.device.type == y.device.type == "meta"
    assert (x.stride(), x.storage_offset(), tuple(x.shape)) == ((2,), 1, (8,))
    assert (y.stride(), y.storage_offset()) == ((2,), 0)
    assert (x.data_ptr() - y.data_ptr()) == 4, "alignment decides what Triton compiles"


@for_each("op", map(registry.get_op, registry.op_names()), ids=lambda op: op.name)
def test_meta_inputs_lie_as_the_real_ones(op: Op) -> None:
    for each in op.cases.smoke:
        real = op.make_inputs(each, torch.Generator(), torch.device("cpu"))
        for ours, theirs in zip(capture.meta_inputs(op, each), real, strict=True):
            assert (ours.shape, ours.stride(), ours.dtype) == (theirs.shape, theirs.stride(), theirs.dtype)
            assert ours.data_ptr() % 16 == theirs.data_ptr() % 16
