"""histogram in Triton: ``x[N] -> y[256]``, of uint8 and int64.

Variants; ``cuda_impl/kernels/histogram.cuh`` has the first two under the same names:

* ``global``: an atomic addition in global memory per element
* ``shared``: a program counts with ``tl.histogram`` and adds its counts to y once, at its end
* ``gluon``: as CUDA's ``lanes`` in Gluon, Triton's lower-level language: one private counter per lane and bin

Triton does not say where a program's counters are.  How ``tl.histogram`` shares counters between threads, and
how it resolves conflicts, is the compiler's choice.  Gluon allocates and lays out shared memory explicitly.
It has no shared-memory atomic, so the kernel uses inline PTX.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from compare.arguments import check_bytes
from compare.device import multiprocessors
from compare.registry import implementation
from triton_impl.counts import cdiv

BINS = tl.constexpr(256)
COPIES = tl.constexpr(64)


@triton.jit
def histogram_global_kernel(x_ptr, y_ptr, N, stride_xn, BLOCK_SIZE: tl.constexpr):
    """Grid: one program per BLOCK_SIZE elements."""
    n = tl.program_id(0).to(tl.int64) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    x = tl.load(x_ptr + n * stride_xn, mask=n < N, other=0)
    one = tl.full([BLOCK_SIZE], 1, tl.int64)
    tl.atomic_add(y_ptr + x.to(tl.int32), one, mask=n < N, sem="relaxed")


@triton.jit
def histogram_shared_kernel(x_ptr, y_ptr, N, stride_xn, BLOCK_SIZE: tl.constexpr):
    """Grid: persistent, a few programs per multiprocessor; blocks of x are assigned round-robin."""
    count = tl.zeros([BINS], tl.int32)
    whole = N // BLOCK_SIZE
    for block in range(tl.program_id(0), whole, tl.num_programs(0)):
        n = tl.cast(block, tl.int64) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
        count += tl.histogram(tl.load(x_ptr + n * stride_xn).to(tl.int32), BINS)
    # The partial last block, apart: masked elements load as 0 and are subtracted from that bin.
    if tl.program_id(0) == whole % tl.num_programs(0):
        n = tl.cast(whole, tl.int64) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
        x = tl.load(x_ptr + n * stride_xn, mask=n < N, other=0).to(tl.int32)
        nowhere = tl.sum((n >= N).to(tl.int32), axis=0)
        count += tl.histogram(x, BINS) - tl.where(tl.arange(0, BINS) == 0, nowhere, 0)
    tl.atomic_add(y_ptr + tl.arange(0, BINS), count.to(tl.int64), sem="relaxed")


# ---- gluon ------------------------------------------------------------------------------------------------

barrier = gl.barrier if hasattr(gl, "barrier") else gl.thread_barrier


@gluon.jit
def count_words(words, lanes, inside):
    """Add 1 to one of the lane's counters for each of the four bytes of every word inside.

    A bin's counters are 256 bytes apart: the counter's address is byte * 256 + the lane's offset, which one
    instruction (prmt) assembles.  ``global_smem`` is Triton's name for a program's shared memory.  The
    counters start at its beginning because they fill it; a test compares its size with theirs.
    """
    gl.inline_asm_elementwise(
        """{
        .reg .pred inside;
        .reg .b32 count, first, second, third, fourth;
        mov.u32 count, global_smem;
        setp.ne.s32 inside, $3, 0;
        prmt.b32 first, $1, $2, 0x5504;
        prmt.b32 second, $1, $2, 0x5514;
        prmt.b32 third, $1, $2, 0x5524;
        prmt.b32 fourth, $1, $2, 0x5534;
        add.u32 first, first, count;
        add.u32 second, second, count;
        add.u32 third, third, count;
        add.u32 fourth, fourth, count;
        @inside red.shared.add.u32 [first], 1;
        @inside red.shared.add.u32 [second], 1;
        @inside red.shared.add.u32 [third], 1;
        @inside red.shared.add.u32 [fourth], 1;
        mov.b32 $0, 0;
        }""",
        "=r,r,r,r",  # inline assembly must return a value
        [words, lanes, inside],
        dtype=gl.int32,
        is_pure=False,
        pack=1,
    )


@gluon.jit
def histogram_gluon_kernel(x_ptr, y_ptr, N, head, VECTORS: gl.constexpr):
    """Grid: persistent, at most as many programs as the GPU holds; chunks are assigned round-robin.

    A chunk is VECTORS 16-byte vectors per thread.  The first ``head`` elements lie before a 16-byte boundary,
    where vectors begin.  Program 0 counts these in y directly, and those after the last whole word.
    """
    WARPS: gl.constexpr = gl.num_warps()
    CHUNK: gl.constexpr = VECTORS * WARPS * 32 * 4  # in words of four elements
    WORDS: gl.constexpr = gl.BlockedLayout([4], [32], [WARPS], [0])
    A_THREAD: gl.constexpr = gl.BlockedLayout([1], [32], [WARPS], [0])
    COUNTS: gl.constexpr = gl.BlockedLayout([1, 2], [1, 32], [WARPS, 1], [1, 0])
    count = gl.allocate_shared_memory(gl.int32, [BINS, COPIES], gl.SwizzledSharedLayout(1, 1, 1, [1, 0]))
    count.store(gl.zeros([BINS, COPIES], gl.int32, COUNTS))
    barrier()

    n = gl.arange(0, CHUNK, WORDS)
    lanes = n // 4 % COPIES * 4  # two copies per lane: one for even warps, one for odd
    everywhere = gl.full([CHUNK], 1, gl.int32, WORDS)
    words_ptr = gl.multiple_of((x_ptr + head).to(gl.pointer_type(gl.int32)), 16)
    words = (N - head) // 4
    whole = words // CHUNK
    for chunk in range(gl.program_id(0), whole, gl.num_programs(0)):
        count_words(gl.load(words_ptr + chunk.to(gl.int64) * CHUNK + n), lanes, everywhere)
    # The partial last chunk, apart.
    if gl.program_id(0) == whole % gl.num_programs(0):
        inside = whole * CHUNK + n < words
        x = gl.load(words_ptr + whole * CHUNK + n, mask=inside, other=0)
        count_words(x, lanes, inside.to(gl.int32))
    if gl.program_id(0) == 0:
        e = gl.arange(0, WARPS * 32, A_THREAD)
        at_an_end = e < N - words * 4
        x = gl.load(x_ptr + gl.where(e < head, e, e + words * 4), mask=at_an_end, other=0)
        one = gl.full([WARPS * 32], 1, gl.int64, A_THREAD)
        gl.atomic_add(y_ptr + x.to(gl.int32), one, mask=at_an_end, sem="relaxed")
    barrier()
    # A warp has summed several bins. One bin per thread means few memory requests, each with many bins.
    total = gl.convert_layout(gl.sum(count.load(COUNTS), axis=1), A_THREAD)
    bins = gl.arange(0, BINS, A_THREAD)
    gl.atomic_add(y_ptr + bins, total.to(gl.int64), mask=total != 0, sem="relaxed")


@implementation("histogram", "triton.global", level="naive", algorithm="atomics in global memory")
def globally(x: torch.Tensor) -> torch.Tensor:
    """An atomic addition in global memory per element."""
    check_bytes("histogram", x)
    BLOCK_SIZE = 1024
    N = x.numel()
    y = torch.zeros(BINS.value, dtype=torch.int64, device=x.device)
    if N > 0:
        grid = (cdiv(N, BLOCK_SIZE),)
        histogram_global_kernel[grid](x, y, N, x.stride(0), BLOCK_SIZE=BLOCK_SIZE, num_warps=4)
    return y


SIZES = {"BLOCK_SIZE": (1024, 2048, 4096, 8192, 16384), "WARPS": (4, 8, 16), "PROGRAMS": (1, 2, 4, 8)}


@implementation("histogram", "triton.shared", level="tiled", tunable=SIZES)
def shared(x: torch.Tensor, *, BLOCK_SIZE: int = 4096, WARPS: int = 8, PROGRAMS: int = 8) -> torch.Tensor:
    """A program counts with ``tl.histogram`` and adds its counts to y at its end."""
    check_bytes("histogram", x)
    N = x.numel()
    y = torch.zeros(BINS.value, dtype=torch.int64, device=x.device)
    programs = max(1, min(cdiv(N, BLOCK_SIZE), PROGRAMS * multiprocessors(x.device)))
    histogram_shared_kernel[(programs,)](x, y, N, x.stride(0), BLOCK_SIZE=BLOCK_SIZE, num_warps=WARPS)
    return y


@implementation(
    "histogram",
    "triton.gluon",
    level="tiled",
    requires="sm_80",
    without_gpu=False,
    tunable={"VECTORS": (1, 2, 4, 8), "WARPS": (8, 16, 32), "PROGRAMS": (1, 2, 3)},
)
def in_gluon(x: torch.Tensor, *, VECTORS: int = 4, WARPS: int = 16, PROGRAMS: int = 2) -> torch.Tensor:
    """One private counter per lane, in a bank of its own; a strided x is copied first."""
    check_bytes("histogram", x)
    x = x.contiguous()
    N = x.numel()
    head = min(N, -x.data_ptr() % 16)
    chunks = cdiv((N - head) // 4, VECTORS * WARPS * 32 * 4)
    y = torch.zeros(BINS.value, dtype=torch.int64, device=x.device)
    programs = max(1, min(chunks, PROGRAMS * multiprocessors(x.device)))
    histogram_gluon_kernel[(programs,)](x, y, N, head, VECTORS=VECTORS, num_warps=WARPS)
    return y
