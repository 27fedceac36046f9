"""stream_copy in Triton: ``x[N] -> y[N]``.

The ladder; ``cuda_impl/kernels/stream_copy.cuh`` has the same variants under the same names:

* ``naive``: a program copies as many elements as it has threads
* ``vectorized``: a program copies a chunk, of which the compiler makes accesses of 16 bytes, several a thread
* ``hinted``: the same, and says what becomes of the lines in the caches
* ``prefetch``: few programs, which go on and on; the next chunks are on their way into registers
* ``cp_async``: the next chunks are on their way into shared memory, which takes the word ``num_stages``
* ``tma``: a program for a tile again, but that the copy engine moves it, in and out: Hopper

How many bytes an access has, which thread makes it, where a ring lies and who waits for what is not said
here.  The compiler finds out, from the shape of a tensor and from what it knows of its addresses.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from compare.arguments import check_same
from compare.device import multiprocessors
from compare.registry import implementation


@triton.jit
def stream_copy_naive_kernel(x_ptr, y_ptr, N, stride_xn, BLOCK_SIZE: tl.constexpr):
    """Grid: a program for BLOCK_SIZE elements, one a thread."""
    # In 64 bits: program_id * BLOCK_SIZE passes 2^31 for vectors that a GPU has room for.
    n = tl.program_id(0).to(tl.int64) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    inside = n < N
    tl.store(y_ptr + n, tl.load(x_ptr + n * stride_xn, mask=inside), mask=inside)


@triton.jit
def copy_rest(x_ptr, y_ptr, begin, N, stride_xn, BLOCK_SIZE: tl.constexpr):
    """The chunk at `begin` that the end cuts short: whole packs, then the elements behind the last of them.

    A mask that may end anywhere would have the compiler access every element by itself, and a thread hold
    all their addresses.  One that ends at a multiple of 16 has packs inside or outside as a whole.
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
    """Grid: a program a chunk of BLOCK_SIZE elements."""
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
    """Grid: as vectorized.  A hint changes nothing of what is copied, only what the caches keep of it."""
    begin = tl.program_id(0).to(tl.int64) * BLOCK_SIZE
    if begin + BLOCK_SIZE <= N:
        n = begin + tl.arange(0, BLOCK_SIZE)
        x = tl.load(x_ptr + n * stride_xn, cache_modifier=LOAD_CACHE, eviction_policy=LOAD_EVICTION)
        tl.store(y_ptr + n, x, cache_modifier=STORE_CACHE, eviction_policy=STORE_EVICTION)
    else:
        copy_rest(x_ptr, y_ptr, begin, N, stride_xn, BLOCK_SIZE)


@triton.jit
def stream_copy_prefetch_kernel(x_ptr, y_ptr, N, stride_xn, BLOCK_SIZE: tl.constexpr):
    """Grid: a few programs a multiprocessor; each takes every ``num_programs``-th chunk.

    Two of its chunks are on their way at a time: as soon as one is written, the registers that held it are
    loaded again.  Two names, as Triton has no arrays of tensors to make a ring of.
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

    ``num_stages`` has the compiler turn the load into copies to shared memory, which start STAGES - 1 turns
    before their values are used, and keep as many places for them.
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
    """Grid: a program a tile, as vectorized.  The descriptors make rows of COLUMNS elements of the vectors.

    A tile comes into shared memory and leaves from there by the copy engine, which leaves out what lies past
    the last row.  A tensor is a value here and no place, yet no register holds it: nothing is done with it
    in between, and the compiler sees that the place in which it landed will do.
    """
    row = tl.program_id(0) * BLOCK_ROWS
    y_desc.store([row, 0], x_desc.load([row, 0]))
    if tl.program_id(0) == 0:
        rows = N // COLUMNS
        copy_rest(x_ptr, y_ptr, tl.cast(rows, tl.int64) * COLUMNS, N, 1, COLUMNS)


@implementation("stream_copy", "triton.naive", rung="naive", tunable={"WARPS": (1, 2, 4, 8, 16, 32)})
def naive(x: torch.Tensor, *, WARPS: int = 8) -> torch.Tensor:
    """An element a thread."""
    check_same("stream_copy", 1, x=x)
    N = x.numel()
    y = x.new_empty(N)
    BLOCK_SIZE = 32 * WARPS
    if N > 0:
        grid = (triton.cdiv(N, BLOCK_SIZE),)
        stream_copy_naive_kernel[grid](x, y, N, x.stride(0), BLOCK_SIZE=BLOCK_SIZE, num_warps=WARPS)
    return y


def chunk_size(x: torch.Tensor, PACKS: int, WARPS: int) -> int:
    """Elements of a chunk: PACKS packs of 16 bytes for each thread of a program."""
    return PACKS * 32 * WARPS * 16 // x.element_size()


SIZES = {"PACKS": (1, 2, 4, 8), "WARPS": (1, 2, 4, 8, 16)}


@implementation("stream_copy", "triton.vectorized", rung="tiled", tunable=SIZES)
def vectorized(x: torch.Tensor, *, PACKS: int = 1, WARPS: int = 4) -> torch.Tensor:
    """16 bytes an access, PACKS of them a thread, all on their way at once."""
    check_same("stream_copy", 1, x=x)
    N = x.numel()
    y = x.new_empty(N)
    BLOCK_SIZE = chunk_size(x, PACKS, WARPS)
    if N > 0:
        grid = (triton.cdiv(N, BLOCK_SIZE),)
        stream_copy_vectorized_kernel[grid](x, y, N, x.stride(0), BLOCK_SIZE=BLOCK_SIZE, num_warps=WARPS)
    return y


HINTS = (("", ""), ("", "evict_first"), (".cg", ""))
"""Cache modifier and eviction policy, by CUDA's numbers; for its fourth, NO_ALLOCATE, there is no word."""


