// ring: as split, but TMA prefetches chunks into a ring of SLOTS buffers in shared memory. Hopper only.
//
// A chunk is reduced when it has landed and written LAG iterations later; then its buffer is refilled at
// once. Loads stall neither for stores nor for other blocks.
//
// A row has at most (LAG - 1) * gridDim.x chunks: before a block waits for a row, every block can have
// published its chunks of it in an earlier iteration. Rows of x are 16-byte aligned; N is a multiple of VEC.
#pragma once

#include "hopper.cuh"
#include "softmax/exchange.cuh"
#include "softmax/tile.cuh"

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

    Packed<T, VEC> x[PACKS];
    int slot = 0, old_slot = 0, parity = 0;
    for (int iteration = 0; at_old.m < M; ++iteration) {
        const bool reduces = at.m < M, writes = iteration >= LAG;
        const word_t* of_row = of_chunk + at_old.m * chunks;
        const word_t early = writes ? look_early(of_row, chunks) : 0;

        Running seen[2] = {nothing_seen(), nothing_seen()};  // the new chunk's, and the old chunk's row's
        if (reduces) {
            mbarrier_wait(&landed[slot], parity);
            const int columns = tile_columns<BLOCK_N>(N, static_cast<index_t>(at.c) * BLOCK_N);
            load_tile<THREADS>(x, x_shared + slot * BLOCK_N, columns);
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
        if (writes) load_tile<THREADS>(x, x_shared + old_slot * BLOCK_N, columns);
        __syncthreads();  // all have read the old chunk, and what block_combine shared
        if (writes) {
            fetch(old_slot);
            store_tile<THREADS>(y_ptr + at_old.m * N + begin, x, seen[1], columns);
            at_old.advance(step, chunks);
            if (++old_slot == SLOTS) old_slot = 0;
        }
    }
#endif
}
