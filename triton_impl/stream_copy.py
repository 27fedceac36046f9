"""stream_copy in Triton: ``x[N] -> y[N]``.

Variants; ``cuda_impl/kernels/stream_copy.cuh`` has the same under the same names:

* ``naive``: a program copies as many elements as it has threads
* ``vectorized``: a program copies a chunk with 16-byte vectorized accesses, several per thread
* ``hinted``: as vectorized, with cache hints
* ``prefetch``: persistent programs; the next chunks are prefetched into registers
* ``cp_async``: as prefetch, into shared memory by cp.async, which ``num_stages`` requests
* ``tma``: one tile per program again, loaded and stored by TMA: Hopper

Triton leaves bytes per access, element-to-thread layout, the ring buffer and its barriers to the compiler.
It derives them from tensor shapes and from what it knows of addresses.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from compare.arguments import check_same
from compare.device import multiprocessors
from compare.registry import implementation
from triton_impl.counts import cdiv


@triton.jit
def stream_copy_naive_kernel(x_ptr, y_ptr, N, stride_xn, BLOCK_SIZE: tl.constexpr):
    """Grid: one program per BLOCK_SIZE elements, one per thread."""
    # 64-bit: program_id * BLOCK_SIZE exceeds 2^31 for vectors that fit in a GPU's memory.
    n = tl.program_id(0).to(tl.int64) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    inside = n < N
    tl.store(y_ptr + n, tl.load(x_ptr + n * stride_xn, mask=inside), mask=inside)


@triton.jit
def copy_rest(x_ptr, y_ptr, begin, N, stride_xn, BLOCK_SIZE: tl.constexpr):
    """The partial last chunk, at `begin`: whole vectors, then the elements after the last of them.

    With an arbitrary mask the compiler would access single elements, and a thread would hold all their
    addresses. A mask that ends at a multiple of 16 keeps accesses vectorized.
    """
    packed = N // 16 * 16
    n = begin + tl.arange(0, BLOCK_SIZE)
    inside = n < packed
    tl.store(y_ptr + n, tl.load(x_ptr + n * stride_xn, mask=inside), mask=inside)
    n = tl.cast(packed, tl.int64) + tl.arange(0, 16)
    inside = n < N
    tl.store(y_ptr + n, tl.load(x_ptr + n * stride_xn, mask=inside), mask=inside)


@triton.jit
def stream_copy_vectorized_kernel(x_ptr, y_ptr, N, stride_xn, BLOCK_SIZE: tl.constexpr):
    """Grid: one program per chunk of BLOCK_SIZE elements."""
    begin = tl.program_id(0).to(tl.int64) * BLOCK_SIZE
    if begin + BLOCK_SIZE <= N:
        n = begin + tl.arange(0, BLOCK_SIZE)
        tl.store(y_ptr + n, tl.load(x_ptr + n * stride_xn))
    else:
        copy_rest(x_ptr, y_ptr, begin, N, stride_xn, BLOCK_SIZE)


@triton.jit
def stream_copy_hinted_kernel(
    x_ptr, y_ptr, N, stride_xn, BLOCK_SIZE: tl.constexpr,
    LOAD_CACHE: tl.constexpr, LOAD_EVICTION: tl.constexpr,
    STORE_CACHE: tl.constexpr, STORE_EVICTION: tl.constexpr,
):  # fmt: skip
    """Grid: as vectorized.  A hint does not change the result, only what the caches keep."""
    begin = tl.program_id(0).to(tl.int64) * BLOCK_SIZE
    if begin + BLOCK_SIZE <= N:
        n = begin + tl.arange(0, BLOCK_SIZE)
        x = tl.load(x_ptr + n * stride_xn, cache_modifier=LOAD_CACHE, eviction_policy=LOAD_EVICTION)
        tl.store(y_ptr + n, x, cache_modifier=STORE_CACHE, eviction_policy=STORE_EVICTION)
    else:
        copy_rest(x_ptr, y_ptr, begin, N, stride_xn, BLOCK_SIZE)


@triton.jit
def stream_copy_prefetch_kernel(x_ptr, y_ptr, N, stride_xn, BLOCK_SIZE: tl.constexpr):
    """Grid: persistent, a few programs per multiprocessor; chunks are assigned round-robin.

    Prefetch distance 2: as soon as a chunk is written, its registers are loaded again.  Two variables,
    because Triton has no arrays of tensors that a loop could index (to 3.9).
    """
    whole = N // BLOCK_SIZE
    step = tl.num_programs(0)
    place = tl.arange(0, BLOCK_SIZE)
    first = tl.program_id(0)
    n = tl.cast(first, tl.int64) * BLOCK_SIZE + place
    even = tl.load(x_ptr + n * stride_xn, mask=first < whole)
    n += tl.cast(step, tl.int64) * BLOCK_SIZE
    odd = tl.load(x_ptr + n * stride_xn, mask=first + step < whole)
    for chunk in range(first, whole, 2 * step):
        n = tl.cast(chunk, tl.int64) * BLOCK_SIZE + place
        after = n + tl.cast(step, tl.int64) * BLOCK_SIZE
        ahead = tl.cast(2 * step, tl.int64) * BLOCK_SIZE
        tl.store(y_ptr + n, even)
        even = tl.load(x_ptr + (n + ahead) * stride_xn, mask=chunk + 2 * step < whole)
        tl.store(y_ptr + after, odd, mask=chunk + step < whole)
        odd = tl.load(x_ptr + (after + ahead) * stride_xn, mask=chunk + 3 * step < whole)
    if first == whole % step:
        copy_rest(x_ptr, y_ptr, tl.cast(whole, tl.int64) * BLOCK_SIZE, N, stride_xn, BLOCK_SIZE)


@triton.jit
def stream_copy_cp_async_kernel(x_ptr, y_ptr, N, stride_xn, BLOCK_SIZE: tl.constexpr, STAGES: tl.constexpr):
    """Grid: as prefetch.

    ``num_stages`` makes the compiler turn the load into asynchronous copies to shared memory with a prefetch
    distance of STAGES - 1 iterations, and allocate as many buffers.
    """
    whole = N // BLOCK_SIZE
    step = tl.num_programs(0)
    for chunk in tl.range(tl.program_id(0), whole, step, num_stages=STAGES):
        n = tl.cast(chunk, tl.int64) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
        tl.store(y_ptr + n, tl.load(x_ptr + n * stride_xn))
    if tl.program_id(0) == whole % step:
        copy_rest(x_ptr, y_ptr, tl.cast(whole, tl.int64) * BLOCK_SIZE, N, stride_xn, BLOCK_SIZE)


@triton.jit
def stream_copy_tma_kernel(x_desc, y_desc, x_ptr, y_ptr, N, BLOCK_ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Grid: one program per tile, as vectorized.  The descriptors view the vectors as rows of COLUMNS
    elements.

    TMA loads a tile into shared memory and stores it from there; it clips at the last row.  A Triton tensor
    is a value, yet no register holds it: nothing is computed, so the compiler stores from the buffer that was
    loaded.
    """
    row = tl.program_id(0) * BLOCK_ROWS
    y_desc.store([row, 0], x_desc.load([row, 0]))
    if tl.program_id(0) == 0:
        rows = N // COLUMNS
        copy_rest(x_ptr, y_ptr, tl.cast(rows, tl.int64) * COLUMNS, N, 1, COLUMNS)