@implementation(
    "stream_copy",
    "triton.hinted",
    rung="tiled",
    tunable={**SIZES, "LOAD_HINT": (0, 1, 2), "STORE_HINT": (0, 1, 2)},
)
def hinted(
    x: torch.Tensor, *, PACKS: int = 1, WARPS: int = 4, LOAD_HINT: int = 2, STORE_HINT: int = 0
) -> torch.Tensor:
    """As `vectorized`, of lines that the caches need not keep."""
    check_same("stream_copy", 1, x=x)
    N = x.numel()
    y = x.new_empty(N)
    BLOCK_SIZE = chunk_size(x, PACKS, WARPS)
    if N > 0:
        grid = (triton.cdiv(N, BLOCK_SIZE),)
        hints = (*HINTS[LOAD_HINT], *HINTS[STORE_HINT])
        stream_copy_hinted_kernel[grid](x, y, N, x.stride(0), BLOCK_SIZE, *hints, num_warps=WARPS)
    return y


def programs_for(x: torch.Tensor, chunks: int, PROGRAMS: int) -> int:
    """PROGRAMS a multiprocessor, or as many as there are chunks; one at least, for what is behind them."""
    return max(1, min(chunks, PROGRAMS * multiprocessors(x.device)))


@implementation(
    "stream_copy", "triton.prefetch", rung="tiled", tunable={**SIZES, "PROGRAMS": (1, 2, 3, 4, 6, 8, 16)}
)
def prefetch(x: torch.Tensor, *, PACKS: int = 4, WARPS: int = 8, PROGRAMS: int = 1) -> torch.Tensor:
    """Two chunks a program on their way into registers."""
    check_same("stream_copy", 1, x=x)
    N = x.numel()
    y = x.new_empty(N)
    BLOCK_SIZE = chunk_size(x, PACKS, WARPS)
    if N > 0:
        grid = (programs_for(x, N // BLOCK_SIZE, PROGRAMS),)
        stream_copy_prefetch_kernel[grid](x, y, N, x.stride(0), BLOCK_SIZE=BLOCK_SIZE, num_warps=WARPS)
    return y


@implementation(
    "stream_copy",
    "triton.cp_async",
    rung="tiled",
    tunable={
        "PACKS": (1, 2, 4),
        "WARPS": (2, 4, 8, 16),
        "STAGES": (2, 3, 4, 6),
        "PROGRAMS": (1, 2, 3, 4, 6, 8),
    },
)
def cp_async(
    x: torch.Tensor, *, PACKS: int = 4, WARPS: int = 8, STAGES: int = 4, PROGRAMS: int = 1
) -> torch.Tensor:
    """The next chunks on their way into shared memory."""
    check_same("stream_copy", 1, x=x)
    N = x.numel()
    y = x.new_empty(N)
    BLOCK_SIZE = chunk_size(x, PACKS, WARPS)
    if N > 0:
        grid = (programs_for(x, N // BLOCK_SIZE, PROGRAMS),)
        stream_copy_cp_async_kernel[grid](
            x, y, N, x.stride(0), BLOCK_SIZE=BLOCK_SIZE, STAGES=STAGES, num_warps=WARPS
        )
    return y


def whole_packs(x: torch.Tensor) -> bool:
    """Whether x is dense and starts on a 16-byte boundary, as the copy engine must have it."""
    return (x.stride(0) == 1 or x.numel() <= 1) and x.data_ptr() % 16 == 0


@implementation(
    "stream_copy",
    "triton.tma",
    rung="hopper",
    requires="sm_90",
    tunable={"CHUNK_BYTES": (1024, 2048, 4096, 8192, 16384, 32768), "WARPS": (1, 2, 4, 8)},
)
def tma(x: torch.Tensor, *, CHUNK_BYTES: int = 4096, WARPS: int = 1) -> torch.Tensor:
    """A tile a program that the copy engine moves; what it does not take as it lies goes by `vectorized`."""
    check_same("stream_copy", 1, x=x)
    N = x.numel()
    COLUMNS = 128 // x.element_size()  # a row is what the engine permutes as one in shared memory
    if not whole_packs(x) or N < COLUMNS:
        return vectorized(x)
    y = x.new_empty(N)
    rows, BLOCK_ROWS = N // COLUMNS, CHUNK_BYTES // 128
    of_x, of_y = (
        TensorDescriptor(vector, [rows, COLUMNS], [COLUMNS, 1], [BLOCK_ROWS, COLUMNS]) for vector in (x, y)
    )
    grid = (triton.cdiv(rows, BLOCK_ROWS),)
    stream_copy_tma_kernel[grid](of_x, of_y, x, y, N, BLOCK_ROWS=BLOCK_ROWS, COLUMNS=COLUMNS, num_warps=WARPS)
    return y
