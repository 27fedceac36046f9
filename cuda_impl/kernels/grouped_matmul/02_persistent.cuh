// grouped_matmul, level 2, persistent. Changes: as many blocks as are resident take tiles of all groups
// round-robin, so that no block is launched in vain and a search goes on where the last one ended. Tiles of a
// group are in grouped order: blocks that run at a time share operands in the L2.
#pragma once

#include "grouped_matmul/tiles.cuh"
#include "matmul/08_tensor_core.cuh"

// a[M,K], b[G,K,N], offsets[G] -> c[M,N]. Grid: persistent, tiles of c of BLOCK_M x BLOCK_N.
template <
    typename T, bool B_BY_ROWS, int BLOCK_M, int BLOCK_N, int BLOCK_K, int WARPS_M, int WARPS_N, int STAGES>
__global__ __launch_bounds__(WARPS_M * WARPS_N * WARP, 2) void grouped_matmul_persistent_kernel(
    const T* a_ptr, const T* b_ptr, T* c_ptr, const int* offsets_ptr, index_t N, index_t K, int G,
    index_t lda, index_t ldb, index_t stride_bg) {
    constexpr int GROUP_M = 8;
    const int tiles_n = static_cast<int>((N + BLOCK_N - 1) / BLOCK_N);
    Groups<BLOCK_M> of(offsets_ptr, G, tiles_n);
    for (int tile = blockIdx.x; of.find(tile); tile += gridDim.x) {
        const TileCoordinates at = grouped_tile<GROUP_M>(tile - of.first, of.tiles_m(), tiles_n);
        const index_t begin_m = static_cast<index_t>(at.m) * BLOCK_M,
                      begin_n = static_cast<index_t>(at.n) * BLOCK_N;
        multiply_tile<T, true, B_BY_ROWS, BLOCK_M, BLOCK_N, BLOCK_K, WARPS_M, WARPS_N, STAGES>(
            a_ptr + of.begin * lda, b_ptr + of.group * stride_bg, c_ptr + of.begin * N, of.rows(), N, K, lda,
            ldb, begin_m, begin_n, Identity());
        cp_async_wait<0>();
        __syncthreads();  // no copy is in flight, and all have read the last tile
    }
}
