// split: unlike onepass, several blocks share a row, so it may be longer than a block's registers.
//
// Rows are split into `chunks` chunks of BLOCK_N columns, assigned round-robin to persistent blocks. Each
// iteration reduces a chunk, publishes its maximum and sum and keeps the chunk in registers. Two iterations
// later the other blocks have published theirs, and the output is written. Every element is read once, and
// the next chunk is prefetched meanwhile.
//
// Invariant: all blocks are resident, because they wait for each other. A row has no more chunks than there
// are blocks. The host ensures both. chunk_results[M * chunks] starts as 0: no chunk has maximum 0 and sum 0,
// so one nonzero 8-byte word is both result and flag.
#pragma once

#include "softmax/exchange.cuh"
#include "softmax/tile.cuh"

template <typename T, int VEC, int PACKS, int THREADS, int BLOCKS>
__global__ __launch_bounds__(THREADS, BLOCKS) void softmax_split_kernel(
    const T* x_ptr, T* y_ptr, index_t M, index_t N, index_t stride_xm, int chunks, word_t* chunk_results) {
    constexpr int BLOCK_N = THREADS * PACKS * VEC;
    Packed<T, VEC> next[PACKS], x[PACKS], kept[PACKS], old[PACKS];  // a chunk's register pipeline
    const int blocks = gridDim.x, block = blockIdx.x;
    const Chunk first = {block / chunks, block % chunks}, step = {blocks / chunks, blocks % chunks};
    Chunk next_chunk = first, chunk = first, old_chunk = first;
    const auto load_next = [&] {
        if (next_chunk.m < M) {
            const index_t begin = static_cast<index_t>(next_chunk.c) * BLOCK_N;
            load_tile<THREADS>(
                next, x_ptr + next_chunk.m * stride_xm + begin, tile_columns<BLOCK_N>(N, begin));
        }
        next_chunk.advance(step, chunks);
    };

    load_next();
    for (int iteration = 0; old_chunk.m < M; ++iteration) {
#pragma unroll
        for (int p = 0; p < PACKS; ++p) {
            old[p] = kept[p];
            kept[p] = x[p];
            x[p] = next[p];
        }
        const bool reduces = chunk.m < M, writes = iteration >= 2;
        const word_t* row_results = chunk_results + old_chunk.m * chunks;
        const word_t early = writes ? poll_early(row_results, chunks) : 0;

        Running results[2] = {identity(), identity()};  // an array, so that both share the barrier
        Running &chunk_result = results[0], &old_row = results[1];
        if (reduces) chunk_result = include(chunk_result, x);
        load_next();
        if (writes) old_row = wait_for_row<THREADS>(row_results, chunks, early);
        block_combine<THREADS>(results);
        if (reduces && threadIdx.x == 0) publish(chunk_results + chunk.m * chunks + chunk.c, chunk_result);
        chunk.advance(step, chunks);
        if (writes) {
            const index_t begin = static_cast<index_t>(old_chunk.c) * BLOCK_N;
            store_tile<THREADS>(
                y_ptr + old_chunk.m * N + begin, old, old_row, tile_columns<BLOCK_N>(N, begin));
            old_chunk.advance(step, chunks);
        }
        __syncthreads();  // all have read what block_combine shared
    }
}
