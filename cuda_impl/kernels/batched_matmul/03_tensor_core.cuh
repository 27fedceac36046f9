// batched_matmul, level 3, tensor_core. Change: 16-bit tiles, copied by cp.async and multiplied on tensor
// cores; a warp has 16 rows of c.
#pragma once

#include "batched_matmul/half_tile.cuh"

// Grid: one block per MATRICES matrices, one warp per 16 rows of one. Rows of a and b, or columns, are whole
// 16-byte vectors, aligned.
template <typename T, bool A_BY_ROWS, bool B_BY_ROWS, int BLOCK_N, int MATRICES>
__global__ __launch_bounds__(MATRICES * BLOCK_N * 2) void batched_matmul_tensor_core_kernel(
    const T* a_ptr, const T* b_ptr, T* c_ptr, index_t B, int N, index_t stride_ab, index_t stride_ai,
    index_t stride_aj, index_t stride_bb, index_t stride_bi, index_t stride_bj) {
    DYNAMIC_SHARED(T, a_tiles);
    T* b_tiles = a_tiles + MATRICES * BLOCK_N * BLOCK_N;
    const index_t first = index_t(blockIdx.x) * MATRICES;
    fetch_tiles<BLOCK_N>(a_tiles, a_ptr, first, B, N, stride_ab, A_BY_ROWS ? stride_ai : stride_aj);
    fetch_tiles<BLOCK_N>(b_tiles, b_ptr, first, B, N, stride_bb, B_BY_ROWS ? stride_bi : stride_bj);
    cp_async_commit();
    cp_async_wait<0>();
    __syncthreads();  // other blocks of the multiprocessor multiply meanwhile
    multiply_rows<A_BY_ROWS, B_BY_ROWS, BLOCK_N>(a_tiles, b_tiles, c_ptr, first, B, N);
}
