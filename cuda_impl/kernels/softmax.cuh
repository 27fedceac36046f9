// softmax over rows: x[M,N] -> y[M,N],  y[m,n] = exp(x[m,n] - max_m) / sum_n exp(x[m,n] - max_m)
//
// The ladder. triton_impl/softmax.py has the same variants under the same names, but for the last two,
// for which Triton has no words:
//   online   a block reads its row twice, tile by tile: any row length
//   onepass  the row waits in registers between reduction and output, so it is read once: 32768 columns
//   split    many blocks share a row and tell each other their parts of the sum: long rows, any GPU
//   cluster  the blocks of a cluster share a row, which waits in their shared memory: Hopper
//   ring     as split, but that the copy engine fetches ahead into shared memory: Hopper
//
// Rows of x are stride_xm elements apart, y is dense. VEC elements move at a time: 16 bytes' worth where
// every row starts on a 16-byte boundary, else 1.
#pragma once

#include "common.cuh"
#include "hopper.cuh"

// ---- the running maximum and sum ---------------------------------------------------------------------

// Of the elements seen so far: their maximum, and sum(exp(x - maximum)).
// Source: Milakov and Gimelshein, "Online normalizer calculation for softmax" (2018).
struct alignas(8) Running {
    float max;
    float sum;
};

__device__ __forceinline__ Running nothing_seen() {
    return {negative_infinity(), 0.0f};
}

// What to subtract before exp. Where all is -inf so far, exp(-inf - -inf) would be NaN; it must be 0.
__device__ __forceinline__ float finite_shift(float max) {
    return max == negative_infinity() ? 0.0f : max;
}

__device__ __forceinline__ Running combine(Running a, Running b) {
    const float max = fmaxf(a.max, b.max);
    const float shift = finite_shift(max);
    return {max, a.sum * __expf(a.max - shift) + b.sum * __expf(b.max - shift)};
}

// Every lane of each group of WIDTH neighbouring lanes gets the combination of the group.
template <int WIDTH>
__device__ __forceinline__ Running warp_combine(Running seen) {
    float max = seen.max;
#pragma unroll
    for (int offset = WIDTH / 2; offset > 0; offset /= 2) {
        max = fmaxf(max, __shfl_xor_sync(FULL_WARP, max, offset));
    }
    float sum = seen.sum * __expf(seen.max - finite_shift(max));
#pragma unroll
    for (int offset = WIDTH / 2; offset > 0; offset /= 2) sum += __shfl_xor_sync(FULL_WARP, sum, offset);
    return {max, sum};
}

// Every thread of the block gets the combination of all THREADS, for each of COUNT values at once.
// Between two calls there must be another barrier: of_warp is used again.
template <int THREADS, int COUNT>
__device__ __forceinline__ void block_combine(Running (&seen)[COUNT]) {
    constexpr int WARPS = THREADS / WARP;
    __shared__ Running of_warp[COUNT][WARPS];
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
        seen[i] = warp_combine<WARP>(seen[i]);
        if (threadIdx.x % WARP == 0) of_warp[i][threadIdx.x / WARP] = seen[i];
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < COUNT; ++i) seen[i] = warp_combine<WARPS>(of_warp[i][threadIdx.x % WARPS]);
}

template <int THREADS>
__device__ __forceinline__ Running block_combine(Running seen) {
    Running one[1] = {seen};
    block_combine<THREADS>(one);
    return one[0];
}

// ---- tiles: PACKS packs a thread, THREADS packs apart, of the columns begin .. end ----------------------

template <typename T, int VEC, int PACKS, int THREADS>
__device__ __forceinline__ void load_tile(Pack<T, VEC> (&x)[PACKS], const T* row_ptr, index_t begin,
                                          index_t end, int thread) {
#pragma unroll
    for (int p = 0; p < PACKS; ++p) {
        const index_t n = begin + (p * THREADS + thread) * VEC;
        if (n < end) {
            x[p] = load<T, VEC>(row_ptr + n);
        } else {
#pragma unroll
            for (int v = 0; v < VEC; ++v) x[p].element[v] = from_float<T>(negative_infinity());
        }
    }
}

