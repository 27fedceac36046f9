"""Sizes and strides that no case reaches: each is computed in 64 bits, or refused by name.

One command runs what only a GPU shows: ``python -m pytest tests/kernels/test_large_sizes.py -m gpu``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

import pytest
import torch
from triton.runtime import interpreter

from compare import capture, registry
from compare.inputs import ITEM_BYTES
from compare.model.op import Case, Implementation, Op, UsageError
from on_device import outputs_of, skip_unless_quick
from rows import labelled, op_by_op

MOST_BYTES = 1 << 39
"""More than the memory of any GPU."""
EDGES = ((1 << 31) - 16, (1 << 31) - 1, 1 << 31, (1 << 31) + 64, 1 << 33)
MOST_GRID = ((1 << 31) - 1, (1 << 16) - 1, (1 << 16) - 1)


def with_size(case: Case, name: str, size: int) -> Case:
    return replace(case, dims=tuple((dim, size if dim == name else old) for dim, old in case.dims))


def fits(op: Op, case: Case) -> bool:
    """Whether the op takes the case, and a GPU may hold its inputs and outputs."""
    try:
        cost = op.cost(case)
        if cost.read_bytes + cost.written_bytes > MOST_BYTES:
            return False
        capture.meta_inputs(op, case)
    except (UsageError, RuntimeError):  # no such case, or no tensor of so many elements
        return False
    return True


def large_cases(op: Op) -> Iterator[Case]:
    """Each dimension at each of `EDGES`, while the others are as small as they can be."""
    for dtype in (op.dtypes[0], op.dtypes[-1]):
        least = replace(op.cases.smoke[0], dtype=dtype)
        for name, _ in least.dims:
            if fits(op, smaller := with_size(least, name, 1)):
                least = smaller
        for name, _ in least.dims:
            yield from filter(lambda case: fits(op, case), (with_size(least, name, size) for size in EDGES))


@op_by_op
def test_grids_and_counts_of_large_sizes_fit_or_are_refused(impl: Implementation) -> None:
    if not impl.has_own_kernels:
        pytest.skip("it calls kernels of libraries only")
    op = registry.get_op(impl.op)
    cases = list(large_cases(op))
    if not cases:
        pytest.skip("no GPU holds so many elements")
    for each in cases:
        with suppress(NotImplementedError, ValueError):
            for launch in capture.capture(impl, op, each, impl.requires or "sm_90"):
                assert all(size <= most for size, most in zip(launch.grid, MOST_GRID, strict=True)), each


TOKENS = "B=1,S=2147483584,Hq=1,Hk=1,D=64,PAGE=64,fp16"


@pytest.mark.parametrize(
    ("op", "labels", "sizes", "says"),
    [
        ("matmul", "cupy.tensor_core", "M=1,N=1,K=2147483712,fp16", "K=2147483712: at most 2147483647"),
        ("matmul", "cupy.cp_async", "M=1,N=1,K=2147483712,fp32", "K=2147483712: at most 2147483647"),
        ("matmul", "cupy.pipelined", "M=1,N=1,K=2147483712,fp32", "K=2147483712: at most 2147483647"),
        ("matmul", "triton.persistent", "M=1,N=1,K=2147483648,fp16", "K=2147483648: at most 2147483136"),
        ("linear_gelu", "cupy.tensor_core", "M=1,N=1,K=2147483712,fp16", "at most 2147483647"),
        ("linear_gelu", "triton.unfused", "M=1,N=1,K=2147483648,fp16", "at most 2147483136"),
        ("fp8_matmul", "cupy.*", "M=1,N=1,K=2147483648,fp8", "K=2147483648: at most 2147483136"),
        ("fp8_matmul", "triton.persistent", "M=1,N=1,K=2147483648,fp8", "at most 2147483136"),
        ("fp8_block_matmul", "cupy.*", "M=1,N=1,K=2147483648,fp8", "K=2147483648: at most 2147483136"),
        ("fp8_block_matmul", "triton.persistent", "M=1,N=1,K=2147483648,fp8", "at most 2147483136"),
        ("quantize_fp8", "triton.*", "M=1,K=2147483712,group=128,fp16", "K=2147483712: columns are numbered"),
        ("w4a16_matmul", "triton.*", "M=1,N=8,K=2147483632,fp16", "K=2147483632: a loop's last step"),
        ("rotary", "triton.token", "B=1,S=1,H=16777216,Hk=1,D=128,fp16", "a token has at most 2147483647"),
        ("rotary", "cupy.token", "B=1,S=1,H=2147483648,Hk=1,D=2,fp16", "at most 2147418111"),
        ("topk", "cupy.*", "M=1,N=2147483647,K=1,fp16", "a count of 2147483647: the kernel has 32 bits"),
        ("grouped_matmul", "triton.tiled", "M=1,N=2147483712,K=1,G=1,SKEW=1,bf16", "counted in 32 bits"),
        ("w4a16_matmul", "triton.transposed", "M=1,N=8,K=2147483712,fp16", "K=2147483712: at most"),
        ("decode_attention", "triton.*", TOKENS, "at most 2146435072"),
        ("decode_attention", "cupy.*", TOKENS, "at most 2146435072"),
        (
            "attention_backward",
            "triton.*",
            "B=1,Sq=1,Skv=1,Hq=65537,Hk=1,D=128,causal=0,fp16",
            "heads of D=128 are at most 65536",
        ),
        (
            "attention_backward",
            "triton.*",
            "B=1,Sq=2147483000,Skv=1,Hq=1,Hk=1,D=64,causal=0,fp16",
            "at most 2147418112 together",
        ),
        ("cross_entropy", "cupy.*", "M=1,V=8589934592,fp32", "a count of 2147483648: the kernel has 32 bits"),
        ("cross_entropy", "triton.online", "M=1,V=8589934592,fp32", "at most 2147483647 vectors of 4"),
        ("cross_entropy", "triton.split", "M=1,V=8589934592,fp32", "at most 2147483647 vectors of 4"),
        ("softmax", "triton.online", "M=2147483648,N=1,fp16", "2147483648 programs: a grid has at most"),
    ],
)
def test_a_size_that_kernels_would_count_wrong_is_refused(
    op: str, labels: str, sizes: str, says: str
) -> None:
    described = registry.get_op(op)
    for impl in registry.implementations(op, [labels]):
        with pytest.raises(NotImplementedError, match=says):
            capture.capture(impl, described, Case.parse(sizes, described), "sm_90a")


# --------------------------------------------------------------------------- large strides on small views


def spread(x: torch.Tensor, dim: int) -> torch.Tensor:
    """The same values with the last index of ``dim`` 2^31 elements or more from the first.

    Memory that is not written to takes no room on a CPU.
    """
    stride = -(-(1 << 31) // (x.shape[dim] - 1) // 16) * 16  # rows stay 16-byte aligned
    others = torch.empty_like(x.select(dim, 0), memory_format=torch.contiguous_format).stride()
    strides = (*others[:dim], stride, *others[dim:])
    extent = 1 + sum((size - 1) * step for size, step in zip(x.shape, strides, strict=True))
    storage = torch.empty(extent, dtype=x.dtype, device=x.device)
    return storage.as_strided(x.shape, strides).copy_(x)


def spread_inputs(inputs: tuple[torch.Tensor, ...]) -> Iterator[tuple[str, tuple[torch.Tensor, ...]]]:
    for number, x in enumerate(inputs):
        for dim in range(x.dim()):
            if x.shape[dim] > 1 and x.element_size() <= 4:
                yield f"input {number}, dim {dim}", (*inputs[:number], spread(x, dim), *inputs[number + 1 :])


def outputs_or_refusal(
    impl: Implementation, op: Op, inputs: tuple[torch.Tensor, ...]
) -> tuple[torch.Tensor, ...] | str:
    try:
        outputs = outputs_of(impl, inputs)
    except NotImplementedError as error:
        return str(error)
    op.mask_unspecified(inputs, outputs[0])
    return outputs


def assert_near(outputs: tuple[torch.Tensor, ...], expected: tuple[torch.Tensor, ...], what: str) -> None:
    """Close enough for another order of sums; an element from elsewhere is further off."""
    for got, wanted in zip(outputs, expected, strict=True):
        got, wanted = got.double(), wanted.double()
        atol = 1e-2 * float(wanted[wanted.isfinite()].abs().max())
        torch.testing.assert_close(
            got, wanted, rtol=1e-2, atol=atol, equal_nan=True, msg=lambda told: f"{what}: {told}"
        )


@pytest.fixture
def nothing_copied_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton's interpreter copies every argument's whole memory back, on a CPU onto itself."""
    monkeypatch.setattr(interpreter.GridExecutor, "_restore_args_dev", lambda *args: None)


