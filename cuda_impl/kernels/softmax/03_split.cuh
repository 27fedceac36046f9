// split: unlike onepass, several blocks share a row, so it may be longer than a block's registers.
//
// Rows are split into `chunks` chunks of BLOCK_N columns, assigned round-robin to persistent blocks. Each
// iteration reduces a chunk, publishes its maximum and sum and keeps the chunk in registers. Two iterations
// later the other blocks have published theirs, and the output is written. Every element is read once, and
// the next chunk is prefetched meanwhile.
//
// Invariant: all blocks are resident, because they wait for each other. A row has no more chunks than there
// are blocks. The host ensures both. of_chunk[M * chunks] starts as 0: no chunk has maximum 0 and sum 0, so
// one nonzero 8-byte word is both result and flag.
#pragma once

#include "softmax/exchange.cuh"
#include "softmax/tile.cuh"

template <typename T, int VEC, int PACKS, int THREADS, int BLOCKS>
__global__ __launch_bounds__(THREADS, BLOCKS) void softmax_split_kernel(const T* x_ptr, T* y_ptr, index_t M,
                                                                        index_t N, index_t stride_xm,
                                                                        int chunks, word_t* of_chunk) {
    constexpr int BLOCK_N = THREADS * PACKS * VEC;
    Packed<T, VEC> next[PACKS], x[PACKS], kept[PACKS], old[PACKS];  // a chunk's register pipeline
    const int blocks = gridDim.x, block = blockIdx.x;
    const Place first = {block / chunks, block % chunks}, step = {blocks / chunks, blocks % chunks};
    Place at_next = first, at = first, at_old = first;
    const auto load_next = [&] {
        if (at_next.m < M) {
            const index_t begin = static_cast<index_t>(at_next.c) * BLOCK_N;
            load_tile<THREADS>(next, x_ptr + at_next.m * stride_xm + begin, tile_columns<BLOCK_N>(N, begin));
        }
        at_next.advance(step, chunks);
    };

    load_next();
    for (int iteration = 0; at_old.m < M; ++iteration) {
#pragma unroll
        for (int p = 0; p < PACKS; ++p) {
            old[p] = kept[p];
            kept[p] = x[p];
            x[p] = next[p];
        }
        const bool reduces = at.m < M, writes = iteration >= 2;
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
            store_tile<THREADS>(y_ptr + at_old.m * N + begin, old, seen[1], tile_columns<BLOCK_N>(N, begin));
            at_old.advance(step, chunks);
        }
        __syncthreads();  // all have read what block_combine shared
    }
}