template <typename T, int VEC, int PACKS>
__device__ __forceinline__ float tile_max(const Pack<T, VEC> (&x)[PACKS]) {
    float max = negative_infinity();
#pragma unroll
    for (int p = 0; p < PACKS; ++p) {
#pragma unroll
        for (int v = 0; v < VEC; ++v) max = fmaxf(max, to_float(x[p].element[v]));
    }
    return max;
}

template <typename T, int VEC, int PACKS>
__device__ __forceinline__ Running include(Running seen, const Pack<T, VEC> (&x)[PACKS]) {
    const float max = fmaxf(seen.max, tile_max(x));
    const float shift = finite_shift(max);
    float sum = seen.sum * __expf(seen.max - shift);
#pragma unroll
    for (int p = 0; p < PACKS; ++p) {
#pragma unroll
        for (int v = 0; v < VEC; ++v) sum += __expf(to_float(x[p].element[v]) - shift);
    }
    return {max, sum};
}

template <typename T, int VEC, int PACKS, int THREADS>
__device__ __forceinline__ void store_tile(T* row_ptr, const Pack<T, VEC> (&x)[PACKS], Running row,
                                           index_t begin, index_t end, int thread) {
    const float inverse_sum = 1.0f / row.sum;
#pragma unroll
    for (int p = 0; p < PACKS; ++p) {
        const index_t n = begin + (p * THREADS + thread) * VEC;
        Pack<T, VEC> y;
#pragma unroll
        for (int v = 0; v < VEC; ++v) {
            y.element[v] = from_float<T>(__expf(to_float(x[p].element[v]) - row.max) * inverse_sum);
        }
        if (n < end) store_streaming<T, VEC>(row_ptr + n, y);
    }
}

// ---- online --------------------------------------------------------------------------------------------
// Grid: a block a row. The second read finds in the L2 what of the row is still there.

template <typename T, int VEC, int PACKS, int THREADS>
__global__ __launch_bounds__(THREADS) void softmax_online_kernel(const T* x_ptr, T* y_ptr, index_t N,
                                                                 index_t stride_xm) {
    constexpr int BLOCK_N = THREADS * PACKS * VEC;
    const T* x_row = x_ptr + blockIdx.x * stride_xm;
    T* y_row = y_ptr + blockIdx.x * N;
    Pack<T, VEC> x[PACKS];

    Running row = nothing_seen();
    for (index_t begin = 0; begin < N; begin += BLOCK_N) {
        load_tile<T, VEC, PACKS, THREADS>(x, x_row, begin, N, threadIdx.x);
        row = include(row, x);
    }
    row = block_combine<THREADS>(row);

    for (index_t begin = 0; begin < N; begin += BLOCK_N) {
        load_tile<T, VEC, PACKS, THREADS>(x, x_row, begin, N, threadIdx.x);
        store_tile<T, VEC, PACKS, THREADS>(y_row, x, row, begin, N, threadIdx.x);
    }
}

// ---- onepass -------------------------------------------------------------------------------------------
// Grid: a block for BLOCK_M rows. THREADS / BLOCK_M threads share a row and hold all of it, PACKS packs
// each: N <= THREADS / BLOCK_M * PACKS * VEC. Rows of more than one warp have a block to themselves.
// A thread takes its exponentials relative to its own maximum while it waits for the row's, so that each
// is computed once. At most 64 registers a thread: where two blocks fit, one reads while the other writes.