@pytest.mark.thorough
@op_by_op
def test_offsets_beyond_32_bits_reach_the_same_elements(
    impl: Implementation, device: torch.device, nothing_copied_back: None
) -> None:
    skip_unless_quick(impl, device)
    if not impl.has_own_kernels or impl.route == "pybind":
        pytest.skip("it calls kernels of libraries only, or cupy's kernels with cupy's arguments")
    op = registry.get_op(impl.op)
    narrow = [each for each in op.cases.smoke if ITEM_BYTES[each.dtype] < 4]
    case = min(narrow or op.cases.smoke, key=lambda each: op.cost(each).bytes)
    inputs = op.make_inputs(case, torch.Generator(device).manual_seed(0), device)
    impl = impl.given(op.options(case))
    expected = outputs_or_refusal(impl, op, inputs)
    if isinstance(expected, str):
        pytest.skip(expected)
    for changed, others in spread_inputs(inputs):
        outputs = outputs_or_refusal(impl, op, others)
        if isinstance(outputs, str):
            assert "2^31" in outputs or "32-bit" in outputs, changed
        else:
            assert_near(outputs, expected, changed)


# --------------------------------------------------------------------------- seen on a GPU only


@pytest.mark.gpu
@pytest.mark.parametrize("label", ["triton.pairs", "cupy.token", "cupy.pairs"])
def test_heads_behind_2_to_the_31_elements_are_rotated(label: str, device: torch.device) -> None:
    impl = labelled("rotary", label)
    skip_unless_quick(impl, device)
    H, D = (1 << 24) + 1, 128
    q, k = torch.randn(2, 1, 1, 1, D, dtype=torch.float16, device=device)
    cos, sin = torch.randn(2, 1, D // 2, dtype=torch.float16, device=device)
    expected = impl.run(q, k, cos, sin)
    out = impl.run(q.expand(1, 1, H, D), k, cos, sin)
    assert torch.equal(out[:, :, -2:], expected)


SPINNING = [
    (op, label)
    for op, labels in {
        "softmax": ("triton.split", "triton.gluon", "cupy.split", "cupy.ring", "pybind.split", "pybind.ring"),
        "layer_norm": ("triton.split", "triton.gluon"),
        "rms_norm": ("triton.split", "triton.gluon"),
        "fused_add_rms_norm": ("triton.split",),
    }.items()
    for label in labels
]


@pytest.mark.gpu
@pytest.mark.parametrize(("op", "label"), SPINNING)
def test_programs_that_wait_for_each_other_end_on_two_streams(
    op: str, label: str, device: torch.device
) -> None:
    """Each launch alone fills the GPU: two that shared it would wait for programs without a place."""
    impl, described = labelled(op, label), registry.get_op(op)
    skip_unless_quick(impl, device)
    c = Case.parse("M=512,N=65536,bf16", described)
    inputs = described.make_inputs(c, torch.Generator(device).manual_seed(0), device)
    expected = impl.run(*inputs)
    streams = [torch.cuda.Stream(device) for _ in range(2)]
    outputs = []
    torch.cuda.synchronize(device)
    for _ in range(20):
        for stream in streams:
            with torch.cuda.stream(stream):
                outputs.append(impl.run(*inputs))
    torch.cuda.synchronize(device)
    assert all(torch.equal(output, expected) for output in outputs)


@pytest.mark.gpu
@op_by_op
def test_triton_launches_on_the_device_of_its_tensors(impl: Implementation) -> None:
    if impl.way != "triton":
        pytest.skip("cupy's and pybind11's launches: test_cuda_routes.py")
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    device = torch.device("cuda:1")
    skip_unless_quick(impl, device)
    op = registry.get_op(impl.op)
    impl = impl.given(op.options(op.cases.smoke[0]))
    inputs = op.make_inputs(op.cases.smoke[0], torch.Generator(device).manual_seed(0), device)
    results: list[tuple[torch.Tensor, ...]] = []
    for current in (1, 0):
        with torch.cuda.device(current):
            outputs = outputs_or_refusal(impl, op, inputs)
            assert torch.cuda.current_device() == current
        if isinstance(outputs, str):
            pytest.skip(outputs)
        results.append(outputs)
    assert_near(results[0], results[1], "on the other device")
