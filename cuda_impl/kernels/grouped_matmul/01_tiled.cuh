// grouped_matmul, level 1, tiled. One launch for all groups: the grid is as large as it would be if every
// group's last tile had one row, and a block finds its group by a search in the offsets. Blocks that are left
// over end at once.
#pragma once

#include "grouped_matmul/tiles.cuh"
#include "matmul/08_tensor_core.cuh"

// a[M,K], b[G,K,N], offsets[G] -> c[M,N]. Grid: one block per tile of c of BLOCK_M x BLOCK_N, a group's row
// by row.
template <
    typename T, bool B_BY_ROWS, int BLOCK_M, int BLOCK_N, int BLOCK_K, int WARPS_M, int WARPS_N, int STAGES>
__global__ __launch_bounds__(WARPS_M * WARPS_N * WARP, 2) void grouped_matmul_tiled_kernel(
    const T* a_ptr, const T* b_ptr, T* c_ptr, const int* offsets_ptr, index_t N, index_t K, int G,
    index_t lda, index_t ldb, index_t stride_bg) {
    const int tile = blockIdx.x, tiles_n = static_cast<int>((N + BLOCK_N - 1) / BLOCK_N);
    Groups<BLOCK_M> of(offsets_ptr, G, tiles_n);
    if (!of.find(tile)) return;
    const index_t begin_m = (tile - of.first) / tiles_n * BLOCK_M,
                  begin_n = (tile - of.first) % tiles_n * BLOCK_N;
    multiply_tile<T, true, B_BY_ROWS, BLOCK_M, BLOCK_N, BLOCK_K, WARPS_M, WARPS_N, STAGES>(
        a_ptr + of.begin * lda, b_ptr + of.group * stride_bg, c_ptr + of.begin * N, of.rows(), N, K, lda, ldb,
        begin_m, begin_n, Identity());
}
