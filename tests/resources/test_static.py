"""Resources without a GPU: compiled by other processes, which may die and get wrong kernels, and kept."""

from __future__ import annotations

import json
import os
import re
import secrets
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from compare import registry
from compare.model.op import Op, case
from compare.resources import static
from compare.resources.static import CompileError, Compiling, Refused, Request, from_cubins
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
    told: list[tuple[int, int]] = []
    results = from_cubins(requests, lambda done, total: told.append((done, total)))
    assert told == [(i + 1, 6) for i in range(6)], "PyTorch's kernels are not compiled"
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

    monkeypatch.setattr(subprocess, "Popen", refuse)
    assert from_cubins(requests) == results


def test_an_architecture_that_is_not_served_is_refused() -> None:
    impl, newer = on("cupy.scalar"), (("sm_90", "sm_80"), ("sm_90a", "sm_100"))
    requests = [Request(ADD, replace(impl, requires=needs), SMALL, arch) for needs, arch in newer]
    for (needs, arch), refused in zip(newer, from_cubins(requests), strict=True):
        assert isinstance(refused, NotImplementedError)
        assert f"needs {needs}, this is {arch}" in str(refused)
    with pytest.raises(ValueError, match="sm_99"):
        from_cubins([Request(ADD, impl, SMALL, "sm_99")])


def test_a_compiling_process_that_dies_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(static.sys, "executable", "/bin/false")
    (died,) = from_cubins([Request(ADD, on("cupy.scalar"), case("bf16", N=123), "sm_80")])
    assert isinstance(died, CompileError)
    assert "exit code 1" in str(died)


ENDLESS_FILE = """
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


@pytest.mark.thorough
def test_who_takes_too_long_or_dies_costs_the_others_nothing(
    load: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    load(ENDLESS_FILE)
    labels, archs = ("triton.endless", "triton.aborting", "triton.picky"), ("sm_80", "sm_90")
    requests = [Request(ADD, on(label), SMALL, arch) for label in labels for arch in archs]
    limited, lines = static._keys(requests[:2]), static._CompilerProcess._lines

    def read(compiler: static._CompilerProcess) -> Iterator[bytes]:
        for line in lines(compiler):
            yield line
            if json.loads(line).get("of") not in limited:  # a busy machine may need longer for the others
                compiler._limit_s = 60.0

    monkeypatch.setattr(static._CompilerProcess, "_lines", read)
    endless, endless_too, aborting, aborting_too, *picky = from_cubins(requests, timeout_s=0.3)
    for each in (endless, endless_too):  # once for all architectures: what it launches is found out before
        assert isinstance(each, CompileError)
        said = "finding out what it launches for sm_80 took longer than 0.3 s, the limit (--timeout)"
        assert str(each) == said
    for each in (aborting, aborting_too):
        assert isinstance(each, CompileError)
        assert str(each).startswith(
            "finding out what it launches for sm_80: its process was killed by SIGABRT"
        )
    assert [str(each) for each in picky] == ["more than it takes"] * 2


FLOODING_FILE = """
import os, time
from compare.registry import implementation


@implementation("vector_add", "triton.flooding", level="tiled")
def flooding(x, y):
    while True:
        os.write(1, b'{"step": "compiling it", "of": null}\\n')
        time.sleep(0.1)
"""


@pytest.mark.thorough
def test_who_tells_of_steps_without_end_is_ended(load: Callable[..., None]) -> None:
    """Each step has the whole time limit."""
    load(FLOODING_FILE)
    (found,) = from_cubins([Request(ADD, on("triton.flooding"), SMALL, "sm_80")])
    assert "it wrote into the pipe between its process and the judge's" in str(found)


@pytest.mark.thorough
def test_what_compiles_in_the_background_is_kept_unasked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("COMPARE_CACHE_DIR", str(tmp_path))
    request = Request(ADD, on("cupy.scalar"), SMALL, "sm_80")
    (key,) = static._keys([request])
    compiling = Compiling([request])
    end = time.monotonic() + 120
    while static._kept(key) is None and time.monotonic() < end:
        time.sleep(0.05)
    compiling.stop()
    monkeypatch.setattr(subprocess, "Popen", None)  # nothing is left to compile
    assert Compiling([request]).results() == [static._kept(key)]


def test_a_compilation_that_is_stopped_ends_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("COMPARE_CACHE_DIR", str(tmp_path))
    compiling = Compiling([Request(ADD, on("cupy.scalar"), SMALL, "sm_80")])
    (compiler,) = compiling._compilers
    process, scratch = compiler._process, compiler._scratch
    assert process.poll() is None
    begin = time.monotonic()
    compiling.stop()
    assert time.monotonic() - begin < 5
    assert process.poll() is not None
    assert not scratch.exists()


STARTER = """
import sys
from compare import registry
from compare.resources.static import Request, from_cubins

registry.load(sys.argv[1])
op = registry.get_op("vector_add")
from_cubins([Request(op, registry.implementations(op.name, ["triton.busy"])[0], op.cases.default, "sm_80")])
"""


BUSY_FILE = """
import os, subprocess, sys
from compare.registry import implementation

@implementation("vector_add", "triton.compute_bound", level="tiled")
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


def test_a_result_is_kept_by_its_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    request = Request(ADD, on("cupy.scalar"), SMALL, "sm_80")
    assert static._key(request, "a") != static._key(request, "b")
    assert static._key(request, "a") != static._key(replace(request, arch="sm_90"), "a")
    assert static._key(request, "a") != static._key(replace(request, case=case("fp32", N=4097)), "a")
    before = static._key(request, "a")
    monkeypatch.setenv("TRITON_CACHE_DIR", "elsewhere")
    assert static._key(request, "a") == before
    monkeypatch.setenv("TRITON_PTXAS_PATH", "another")
    assert static._key(request, "a") != before


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
    (refused,) = from_cubins([Request(ADD, on("triton.total"), SMALL, "sm_80")])
    assert isinstance(refused, Refused)
    status, reason = verdict(refused)
    assert status == "failed"
    assert "rename what has other letters" in reason
