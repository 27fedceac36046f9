// softmax over rows: x[M,N] -> y[M,N],  y[m,n] = exp(x[m,n] - max_m) / sum_n exp(x[m,n] - max_m)
//
// Variants; triton_impl/softmax.py has the same under the same names except the last two, which Triton cannot
// express:
//   online   a block reads its row twice, tile by tile: any row length
//   onepass  the row stays in registers between reduction and output, so it is read once: 32768 columns
//   split    several blocks share a row and exchange partial sums through global memory: long rows, any GPU
//   cluster  the blocks of a cluster share a row, which stays in their shared memory: Hopper
//   ring     as split, and TMA prefetches the next chunks into shared memory: Hopper
//
// Rows of x are stride_xm elements apart, y is contiguous. VEC is 16 bytes' worth of elements if every row is
// 16-byte aligned, else 1.
#pragma once

#include "common.cuh"
#include "hopper.cuh"
#include "running.cuh"

// ---- tiles: PACKS vectors per thread, THREADS vectors apart; -inf from `columns` on -----------------------

template <typename T, int VEC, int PACKS, int THREADS>
__device__ __forceinline__ void load_tile(Pack<T, VEC> (&x)[PACKS], const T* tile_ptr, int columns,
                                          int thread) {
    float nothing[VEC];
#pragma unroll
    for (int v = 0; v < VEC; ++v) nothing[v] = negative_infinity();
#pragma unroll
    for (int p = 0; p < PACKS; ++p) {
        const int n = (p * THREADS + thread) * VEC;
        if (n < columns) {
            x[p] = load<T, VEC>(tile_ptr + n);
        } else {
            set(x[p], nothing);
        }
    }
}

template <typename T, int VEC, int PACKS>
__device__ __forceinline__ float tile_max(const Pack<T, VEC> (&x)[PACKS]) {
    float max = negative_infinity();
#pragma unroll
    for (int p = 0; p < PACKS; ++p) {
#pragma unroll
        for (int v = 0; v < VEC; ++v) max = fmaxf(max, get(x[p], v));
    }
    return max;
}

// Includes a tile: as running.cuh's include, but the old sum is rescaled once per tile.
template <typename T, int VEC, int PACKS>
__device__ __forceinline__ Running include(Running seen, const Pack<T, VEC> (&x)[PACKS]) {
    const float max = fmaxf(seen.max, tile_max(x));
    const float shift = finite_shift(max);
    float sum = 0.0f;
#pragma unroll
    for (int p = 0; p < PACKS; ++p) {
#pragma unroll
        for (int v = 0; v < VEC; ++v) sum += __expf(get(x[p], v) - shift);
    }
    return {max, seen.sum * __expf(seen.max - shift) + sum};
}

template <typename T, int VEC, int PACKS, int THREADS>
__device__ __forceinline__ void store_tile(T* tile_ptr, const Pack<T, VEC> (&x)[PACKS], Running row,
                                           int columns, int thread) {
    const float inverse_sum = 1.0f / row.sum;
#pragma unroll
    for (int p = 0; p < PACKS; ++p) {
        const int n = (p * THREADS + thread) * VEC;
        float e[VEC];
#pragma unroll
        for (int v = 0; v < VEC; ++v) e[v] = __expf(get(x[p], v) - row.max) * inverse_sum;
        Pack<T, VEC> y;
        set(y, e);
        if (n < columns) store(tile_ptr + n, y);
    }
}

// Number of columns in the tile at `begin` of a row of N.
template <int BLOCK_N>
__device__ __forceinline__ int tile_columns(index_t N, index_t begin) {
    return static_cast<int>(N - begin < BLOCK_N ? N - begin : BLOCK_N);
}

// ---- online --------------------------------------------------------------------------------------------
// Grid: one block per row. The second read hits the L2 for what is still cached.

template <typename T, int VEC, int PACKS, int THREADS>
__global__ __launch_bounds__(THREADS) void softmax_online_kernel(const T* x_ptr, T* y_ptr, index_t N,
                                                                 index_t stride_xm) {
    constexpr int BLOCK_N = THREADS * PACKS * VEC;
    const T* x_row = x_ptr + blockIdx.x * stride_xm;
    T* y_row = y_ptr + blockIdx.x * N;
    Pack<T, VEC> x[PACKS];

    Running row = nothing_seen();
    for (index_t begin = 0; begin < N; begin += BLOCK_N) {
        load_tile<T, VEC, PACKS, THREADS>(x, x_row + begin, tile_columns<BLOCK_N>(N, begin), threadIdx.x);
        row = include(row, x);
    }
    row = block_combine<THREADS>(row);

    for (index_t begin = 0; begin < N; begin += BLOCK_N) {
        const int columns = tile_columns<BLOCK_N>(N, begin);
        load_tile<T, VEC, PACKS, THREADS>(x, x_row + begin, columns, threadIdx.x);
        store_tile<T, VEC, PACKS, THREADS>(y_row + begin, x, row, columns, threadIdx.x);
    }
}