template <typename T, int VEC, int PACKS, int THREADS, int BLOCK_M>
__global__ __launch_bounds__(THREADS, 1024 / THREADS) void softmax_onepass_kernel(const T* x_ptr, T* y_ptr,
                                                                                  index_t M, index_t N,
                                                                                  index_t stride_xm) {
    constexpr int ROW_THREADS = THREADS / BLOCK_M;
    static_assert(BLOCK_M == 1 || ROW_THREADS <= WARP, "several rows a block: each within a warp");
    const int thread = threadIdx.x % ROW_THREADS;
    const index_t m = static_cast<index_t>(blockIdx.x) * BLOCK_M + threadIdx.x / ROW_THREADS;
    const index_t end = m < M ? N : 0;  // threads without a row take part in the shuffles
    Pack<T, VEC> x[PACKS];
    float e[PACKS][VEC];

    load_tile<T, VEC, PACKS, ROW_THREADS>(x, x_ptr + m * stride_xm, 0, end, thread);
    Running own = {tile_max(x), 0.0f};
    const float shift = finite_shift(own.max);
#pragma unroll
    for (int p = 0; p < PACKS; ++p) {
#pragma unroll
        for (int v = 0; v < VEC; ++v) {
            e[p][v] = __expf(to_float(x[p].element[v]) - shift);
            own.sum += e[p][v];
        }
    }

    Running row;
    if constexpr (BLOCK_M == 1) {
        row = block_combine<THREADS>(own);
    } else {
        row = warp_combine<ROW_THREADS>(own);
    }

    const float scale = __expf(own.max - row.max) / row.sum;
#pragma unroll
    for (int p = 0; p < PACKS; ++p) {
        const index_t n = (p * ROW_THREADS + thread) * VEC;
        Pack<T, VEC> y;
#pragma unroll
        for (int v = 0; v < VEC; ++v) y.element[v] = from_float<T>(e[p][v] * scale);
        if (n < end) store_streaming<T, VEC>(y_ptr + m * N + n, y);
    }
}

// ---- split ---------------------------------------------------------------------------------------------
// Rows are cut into `chunks` chunks of BLOCK_N columns, and all chunks of all rows, in order, are dealt to
// the blocks like cards. A block publishes the maximum and sum of its chunk and keeps the chunk in
// registers; while the next chunk is on its way, the other blocks publish theirs, and the output of the
// kept chunk can be written. Every element is read once.
//
// Blocks wait for each other: all of the grid must be resident together, and a row may have no more chunks
// than there are blocks; the host ensures both. of_chunk[M * chunks] starts as 0: no chunk has maximum 0
// and sum 0, so one 8-byte word is both the result and the news that it is there.

__device__ __forceinline__ void publish(Running* of_chunk, Running value) {
    *reinterpret_cast<volatile unsigned long long*>(of_chunk) =
        __float_as_uint(value.max) | static_cast<unsigned long long>(__float_as_uint(value.sum)) << 32;
}

__device__ __forceinline__ Running wait_for_chunk(const Running* of_chunk) {
    const auto* word_ptr = reinterpret_cast<const volatile unsigned long long*>(of_chunk);
    unsigned long long word = *word_ptr;
    while (word == 0) {
        SPIN_WAIT();
        word = *word_ptr;
    }
    return {__uint_as_float(static_cast<unsigned>(word)), __uint_as_float(static_cast<unsigned>(word >> 32))};
}

// The threads of a block together wait for all chunks of a row; each returns those it has waited for.
__device__ __forceinline__ Running wait_for_row(const Running* of_chunk, int chunks) {
    Running seen = nothing_seen();
    for (int c = threadIdx.x; c < chunks; c += blockDim.x) seen = combine(seen, wait_for_chunk(of_chunk + c));
    __syncwarp();  // lanes that waited less would go on by themselves, and the rest would take twice as long
    return seen;
}

template <typename T, int VEC, int PACKS, int THREADS, int BLOCKS>
__global__ __launch_bounds__(THREADS, BLOCKS) void softmax_split_kernel(const T* x_ptr, T* y_ptr, index_t M,
                                                                        index_t N, index_t stride_xm,
                                                                        index_t chunks, Running* of_chunk) {
    constexpr index_t BLOCK_N = THREADS * PACKS * VEC;
    const index_t total = M * chunks;
    Pack<T, VEC> kept[PACKS], x[PACKS], next[PACKS];
    const auto load_chunk = [&](Pack<T, VEC>(&to)[PACKS], index_t chunk) {
        const T* x_row = x_ptr + chunk / chunks * stride_xm;
        load_tile<T, VEC, PACKS, THREADS>(to, x_row, chunk % chunks * BLOCK_N, N, threadIdx.x);
    };

    index_t chunk = blockIdx.x;
    if (chunk < total) load_chunk(x, chunk);
    for (; chunk < total + gridDim.x; chunk += gridDim.x) {
        if (chunk < total) {
            const Running part = block_combine<THREADS>(include(nothing_seen(), x));
            if (threadIdx.x == 0) publish(of_chunk + chunk, part);
        }
        if (chunk + gridDim.x < total) load_chunk(next, chunk + gridDim.x);
        __syncthreads();
        if (chunk >= gridDim.x) {
            const index_t kept_chunk = chunk - gridDim.x;
            const index_t m = kept_chunk / chunks;
            const Running part = wait_for_row(of_chunk + m * chunks, static_cast<int>(chunks));
            const Running row = block_combine<THREADS>(part);
            store_tile<T, VEC, PACKS, THREADS>(y_ptr + m * N, kept, row, kept_chunk % chunks * BLOCK_N, N,
                                               threadIdx.x);
            __syncthreads();
        }
#pragma unroll
        for (int p = 0; p < PACKS; ++p) {
            kept[p] = x[p];
            x[p] = next[p];
        }
    }
}

