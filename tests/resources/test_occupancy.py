"""The occupancy arithmetic: known points, its order, and CUDA's own answer on a GPU."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compare.model.architecture import LIMITS, limits
from compare.model.op import UsageError
from compare.resources.occupancy import occupancy

ARCHS = [f"sm_{number}" for number in LIMITS]
KB = 1024


@pytest.mark.parametrize(
    ("arch", "threads", "registers", "shared", "blocks", "share", "limiter"),
    [
        ("sm_90", 256, 32, 0, 8, 1.0, "threads"),
        ("sm_90", 256, 40, 0, 6, 0.75, "registers"),
        ("sm_90", 256, 255, 0, 1, 0.125, "registers"),
        ("sm_90", 1024, 64, 0, 1, 0.5, "registers"),
        ("sm_90", 32, 16, 0, 32, 0.5, "blocks"),
        ("sm_90a", 128, 16, 100 * KB, 2, 0.125, "shared memory"),
        ("sm_90", 128, 16, 227 * KB, 1, 1 / 16, "shared memory"),
        ("sm_90", 128, 16, 227 * KB + 1, 0, 0.0, "shared memory"),
        ("sm_80", 256, 32, 20 * KB, 7, 0.875, "shared memory"),
        ("sm_75", 256, 64, 0, 4, 1.0, "threads"),
        ("sm_75", 32, 32, 0, 16, 0.5, "blocks"),
        ("sm_75", 32, 32, 4 * KB, 16, 0.5, "shared memory and blocks"),
        ("sm_86", 1024, 32, 0, 1, 2 / 3, "threads"),
        ("sm_89", 64, 16, 0, 24, 1.0, "threads"),
        ("sm_120", 768, 40, 0, 2, 1.0, "threads"),
    ],
)
def test_known_points(
    arch: str, threads: int, registers: int, shared: int, blocks: int, share: float, limiter: str
) -> None:
    found = occupancy(arch, threads, registers, shared)
    assert (found.blocks, found.limiter) == (blocks, limiter)
    assert found.share == pytest.approx(share)


@given(
    arch=st.sampled_from(ARCHS),
    threads=st.integers(1, 1024),
    registers=st.integers(1, 254),
    shared=st.integers(0, 64 * KB),
    more=st.integers(0, 64 * KB),
)
def test_taking_more_never_fits_more(arch: str, threads: int, registers: int, shared: int, more: int) -> None:
    here = occupancy(arch, threads, registers, shared)
    assert 0 <= here.share <= 1
    assert here.blocks * threads <= limits(arch).threads
    assert occupancy(arch, threads, registers + 1, shared).blocks <= here.blocks
    assert occupancy(arch, threads, registers, shared + more).blocks <= here.blocks


@pytest.mark.parametrize("arch", ["sm_10", "90", "sm_90x", "", "gfx942"])
def test_an_unknown_architecture_is_a_usage_error(arch: str) -> None:
    with pytest.raises(UsageError, match="sm_75"):
        occupancy(arch, 128, 32, 0)


@pytest.mark.gpu
@pytest.mark.parametrize("most_registers", [32, 40, 64, 72, 128, 168, 255])
def test_cuda_agrees(most_registers: int) -> None:
    """Against cuOccupancyMaxActiveBlocksPerMultiprocessor, over block sizes and dynamic shared memory."""
    import cupy
    import torch

    from compare import device

    arch = device.arch(torch.device("cuda", torch.cuda.current_device()))
    assert arch is not None
    source = """
    extern "C" __global__ void work(float* x, int n) {
        float kept[160];
        #pragma unroll
        for (int i = 0; i < 160; ++i) kept[i] = x[i * n + threadIdx.x];
        __syncthreads();
        #pragma unroll
        for (int i = 0; i < 160; ++i) x[i * n + threadIdx.x] = kept[i] * kept[159 - i] + kept[(i * 7) % 160];
    }"""
    work = cupy.RawKernel(source, "work", options=(f"-maxrregcount={most_registers}",))
    most = limits(arch).block_shared_bytes
    work.max_dynamic_shared_size_bytes = most
    for threads in (32, 33, 64, 96, 128, 160, 192, 256, 384, 512, 640, 768, 1024):
        if threads > work.max_threads_per_block:
            continue
        for shared in (0, 1, 1024, 5000, 16384, 40000, 48 * KB, most // 2, most // 3, most):
            theirs = cupy.cuda.driver.occupancyMaxActiveBlocksPerMultiprocessor(
                work.kernel.ptr, threads, shared
            )
            ours = occupancy(arch, threads, work.num_regs, work.shared_size_bytes + shared)
            assert ours.blocks == theirs, (arch, threads, work.num_regs, shared)
