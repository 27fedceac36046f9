"""The host build: CUDA kernels as fibers on the CPU, and under the sanitizers."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
from collections.abc import Sequence

import numpy as np
import pytest
import torch

import case_sets
import sanitizers
from compare import device, registry
from compare.checking.check import check
from compare.model.op import Case, Op
from cuda_impl import build
from cuda_impl.loader import kernel
from loops import for_each

CPU = torch.device("cpu")

KERNELS = """
#include "common.cuh"

// The sum of a block's values, the textbook way: barriers, shared memory, shuffles.
template <int THREADS>
__global__ void block_sum(const float* x, float* y) {
    __shared__ float warps[THREADS / 32];
    float sum = x[blockIdx.x * THREADS + threadIdx.x];
    for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(FULL_WARP, sum, offset);
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int w = 1; w < THREADS / 32; ++w) sum += warps[w];
        y[blockIdx.x] = sum;
    }
}

__global__ void warp_calls(int* y) {
    const int lane = threadIdx.x;
    const unsigned odd = __ballot_sync(FULL_WARP, lane % 2);
    int value = __shfl_up_sync(FULL_WARP, lane, 1) + 100 * __shfl_down_sync(FULL_WARP, lane, 2, 8);
    if (lane % 2) value += 10000 * __shfl_sync(odd, lane, 5);  // the even lanes do not take part
    y[lane] = value + 1000000 * (odd == 0xaaaaaaaau) + 2000000 * __any_sync(FULL_WARP, lane == 7) +
              4000000 * __all_sync(FULL_WARP, lane == 7);
}

// Threads that have returned are not waited for.
__global__ void early_exit(int* y) {
    if (threadIdx.x >= 40) return;
    const int seen = __syncthreads_count(threadIdx.x % 2);
    y[threadIdx.x] = seen;
}

// Reads shared memory that nothing has written, and leaves zeros there.
__global__ void unwritten(float* y) {
    __shared__ float values[32];
    y[blockIdx.x * 32 + threadIdx.x] = values[threadIdx.x];
    values[threadIdx.x] = 0.0f;
}

// Every block waits for the next one's flag, which is raised after it has used its shared memory.
__global__ void chain(volatile int* flags, int* y) {
    __shared__ int mine[32];
    mine[threadIdx.x] = blockIdx.x * 100 + threadIdx.x;
    __syncthreads();
    if (blockIdx.x + 1 < gridDim.x) {
        while (flags[blockIdx.x + 1] == 0) __nanosleep(32);
    }
    __syncthreads();
    y[blockIdx.x * 32 + threadIdx.x] = mine[31 - threadIdx.x];
    __syncthreads();
    if (threadIdx.x == 0) flags[blockIdx.x] = 1;
}

__global__ void divergent() {
    if (threadIdx.x < 16) __syncwarp();  // waits for lanes that wait for it
    __syncthreads();
}

__global__ void unanswered(volatile int* flag) {
    while (*flag == 0) __nanosleep(32);
}

__global__ void wrong_mask() { __syncwarp(2); }

// Reads what its neighbour writes, without a barrier.
__global__ void race(int* y) {
    __shared__ int box[64];
    box[threadIdx.x] = threadIdx.x;
    y[threadIdx.x] = box[threadIdx.x / 2];
}

