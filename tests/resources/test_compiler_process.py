"""What the compiling process makes of kernels, and of those with mistakes in them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from compare import registry
from compare.resources.static import CompileError, Refused, Request, from_cubin, from_cubins
from compare.spec import Implementation, KernelResources, Op, case
from compare.stages.verdict import verdict
from processes import python

ADD = registry.get_op("vector_add")
SMALL = case("fp32", N=4096)


def on(label: str, op: Op = ADD) -> Implementation:
    return next(impl for impl in registry.implementations(op.name) if impl.label == label)


BUSY = [op for op in map(registry.get_op, registry.op_names()) if op.cost(op.cases.default).busy]
BY_DTYPES = {op.dtypes: op for op in BUSY}.values()
"""One op for each choice of dtypes, because these decide on the instructions; the others are exhaustive."""
FEW = ("triton.naive", "triton.tensor_core", "cupy.tiled", "cupy.tensor_core")


@pytest.mark.parametrize(
    ("op", "labels"),
    [
        pytest.param(registry.get_op("batched_matmul"), FEW, id="few"),
        *(
            pytest.param(
                op,
                ("*",),
                id=op.name,
                marks=pytest.mark.thorough if op in BY_DTYPES else pytest.mark.exhaustive,
            )
            for op in BUSY
        ),
    ],
)
def test_what_is_about_arithmetic_says_what_it_multiplies_by(op: Op, labels: Sequence[str]) -> None:
    every = registry.implementations(op.name, labels)
    mine = [i for i in every if i.way != "torch" and i.route != "pybind"]
    # Of each level the first, and the first for each newer GPU.
    impls = list({(i.way, i.level, i.requires): i for i in reversed(mine)}.values())
    looked_at = set()
    requests = [Request(op, impl, op.cases.default, "sm_90") for impl in impls]
    for impl, kernels in zip(impls, from_cubins(requests), strict=True):
        if isinstance(kernels, NotImplementedError):
            continue
        assert isinstance(kernels, tuple), f"{impl.label}: {kernels}"
        found = {kernel.instruction for kernel in kernels}
        tensor_cores = {name for name in found if "MMA." in name}
        if impl.level in ("tensor_core", "hopper"):
            assert tensor_cores, (impl.label, found)
        else:
            assert found & {"FFMA", "HFMA2", "IDP.4A"}, (impl.label, found)
            assert not tensor_cores, (impl.label, found)
        if impl.level == "hopper":
            assert all("GMMA." in name for name in tensor_cores), (impl.label, found)
        looked_at.add(impl.way)
    assert looked_at == {"triton", "cuda"}


@pytest.fixture(scope="module")
def additions() -> list[KernelResources]:
    """Triton's for three lengths, and one in CUDA: compiled together."""
    impl = on("triton.blocked")
    requests = [Request(ADD, impl, case("fp16", N=length), "sm_80") for length in (4096, 4097, 1)]
    requests.append(Request(ADD, on("cupy.scalar"), SMALL, "sm_90"))
    return [result[0] for result in from_cubins(requests) if isinstance(result, tuple)]


@pytest.mark.thorough
def test_what_is_about_memory_is_not_disassembled(additions: list[KernelResources]) -> None:
    assert len(additions) == 4
    for kernel in additions:
        assert (kernel.instruction, kernel.load_bits) == ("", None)


def test_triton_specialises_as_it_does_on_a_gpu(additions: list[KernelResources]) -> None:
    """Lengths that 16 divides get wide accesses, others do not; a length of 1 is folded into the code."""
    divisible, odd, one = (kernel.code_bytes or 0 for kernel in additions[:3])
    assert 0 < divisible < odd
    assert one not in (divisible, odd)


COMPILED = """
from triton.runtime.driver import driver
from compare import registry
from compare.aot.plan import plan
from compare.resources.compiler_process import compile_triton

op = registry.get_op("vector_add")
(impl,) = registry.implementations("vector_add", ["triton.blocked"])
launch = plan(op, impl, op.cases.smoke[0], "sm_90").launch
before = driver._active
compiled, _ = compile_triton(launch, "sm_90")
print(compiled.metadata.target.arch, driver._active is before)
"""


