"""Registers, shared memory and spills: of cubins whose figures are known, and by both readers alike."""

from __future__ import annotations

import copy
import doctest
import functools
import importlib
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from compare import registry
from compare.resources import machine_code, static
from compare.resources import profiler as profiler_module
from compare.resources.kernels import merged
from compare.resources.profiler import from_profiler
from compare.resources.sass.instruction_mix import multiplications
from compare.resources.static import CompileError, Compiling, Refused, Request, from_cubin, from_cubins
from compare.spec import Case, Implementation, KernelResources, Op, case
from compare.stages.verdict import verdict
from cuda_impl import build
from processes import python

ADD = registry.get_op("vector_add")
SMALL = case("fp32", N=4096)

KNOWN = """
// 256 bytes of static shared memory, no spills, an array indexed at run time.
__global__ void indexed(float* x, int i) {
    float kept[16];
    for (int j = 0; j < 16; ++j) kept[j] = x[j * 32];
    kept[i] += 1;
    float sum = 0;
    for (int j = 0; j < 16; ++j) sum += kept[j] * kept[(j * i) % 16];
    __shared__ float shared[64];
    shared[threadIdx.x] = sum;
    __syncthreads();
    x[i] = shared[i];
}

// More live values than its 32 registers.
template <int N>
__global__ void __launch_bounds__(1024, 2) spilling(float* x) {
    float kept[N], sum = 0;
#pragma unroll
    for (int j = 0; j < N; ++j) kept[j] = x[j * 32 + threadIdx.x];
    __syncthreads();
#pragma unroll
    for (int j = 0; j < N; ++j) sum += kept[j] * kept[N - 1 - j] * x[j];
#pragma unroll
    for (int j = 0; j < N; ++j) x[j * 32 + threadIdx.x] = kept[j] * sum;
}
"""


def on(label: str, op: Op = ADD) -> Implementation:
    return next(impl for impl in registry.implementations(op.name) if impl.label == label)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache that no earlier run has filled."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def _own_cache(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMPARE_CACHE_DIR", str(cache))


# --------------------------------------------------------------------------- reading machine code


@pytest.mark.parametrize(
    "module",
    [
        "resources.machine_code",
        "resources.profiler",
        "resources.sass.disassembly",
        "resources.sass.instruction_mix",
    ],
)
def test_examples_in_docstrings(module: str) -> None:
    result = doctest.testmod(importlib.import_module(f"compare.{module}"))
    assert result.attempted > 0
    assert result.failed == 0


@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_90"])
def test_the_figures_are_those_of_cudas_own_tools(arch: str, tmp_path: Path) -> None:
    names = ["indexed", "spilling<64>"]
    cubin, mangled = build.cubin(KNOWN, names, arch)
    report = machine_code.read_report(build.ptxas_log(KNOWN, names, arch))
    indexed, spilling = (report[mangled[name]] for name in names)
    assert indexed.static_shared_bytes == 256
    assert indexed.stack_bytes == 64
    assert indexed.spilled_bytes == 0
    assert spilling.registers == (64 if arch == "sm_75" else 32), "what its launch bounds leave"
    assert spilling.spilled_bytes > 0
    assert spilling.stack_bytes > 0

    file = tmp_path / "known.cubin"
    file.write_bytes(cubin)
    used = nvidia_tool("cuobjdump", "--dump-resource-usage", file)
    for name in names:
        figures = report[mangled[name]]
        line = re.search(rf"Function {mangled[name]}:\s*REG:(\d+) STACK:(\d+) SHARED:(\d+)", used)
        assert line is not None
        registers, stack, shared = map(int, line.groups())
        assert (figures.registers, figures.stack_bytes) == (registers, stack)
        # On sm_90 the file's own figure includes what CUDA reserves, where there is any shared memory.
        assert shared - figures.static_shared_bytes in ({0, 1024} if arch == "sm_90" else {0})
        sass = nvidia_tool("cuobjdump", "-sass", "-fun", mangled[name], file)
        offsets = [int(offset, 16) for offset in re.findall(r"/\*([0-9a-f]{4,})\*/  ", sass)]
        assert machine_code.code_bytes(cubin, mangled[name]) == max(offsets) + 16


def nvidia_tool(name: str, *arguments: object) -> str:
    tool = build.triton_nvidia() / "bin" / name
    return subprocess.run([tool, *map(str, arguments)], capture_output=True, text=True, check=True).stdout


def test_what_is_no_cubin_or_no_report_is_refused() -> None:
    with pytest.raises(ValueError, match="not a cubin"):
        machine_code.code_bytes(b"\x7fELF\x01\x01", "f")
    with pytest.raises(ValueError, match="no kernel other"):
        machine_code.code_bytes(build.cubin(KNOWN, ["indexed"], "sm_80")[0], "other")
    with pytest.raises(ValueError, match="does not read as expected"):
        machine_code.read_report("Compiling entry function 'f' for 'sm_90'\n")
    assert machine_code.read_report("") == {}


# --------------------------------------------------------------------------- from cubins


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


BUSY = [op for op in map(registry.get_op, registry.op_names()) if op.cost(op.cases.default).busy]


