"""Resources without a GPU: compiled by workers, which may end and get wrong kernels, and kept."""

from __future__ import annotations

import os
import re
import secrets
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from compare import registry
from compare.device import STATIC_ARCHS
from compare.model.op import Case, Op, case
from compare.model.result import Row
from compare.resources.static import CompileError, Refused, Request, kept, key_of
from compare.run import compiling
from compare.run.compiling import Compilation, from_cubins
from compare.run.verdict import verdict
from processes import called_with, python
from rows import labelled

ADD = registry.get_op("vector_add")
SMALL = case("fp32", N=4096)
on = partial(labelled, "vector_add")


@pytest.mark.thorough
def test_both_ways_for_several_architectures_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")  # as in a run without a GPU
    labels = ("torch.eager", "triton.blocked", "cupy.scalar", "cupy.vectorized")
    requests = [Request(ADD, on(label), SMALL, arch) for label in labels for arch in ("sm_75", "sm_90")]
    shares: list[float] = []
    results = from_cubins(requests, shares.append)
    assert shares == [1 / 3, 2 / 3, 1.0], "PyTorch's kernels are not compiled"
    for request, result in zip(requests, results, strict=True):
        assert isinstance(result, tuple), result
        if request.impl.way == "torch":
            assert result == ()
            continue
        (kernel,) = result
        assert kernel.kernel.startswith(f"vector_add_{request.impl.variant}_kernel")
        assert (kernel.arch, kernel.reader, kernel.launches) == (request.arch, "cubin", 1)
        assert 0 < kernel.registers <= 255
        assert kernel.static_shared_bytes == kernel.dynamic_shared_bytes == 0
        assert kernel.reserved_shared_bytes == (0 if request.arch == "sm_75" else 1024)
        assert kernel.spilled_bytes == kernel.local_bytes == 0
        assert kernel.code_bytes
        assert kernel.grid is not None
        assert kernel.block is not None
        assert kernel.grid[0] * kernel.block[0] >= SMALL["N"] / 16
        assert kernel.occupancy is not None
        assert 0 < kernel.occupancy <= 1
        assert kernel.limiter

    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("compiled again")

    monkeypatch.setattr(compiling, "Worker", refuse)
    assert from_cubins(requests) == results


def test_an_architecture_that_is_not_served_is_refused() -> None:
    impl, newer = on("cupy.scalar"), (("sm_90", "sm_80"), ("sm_90a", "sm_100"))
    requests = [Request(ADD, replace(impl, requires=needs), SMALL, arch) for needs, arch in newer]
    for (needs, arch), refused in zip(newer, from_cubins(requests), strict=True):
        assert isinstance(refused, NotImplementedError)
        assert f"needs {needs}, this is {arch}" in str(refused)
    with pytest.raises(ValueError, match="sm_99"):
        from_cubins([Request(ADD, impl, SMALL, "sm_99")])


ENDING_FILE = """
import os

from compare.registry import implementation


@implementation("vector_add", "triton.endless", level="tiled")
def endless(x, y):
    while True:
        pass


@implementation("vector_add", "triton.aborting", level="tiled")
def aborting(x, y):
    os.abort()


@implementation("vector_add", "triton.picky", level="tiled")
def picky(x, y):
    raise NotImplementedError("more than it takes")
"""


def test_who_ends_its_process_costs_the_others_nothing(load: Callable[..., None]) -> None:
    load(ENDING_FILE)
    labels, archs = ("triton.aborting", "triton.picky"), ("sm_80", "sm_90")
    requests = [Request(ADD, on(label), SMALL, arch) for label in labels for arch in archs]
    *aborting, picky, picky_too = from_cubins(requests)
    for each in aborting:
        assert isinstance(each, CompileError)
        assert re.match(r"its process was killed by SIGABRT \(abort\) in compiling for sm_80", str(each))
    assert [str(each) for each in (picky, picky_too)] == ["more than it takes"] * 2


@pytest.mark.thorough
def test_who_takes_too_long_is_ended(load: Callable[..., None]) -> None:
    load(ENDING_FILE)
    (endless,) = from_cubins([Request(ADD, on("triton.endless"), SMALL, "sm_80")], timeout_s=5.0)
    assert isinstance(endless, CompileError)
    late = "it took longer than 5 s, the limit for compiling for sm_80 (--timeout); it was at mine.py:"
    assert re.fullmatch(re.escape(late) + r"\d+", str(endless))


@pytest.mark.thorough
def test_what_compiles_in_the_background_is_kept_unasked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("COMPARE_CACHE_DIR", str(tmp_path))
    request = Request(ADD, on("cupy.scalar"), SMALL, "sm_80")
    compilation = Compilation([request])
    end = time.monotonic() + 120
    while (result := kept(key_of(request))) is None and time.monotonic() < end:
        time.sleep(0.05)
    compilation.stop()
    monkeypatch.setattr(compiling, "Worker", None)  # nothing is left to compile
    assert from_cubins([request]) == [result]


def test_a_compilation_that_is_stopped_ends_at_once(load: Callable[..., None]) -> None:
    load(ENDING_FILE)
    compilation = Compilation([Request(ADD, on("triton.endless"), SMALL, "sm_80")])
    while not compilation._workers:
        time.sleep(0.05)
    (worker,) = compilation._workers
    end = time.monotonic() + 60
    while not worker._busy and time.monotonic() < end:
        time.sleep(0.05)
    begin = time.monotonic()
    compilation.stop()
    assert time.monotonic() - begin < 5
    assert not Path("/proc", str(worker.pid)).exists()


