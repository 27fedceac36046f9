// batched_matmul, level 4, pipelined. Change: persistent blocks with a pipeline of STAGES stages in shared
// memory: one group of matrices is multiplied while the others are in flight.
#pragma once

#include "batched_matmul/half_tile.cuh"

// Grid: BLOCKS blocks per multiprocessor; groups of MATRICES matrices are assigned round-robin. Operands as
// for tensor_core.
template <typename T, bool A_BY_ROWS, bool B_BY_ROWS, int BLOCK_N, int MATRICES, int STAGES, int BLOCKS>
__global__ __launch_bounds__(MATRICES * BLOCK_N * 2, BLOCKS) void batched_matmul_pipelined_kernel(
    const T* a_ptr, const T* b_ptr, T* c_ptr, index_t B, int N, index_t stride_ab, index_t stride_ai,
    index_t stride_aj, index_t stride_bb, index_t stride_bi, index_t stride_bj) {
    constexpr int OPERAND = MATRICES * BLOCK_N * BLOCK_N;
    DYNAMIC_SHARED(T, tiles);
    const index_t step = index_t(gridDim.x) * MATRICES;
    const auto fetch = [&](int stage, index_t first) {
        T* a_tiles = tiles + stage * 2 * OPERAND;
        T* b_tiles = a_tiles + OPERAND;
        if (first < B) {
            fetch_tiles<BLOCK_N>(a_tiles, a_ptr, first, B, N, stride_ab, A_BY_ROWS ? stride_ai : stride_aj);
            fetch_tiles<BLOCK_N>(b_tiles, b_ptr, first, B, N, stride_bb, B_BY_ROWS ? stride_bi : stride_bj);
        }
        cp_async_commit();  // an empty group is committed too: wait_group counts groups
    };
    index_t first = index_t(blockIdx.x) * MATRICES;
#pragma unroll
    for (int stage = 0; stage < STAGES - 1; ++stage) fetch(stage, first + stage * step);
    int stage = 0, free = STAGES - 1;
    for (; first < B; first += step) {
        cp_async_wait<STAGES - 2>();
        __syncthreads();  // this group has landed, and all have read the last one, whose stage is free
        fetch(free, first + (STAGES - 1) * step);
        T* a_tiles = tiles + stage * 2 * OPERAND;
        multiply_rows<A_BY_ROWS, B_BY_ROWS, BLOCK_N>(a_tiles, a_tiles + OPERAND, c_ptr, first, B, N);
        free = stage;
        stage = stage + 1 == STAGES ? 0 : stage + 1;
    }
}