@implementation(
    "stream_copy",
    "triton.naive",
    level="naive",
    algorithm="element by element",
    tunable={"WARPS": (1, 2, 4, 8, 16, 32)},
)
def naive(x: torch.Tensor, *, WARPS: int = 8) -> torch.Tensor:
    """One element per thread."""
    check_same("stream_copy", 1, x=x)
    N = x.numel()
    y = x.new_empty(N)
    BLOCK_SIZE = 32 * WARPS
    if N > 0:
        grid = (cdiv(N, BLOCK_SIZE),)
        stream_copy_naive_kernel[grid](x, y, N, x.stride(0), BLOCK_SIZE=BLOCK_SIZE, num_warps=WARPS)
    return y


def chunk_size(x: torch.Tensor, VECTORS: int, WARPS: int) -> int:
    """Elements of a chunk: VECTORS 16-byte vectors for each thread of a program."""
    return VECTORS * 32 * WARPS * 16 // x.element_size()


SIZES = {"VECTORS": (1, 2, 4, 8), "WARPS": (1, 2, 4, 8, 16)}


@implementation("stream_copy", "triton.vectorized", level="tiled", algorithm="vectorized copy", tunable=SIZES)
def vectorized(x: torch.Tensor, *, VECTORS: int = 1, WARPS: int = 4) -> torch.Tensor:
    """16-byte vectorized accesses, VECTORS per thread, all in flight at once."""
    check_same("stream_copy", 1, x=x)
    N = x.numel()
    y = x.new_empty(N)
    BLOCK_SIZE = chunk_size(x, VECTORS, WARPS)
    if N > 0:
        grid = (cdiv(N, BLOCK_SIZE),)
        stream_copy_vectorized_kernel[grid](x, y, N, x.stride(0), BLOCK_SIZE=BLOCK_SIZE, num_warps=WARPS)
    return y


HINTS = (("", ""), ("", "evict_first"), (".cg", ""))
"""Cache modifier and eviction policy, by CUDA's numbers; Triton has no equivalent of NO_ALLOCATE (to 3.9)."""