STARTER = """
import sys
from compare import registry
from compare.resources.static import Request
from compare.run.compiling import from_cubins
from compare.worker import user_files

user_files.load([sys.argv[1]])
op = registry.get_op("vector_add")
from_cubins([Request(op, registry.implementations(op.name, ["triton.busy"])[0], op.cases.default, "sm_80")])
"""


BUSY_FILE = """
import os, subprocess, sys
from compare.registry import implementation

@implementation("vector_add", "triton.busy", level="tiled")
def busy(x, y):
    subprocess.run([sys.executable, "-c", "import signal; signal.pause()", "TOKEN"])
"""
"""In place of a ptxas that takes its time: a program that never ends."""


@pytest.mark.thorough
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_compilers_do_not_outlive_who_started_them(how: signal.Signals, tmp_path: Path) -> None:
    file, token = tmp_path / "mine.py", secrets.token_hex()
    file.write_text(BUSY_FILE.replace("TOKEN", token))
    starter = subprocess.Popen([sys.executable, "-c", STARTER, str(file)], cwd=registry.ROOT)
    compiler = os.pidfd_open(called_with(token))
    try:
        starter.send_signal(how)
        assert starter.wait() == -how
        assert select.select([compiler], [], [], 10)[0], "it is still there"
    finally:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(compiler, signal.SIGKILL)
        os.close(compiler)


def test_a_result_is_kept_by_its_sources(monkeypatch: pytest.MonkeyPatch, load: Callable[..., None]) -> None:
    load(ENDING_FILE)
    request = Request(ADD, on("triton.picky"), SMALL, "sm_80")
    before = key_of(request)
    assert key_of(replace(request, arch="sm_90")) != before
    assert key_of(replace(request, case=case("fp32", N=4097))) != before
    monkeypatch.setenv("TRITON_CACHE_DIR", "elsewhere")
    assert key_of(request) == before
    with monkeypatch.context() as other:
        other.setenv("TRITON_PTXAS_PATH", "another")
        assert key_of(request) != before
    load(ENDING_FILE.replace("more than it takes", "less than it takes"))
    assert key_of(replace(request, impl=on("triton.picky"))) != before


# --------------------------------------------------------------------------- what becomes of kernels

BUSY = [op for op in map(registry.get_op, registry.op_names()) if op.cost(op.cases.default).compute_bound]
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


@pytest.mark.thorough
@pytest.mark.parametrize("arch", STATIC_ARCHS)
def test_a_level_is_that_of_the_machine_code_for_every_architecture(arch: str) -> None:
    """Without TF32 fp32 runs on FMA; so does fp16 in Triton on sm_75 (docs/pipeline.md), and not in CUDA."""
    product, heads = "M=256,N=256,K=256", "B=1,Sq=128,Skv=128,Hq=1,Hk=1,D=64,causal=0"
    asked = [
        ("matmul", "triton.tiled", product),
        ("matmul", "cupy.tensor_core", product),
        ("attention", "triton.tensor_core", heads),
    ]
    requests = [
        Request(op, labelled(name, label), Case.parse(f"{dims},{dtype}", op), arch)
        for name, label, dims in asked
        for op in [registry.get_op(name)]
        for dtype in ("fp32", "fp16")
    ]
    shown = {}
    for request, kernels in zip(requests, from_cubins(requests), strict=True):
        if not isinstance(kernels, NotImplementedError):  # CUDA's tensor cores take no fp32
            assert isinstance(kernels, tuple), kernels
            row = Row(request.impl.label, request.impl.level, "ok", resources=kernels)
            shown[request.op.name, row.label, request.case.dtype] = row.shown_level
    assert {dtype for *_, dtype in shown} == {"fp32", "fp16"}
    for (_, label, dtype), level in shown.items():
        on_fma = dtype == "fp32" or (arch == "sm_75" and label.startswith("triton."))
        assert level == ("tiled" if on_fma else "tensor_core"), (label, dtype)


def test_triton_specialises_as_it_does_on_a_gpu() -> None:
    """Lengths that 16 divides get wide accesses, others do not; a length of 1 is folded into the code."""
    lengths = [Request(ADD, on("triton.blocked"), case("fp16", N=n), "sm_80") for n in (4096, 4097, 1)]
    additions = [kernel for result in from_cubins(lengths) for kernel in result]  # type: ignore[union-attr]
    assert {(kernel.instruction, kernel.load_bits) for kernel in additions} == {("", None)}, "about memory"
    divisible, odd, one = (kernel.code_bytes or 0 for kernel in additions)
    assert 0 < divisible < odd
    assert one not in (divisible, odd)


COMPILED = """
from triton.runtime.driver import driver
from compare import registry
from compare.aot.plan import plan
from compare.resources.compiler import compile_triton

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
    (refused,) = from_cubins([Request(ADD, on("triton.total"), SMALL, "sm_80")])
    assert isinstance(refused, Refused)
    status, reason = verdict(refused)
    assert status == "failed"
    assert "rename what has other letters" in reason
