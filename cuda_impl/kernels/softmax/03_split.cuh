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

template <typename T, bool ALIGNED, int VECTORS, int THREADS, int BLOCKS>
__global__ __launch_bounds__(THREADS, BLOCKS) void softmax_split_kernel(
    const T* x_ptr, T* y_ptr, index_t M, index_t N, index_t stride_xm, int chunks, word_t* chunk_results) {
    constexpr int VEC = 16 / sizeof(T), BLOCK_N = THREADS * VECTORS * VEC;
    Packed<T, VEC> next[VECTORS], x[VECTORS], kept[VECTORS], old[VECTORS];  // a chunk's register pipeline
    T next_edge = T(negative_infinity()), edge = next_edge, kept_edge = edge, old_edge = edge;
    const int blocks = gridDim.x, block = blockIdx.x;
    const Chunk first = {block / chunks, block % chunks}, step = {blocks / chunks, blocks % chunks};
    Chunk next_chunk = first, chunk = first, old_chunk = first;
    const auto load_next = [&] {
        if (next_chunk.m < M) {
            const index_t begin = static_cast<index_t>(next_chunk.c) * BLOCK_N;
            const T* x_row = x_ptr + next_chunk.m * stride_xm;
            const Parts<T, ALIGNED> parts(y_ptr + next_chunk.m * N, N, threadIdx.x);
            const bool has_edge =
                parts.edge >= 0 && next_chunk.c == 0;  // a row's edges are its first chunk's
            next_edge = has_edge ? x_row[parts.edge] : T(negative_infinity());
            load_tile<THREADS, ALIGNED>(
                next, x_row + parts.head + begin, tile_columns<BLOCK_N>(parts.body, begin));
        }
        next_chunk.advance(step, chunks);
    };

    load_next();
    for (int iteration = 0; old_chunk.m < M; ++iteration) {
#pragma unroll
        for (int p = 0; p < VECTORS; ++p) {
            old[p] = kept[p];
            kept[p] = x[p];
            x[p] = next[p];
        }
        old_edge = kept_edge, kept_edge = edge, edge = next_edge;
        const bool reduces = chunk.m < M, writes = iteration >= 2;
        const word_t* row_results = chunk_results + old_chunk.m * chunks;
        const word_t early = writes ? poll_early(row_results, chunks) : 0;

        Running results[2] = {identity(), identity()};  // an array, so that both share the barrier
        Running &chunk_result = results[0], &old_row = results[1];
        if (reduces) chunk_result = include(chunk_result, x);
        if (reduces && !ALIGNED) chunk_result = combine(chunk_result, {float(edge), 1.0f});
        load_next();
        if (writes) old_row = wait_for_row<THREADS>(row_results, chunks, early);
        block_combine<THREADS>(results);
        if (reduces && threadIdx.x == 0) publish(chunk_results + chunk.m * chunks + chunk.c, chunk_result);
        chunk.advance(step, chunks);
        if (writes) {
            const index_t begin = static_cast<index_t>(old_chunk.c) * BLOCK_N;
            T* y_row = y_ptr + old_chunk.m * N;
            const Parts<T, ALIGNED> parts(y_row, N, threadIdx.x);
            store_tile<THREADS>(
                y_row + parts.head + begin, old, old_row, tile_columns<BLOCK_N>(parts.body, begin));
            if (parts.edge >= 0 && old_chunk.c == 0) {
                y_row[parts.edge] = T(__expf(float(old_edge) - old_row.max) / old_row.sum);
            }
            old_chunk.advance(step, chunks);
        }
        __syncthreads();  // all have read what block_combine shared
    }
}