// ---- onepass -------------------------------------------------------------------------------------------
// Grid: one block per BLOCK_M rows. THREADS / BLOCK_M threads share a row and hold all of it, PACKS vectors
// each: N <= THREADS / BLOCK_M * PACKS * VEC. A row of more than one warp has a block to itself. A thread
// computes its exponentials relative to its own maximum while it waits for the row's, so that each is
// computed once. At most 64 registers per thread: where two blocks fit, one reads while the other writes.

template <typename T, int VEC, int PACKS, int THREADS, int BLOCK_M>
__global__ __launch_bounds__(THREADS, 1024 / THREADS) void softmax_onepass_kernel(const T* x_ptr, T* y_ptr,
                                                                                  index_t M, index_t N,
                                                                                  index_t stride_xm) {
    constexpr int ROW_THREADS = THREADS / BLOCK_M;
    static_assert(BLOCK_M == 1 || ROW_THREADS <= WARP, "several rows a block: each within a warp");
    const int thread = threadIdx.x % ROW_THREADS;
    const index_t m = static_cast<index_t>(blockIdx.x) * BLOCK_M + threadIdx.x / ROW_THREADS;
    const int columns = m < M ? static_cast<int>(N) : 0;  // without a row a thread still shuffles
    Pack<T, VEC> x[PACKS];
    float e[PACKS][VEC];

    load_tile<T, VEC, PACKS, ROW_THREADS>(x, x_ptr + m * stride_xm, columns, thread);
    Running own = {tile_max(x), 0.0f};
    const float shift = finite_shift(own.max);
#pragma unroll
    for (int p = 0; p < PACKS; ++p) {
#pragma unroll
        for (int v = 0; v < VEC; ++v) {
            e[p][v] = __expf(get(x[p], v) - shift);
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
        const int n = (p * ROW_THREADS + thread) * VEC;
#pragma unroll
        for (int v = 0; v < VEC; ++v) e[p][v] *= scale;
        Pack<T, VEC> y;
        set(y, e[p]);
        if (n < columns) store(y_ptr + m * N + n, y);
    }
}

// ---- split ---------------------------------------------------------------------------------------------
// Rows are split into `chunks` chunks of BLOCK_N columns, assigned round-robin to persistent blocks. Each
// iteration reduces a chunk, publishes its maximum and sum and keeps the chunk in registers. Two iterations
// later the other blocks have published theirs, and the output is written. Every element is read once, and
// the next chunk is prefetched meanwhile.
//
// Invariant: all blocks are resident, because they wait for each other. A row has no more chunks than there
// are blocks. The host ensures both. of_chunk[M * chunks] starts as 0: no chunk has maximum 0 and sum 0, so
// one nonzero 8-byte word is both result and flag.

// volatile bypasses the L1, which is not coherent with other blocks' writes.
__device__ __forceinline__ void publish(word_t* of_chunk, Running value) {
    *static_cast<volatile word_t*>(of_chunk) = to_word(value);
}
__device__ __forceinline__ word_t look(const word_t* of_chunk) {
    return *static_cast<const volatile word_t*>(of_chunk);
}

// Thread c waits for the c-th chunk of a row and every THREADS-th after it, and returns their combination.
// `early` is look_early's result: that load is issued first, and the caller's work hides its latency.
__device__ __forceinline__ word_t look_early(const word_t* of_row, int chunks) {
    const int c = threadIdx.x;
    return c < chunks ? look(of_row + c) : 0;
}
template <int THREADS>
__device__ __forceinline__ Running wait_for_row(const word_t* of_row, int chunks, word_t early) {
    Running seen = nothing_seen();
    word_t word = early;
    for (int c = threadIdx.x; c < chunks; c += THREADS) {
        if (c >= THREADS) word = look(of_row + c);
        while (word == 0) {
            SPIN_WAIT();
            word = look(of_row + c);
        }
        seen = combine(seen, from_word(word));
    }
    __syncwarp();  // reconverge: else lanes that waited less go on apart, which takes twice as long
    return seen;
}

// A chunk: its row and its number in the row. Incremental, because that is cheaper than a division per
// iteration.
struct Place {
    index_t m;
    int c;

    __device__ __forceinline__ void advance(Place step, int chunks) {
        m += step.m;
        c += step.c;
        if (c >= chunks) {
            c -= chunks;
            ++m;
        }
    }
};

template <typename T, int VEC, int PACKS, int THREADS, int BLOCKS>
__global__ __launch_bounds__(THREADS, BLOCKS) void softmax_split_kernel(const T* x_ptr, T* y_ptr, index_t M,
                                                                        index_t N, index_t stride_xm,
                                                                        int chunks, word_t* of_chunk) {
    constexpr int BLOCK_N = THREADS * PACKS * VEC;
    Pack<T, VEC> next[PACKS], x[PACKS], kept[PACKS], old[PACKS];  // a chunk's register pipeline
    const int blocks = gridDim.x, block = blockIdx.x;
    const Place first = {block / chunks, block % chunks}, step = {blocks / chunks, blocks % chunks};
    Place at_next = first, at = first, at_old = first;
    const auto load_next = [&] {
        if (at_next.m < M) {
            const index_t begin = static_cast<index_t>(at_next.c) * BLOCK_N;
            load_tile<T, VEC, PACKS, THREADS>(next, x_ptr + at_next.m * stride_xm + begin,
                                              tile_columns<BLOCK_N>(N, begin), threadIdx.x);
        }
        at_next.advance(step, chunks);
    };

    load_next();
    for (int turn = 0; at_old.m < M; ++turn) {
#pragma unroll
        for (int p = 0; p < PACKS; ++p) {
            old[p] = kept[p];
            kept[p] = x[p];
            x[p] = next[p];
        }
        const bool reduces = at.m < M, writes = turn >= 2;
        const word_t* of_row = of_chunk + at_old.m * chunks;
        const word_t early = writes ? look_early(of_row, chunks) : 0;

        Running seen[2] = {nothing_seen(), nothing_seen()};  // the new chunk's, and the old chunk's row's
        if (reduces) seen[0] = include(seen[0], x);
        load_next();
        if (writes) seen[1] = wait_for_row<THREADS>(of_row, chunks, early);
        block_combine<THREADS>(seen);
        if (reduces && threadIdx.x == 0) publish(of_chunk + at.m * chunks + at.c, seen[0]);
        at.advance(step, chunks);
        if (writes) {
            const index_t begin = static_cast<index_t>(at_old.c) * BLOCK_N;
            store_tile<T, VEC, PACKS, THREADS>(y_ptr + at_old.m * N + begin, old, seen[1],
                                               tile_columns<BLOCK_N>(N, begin), threadIdx.x);
            at_old.advance(step, chunks);
        }
        __syncthreads();  // all have read what block_combine shared
    }
}

// ---- cluster -------------------------------------------------------------------------------------------
// Grid: one cluster of CLUSTER blocks per row, each with `slice` columns of it, in tiles of BLOCK_N. TMA
// loads all tiles into shared memory; each is reduced as it lands. Each block sends its partial sum into the
// shared memory of all, and writes its slice when all partial sums have arrived. Rows of x are 16-byte
// aligned; N and slice are multiples of VEC.

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
    __shared__ mbarrier_t heard;
    __shared__ word_t of_block[CLUSTER];
    const int rank = cluster_block_rank();
    const index_t m = blockIdx.x / CLUSTER;
    const index_t begin = rank * slice;
    const int columns = static_cast<int>(begin >= N ? 0 : begin + slice < N ? slice : N - begin);
    const int tiles = (columns + BLOCK_N - 1) / BLOCK_N;

    if (threadIdx.x == 0) {
        for (int tile = 0; tile < tiles; ++tile) mbarrier_init(&landed[tile], 1);
        mbarrier_init(&heard, 1);
        mbarrier_init_fence();
        mbarrier_arrive_expect_bytes(&heard, sizeof(of_block));
        for (int tile = 0; tile < tiles; ++tile) {
            const int n = tile * BLOCK_N;
            const unsigned bytes = min(columns - n, BLOCK_N) * sizeof(T);
            mbarrier_arrive_expect_bytes(&landed[tile], bytes);
            bulk_copy_to_shared(x_shared + n, x_ptr + m * stride_xm + begin + n, bytes, &landed[tile]);
        }
    }
    __syncthreads();
    cluster_arrive_relaxed();

    Pack<T, VEC> x[PACKS];
    Running part = nothing_seen();
    for (int tile = 0; tile < tiles; ++tile) {
        mbarrier_wait(&landed[tile], 0);
        const int n = tile * BLOCK_N;
        load_tile<T, VEC, PACKS, THREADS>(x, x_shared + n, columns - n, threadIdx.x);
        part = include(part, x);
    }
    part = block_combine<THREADS>(part);

    cluster_wait();  // all blocks of the cluster have started: their shared memory may be written
    if (threadIdx.x < CLUSTER) {
        store_async_to_block(&of_block[rank], threadIdx.x, to_word(part), &heard);
    }
    mbarrier_wait(&heard, 0);
    const Running row = warp_combine<CLUSTER>(from_word(of_block[threadIdx.x % CLUSTER]));

    for (int tile = 0; tile < tiles; ++tile) {
        const int n = tile * BLOCK_N;
        load_tile<T, VEC, PACKS, THREADS>(x, x_shared + n, columns - n, threadIdx.x);
        store_tile<T, VEC, PACKS, THREADS>(y_ptr + m * N + begin + n, x, row, columns - n, threadIdx.x);
    }
#endif
}