@pytest.mark.parametrize("op", BUSY, ids=lambda op: op.name)
def test_what_is_about_arithmetic_says_what_it_multiplies_by(op: Op) -> None:
    mine = [i for i in registry.implementations(op.name) if i.way != "torch" and i.route != "pybind"]
    # Of each rung the first, and the first for each newer GPU.
    impls = list({(i.way, i.rung, i.requires): i for i in reversed(mine)}.values())
    looked_at = set()
    requests = [Request(op, impl, op.cases.default, "sm_90") for impl in impls]
    for impl, kernels in zip(impls, from_cubins(requests), strict=True):
        if isinstance(kernels, NotImplementedError):
            continue
        assert isinstance(kernels, tuple), f"{impl.label}: {kernels}"
        found = {kernel.instruction for kernel in kernels}
        tensor_cores = {name for name in found if "MMA." in name}
        if impl.rung in ("tensor_core", "hopper"):
            assert tensor_cores, (impl.label, found)
        else:
            assert found & {"FFMA", "HFMA2"}, (impl.label, found)
            assert not tensor_cores, (impl.label, found)
        if impl.rung == "hopper":
            assert all("GMMA." in name for name in tensor_cores), (impl.label, found)
        looked_at.add(impl.way)
    assert looked_at == {"triton", "cuda"}


def test_what_is_about_memory_is_not_disassembled() -> None:
    (kernel,) = from_cubin(ADD, on("cupy.scalar"), SMALL, "sm_90")
    assert kernel.instruction == ""


@pytest.mark.parametrize(
    ("opcodes", "expected"),
    [
        (["HGMMA.64x256x16.F32.BF16", "HMMA.16816.F32", "FFMA"], {"HGMMA.64x256x16": 1}),
        (["HMMA.16816.F32", "HMMA.1688.F32", "HMMA.16816.F32"], {"HMMA.16816": 2, "HMMA.1688": 1}),
        (["FFMA.FTZ", "HFMA2.MMA"], {"FFMA": 1}),
        (["IMAD.MOV.U32"], {}),
    ],
)
def test_the_mightiest_multiplication_counts(opcodes: list[str], expected: dict[str, int]) -> None:
    assert multiplications(opcodes) == expected


def test_triton_specialises_as_it_does_on_a_gpu() -> None:
    """Lengths that 16 divides get wide accesses, others do not; a length of 1 is folded into the code."""
    impl = on("triton.blocked")
    requests = [Request(ADD, impl, case("fp16", N=length), "sm_80") for length in (4096, 4097, 1)]
    found = from_cubins(requests)
    divisible, odd, one = (result[0].code_bytes or 0 for result in found if isinstance(result, tuple))
    assert 0 < divisible < odd
    assert one not in (divisible, odd)


COMPILED = """
from triton.runtime.driver import driver
from compare import registry
from compare.toolchain.aot.plan import plan
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


def test_an_architecture_that_is_not_served_is_refused() -> None:
    impl = on("cupy.scalar")
    with pytest.raises(NotImplementedError, match="needs sm_90, this is sm_80"):
        from_cubin(ADD, replace(impl, requires="sm_90"), SMALL, "sm_80")
    with pytest.raises(NotImplementedError, match="needs sm_90a, this is sm_100"):
        from_cubin(ADD, replace(impl, requires="sm_90a"), SMALL, "sm_100")
    with pytest.raises(ValueError, match="sm_99"):
        from_cubin(ADD, impl, SMALL, "sm_99")


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


@implementation("vector_add", "triton.total", rung="tiled")
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


@implementation("vector_add", "cupy.mine", rung="tiled")
def mine(x, y):
    k = kernel(SOURCE, "mine<float>", x.device)
    k((4,), (64, 2), (x.data_ptr(), np.int64(x.numel())), shared_mem=512)
    k((5,), (64,), (x.data_ptr(), np.int64(x.numel())))
    return x


@implementation("vector_add", "cupy.wrong", rung="tiled")
def wrong(x, y):
    kernel("__global__ void wrong() { nonsense; }", "wrong", x.device)((1,), (1,), ())
    return x


@triton.jit
def undefined_kernel(x_ptr):
    tl.store(x_ptr, nowhere)


@implementation("vector_add", "triton.undefined", rung="tiled")
def undefined(x, y):
    undefined_kernel[(1,)](x)
    return x


@implementation("vector_add", "cupy.asserting", rung="tiled")
def asserting(x, y):
    source = '__global__ void asserting() { static_assert(false, "powers of two"); }'
    kernel(source, "asserting", x.device)((1,), (1,), ())
    return x


@implementation("vector_add", "triton.wrong", rung="tiled")
def wrong_too(x, y):
    raise ZeroDivisionError("at once, \\x1b[5Aup five lines")


@implementation("vector_add", "triton.picky", rung="tiled")
def picky(x, y):
    raise NotImplementedError("more than it takes")
'''


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Registers what a user's file holds, until the test is over."""
    known = copy.deepcopy({op: dict(impls) for op, impls in registry._implementations.items()})
    monkeypatch.setattr(registry, "_implementations", known)

    def load(text: str, name: str = "mine.py") -> None:
        file = tmp_path / name
        file.write_text(text)
        registry.load(str(file))

    return load


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
    assert str(wrong) == 'wrong: NVRTC failed: identifier "nonsense" is undefined'
    assert isinstance(undefined, Refused)
    assert "nowhere is not defined" in str(undefined)
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


