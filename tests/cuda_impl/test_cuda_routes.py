"""CUDA's two routes to Python, cupy and pybind11: the same kernels, launches, results and complaints."""

from __future__ import annotations

import shutil
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode

import case_sets
from compare import registry
from compare.model.op import Case, Implementation, Op
from compare.model.result import KernelResources
from compare.resources.profiler import from_profiler
from conftest import HAS_GPU
from cuda_impl import build, pybind
from cuda_impl.launches.matmul import tile_for
from cuda_impl.loader import kernel
from loops import for_each, for_each_of_group
from on_device import outputs_of, skip_unless_supported

PAIRS_OF = {
    name: [
        (registry.get_op(name), cupy, other)
        for cupy in registry.implementations(name)
        if cupy.route == "cupy"
        for other in registry.implementations(name)
        if other.label == f"pybind.{cupy.variant}"
    ]
    for name in registry.op_names()
}
PAIRS = [
    pytest.param(op, cupy, other, id=f"{op.name}-{cupy.variant}")
    for pairs in PAIRS_OF.values()
    for op, cupy, other in pairs
]
op_by_op = for_each_of_group("op, cupy, other", PAIRS_OF, ids=lambda pair: pair[1].variant)


def inputs_of(op: Op, case: Case, device: torch.device) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator(device if device.type == "cuda" else "cpu").manual_seed(0)
    return op.make_inputs(case, generator, device)


@for_each("op", registry.op_names())
def test_every_variant_comes_through_both_routes(op: str) -> None:
    by_route: dict[str, dict[str, Implementation]] = {"cupy": {}, "pybind": {}}
    for impl in registry.implementations(op):
        if impl.route in by_route:
            by_route[impl.route][impl.variant] = impl
    assert list(by_route["cupy"]) == list(by_route["pybind"]) != []
    for variant, cupy in by_route["cupy"].items():
        other = by_route["pybind"][variant]
        assert (other.level, other.requires, other.accumulator) == (
            cupy.level,
            cupy.requires,
            cupy.accumulator,
        )
        assert other.deterministic == cupy.deterministic


@pytest.mark.thorough
@pytest.mark.parametrize(("op", "cupy", "other"), PAIRS)
def test_both_routes_give_the_same_bits(
    op: Op, cupy: Implementation, other: Implementation, device: torch.device
) -> None:
    skip_unless_supported(cupy, device)
    default = [] if device.type == "cpu" else [op.cases.default]
    laid_out = [replace(op.cases.smoke[0], layout=how) for how in layouts(op)]
    sizes = case_sets.briefest(op) if device.type == "cpu" else op.cases.smoke
    give_the_same_bits(op, cupy, other, list(dict.fromkeys((*default, *sizes, *laid_out))), device)


@pytest.mark.skipif(HAS_GPU, reason="test_both_routes_give_the_same_bits has this case")
@pytest.mark.parametrize(
    ("op", "cupy", "other"), [pytest.param(*pairs[0], id=name) for name, pairs in PAIRS_OF.items()]
)
def test_an_op_s_first_kernel_gives_the_same_bits_by_both_routes(
    op: Op, cupy: Implementation, other: Implementation
) -> None:
    device = torch.device("cpu")
    give_the_same_bits(op, cupy, other, taken(op, cupy, device)[:1], device)


def give_the_same_bits(
    op: Op, cupy: Implementation, other: Implementation, cases: Sequence[Case], device: torch.device
) -> None:
    """Or refuse a case with the same words; not all of them."""
    compared = 0
    for case in cases:
        tensors = inputs_of(op, case, device)
        options = op.options(case)
        expected, got = (outcome(impl.given(options), tensors) for impl in (cupy, other))
        if isinstance(expected, str) or isinstance(got, str):
            assert got == expected
            continue
        assert [x.stride() for x in got] == [x.stride() for x in expected]
        for outputs in (got, expected):
            op.mask_unspecified(tensors, outputs[0])
        assert all(same(cupy, *pair) for pair in zip(got, expected, strict=True)), str(case)
        compared += 1
    assert compared


