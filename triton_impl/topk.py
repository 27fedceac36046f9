"""topk in Triton: ``x[M,N] -> values[M,K], indices[M,K]``, the K largest of each row in descending order.

Variants, slow to fast; ``cuda_impl/kernels/topk.cuh`` has the same under the same names:

* ``passes``: K passes over the row: each finds the largest element that is less than the one before
* ``bitonic``: one pass: a program keeps its best in registers, and merges new ones with a bitonic network
* ``radix``: a tile stays in registers: histograms of its digits find the K-th largest, then K are sorted
* ``delegates``: as radix, but of the largest element of each group: a bound that few other elements reach
* ``filtered``: as delegates in a row's first tile: of later ones few elements are greater than that bound

Elements become keys, unsigned integers in the same order, and words: a key and below it the inverted column.
``tl.topk`` orders words, and so equal elements too.  Triton has no threads that append to shared
memory (to 3.9): what CUDA collects there goes through global memory, which the L2 holds.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from compare.arguments import check_largest
from compare.device import multiprocessors
from compare.registry import implementation
from triton_impl.counts import cdiv, check_counts, grid_1d, next_power_of_2
from triton_impl.parts import contiguous_rows

OP = "topk"
Largest = tuple[torch.Tensor, torch.Tensor]


@triton.jit
def ordered_keys(x):
    """Keys in uint32, of 16-bit elements in the upper half; NaN has the largest, and none has 0."""
    if x.dtype.primitive_bitwidth == 32:
        bits = x.to(tl.uint32, bitcast=True)
    else:
        bits = x.to(tl.uint16, bitcast=True).to(tl.uint32) << 16
    keys = bits ^ tl.where(bits >= 0x80000000, 0xFFFFFFFF, 0x80000000)
    keys = tl.where(x != x, 0xFFFFFFFF, keys)
    if x.dtype.primitive_bitwidth == 16:
        keys &= 0xFFFF0000
    return keys


@triton.jit
def values_of(keys, dtype: tl.constexpr):
    bits = tl.where(keys >= 0x80000000, keys ^ 0x80000000, keys ^ 0xFFFFFFFF)
    if dtype.primitive_bitwidth == 16:
        bits = (bits >> 16).to(tl.uint16)
    return bits.to(dtype, bitcast=True)


@triton.jit
def make_words(keys, n):
    """uint64; of equal elements the one with the lowest index is the largest."""
    return (keys.to(tl.uint64) << 32) | (n.to(tl.uint32) ^ 0xFFFFFFFF).to(tl.uint64)


@triton.jit
def load_keys(row, n, N):
    """Key 0 is a missing element's."""
    return tl.where(n < N, ordered_keys(tl.load(row + n, mask=n < N, other=0.0)), 0)


@triton.jit
def store_words(values_ptr, indices_ptr, first, words, k, K, begin, columns_ptr, HAS_COLUMNS: tl.constexpr):
    """Elements and columns of words[k], of the first K; ``columns_ptr`` names those of parts' best."""
    values = values_of((words >> 32).to(tl.uint32), values_ptr.dtype.element_ty)
    n = begin + ((words & 0xFFFFFFFF).to(tl.uint32) ^ 0xFFFFFFFF).to(tl.int64)
    if HAS_COLUMNS:
        n = tl.load(columns_ptr + n, mask=k < K, other=0)
    tl.store(values_ptr + first + k, values, mask=k < K)
    tl.store(indices_ptr + first + k, n, mask=k < K)


# ---- passes -----------------------------------------------------------------------------------------------


@triton.jit
def topk_passes_kernel(x_ptr, values_ptr, indices_ptr, N, stride_xm, K, BLOCK_N: tl.constexpr):
    """Grid: one program per row.  All words of a row differ: the next is the largest below the last."""
    m = tl.program_id(0).to(tl.int64)
    row = x_ptr + m * stride_xm
    last = tl.zeros((), tl.uint64)
    for k in range(K):
        best = tl.zeros([BLOCK_N], tl.uint64)
        for begin in range(0, N, BLOCK_N):
            n = begin + tl.arange(0, BLOCK_N)
            words = make_words(load_keys(row, n, N), n)
            best = tl.maximum(best, tl.where((k == 0) | (words < last), words, 0))
        last = tl.max(best)
        store_words(values_ptr, indices_ptr, m * K, last, k, K, 0, indices_ptr, False)