def test_a_compiling_process_that_dies_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(static.sys, "executable", "/bin/false")
    with pytest.raises(CompileError, match="exit code 1"):
        from_cubin(ADD, on("cupy.scalar"), case("bf16", N=123), "sm_80")


def test_letters_that_ptxas_does_not_take_are_said_to_be_the_names(load: Callable[..., None]) -> None:
    load(USERS_FILE, "kérnel.py")
    with pytest.raises(Refused) as error:
        from_cubin(ADD, on("triton.total"), SMALL, "sm_80")
    status, reason = verdict(error.value)
    assert status == "failed"
    assert "rename what has other letters" in reason


ENDLESS_FILE = """
import os

from compare.registry import implementation


@implementation("vector_add", "triton.endless", rung="tiled")
def endless(x, y):
    while True:
        pass


@implementation("vector_add", "triton.aborting", rung="tiled")
def aborting(x, y):
    os.abort()


@implementation("vector_add", "triton.picky", rung="tiled")
def picky(x, y):
    raise NotImplementedError("more than it takes")
"""


def test_who_takes_too_long_or_dies_costs_the_others_nothing(load: Callable[..., None]) -> None:
    load(ENDLESS_FILE)
    labels, archs = ("triton.endless", "triton.aborting", "triton.picky"), ("sm_80", "sm_90")
    requests = [Request(ADD, on(label), SMALL, arch) for label in labels for arch in archs]
    endless, endless_too, aborting, aborting_too, *picky = from_cubins(requests, timeout_s=5.0)
    for each in (endless, endless_too):  # once for all architectures: what it launches is found out before
        assert isinstance(each, CompileError)
        said = "finding out what it launches for sm_80 took longer than 5 s, the limit (--timeout)"
        assert str(each) == said
    for each in (aborting, aborting_too):
        assert isinstance(each, CompileError)
        assert str(each).startswith("finding out what it launches for sm_80 ended with exit code -6")
    assert [str(each) for each in picky] == ["more than it takes"] * 2


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
    process, scratch = compiler._process, Path(compiler._scratch.name)
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

@implementation("vector_add", "triton.busy", rung="tiled")
def busy(x, y):
    program = "import os, signal; print(os.getpid(), flush=True); signal.pause()"
    subprocess.run([sys.executable, "-c", program], stdout=open(os.environ["COMPARE_TOLD"], "w"))
"""
"""In place of a ptxas that takes its time: a program that never ends."""


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_compilers_do_not_outlive_who_started_them(how: signal.Signals, tmp_path: Path) -> None:
    file, told = tmp_path / "mine.py", tmp_path / "told"
    file.write_text(BUSY_FILE)
    os.mkfifo(told)
    starter = subprocess.Popen(
        [sys.executable, "-c", STARTER, str(file)],
        cwd=registry.ROOT,
        env=os.environ | {"COMPARE_TOLD": str(told)},
    )
    with told.open() as told_by:
        compiler = os.pidfd_open(int(told_by.readline()))
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


# --------------------------------------------------------------------------- from the profiler

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


@pytest.mark.parametrize(
    ("name", "expected"),
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
    ],
)
def test_names_are_readable(name: str, expected: str) -> None:
    assert profiler_module.readable(name) == expected


def test_long_names_are_cut() -> None:
    name = profiler_module.readable(
        "void at::native::elementwise<" + "at::native::Functor<float>, " * 9 + ">(int)"
    )
    assert name.startswith("elementwise<")
    assert name.endswith("...")
    assert len(name) == 100


OURS = [
    pytest.param(op, impl, id=f"{op.name}-{impl.label}")
    for op in map(registry.get_op, registry.op_names())
    for impl in registry.implementations(op.name)
    if impl.way != "torch"
]


@functools.cache
def compiled_offline(name: str, arch: str) -> dict[tuple[str, Case], static.Result]:
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
    usual_card = machine.multiprocessors(device) == machine.ARCH_MULTIPROCESSORS[arch]
    compared, refused = 0, ""
    for each in (op.cases.default, *op.cases.smoke):
        offline = compiled_offline(op.name, arch)[impl.label, each]
        inputs = op.make_inputs(each, torch.Generator(device).manual_seed(0), device)
        if isinstance(offline, Exception):
            refused = str(offline)
            if not isinstance(offline, NotImplementedError):
                raise offline
            if "is autotuned" not in refused:
                with pytest.raises(NotImplementedError):
                    impl.run(*inputs)
            continue
        watched = list(from_profiler(impl, inputs))
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
    naive = on("torch.naive", registry.get_op("softmax"))
    x = torch.randn(64, 1024, device=device)
    assert sum(k.launches for k in from_profiler(naive, (x,))) >= 4