// ---- cluster -------------------------------------------------------------------------------------------
// Grid: a cluster of CLUSTER blocks for a row, each with `slice` columns of it, in tiles of BLOCK_N. The
// copy engine brings all tiles into shared memory; they are reduced in the order in which they land. The
// blocks tell each other their parts of the sum through distributed shared memory, and write their slices.
// Rows of x start on 16-byte boundaries; N and slice are multiples of VEC.

template <typename T, int PACKS, int THREADS, int CLUSTER>
__global__ __launch_bounds__(THREADS)
    CLUSTER_OF(CLUSTER) void softmax_cluster_kernel(const T* x_ptr, T* y_ptr, index_t N, index_t stride_xm,
                                                    index_t slice) {
#if HAS_HOPPER_UNITS
    constexpr int VEC = 16 / sizeof(T);
    constexpr int BLOCK_N = THREADS * PACKS * VEC;
    constexpr int MOST_TILES = 32;
    DYNAMIC_SHARED(T, x_shared);
    __shared__ mbarrier_t landed[MOST_TILES];
    __shared__ Running of_block[CLUSTER];
    const int rank = cluster_block_rank();
    const index_t m = blockIdx.x / CLUSTER;
    const index_t begin = rank * slice;
    const int columns = static_cast<int>(begin >= N ? 0 : begin + slice < N ? slice : N - begin);
    const int tiles = (columns + BLOCK_N - 1) / BLOCK_N;

    if (threadIdx.x == 0) {
        for (int tile = 0; tile < tiles; ++tile) mbarrier_init(&landed[tile], 1);
        mbarrier_init_fence();
        for (int tile = 0; tile < tiles; ++tile) {
            const int n = tile * BLOCK_N;
            const unsigned bytes = min(columns - n, BLOCK_N) * sizeof(T);
            mbarrier_arrive_expect_bytes(&landed[tile], bytes);
            bulk_copy_to_shared(x_shared + n, x_ptr + m * stride_xm + begin + n, bytes, &landed[tile]);
        }
    }
    __syncthreads();
    cluster_arrive();

    Pack<T, VEC> x[PACKS];
    Running part = nothing_seen();
    for (int tile = 0; tile < tiles; ++tile) {
        mbarrier_wait(&landed[tile], 0);
        load_tile<T, VEC, PACKS, THREADS>(x, x_shared, tile * BLOCK_N, columns, threadIdx.x);
        part = include(part, x);
    }
    part = block_combine<THREADS>(part);

    cluster_wait();  // all blocks of the cluster have started: their shared memory is there
    if (threadIdx.x < CLUSTER) {
        store_to_block(&of_block[rank].max, threadIdx.x, part.max);
        store_to_block(&of_block[rank].sum, threadIdx.x, part.sum);
    }
    cluster_arrive();
    cluster_wait();
    const Running row = warp_combine<CLUSTER>(of_block[threadIdx.x % CLUSTER]);

    for (int tile = 0; tile < tiles; ++tile) {
        load_tile<T, VEC, PACKS, THREADS>(x, x_shared, tile * BLOCK_N, columns, threadIdx.x);
        store_tile<T, VEC, PACKS, THREADS>(y_ptr + m * N + begin, x, row, tile * BLOCK_N, columns,
                                           threadIdx.x);
    }
#endif
}