# ---- bitonic ----------------------------------------------------------------------------------------------


@triton.jit
def topk_bitonic_kernel(
    x_ptr, values_ptr, indices_ptr, N, stride_xm, K, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr
):
    """Grid: one program per row, which has a sorted list of its BLOCK_K best.

    A tile with an element that is greater than the list's least is partially sorted (``tl.topk``), and merged
    with the list.  CUDA queues such elements and sorts a full queue; Triton sorts the tile as it is.
    """
    m = tl.program_id(0).to(tl.int64)
    row = x_ptr + m * stride_xm
    best = tl.zeros([BLOCK_K], tl.uint64)
    least = tl.zeros((), tl.uint64)
    for begin in range(0, N, BLOCK_N):
        n = begin + tl.arange(0, BLOCK_N)
        words = tl.where(n < N, make_words(load_keys(row, n, N), n), 0)
        if tl.max(words) > least:
            queued = tl.topk(words, BLOCK_K)
            # The greater of each element and the opposite one are the best of both, in bitonic order.
            best = tl.bitonic_merge(tl.maximum(best, tl.flip(queued, 0)), descending=True)
            least = tl.min(best)
    store_words(values_ptr, indices_ptr, m * K, best, tl.arange(0, BLOCK_K), K, 0, indices_ptr, False)


# ---- radix select -----------------------------------------------------------------------------------------
# Source: Alabi et al., "Fast K-selection algorithms for graphics processing units", 2012; the early stop as
# in Zhang et al., "Parallel top-K algorithms on GPU: a comprehensive study and new methods", 2023.


@triton.jit
def radix_select(keys, K, BITS: tl.constexpr):
    """The largest bound that at least K keys reach, in BITS leading bits: 8 in each pass.

    A pass counts the next digit of all keys that share the bound's digits so far.  It stops early where all
    keys of the bound's bin are among the K.
    """
    bound, known_digits = tl.zeros((), tl.uint32), tl.zeros((), tl.uint32)
    shift, in_bin = tl.full((), 24, tl.int32), K + 1
    while (shift >= 32 - BITS) & (in_bin != K):
        digits = (keys >> shift.to(tl.uint32) & 0xFF).to(tl.int32)
        histogram = tl.histogram(digits, 256, mask=(keys & known_digits) == bound)
        reached = tl.cumsum(histogram, axis=0, reverse=True)  # keys with this digit or a larger one
        above_bin = tl.max(tl.where(reached < K, reached, 0))
        in_bin = tl.min(tl.where(reached >= K, reached, 0x7FFFFFFF)) - above_bin
        chosen_bin = (tl.sum((reached >= K).to(tl.int32)) - 1).to(tl.uint32)
        bound |= chosen_bin << shift.to(tl.uint32)
        known_digits |= tl.full((), 0xFF, tl.uint32) << shift.to(tl.uint32)
        K -= above_bin
        shift -= 8
    return bound


@triton.jit
def reach(keys, bound, K, CANDIDATES: tl.constexpr):
    """Which keys reach the K-th largest; of too many that are equal to it those of the lowest index."""
    chosen = keys >= bound
    if tl.sum(chosen.to(tl.int32)) > CANDIDATES:
        equal = (keys == bound).to(tl.int32)
        missing = K - tl.sum((keys > bound).to(tl.int32))
        chosen = (keys > bound) | ((keys == bound) & (tl.cumsum(equal, axis=0) <= missing))
    return chosen