__global__ void scaled(float* y, float factor, int count, long long offset) {
    DYNAMIC_SHARED(float, s);
    s[threadIdx.x] = factor;
    __syncthreads();
    if (static_cast<int>(threadIdx.x) < count) y[offset + threadIdx.x] = s[count - 1 - threadIdx.x];
}
"""


def launch(name: str, grid: int, block: int, *args: object, shared_mem: int = 0) -> None:
    kernel(KERNELS, name, CPU)((grid,), (block,), args, shared_mem=shared_mem)


ORDERS = ("forward", "reverse", "apart", "reverse-apart")


@pytest.mark.parametrize("order", ORDERS)
def test_blocks_share_and_synchronise(order: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOST_THREAD_ORDER", order)
    x = torch.randint(0, 100, (3, 128)).float()
    y = torch.empty(3)
    launch("block_sum<128>", 3, 128, x.data_ptr(), y.data_ptr())
    assert torch.equal(y, x.sum(1))


def test_warp_calls() -> None:
    y = torch.zeros(32, dtype=torch.int32)
    launch("warp_calls", 1, 32, y.data_ptr())
    lane = torch.arange(32)
    up = torch.where(lane == 0, 0, lane - 1)
    down = torch.where(lane % 8 < 6, lane + 2, lane)
    assert y.tolist() == (up + 100 * down + 50000 * (lane % 2) + 3000000).tolist()


def test_threads_that_returned_are_not_waited_for() -> None:
    y = torch.zeros(64, dtype=torch.int32)
    launch("early_exit", 1, 64, y.data_ptr())
    assert y.tolist() == [20] * 40 + [0] * 24


def test_blocks_that_wait_for_later_ones_keep_their_shared_memory() -> None:
    blocks = 7
    flags, y = torch.zeros(blocks, dtype=torch.int32), torch.zeros(blocks, 32, dtype=torch.int32)
    launch("chain", blocks, 32, flags.data_ptr(), y.data_ptr())
    assert torch.equal(y, (torch.arange(blocks)[:, None] * 100 + torch.arange(31, -1, -1)).int())


def test_no_block_finds_zeros_in_shared_memory() -> None:
    y = torch.zeros(3, 32)
    launch("unwritten", 3, 32, y.data_ptr())
    assert y.isnan().all()


@for_each(
    "name, args, message",
    [
        (
            "divergent",
            (),
            r"block \(0, 0, 0\): 16 threads wait in __syncwarp .* 48 threads wait in __syncthreads",
        ),
        ("unanswered", (torch.zeros(1, dtype=torch.int32),), "deadlock: every block .* __nanosleep"),
        ("wrong_mask", (), "__syncwarp: lane 0 is not in its own mask"),
    ],
)
def test_what_would_hang_a_gpu_is_an_error(name: str, args: tuple[torch.Tensor, ...], message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        launch(name, 1, 64, *(arg.data_ptr() for arg in args))


def test_a_missing_barrier_shows_in_another_order(monkeypatch: pytest.MonkeyPatch) -> None:
    results = []
    for order in ("forward", "reverse"):
        monkeypatch.setenv("HOST_THREAD_ORDER", order)
        y = torch.zeros(64, dtype=torch.int32)
        launch("race", 1, 64, y.data_ptr())
        results.append(y)
    assert not torch.equal(*results)


@pytest.mark.parametrize(
    "order", [*(pytest.param(each, marks=pytest.mark.exhaustive) for each in ORDERS[1:-1]), ORDERS[-1]]
)
@pytest.mark.parametrize("name", case_sets.one_op())
def test_every_kernel_is_right_in_any_order_of_threads(
    name: str, order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOST_THREAD_ORDER", order)
    op = registry.get_op(name)
    ran = {label: run_kernel(op, label, case_sets.tiny(op)) for label in labels_here(name)}
    assert ran
    assert all(ran.values())


@pytest.mark.parametrize("op", registry.op_names())
def test_a_cpu_runs_every_kernel(op: str) -> None:
    assert labels_here(op) == [i.label for i in registry.implementations(op) if i.route == "cupy"]


def test_arguments_arrive_by_type_and_are_checked() -> None:
    y = torch.zeros(40)
    good = (y.data_ptr(), np.float32(2.5), np.int32(8), np.int64(4))
    launch("scaled", 1, 32, *good, shared_mem=128)
    assert torch.equal(y, torch.nn.functional.pad(torch.full((8,), 2.5), (4, 28)))
    launch("scaled", 1, 32, y.data_ptr(), 1.5, 8, 4, shared_mem=128)  # plain numbers are converted
    assert y[4] == 1.5
    wrong = [
        (good[:3], RuntimeError, "takes 4 arguments, got 3"),
        ((good[0], np.float64(2.5), *good[2:]), RuntimeError, "argument 1 .* is a floating-point number"),
        (
            (*good[:2], np.int64(8), good[3]),
            RuntimeError,
            "argument 2 .* of 4 bytes, got .* np.int32",
        ),
        ((good[0], "2.5", *good[2:]), TypeError, "argument 1 .* is a str; a kernel takes"),
        ((*good[:2], 1 << 40, good[3]), RuntimeError, "argument 2 .* is an integer of 4 bytes"),
    ]
    for args, error, message in wrong:
        with pytest.raises(error, match=message):
            launch("scaled", 1, 32, *args, shared_mem=128)


@for_each(
    "grid, block, shared, message",
    [
        (0, 32, 0, "grid"),
        (2**32 + 1, 32, 0, "grid"),
        (1, 1025, 0, "block"),
        (1, 0, 0, "block"),
        (1, 32, 228 << 10, "shared memory"),
    ],
)
def test_launches_that_a_gpu_refuses(grid: int, block: int, shared: int, message: str) -> None:
    y = torch.zeros(1)
    with pytest.raises(RuntimeError, match=message):
        launch(
            "scaled", grid, block, y.data_ptr(), np.float32(1), np.int32(0), np.int64(0), shared_mem=shared
        )


def test_a_source_that_does_not_compile_is_a_build_error() -> None:
    with pytest.raises(build.BuildError, match="no_such_kernel"):
        kernel("__global__ void other() {}", "no_such_kernel", CPU)


@for_each("shared_bytes", [0, 100])
def test_a_write_past_dynamic_shared_memory_is_an_error(shared_bytes: int) -> None:
    y = torch.zeros(40)
    message = rf"block \(0, 0, 0\) wrote past its {shared_bytes} bytes of dynamic .* shared_mem=BYTES"
    with pytest.raises(RuntimeError, match=message):
        launch(
            *("scaled", 1, 32, y.data_ptr(), np.float32(1), np.int32(0), np.int64(0)), shared_mem=shared_bytes
        )


# --------------------------------------------------------------------------- under the sanitizers


def sanitized(*kernels: str) -> subprocess.CompletedProcess[str]:
    """Run this file as a program, with kernels built for AddressSanitizer and UBSan."""
    environment = {**os.environ, **sanitizers.host_environment()}
    command = [sys.executable, "-W", "error", __file__, *kernels]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


PARTS = 2
"""Of the ops, under the sanitizers."""

SEED = "HOST_SANITIZE_SEED"
"""The environment variable that chooses the same kernels again."""


@pytest.mark.thorough
@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("place", range(PARTS))
def test_every_kernel_runs_clean_under_the_sanitizers(place: int) -> None:
    """Half of the ops at a time: a process takes seconds to start, and side by side they are done sooner.

    Compiling takes seconds a kernel: a random third of each op's kernels, another in every run.
    """
    seed = os.environ.get(SEED) or str(random.randrange(10**6))
    print(f"{SEED}={seed} chooses these kernels again")
    chosen = []
    for op in registry.op_names()[place::PARTS]:
        kernels = [f"{op} {label}" for label in labels_here(op)]
        chosen += random.Random(f"{seed} {op}").sample(kernels, -(-len(kernels) // 3))
    done = sanitized(*chosen)
    assert done.returncode == 0, done.stdout[-500:] + done.stderr[-4000:]
    ran = dict(re.findall(r"(?m)^(\S+ \S+): ran (\d+) cases$", done.stdout))
    assert ran.keys() == set(chosen)
    assert all(int(cases) for cases in ran.values()), ran


def labels_here(op: str) -> list[str]:
    """Of an op's CUDA kernels that the host build can run; once each, and not by both routes."""
    impls = registry.implementations(op)
    return [i.label for i in impls if i.route == "cupy" and device.supports(i, CPU) is None]


def run_kernel(op: Op, label: str, cases: Sequence[Case], one_dtype: bool = False) -> int:
    """How many cases a kernel ran and was right on; of the first dtype that it takes, or of all."""
    (impl,) = registry.implementations(op.name, (label,))
    ran, taken = 0, ""
    for case in cases:
        if one_dtype and taken not in ("", case.dtype):
            break
        try:
            agreement = check(op, impl, case, CPU, seeds=(0,))
        except NotImplementedError:
            continue
        assert agreement.passed, f"{impl.label} {case}: {agreement.reason}"
        ran += 1
        taken = case.dtype
    return ran


def _run_kernels() -> None:
    for name, label in map(str.split, sys.argv[1:]):
        op = registry.get_op(name)
        ran = run_kernel(op, label, case_sets.sanitized(op), one_dtype=True)
        print(f"{name} {label}: ran {ran} cases", flush=True)


if __name__ == "__main__":
    sanitizers.leave_compilers_alone()
    _run_kernels()