// ---- ring ----------------------------------------------------------------------------------------------
// As split, but TMA prefetches chunks into a ring of SLOTS buffers in shared memory. A chunk is reduced when
// it has landed and written LAG iterations later; then its buffer is refilled at once. Loads stall neither
// for stores nor for other blocks.
//
// A row has at most (LAG - 1) * gridDim.x chunks: before a block waits for a row, every block can have
// published its chunks of it in an earlier iteration. Rows of x are 16-byte aligned; N is a multiple of VEC.

template <typename T, int PACKS, int THREADS, int SLOTS, int LAG, int BLOCKS>
__global__ __launch_bounds__(THREADS, BLOCKS) void softmax_ring_kernel(const T* x_ptr, T* y_ptr, index_t M,
                                                                       index_t N, index_t stride_xm,
                                                                       int chunks, word_t* of_chunk) {
#if HAS_HOPPER_UNITS
    constexpr int VEC = 16 / sizeof(T);
    constexpr int BLOCK_N = THREADS * PACKS * VEC;
    DYNAMIC_SHARED(T, x_shared);
    __shared__ mbarrier_t landed[SLOTS];
    const int blocks = gridDim.x, block = blockIdx.x;
    const Place first = {block / chunks, block % chunks}, step = {blocks / chunks, blocks % chunks};
    Place at_fetch = first, at = first, at_old = first;
    const auto fetch = [&](int slot) {
        if (at_fetch.m < M && threadIdx.x == 0) {
            const index_t begin = static_cast<index_t>(at_fetch.c) * BLOCK_N;
            const unsigned bytes = tile_columns<BLOCK_N>(N, begin) * sizeof(T);
            mbarrier_arrive_expect_bytes(&landed[slot], bytes);
            bulk_copy_to_shared(x_shared + slot * BLOCK_N, x_ptr + at_fetch.m * stride_xm + begin, bytes,
                                &landed[slot]);
        }
        at_fetch.advance(step, chunks);
    };

    if (threadIdx.x == 0) {
        for (int slot = 0; slot < SLOTS; ++slot) mbarrier_init(&landed[slot], 1);
        mbarrier_init_fence();
    }
    __syncthreads();
    for (int slot = 0; slot < SLOTS; ++slot) fetch(slot);

    Pack<T, VEC> x[PACKS];
    int slot = 0, old_slot = 0, parity = 0;
    for (int turn = 0; at_old.m < M; ++turn) {
        const bool reduces = at.m < M, writes = turn >= LAG;
        const word_t* of_row = of_chunk + at_old.m * chunks;
        const word_t early = writes ? look_early(of_row, chunks) : 0;

        Running seen[2] = {nothing_seen(), nothing_seen()};  // the new chunk's, and the old chunk's row's
        if (reduces) {
            mbarrier_wait(&landed[slot], parity);
            const int columns = tile_columns<BLOCK_N>(N, static_cast<index_t>(at.c) * BLOCK_N);
            load_tile<T, VEC, PACKS, THREADS>(x, x_shared + slot * BLOCK_N, columns, threadIdx.x);
            seen[0] = include(seen[0], x);
        }
        if (writes) seen[1] = wait_for_row<THREADS>(of_row, chunks, early);
        block_combine<THREADS>(seen);
        if (reduces && threadIdx.x == 0) publish(of_chunk + at.m * chunks + at.c, seen[0]);
        at.advance(step, chunks);
        if (++slot == SLOTS) {
            slot = 0;
            parity ^= 1;
        }

        const index_t begin = static_cast<index_t>(at_old.c) * BLOCK_N;
        const int columns = tile_columns<BLOCK_N>(N, begin);
        if (writes) {
            load_tile<T, VEC, PACKS, THREADS>(x, x_shared + old_slot * BLOCK_N, columns, threadIdx.x);
        }
        __syncthreads();  // all have read the old chunk, and what block_combine shared
        if (writes) {
            fetch(old_slot);
            store_tile<T, VEC, PACKS, THREADS>(y_ptr + at_old.m * N + begin, x, seen[1], columns,
                                               threadIdx.x);
            at_old.advance(step, chunks);
            if (++old_slot == SLOTS) old_slot = 0;
        }
    }
#endif
}