@triton.jit
def part_of_row(N, tiles, VEC: tl.constexpr):
    """The program's row, and the begin and number of its columns; parts start at whole vectors."""
    m, tile = (tl.program_id(0) // tiles).to(tl.int64), (tl.program_id(0) % tiles).to(tl.int64)
    vectors = tl.cdiv(N, VEC)
    begin = (vectors * tile // tiles * VEC).to(tl.int32)
    end = tl.minimum(N, (vectors * (tile + 1) // tiles * VEC).to(tl.int32))
    return m, begin, end - begin


@triton.jit
def collect(candidates_ptr, count, keys, n, chosen):
    """Store the chosen elements' words behind ``count`` others."""
    places = count + tl.cumsum(chosen.to(tl.int32), axis=0) - 1
    tl.store(candidates_ptr + places, make_words(keys, n).to(tl.int64, bitcast=True), mask=chosen)


@triton.jit
def largest_words(candidates_ptr, count, BLOCK_K: tl.constexpr, CANDIDATES: tl.constexpr):
    """The BLOCK_K largest of ``count`` candidates, in descending order."""
    tl.debug_barrier()  # all threads see what the others have stored
    c = tl.arange(0, CANDIDATES)
    words = tl.load(candidates_ptr + c, mask=c < count, other=0).to(tl.uint64, bitcast=True)
    return tl.topk(words, BLOCK_K)


@triton.jit
def store_chosen(
    values_ptr, indices_ptr, columns_ptr, candidates_ptr, keys, n, chosen, begin, K,
    BLOCK_K: tl.constexpr, CANDIDATES: tl.constexpr, HAS_COLUMNS: tl.constexpr,
):  # fmt: skip
    """Collect the chosen elements, K to CANDIDATES, sort them and store the first K."""
    pid, k = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK_K)
    candidates_ptr += pid * CANDIDATES
    collect(candidates_ptr, 0, keys, n, chosen)
    best = largest_words(candidates_ptr, tl.sum(chosen.to(tl.int32)), BLOCK_K, CANDIDATES)
    store_words(values_ptr, indices_ptr, pid * K, best, k, K, begin, columns_ptr, HAS_COLUMNS)


@triton.jit(do_not_specialize=["K"])  # 1 would become a constant, which radix_select changes
def topk_radix_kernel(
    x_ptr, columns_ptr, values_ptr, indices_ptr, candidates_ptr, N, stride_xm, tiles, K, VEC: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, CANDIDATES: tl.constexpr, HAS_COLUMNS: tl.constexpr,
):  # fmt: skip
    """Grid: ``tiles`` programs per row.  Unlike bitonic, nothing is sorted but the result."""
    m, begin, part_N = part_of_row(N, tiles, VEC)
    n = tl.arange(0, BLOCK_N)
    keys = load_keys(x_ptr + m * stride_xm + begin, n, part_N)
    bound = radix_select(keys, K, x_ptr.dtype.element_ty.primitive_bitwidth)
    chosen = reach(keys, bound, K, CANDIDATES)
    store_chosen(
        values_ptr, indices_ptr, columns_ptr + m * N, candidates_ptr, keys, n, chosen, begin, K,
        BLOCK_K, CANDIDATES, HAS_COLUMNS,
    )  # fmt: skip


# ---- delegates --------------------------------------------------------------------------------------------
# Source: Gaihre et al., "Dr. Top-k: delegate-centric top-k on GPUs", 2021.


@triton.jit
def reach_by_delegates(keys, K, BITS: tl.constexpr, CANDIDATES: tl.constexpr):
    """A bound that at least K keys reach, and which do: no more than CANDIDATES."""
    GROUP: tl.constexpr = 2 if keys.shape[0] <= 1024 else 8
    delegates = tl.max(tl.reshape(keys, [keys.shape[0] // GROUP, GROUP]), axis=1)
    # Key 0 is a missing element's: if there are fewer than K delegates, all elements are candidates.
    bound = tl.maximum(radix_select(delegates, K, 16), 1)
    chosen = keys >= bound
    if tl.sum(chosen.to(tl.int32)) > CANDIDATES:
        bound = radix_select(keys, K, BITS)
        chosen = reach(keys, bound, K, CANDIDATES)
    return bound, chosen


@triton.jit(do_not_specialize=["K"])  # 1 would become a constant, which radix_select changes
def topk_delegates_kernel(
    x_ptr, columns_ptr, values_ptr, indices_ptr, candidates_ptr, N, stride_xm, tiles, K, VEC: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, CANDIDATES: tl.constexpr, HAS_COLUMNS: tl.constexpr,
):  # fmt: skip
    """Grid: as radix.  Only the largest of each GROUP elements, its delegate, is counted by digits.

    The K-th largest delegate is a bound that at least K elements reach, and few others: a group seldom has
    two of the largest.  The bound need not be exact, so two digits do.  If too many elements reach it, equal
    ones or a row in order, the tile is searched as in radix.
    """
    m, begin, part_N = part_of_row(N, tiles, VEC)
    n = tl.arange(0, BLOCK_N)
    keys = load_keys(x_ptr + m * stride_xm + begin, n, part_N)
    _, chosen = reach_by_delegates(keys, K, x_ptr.dtype.element_ty.primitive_bitwidth, CANDIDATES)
    store_chosen(
        values_ptr, indices_ptr, columns_ptr + m * N, candidates_ptr, keys, n, chosen, begin, K,
        BLOCK_K, CANDIDATES, HAS_COLUMNS,
    )  # fmt: skip


# ---- filtered ---------------------------------------------------------------------------------------------
# Source: as bitonic in CUDA, with a queue per program; the search as in radix.


@triton.jit(do_not_specialize=["K"])  # 1 would become a constant, which radix_select changes
def topk_filtered_kernel(
    x_ptr, columns_ptr, values_ptr, indices_ptr, candidates_ptr, N, stride_xm, tiles, K, VEC: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, CANDIDATES: tl.constexpr, HAS_COLUMNS: tl.constexpr,
):  # fmt: skip
    """Grid: ``tiles`` programs per row, no more than keep the GPU busy; each reads its part tile by tile.

    The first tile has too many candidates, and is searched as in delegates.  K of its elements reach the
    bound, so of later tiles only the greater ones count.  Where candidates are too many again, the K largest
    stay and the least of them is the new bound.
    """
    pid, k = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK_K)
    m, begin, part_N = part_of_row(N, tiles, VEC)
    row = x_ptr + m * stride_xm + begin
    candidates_ptr += pid * CANDIDATES
    BITS: tl.constexpr = x_ptr.dtype.element_ty.primitive_bitwidth
    bound, count = tl.zeros((), tl.uint32), 0
    for tile in range(tl.cdiv(part_N, BLOCK_N)):
        n = tile * BLOCK_N + tl.arange(0, BLOCK_N)
        keys = load_keys(row, n, part_N)
        chosen = keys > bound  # of equal elements those before are larger
        more = tl.sum(chosen.to(tl.int32))
        if count + more > CANDIDATES:
            if count > K:
                best = largest_words(candidates_ptr, count, BLOCK_K, CANDIDATES)
                tl.debug_barrier()  # all threads have read the candidates
                tl.store(candidates_ptr + k, best.to(tl.int64, bitcast=True), mask=k < K)
                count = K
                bound = (tl.min(tl.where(k < K, best, best | 0xFFFFFFFF00000000)) >> 32).to(tl.uint32)
                chosen = keys > bound
                more = tl.sum(chosen.to(tl.int32))
            if count + more > CANDIDATES:  # in the first tile, or in a row in ascending order
                least, reaching = reach_by_delegates(keys, K, BITS, CANDIDATES - BLOCK_K)
                bound = tl.maximum(bound, least)
                chosen &= reaching
                more = tl.sum(chosen.to(tl.int32))
        collect(candidates_ptr, count, keys, n, chosen)
        count += more
    best = largest_words(candidates_ptr, count, BLOCK_K, CANDIDATES)
    store_words(values_ptr, indices_ptr, pid * K, best, k, K, begin, columns_ptr + m * N, HAS_COLUMNS)


# ---- launches ---------------------------------------------------------------------------------------------

MOST_K = 256


def checked(x: torch.Tensor, K: int) -> torch.Tensor:
    """x, copied where rows are not contiguous."""
    check_largest(OP, x, K)
    check_counts(N=x.size(1))
    if x.size(1) >= 1 << 31:
        raise NotImplementedError(f"N={x.size(1)}: columns are numbered in 32 bits")
    return contiguous_rows(x)


def check_few(K: int) -> None:
    """
    Raises:
        NotImplementedError: K is more than registers hold.
    """
    if K > MOST_K:
        raise NotImplementedError(f"K={K}: at most {MOST_K}; passes takes any")


def outputs(x: torch.Tensor, columns: int) -> Largest:
    """Values and indices, of so many columns."""
    shape = (x.size(0), columns)
    return x.new_empty(shape), x.new_empty(shape, dtype=torch.int64)


@implementation(OP, "triton.passes", level="naive", algorithm="K maxima")
def passes(x: torch.Tensor, *, K: int) -> Largest:
    """K passes over the row."""
    x = checked(x, K)
    values, indices = outputs(x, K)
    M, N = x.shape
    if values.numel() > 0:
        topk_passes_kernel[grid_1d(M)](x, values, indices, N, x.stride(0), K, BLOCK_N=1024, num_warps=8)
    return values, indices


@implementation(OP, "triton.bitonic", level="tiled")
def bitonic(x: torch.Tensor, *, K: int) -> Largest:
    """One pass; a program keeps its best in registers."""
    x = checked(x, K)
    check_few(K)
    values, indices = outputs(x, K)
    M, N = x.shape
    BLOCK_K = max(16, next_power_of_2(max(K, 1)))
    BLOCK_N = max(BLOCK_K, min(1024, next_power_of_2(max(N, 1))))
    if values.numel() > 0:
        topk_bitonic_kernel[grid_1d(M)](
            x, values, indices, N, x.stride(0), K, BLOCK_N=BLOCK_N, BLOCK_K=BLOCK_K, num_warps=8
        )
    return values, indices


MOST_COLUMNS = 4096
"""Of a tile: 4 warps with 32 elements per thread, half of CUDA's, as a thread takes more registers."""
LOOP_COLUMNS = 1024
"""Of a tile where a program loops over tiles: 2 warps, so that eight programs run on a multiprocessor."""


def tiles_of(M: int, N: int, VEC: int, K: int, processors: int, loops: bool) -> int:
    """Parts of a row: as few as registers hold, or one if a program loops over tiles; more if few run.

    A part has many times as many elements as it hands on.
    """
    least = 1 if loops else cdiv(cdiv(N, VEC), MOST_COLUMNS // VEC)
    programs, most = (6 if loops else 2) * processors, N // max(2048, 8 * K)
    return max(least, min(cdiv(programs, max(M, 1)), most))


def by_tiles(run, x: torch.Tensor, K: int, loops: bool = False) -> Largest:  # type: ignore[no-untyped-def]
    """Select in parts of rows, and then among their best, until one part is left."""
    x = checked(x, K)
    check_few(K)
    VEC, BLOCK_K = 16 // x.element_size(), max(16, next_power_of_2(max(K, 1)))
    CANDIDATES = (4 if loops else 2) * BLOCK_K
    values, indices = outputs(x, K)
    if values.numel() == 0:
        return values, indices
    columns, tiles, HAS_COLUMNS = indices, 0, False
    while tiles != 1:
        M, N = x.shape
        tiles = tiles_of(M, N, VEC, K, multiprocessors(x.device), loops)
        BLOCK_N = LOOP_COLUMNS if loops else max(1024, next_power_of_2(cdiv(cdiv(N, VEC), tiles) * VEC))
        values, indices = outputs(x, tiles * K)
        candidates = torch.empty((M * tiles, CANDIDATES), dtype=torch.int64, device=x.device)
        run[grid_1d(M * tiles)](
            x, columns, values, indices, candidates, N, x.stride(0), tiles, K, VEC=VEC, BLOCK_N=BLOCK_N,
            BLOCK_K=BLOCK_K, CANDIDATES=CANDIDATES, HAS_COLUMNS=HAS_COLUMNS,
            num_warps=2 if loops else BLOCK_N // 1024, maxnreg=128,  # else ptxas takes up to all 255
        )  # fmt: skip
        x, columns, HAS_COLUMNS = values, indices, True
    return values, indices


@implementation(OP, "triton.radix", level="tiled")
def radix(x: torch.Tensor, *, K: int) -> Largest:
    """Histograms of digits find the K-th largest of a tile in registers."""
    return by_tiles(topk_radix_kernel, x, K)


@implementation(OP, "triton.delegates", level="tiled")
def delegates(x: torch.Tensor, *, K: int) -> Largest:
    """Histograms of the groups' largest elements find a bound that few others reach."""
    return by_tiles(topk_delegates_kernel, x, K)


@implementation(OP, "triton.filtered", level="tiled")
def filtered(x: torch.Tensor, *, K: int) -> Largest:
    """A bound from the first tile, which few elements of the others reach."""
    return by_tiles(topk_filtered_kernel, x, K, loops=True)
