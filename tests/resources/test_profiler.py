"""Resources on a GPU: what the profiler saw, both readers alike, and profiles that are kept."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
import torch

from compare import registry
from compare.model.architecture import limits
from compare.model.op import Case, Implementation, Op, case
from compare.model.result import KernelResources, Row
from compare.resources import profiler as profiler_module
from compare.resources.kernels import merged
from compare.resources.profiler import from_profiler
from compare.resources.static import Request, Resources, keep, kept, key_of
from compare.run.compiling import from_cubins
from compare.run.context import CaseResult, RowState
from compare.run.resources import profile_case
from compare.worker.messages import Profile
from loops import for_each
from rows import labelled

ADD = registry.get_op("vector_add")
SMALL = case("fp32", N=4096)
on = functools.partial(labelled, "vector_add")
CARD = "a card"


KERNEL = KernelResources("f", "sm_90", "profiler", 32, 0, 0, 1024, grid=(1, 1, 1), block=(32, 1, 1))


def test_equal_launches_are_one_kernel() -> None:
    other = replace(KERNEL, registers=40)
    assert merged([KERNEL, other, KERNEL]) == (replace(KERNEL, launches=2), other)
    assert merged([]) == ()


def test_copies_and_sets_are_no_kernels() -> None:
    events = [
        {"cat": "kernel", "ts": 3, "name": "b"},
        {"cat": "gpu_memset", "ts": 1, "name": "Memset (Device)"},
        {"cat": "gpu_memcpy", "ts": 2, "name": "Memcpy DtoD"},
        {"cat": "cuda_runtime", "ts": 0, "name": "cudaLaunchKernel"},
        {"ph": "M", "name": "process_name"},
        {"cat": "kernel", "ts": 2.5, "name": "a"},
    ]
    assert [e["name"] for e in profiler_module.kernel_events({"traceEvents": events})] == ["a", "b"]


@for_each(
    "name,expected",
    [
        ("softmax_online_kernel", "softmax_online_kernel"),
        (
            "void stream_copy_tma_kernel<unsigned int, unsigned short, (int)4096>(unsigned int const*, long)",
            "stream_copy_tma_kernel<unsigned, unsigned short, 4096>",
        ),
        (
            "void softmax_online_kernel<__nv_bfloat16, (int)8, (int)2, (int)256>(__nv_bfloat16 const*, long)",
            "softmax_online_kernel<__nv_bfloat16, 8, 2, 256>",
        ),
        ("void f<(bool)1, (unsigned int)3, 256u, -4l, 7ull>(int)", "f<true, 3, 256, -4, 7>"),
        ("f(int (*)(float), char)", "f"),
        (
            "void at::native::(anonymous namespace)::cunn_SoftMaxForward<4, float>(float*)",
            "cunn_SoftMaxForward<4, float>",
        ),
        ("triton_red_fused__softmax_0", "triton_red_fused__softmax_0"),
        (
            "void at::native::wise<" + "at::F<float>, " * 9 + ">(int)",
            f"wise<{'at::F<float>, ' * 9}"[:97] + "...",
        ),
    ],
)
def test_names_are_readable(name: str, expected: str) -> None:
    assert profiler_module.readable(name) == expected


OURS = [
    pytest.param(op, impl, id=f"{op.name}-{impl.label}")
    for op in map(registry.get_op, registry.op_names())
    for impl in registry.implementations(op.name)
    if impl.way != "torch"
]


@functools.cache
def compiled_offline(name: str, arch: str) -> dict[tuple[str, Case], Resources]:
    """Of all an op's kernels together, as importing the compilers takes longer than one kernel."""
    op = registry.get_op(name)
    impls = [impl for impl in registry.implementations(name) if impl.way != "torch"]
    requests = [Request(op, i, c, arch) for i in impls for c in (op.cases.default, *op.cases.smoke)]
    found = from_cubins(requests)
    return {(r.impl.label, r.case): result for r, result in zip(requests, found, strict=True)}