@implementation(
    "stream_copy",
    "triton.hinted",
    level="tiled",
    algorithm="vectorized copy with cache hints",
    tunable={**SIZES, "LOAD_HINT": (0, 1, 2), "STORE_HINT": (0, 1, 2)},
)
def hinted(
    x: torch.Tensor, *, VECTORS: int = 1, WARPS: int = 4, LOAD_HINT: int = 2, STORE_HINT: int = 0
) -> torch.Tensor:
    """As `vectorized`, with cache hints."""
    check_same("stream_copy", 1, x=x)
    N = x.numel()
    y = x.new_empty(N)
    BLOCK_SIZE = chunk_size(x, VECTORS, WARPS)
    if N > 0:
        grid = (cdiv(N, BLOCK_SIZE),)
        hints = (*HINTS[LOAD_HINT], *HINTS[STORE_HINT])
        stream_copy_hinted_kernel[grid](x, y, N, x.stride(0), BLOCK_SIZE, *hints, num_warps=WARPS)
    return y


def programs_for(x: torch.Tensor, chunks: int, PROGRAMS: int) -> int:
    """PROGRAMS per multiprocessor, at most one per chunk; at least one, for the tail."""
    return max(1, min(chunks, PROGRAMS * multiprocessors(x.device)))


@implementation(
    "stream_copy",
    "triton.prefetch",
    level="tiled",
    algorithm="vectorized copy with prefetching",
    tunable={**SIZES, "PROGRAMS": (1, 2, 3, 4, 6, 8, 16)},
)
def prefetch(x: torch.Tensor, *, VECTORS: int = 4, WARPS: int = 8, PROGRAMS: int = 1) -> torch.Tensor:
    """Persistent; two chunks per program are prefetched into registers."""
    check_same("stream_copy", 1, x=x)
    N = x.numel()
    y = x.new_empty(N)
    BLOCK_SIZE = chunk_size(x, VECTORS, WARPS)
    if N > 0:
        grid = (programs_for(x, N // BLOCK_SIZE, PROGRAMS),)
        stream_copy_prefetch_kernel[grid](x, y, N, x.stride(0), BLOCK_SIZE=BLOCK_SIZE, num_warps=WARPS)
    return y


@implementation(
    "stream_copy",
    "triton.cp_async",
    level="tiled",
    algorithm="through shared memory by cp.async",
    tunable={
        "VECTORS": (1, 2, 4),
        "WARPS": (2, 4, 8, 16),
        "STAGES": (2, 3, 4, 6),
        "PROGRAMS": (1, 2, 3, 4, 6, 8),
    },
)
def cp_async(
    x: torch.Tensor, *, VECTORS: int = 4, WARPS: int = 8, STAGES: int = 4, PROGRAMS: int = 1
) -> torch.Tensor:
    """Persistent; the next chunks are prefetched into shared memory by cp.async."""
    check_same("stream_copy", 1, x=x)
    N = x.numel()
    y = x.new_empty(N)
    BLOCK_SIZE = chunk_size(x, VECTORS, WARPS)
    if N > 0:
        grid = (programs_for(x, N // BLOCK_SIZE, PROGRAMS),)
        stream_copy_cp_async_kernel[grid](
            x, y, N, x.stride(0), BLOCK_SIZE=BLOCK_SIZE, STAGES=STAGES, num_warps=WARPS
        )
    return y


def whole_vectors(x: torch.Tensor) -> bool:
    """Whether x is contiguous and 16-byte aligned, as TMA requires."""
    return (x.stride(0) == 1 or x.numel() <= 1) and x.data_ptr() % 16 == 0


@implementation(
    "stream_copy",
    "triton.tma",
    level="hopper",
    algorithm="through shared memory by TMA",
    requires="sm_90",
    tunable={"CHUNK_BYTES": (1024, 2048, 4096, 8192, 16384, 32768), "WARPS": (1, 2, 4, 8)},
)
def tma(x: torch.Tensor, *, CHUNK_BYTES: int = 4096, WARPS: int = 1) -> torch.Tensor:
    """One tile per program, moved by TMA; an input that TMA does not take uses `vectorized`."""
    check_same("stream_copy", 1, x=x)
    N = x.numel()
    COLUMNS = 128 // x.element_size()  # 128 bytes: the widest row of TMA's 128-byte swizzle
    if not whole_vectors(x) or N < COLUMNS:
        return vectorized(x)
    y = x.new_empty(N)
    rows, BLOCK_ROWS = N // COLUMNS, CHUNK_BYTES // 128
    of_x, of_y = (
        TensorDescriptor(vector, [rows, COLUMNS], [COLUMNS, 1], [BLOCK_ROWS, COLUMNS]) for vector in (x, y)
    )
    grid = (cdiv(rows, BLOCK_ROWS),)
    stream_copy_tma_kernel[grid](of_x, of_y, x, y, N, BLOCK_ROWS=BLOCK_ROWS, COLUMNS=COLUMNS, num_warps=WARPS)
    return y