// ---- ring ----------------------------------------------------------------------------------------------
// As split, but that chunks wait in a ring of SLOTS places in shared memory, which the copy engine fills
// ahead of time: a chunk is reduced when it has landed and written out LAG turns later, and its place is
// filled again at once. Reading pauses neither for writing nor for other blocks.
//
// A row may have no more than (LAG - 1) * gridDim.x chunks: by the time a row is waited for, every block
// has published its chunks of it in an earlier turn. Rows of x start on 16-byte boundaries; N is a multiple
// of VEC.

template <typename T, int PACKS, int THREADS, int SLOTS, int LAG, int BLOCKS>
__global__ __launch_bounds__(THREADS, BLOCKS) void softmax_ring_kernel(const T* x_ptr, T* y_ptr, index_t M,
                                                                       index_t N, index_t stride_xm,
                                                                       index_t chunks, Running* of_chunk) {
#if HAS_HOPPER_UNITS
    constexpr int VEC = 16 / sizeof(T);
    constexpr index_t BLOCK_N = THREADS * PACKS * VEC;
    DYNAMIC_SHARED(T, x_shared);
    __shared__ mbarrier_t landed[SLOTS];
    const index_t total = M * chunks;
    const auto fetch = [&](index_t chunk, int slot) {
        if (threadIdx.x != 0 || chunk >= total) return;
        const index_t begin = chunk % chunks * BLOCK_N;
        const unsigned bytes = static_cast<unsigned>(min(N - begin, BLOCK_N) * sizeof(T));
        mbarrier_arrive_expect_bytes(&landed[slot], bytes);
        bulk_copy_to_shared(x_shared + slot * BLOCK_N, x_ptr + chunk / chunks * stride_xm + begin, bytes,
                            &landed[slot]);
    };

    if (threadIdx.x == 0) {
        for (int slot = 0; slot < SLOTS; ++slot) mbarrier_init(&landed[slot], 1);
        mbarrier_init_fence();
    }
    __syncthreads();
    for (int slot = 0; slot < SLOTS; ++slot) fetch(blockIdx.x + slot * static_cast<index_t>(gridDim.x), slot);

    Pack<T, VEC> x[PACKS];
    index_t chunk = blockIdx.x;
    index_t old_chunk = chunk - LAG * static_cast<index_t>(gridDim.x);
    for (int slot = 0, old_slot = SLOTS - LAG, parity = 0; old_chunk < total;
         chunk += gridDim.x, old_chunk += gridDim.x) {
        const index_t old_m = old_chunk / chunks;
        Running seen[2] = {nothing_seen(), nothing_seen()};  // of the new chunk, and of the old one's row
        if (old_chunk >= 0) seen[1] = wait_for_row(of_chunk + old_m * chunks, static_cast<int>(chunks));
        if (chunk < total) {
            mbarrier_wait(&landed[slot], parity);
            const index_t columns = N - chunk % chunks * BLOCK_N;
            load_tile<T, VEC, PACKS, THREADS>(x, x_shared + slot * BLOCK_N, 0, columns, threadIdx.x);
            seen[0] = include(seen[0], x);
        }
        block_combine<THREADS>(seen);
        if (threadIdx.x == 0 && chunk < total) publish(of_chunk + chunk, seen[0]);
        if (old_chunk >= 0) {
            const index_t begin = old_chunk % chunks * BLOCK_N;
            load_tile<T, VEC, PACKS, THREADS>(x, x_shared + old_slot * BLOCK_N, 0, N - begin, threadIdx.x);
        }
        __syncthreads();  // all have read the old chunk, and what block_combine shared
        if (old_chunk >= 0) {
            const index_t begin = old_chunk % chunks * BLOCK_N;
            fetch(old_chunk + SLOTS * static_cast<index_t>(gridDim.x), old_slot);
            store_tile<T, VEC, PACKS, THREADS>(y_ptr + old_m * N + begin, x, seen[1], 0, N - begin,
                                               threadIdx.x);
        }
        if (++slot == SLOTS) {
            slot = 0;
            parity ^= 1;
        }
        if (++old_slot == SLOTS) old_slot = 0;
    }
#endif
}