def test_triton_finds_its_gpu_again(tmp_path: Path) -> None:
    """Programs are built in processes that launch kernels afterwards."""
    done = python("-c", COMPILED, ready="triton", TRITON_CACHE_DIR=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert done.stdout == "90 True\n"


USERS_FILE = '''
import numpy as np
import triton
import triton.language as tl

from compare.registry import implementation
from cuda_impl.loader import kernel


@triton.jit
def total_kernel(x_ptr, N, BLOCK: tl.constexpr):
    n = tl.arange(0, BLOCK)
    tl.store(x_ptr, tl.sum(tl.load(x_ptr + n, mask=n < N), axis=0))


@implementation("vector_add", "triton.total", level="tiled")
def total(x, y):
    for _ in range(3):
        total_kernel[(2, 3)](x, x.numel(), BLOCK=1024, num_warps=2)
    return x


SOURCE = r"""
template <typename T> __global__ void mine(T* x, long long N) {
    extern __shared__ float kept[];
    kept[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    x[threadIdx.x] = kept[N];
}
"""


@implementation("vector_add", "cupy.mine", level="tiled")
def mine(x, y):
    k = kernel(SOURCE, "mine<float>", x.device)
    k((4,), (64, 2), (x.data_ptr(), np.int64(x.numel())), shared_mem=512)
    k((5,), (64,), (x.data_ptr(), np.int64(x.numel())))
    return x


@implementation("vector_add", "cupy.wrong", level="tiled")
def wrong(x, y):
    kernel("__global__ void wrong() { nonsense; }", "wrong", x.device)((1,), (1,), ())
    return x


@triton.jit
def undefined_kernel(x_ptr):
    tl.store(x_ptr, nowhere)


@implementation("vector_add", "triton.undefined", level="tiled")
def undefined(x, y):
    undefined_kernel[(1,)](x)
    return x


@implementation("vector_add", "cupy.asserting", level="tiled")
def asserting(x, y):
    source = '__global__ void asserting() { static_assert(false, "powers of two"); }'
    kernel(source, "asserting", x.device)((1,), (1,), ())
    return x


@implementation("vector_add", "triton.wrong", level="tiled")
def wrong_too(x, y):
    raise ZeroDivisionError("at once, \\x1b[5Aup five lines")


@implementation("vector_add", "triton.picky", level="tiled")
def picky(x, y):
    raise NotImplementedError("more than it takes")
'''


def test_a_users_file_and_its_mistakes(load: Callable[..., None]) -> None:
    load(USERS_FILE)
    wrong_ones = ("cupy.wrong", "triton.undefined", "cupy.asserting", "triton.wrong")
    labels = ("triton.total", *wrong_ones, "triton.picky", "cupy.mine")
    requests = [Request(ADD, on(label), SMALL, "sm_80") for label in labels]
    total, wrong, undefined, asserting, wrong_too, picky, mine = from_cubins(requests)

    assert isinstance(total, tuple)
    (kernel,) = total
    assert (kernel.kernel, kernel.launches) == ("total_kernel", 3)
    assert (kernel.grid, kernel.block) == ((2, 3, 1), (64, 1, 1))
    assert kernel.static_shared_bytes == 0, "Triton's shared memory is dynamic"
    assert kernel.dynamic_shared_bytes > 0

    assert isinstance(wrong, Refused)
    assert str(wrong) == 'wrong: NVRTC failed: mine.py:43: identifier "nonsense" is undefined'
    assert isinstance(undefined, Refused)
    assert re.search(r"mine\.py:\d+: CompilationError: .*nowhere is not defined", str(undefined))
    assert isinstance(asserting, NotImplementedError)
    assert "powers of two" in str(asserting)
    assert isinstance(wrong_too, CompileError)
    assert not isinstance(wrong_too, Refused), "host code may fail without a GPU only"
    assert str(wrong_too) == "ZeroDivisionError: at once, ?[5Aup five lines"
    assert isinstance(picky, NotImplementedError)
    assert str(picky) == "more than it takes"

    assert isinstance(mine, tuple)
    assert [(k.kernel, k.dynamic_shared_bytes, k.grid, k.block) for k in mine] == [
        ("mine<float>", 512, (4, 1, 1), (64, 2, 1)),
        ("mine<float>", 0, (5, 1, 1), (64, 1, 1)),
    ]
    assert [(k.load_bits, k.instruction) for k in mine] == [(32, "")] * 2, "a user's file is disassembled"


@pytest.mark.thorough
def test_letters_that_ptxas_does_not_take_are_said_to_be_the_names(load: Callable[..., None]) -> None:
    load(USERS_FILE, "kérnel.py")
    with pytest.raises(Refused) as error:
        from_cubin(ADD, on("triton.total"), SMALL, "sm_80")
    status, reason = verdict(error.value)
    assert status == "failed"
    assert "rename what has other letters" in reason
