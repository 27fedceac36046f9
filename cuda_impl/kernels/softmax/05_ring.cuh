// ring: as split, but TMA prefetches chunks into a ring of SLOTS buffers in shared memory. Hopper only.
//
// With LAG 2 and SLOTS 3, c0, c1 ... being the block's chunks:
//   iteration   0         1         2         3         4
//   reduces     c0        c1        c2        c3        c4
//   writes      -         -         c0        c1        c2
//   refills     -         -         c3        c4        c5
// TMA refills the slot of the chunk that was written. Loads stall neither for stores nor for other blocks.
//
// A row has at most (LAG - 1) * gridDim.x chunks: before a block waits for a row, every block can have
// published its chunks of it in an earlier iteration. Rows of x are 16-byte aligned; N is a multiple of VEC.
#pragma once

#include "bulk.cuh"
#include "softmax/exchange.cuh"
#include "softmax/tile.cuh"

// A position in the ring: the slot, and the parity of its mbarrier's phase.
template <int SLOTS>
struct Cursor {
    int slot = 0, parity = 0;

    __device__ __forceinline__ void advance() {
        if (++slot == SLOTS) {
            slot = 0;
            parity ^= 1;
        }
    }
};

template <typename T, int VECTORS, int THREADS, int SLOTS, int LAG, int BLOCKS>
__global__ __launch_bounds__(THREADS, BLOCKS) void softmax_ring_kernel(
    const T* x_ptr, T* y_ptr, index_t M, index_t N, index_t stride_xm, int chunks, word_t* chunk_results) {
#if HAS_HOPPER_LEVELS
    constexpr int VEC = 16 / sizeof(T);
    constexpr int BLOCK_N = THREADS * VECTORS * VEC;
    DYNAMIC_SHARED(T, x_shared);
    __shared__ mbarrier_t full[SLOTS];
    const int blocks = gridDim.x, block = blockIdx.x;
    const Chunk first = {block / chunks, block % chunks}, step = {blocks / chunks, blocks % chunks};
    Chunk next = first, current = first, old = first;  // to be fetched, reduced, written
    const auto fetch = [&](int slot) {
        if (next.m < M && threadIdx.x == 0) {
            const index_t begin = static_cast<index_t>(next.c) * BLOCK_N;
            const unsigned bytes = tile_columns<BLOCK_N>(N, begin) * sizeof(T);
            fence_proxy_async();  // orders the block's reads of the slot before TMA overwrites it
            mbarrier_arrive_expect_bytes(&full[slot], bytes);
            bulk_copy_to_shared(
                x_shared + slot * BLOCK_N, x_ptr + next.m * stride_xm + begin, bytes, &full[slot]);
        }
        next.advance(step, chunks);
    };

    if (threadIdx.x == 0) {
        for (int slot = 0; slot < SLOTS; ++slot) mbarrier_init(&full[slot], 1);
        mbarrier_init_fence();
    }
    __syncthreads();
    for (int slot = 0; slot < SLOTS; ++slot) fetch(slot);

    Packed<T, VEC> x[VECTORS];
    Cursor<SLOTS> current_at, old_at;
    for (int iteration = 0; old.m < M; ++iteration) {
        const bool reduces = current.m < M, writes = iteration >= LAG;
        const word_t* row_results = chunk_results + old.m * chunks;
        const word_t early = writes ? poll_early(row_results, chunks) : 0;

        Running results[2] = {identity(), identity()};  // an array, so that both share the barrier
        Running &chunk_result = results[0], &old_row = results[1];
        if (reduces) {
            mbarrier_wait(&full[current_at.slot], current_at.parity);
            const int columns = tile_columns<BLOCK_N>(N, static_cast<index_t>(current.c) * BLOCK_N);
            load_tile<THREADS>(x, x_shared + current_at.slot * BLOCK_N, columns);
            chunk_result = include(chunk_result, x);
        }
        if (writes) old_row = wait_for_row<THREADS>(row_results, chunks, early);
        block_combine<THREADS>(results);
        if (reduces && threadIdx.x == 0) {
            publish(chunk_results + current.m * chunks + current.c, chunk_result);
        }
        current.advance(step, chunks);
        current_at.advance();

        const index_t begin = static_cast<index_t>(old.c) * BLOCK_N;
        const int columns = tile_columns<BLOCK_N>(N, begin);
        if (writes) load_tile<THREADS>(x, x_shared + old_at.slot * BLOCK_N, columns);
        __syncthreads();  // all have read the old chunk, and what block_combine shared
        if (writes) {
            fetch(old_at.slot);
            store_tile<THREADS>(y_ptr + old.m * N + begin, x, old_row, columns);
            old.advance(step, chunks);
            old_at.advance();
        }
    }
#endif
}