def same(impl: Implementation, got: torch.Tensor, expected: torch.Tensor) -> bool:
    """Bit for bit; of what adds up in no certain order on a GPU, nearly."""
    if impl.deterministic or got.device.type == "cpu":
        return torch.equal(got.reshape(-1).view(torch.uint8), expected.reshape(-1).view(torch.uint8))
    return torch.allclose(got, expected, rtol=max(1e-4, 2 * torch.finfo(got.dtype).eps), atol=1e-2)


def outcome(impl: Implementation, tensors: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...] | str:
    """The outputs, or why the implementation does not take this case."""
    try:
        return outputs_of(impl, tensors)
    except NotImplementedError as refusal:
        return str(refusal)


def taken(op: Op, impl: Implementation, device: torch.device) -> list[Case]:
    """The op's small cases, without those that the implementation refuses."""
    return [
        c
        for c in op.cases.smoke
        if not isinstance(outcome(impl.given(op.options(c)), inputs_of(op, c, device)), str)
    ]


def layouts(op: Op) -> set[str]:
    """The ways to lie in memory that the op's own edge cases name."""
    return {case.layout for case in op.cases.edge} - {"contiguous"}


Spoil = Callable[[tuple[torch.Tensor, ...]], tuple[object, ...]]


def for_numpy(x: torch.Tensor) -> torch.Tensor:
    return x.float() if x.dtype is torch.float8_e4m3fn else x


SPOILED: dict[str, Spoil] = {
    "no tensor": lambda tensors: ([1.0], *tensors[1:]),
    "array": lambda tensors: (for_numpy(tensors[0]).numpy(), *tensors[1:]),
    "dtype": lambda tensors: (tensors[0].double(), *tensors[1:]),
    "whole numbers": lambda tensors: tuple(tensor.to(torch.int32) for tensor in tensors),
    "dimensions": lambda tensors: (tensors[0][None], *tensors[1:]),
    "many dimensions": lambda tensors: tuple(tensor[(None,) * 9] for tensor in tensors),
    "0-d": lambda tensors: (torch.tensor(1.0), *tensors[1:]),
    "sparse": lambda tensors: (for_numpy(tensors[0]).to_sparse(), *tensors[1:]),
    "last no tensor": lambda tensors: (*tensors[:-1], None),
    "last dtype": lambda tensors: (*tensors[:-1], tensors[-1].double()),
    "last shape": lambda tensors: (*tensors[:-1], tensors[-1][:-1]),
    "last device": lambda tensors: (*tensors[:-1], tensors[-1].to("meta")),
}


@pytest.mark.thorough
@op_by_op
def test_both_routes_complain_alike(op: Op, cupy: Implementation, other: Implementation) -> None:
    skip_unless_supported(cupy, torch.device("cpu"))
    tensors = inputs_of(op, op.cases.smoke[0], torch.device("cpu"))
    cupy, other = (impl.given(op.options(op.cases.smoke[0])) for impl in (cupy, other))
    for fault, spoiled in SPOILED.items():
        if fault in ("last shape", "last device") and len(tensors) == 1:
            continue  # it takes one tensor
        arguments = spoiled(tensors)
        with pytest.raises((TypeError, ValueError)) as expected:
            cupy.call(*arguments)
        with pytest.raises((TypeError, ValueError)) as got:
            other.call(*arguments)
        assert type(got.value) is type(expected.value), fault
        assert str(got.value) == str(expected.value), fault
        assert op.name in str(got.value), fault


class Asked(TorchFunctionMode):
    """Notes what is asked of tensors, from Python and from C++: ``asked[tensor's id]``."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: dict[int, list[str]] = defaultdict(list)

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        attribute = getattr(function, "__self__", None)  # of a getter
        name = getattr(attribute, "__name__", None) or function.__name__
        if args and isinstance(args[0], torch.Tensor):
            self.asked[id(args[0])].append(name)
        return function(*args, **(kwargs or {}))


@pytest.mark.gpu  # a CPU's calls are planned anew, in Python
@op_by_op
def test_from_cpp_no_layout_is_asked_through_python(
    op: Op, cupy: Implementation, other: Implementation, device: torch.device
) -> None:
    """An attribute of a tensor costs the host as much as ten of DLPack's answers."""
    skip_unless_supported(cupy, device)
    case = taken(op, cupy, device)[0]
    tensors, other = inputs_of(op, case, device), other.given(op.options(case))
    other.call(*tensors)
    with Asked() as mode:
        outputs = outputs_of(other, tensors)
    asked = {name for tensor in (*tensors, *outputs) for name in mode.asked[id(tensor)]}
    assert asked.isdisjoint({"data_ptr", "shape", "stride", "is_contiguous", "element_size"})