@pytest.mark.gpu
@pytest.mark.parametrize(("op", "impl"), OURS)
def test_both_readers_agree(op: Op, impl: Implementation) -> None:
    """On the default case and the smoke cases, which have the dtypes in turns."""
    from compare import device as machine

    device = torch.device("cuda", torch.cuda.current_device())
    reason = machine.supports(impl, device)
    if reason is not None:
        pytest.skip(reason)
    arch = machine.arch(device)
    assert arch is not None
    usual_card = machine.multiprocessors(device) == limits(arch).multiprocessors
    compared, refused = 0, ""
    for each in (op.cases.default, *op.cases.smoke):
        offline = compiled_offline(op.name, arch)[impl.label, each]
        given = impl.given(op.options(each))
        inputs = op.make_inputs(each, torch.Generator(device).manual_seed(0), device)
        if isinstance(offline, Exception):
            refused = str(offline)
            if not isinstance(offline, NotImplementedError):
                raise offline
            if "is autotuned" not in refused:
                with pytest.raises(NotImplementedError):
                    given.call(*inputs)
            continue
        watched = list(from_profiler(given, inputs))
        for kernel in offline:
            # Both are in order of their launches: a kernel may come again with another grid.
            seen = next(k for k in watched if (k.kernel, k.block) == (kernel.kernel, kernel.block))
            watched.remove(seen)
            same = [
                *("registers", "static_shared_bytes", "dynamic_shared_bytes", "reserved_shared_bytes"),
                *("occupancy", "limiter", "launches", *(["grid"] if usual_card else [])),
            ]
            # What a thread needs, and what it is given: never fewer than 16.
            kernel = replace(kernel, registers=max(16, kernel.registers))
            if impl.route == "pybind" and kernel.dynamic_shared_bytes:
                # Its place in memory depends on the other kernels of a module, and so does code that computes
                # addresses: the same up to what registers are handed out in.
                seen, kernel = (replace(k, registers=-(-k.registers // 8) * 8) for k in (seen, kernel))
            assert {f: getattr(seen, f) for f in same} == {f: getattr(kernel, f) for f in same}, each
            compared += 1
    if not compared:
        pytest.skip(f"not taken: {refused}")


@pytest.mark.gpu
def test_the_profiler_sees_pytorchs_own_kernels() -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    inputs = ADD.make_inputs(SMALL, torch.Generator(device), device)
    (kernel,) = from_profiler(on("torch.eager"), inputs)
    assert kernel.reader == "profiler"
    assert kernel.registers > 0
    assert kernel.occupancy
    naive = labelled("softmax", "torch.naive")
    x = torch.randn(64, 1024, device=device)
    assert sum(k.launches for k in from_profiler(naive, (x,))) >= 4


@pytest.fixture
def new_cache(_own_cache: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("COMPARE_CACHE_DIR", str(tmp_path))


def request(label: str) -> Request:
    return Request(ADD, on(label), SMALL, "sm_90")


def test_a_profile_is_kept_for_its_card_and_its_case(new_cache: None) -> None:
    one = request("cupy.scalar")
    others = (one, "another card"), (one, ""), (replace(one, case=case("fp32", N=1024)), CARD)
    assert kept(key_of(one, CARD)) is None
    keep(key_of(one, CARD), (KERNEL,))
    assert kept(key_of(one, CARD)) == (KERNEL,)
    assert [kept(key_of(*other)) for other in others] == [None] * 3


def test_what_is_known_is_not_profiled_again(monkeypatch: pytest.MonkeyPatch, new_cache: None) -> None:
    """A user's file and what compiles anew are profiled every time."""
    monkeypatch.setattr("torch.cuda.get_device_name", lambda device: CARD)
    monkeypatch.setattr("compare.run.resources.default_archs", lambda device: ("sm_90",))
    monkeypatch.setattr("compare.run.resources.Checking", lambda *_: mock.Mock(width=lambda count: 1))
    labels = ["torch.eager", "torch.compile", "triton.blocked", "cupy.scalar"]
    impls = registry.implementations("vector_add", labels)
    impls = [
        replace(impl, user_file=Path("mine.py") if impl.label == "triton.blocked" else None) for impl in impls
    ]

    def profiled(*kernels: KernelResources) -> list[str]:
        """The labels of those whose workers are asked; every row gets its kernels."""
        asked: list[str] = []
        worker = mock.Mock(ask=lambda *_: Profile(kernels, ("some_kernel",)))
        pool = mock.Mock(of=lambda impl: asked.append(impl.label) or worker)
        context = mock.MagicMock(op=ADD, pool=pool, device=torch.device("cuda"))
        entries = {impl.label: RowState(impl, Row(impl.label, impl.level, "ok")) for impl in impls}
        profile_case(context, CaseResult(SMALL, entries), mock.MagicMock(), last=True)
        assert entries["torch.eager"].row.resources in (kernels, (KERNEL,))
        assert {call.args[0].label for call in pool.dismiss.call_args_list} == set(labels)
        return sorted(asked)

    assert profiled() == sorted(labels)
    assert profiled(KERNEL) == sorted(labels), "a process's first profile may be empty: no result"
    assert profiled() == ["torch.compile", "triton.blocked"]