def test_modules_for_two_targets_are_two(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As on a machine with a GPU, where one process may call both."""
    built = build.pybind_module("vector_add", "host")
    copy = tmp_path / built.name
    shutil.copy(built, copy)
    monkeypatch.setattr(build, "pybind_module", lambda op, target: built if target == "host" else copy)
    load = pybind._load.__wrapped__
    host, other = load("vector_add", "host"), load("vector_add", "sm_00")
    assert (host.__file__, other.__file__) == (str(built), str(copy))
    assert host.scalar is not other.scalar


def test_a_call_loads_the_module_of_the_dtype_that_it_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scales and weights of other dtypes may come first; a wrong dtype is refused by any module."""
    asked: list[str] = []

    def loaded(name: str, device: torch.device, dtype: str) -> SimpleNamespace:
        asked.append(dtype)
        return SimpleNamespace(repack=lambda *_: None)

    monkeypatch.setattr(pybind, "module", loaded)
    run = pybind._lazy("w4a16_matmul", "repack", "w4a16_matmul")
    words, scales = torch.zeros(1, dtype=torch.int32), torch.zeros(1, dtype=torch.bfloat16)
    for arguments in ((words, scales), (words, scales), (scales,), (scales.double(),), (1.0,)):
        run(*arguments)
    first, *_ = registry.get_op("w4a16_matmul").dtypes
    assert asked == ["bf16", "bf16", first, first]


def test_devices_that_cannot_run_a_kernel_are_refused() -> None:
    with pytest.raises(TypeError, match="takes tensors on cuda, cpu or meta"):
        kernel("vector_add", "vector_add_scalar_kernel<float>", torch.device("xpu"))
    with pytest.raises(TypeError, match="takes tensors on cuda or cpu"):
        pybind.module("vector_add", torch.device("meta"), "fp32")


@for_each(
    "M, N, BLOCK_N",
    [
        *((size, size, 64) for size in (1, 512, 1024)),
        *((size, size, 192) for size in (1536, 3072)),
        (1500, 1528, 192),
        *((size, size, 256) for size in (2048, 4096, 8192, 16384)),
    ],
)
def test_tiles_are_as_wide_as_keeps_an_h100_at_work(M: int, N: int, BLOCK_N: int) -> None:
    assert tile_for(M, N, processors=132)[0] == BLOCK_N


# --------------------------------------------------------------------------- on a GPU

SHARED = """
#include "common.cuh"
__global__ void reversed(float* x, int count) {
    DYNAMIC_SHARED(float, s);
    for (int i = threadIdx.x; i < count; i += blockDim.x) s[i] = x[i];
    __syncthreads();
    for (int i = threadIdx.x; i < count; i += blockDim.x) x[i] = s[count - 1 - i];
}
__global__ void reversed_by_fours(float* x, int count) {
    DYNAMIC_SHARED(float, s);
    __shared__ float four[1024];
    for (int i = threadIdx.x; i < count; i += blockDim.x) s[i] = x[i];
    for (int i = threadIdx.x; i < 1024; i += blockDim.x) four[i] = i % 4;
    __syncthreads();
    for (int i = threadIdx.x; i < count; i += blockDim.x) x[i] = s[count - 1 - i] + four[i % 1024];
}
"""

CLUSTER = """
__global__ void __cluster_dims__(16, 1, 1) ranks(int* x) {
    unsigned rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    if (threadIdx.x == 0) x[blockIdx.x] = int(rank);
}
"""

OVERLAP = """
__global__ void late(int* x, int value) {
    for (int i = 0; i < 2000; ++i) __nanosleep(1000);
    x[0] = value;
}
__global__ void follows(const int* x, int* y) {
    asm volatile("griddepcontrol.wait;" ::: "memory");
    y[0] = x[0];
}
"""


@pytest.mark.gpu
@pytest.mark.parametrize(("op", "cupy", "other"), PAIRS)
def test_both_routes_launch_alike(
    op: Op, cupy: Implementation, other: Implementation, device: torch.device
) -> None:
    """Kernels, grids, blocks, registers and shared memory, as the profiler saw them."""
    skip_unless_supported(cupy, device)
    tensors = inputs_of(op, op.cases.default, device)
    cupy, other = (impl.given(op.options(op.cases.default)) for impl in (cupy, other))
    try:
        expected = from_profiler(cupy, tensors)
    except NotImplementedError as refusal:
        pytest.skip(str(refusal))
    assert list(map(_granted, from_profiler(other, tensors))) == list(map(_granted, expected))


def _granted(seen: KernelResources) -> KernelResources:
    """With as many registers as a thread is given: by eights, though a compiler asked for fewer."""
    return replace(seen, registers=-(-seen.registers // 8) * 8)


@pytest.mark.gpu
def test_more_than_48_kb_of_shared_memory(device: torch.device) -> None:
    count = 60 * 1024 // 4  # what every GPU the project serves has, sm_75's 64 KB included
    x = torch.arange(count, dtype=torch.float32, device=device)
    run = kernel(SHARED, "reversed", x.device)
    for _ in range(2):
        run((1,), (256,), (x.data_ptr(), np.int32(count)), shared_mem=4 * count)
    run((1,), (256,), (x.data_ptr(), np.int32(count)), shared_mem=4 * count)
    assert torch.equal(x, torch.arange(count - 1, -1, -1, dtype=torch.float32, device=device))


@pytest.mark.gpu
def test_what_a_kernel_declares_counts_among_the_48_kb(device: torch.device) -> None:
    """4 KB of its own and 46 asked for at the launch: either alone is less than 48."""
    count = 46 * 1024 // 4
    x = torch.arange(count, dtype=torch.float32, device=device)
    expected = x.flip(0) + torch.arange(count, device=device) % 4
    kernel(SHARED, "reversed_by_fours", x.device)(
        (1,), (256,), (x.data_ptr(), np.int32(count)), shared_mem=4 * count
    )
    assert torch.equal(x, expected)


@pytest.mark.gpu
def test_clusters_larger_than_portable(device: torch.device) -> None:
    if torch.cuda.get_device_capability(device) != (9, 0):
        pytest.skip("clusters of 16 blocks need sm_90")
    x = torch.full((32,), -1, dtype=torch.int32, device=device)
    kernel(CLUSTER, "ranks", x.device, cluster=16)((32,), (64,), (x.data_ptr(),))
    assert x.tolist() == [*range(16), *range(16)]


@pytest.mark.gpu
def test_a_kernel_that_may_overlap_waits_for_its_input(device: torch.device) -> None:
    if torch.cuda.get_device_capability(device) < (9, 0):
        pytest.skip("grids overlap from sm_90 on")
    x, y = (torch.zeros(1, dtype=torch.int32, device=device) for _ in range(2))
    late, follows = kernel(OVERLAP, "late", x.device), kernel(OVERLAP, "follows", x.device, overlap=True)
    for value in (7, 8, 9):
        late((1,), (1,), (x.data_ptr(), np.int32(value)))
        follows((1,), (1,), (x.data_ptr(), y.data_ptr()))
        assert y.item() == value
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        late((1,), (1,), (x.data_ptr(), np.int32(10)))
        follows((1,), (1,), (x.data_ptr(), y.data_ptr()))
    graph.replay()
    assert y.item() == 10


@pytest.mark.gpu
def test_a_kernel_goes_to_its_tensors_device() -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    x, y = torch.ones(1000, device="cuda:1"), torch.ones(1000, device="cuda:1")
    with torch.cuda.device(0):
        for impl in registry.implementations("vector_add", ["cupy.*", "pybind.*"]):
            assert torch.equal(impl.run(x, y), x + y), impl.label
        rows, targets = x.view(2, 500), torch.tensor([3, 4], device="cuda:1")
        for impl in registry.implementations(
            "cross_entropy", ["cupy.split", "pybind.split"]
        ):  # zeroed memory
            for _ in range(20):
                torch.testing.assert_close(impl.run(rows, targets), rows.new_full((2,), 500.0).log())
        assert torch.cuda.current_device() == 0
