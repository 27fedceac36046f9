// matmul, level 9, wgmma. Change: Hopper's own units, sm_90a. wgmma multiplies tiles of shared memory, row-
// or column-major, so that no operand passes through registers; TMA fills them: one thread names a box of a
// matrix, an mbarrier counts its bytes. No thread computes an address of an element of a or b any more.
#pragma once

#include "common.cuh"
#include "matmul/tma_tiles.cuh"

// a[M,K] @ b[K,N] -> c[M,N]. Grid: one block of one warpgroup per tile of c of 128 x 128, row by row. One
// thread issues the TMA loads of a pipeline of STAGES stages. A stage is refilled when all warps have read
// it.
template <typename T, bool A_BY_ROWS, bool B_BY_ROWS, int STAGES>
__global__ __launch_bounds__(WARPGROUP) void matmul_wgmma_kernel(
    const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap b_map, T* c_ptr, int M, int N,
    int K) {
#if HAS_WGMMA_LEVELS
    constexpr int BLOCK_M = 128, BLOCK_N = 128, BLOCK_K = PIECE;
    constexpr int A_BYTES = BLOCK_M * BLOCK_K * 2, BYTES = A_BYTES + BLOCK_N * BLOCK_K * 2;
    DYNAMIC_SHARED(unsigned char, shared);
    unsigned char* const tiles = align_1024(shared);
    __shared__ mbarrier_t landed[STAGES];
    const int tiles_n = (N + BLOCK_N - 1) / BLOCK_N, tiles_k = (K + BLOCK_K - 1) / BLOCK_K;
    const int m = blockIdx.x / tiles_n * BLOCK_M, n = blockIdx.x % tiles_n * BLOCK_N;
    const auto fetch = [&](int stage, int k) {
        fetch_tiles<A_BY_ROWS, B_BY_ROWS, BLOCK_M, BLOCK_N>(
            tiles + stage * BYTES, &a_map, &b_map, m, n, k, &landed[stage]);
    };

    if (threadIdx.x == 0) {
        for (int stage = 0; stage < STAGES; ++stage) mbarrier_init(&landed[stage], 1);
        mbarrier_init_fence();
        for (int stage = 0; stage < STAGES && stage < tiles_k; ++stage) fetch(stage, stage * BLOCK_K);
    }
    __syncthreads();

    float top[BLOCK_N / 2], bottom[BLOCK_N / 2];  // rows 0 to 63 and 64 to 127
    Ring<STAGES> ring;
    for (int tile = 0; tile < tiles_k; ++tile, ring.advance()) {
        const unsigned char* const a = tiles + ring.stage * BYTES;
        mbarrier_wait(&landed[ring.stage], ring.parity);
        wgmma_fence();
        multiply<T, A_BY_ROWS, B_BY_ROWS>(top, a, a + A_BYTES, tile > 0);
        multiply<T, A_BY_ROWS, B_BY_ROWS>(bottom, a + PIECE_BYTES, a + A_BYTES, tile > 0);
        wgmma_commit_group();
        wgmma_wait_group<0>(top);
        wgmma_wait_group<0>(bottom);
        __syncthreads();  // all warps have read this stage
        if (threadIdx.x == 0 && tile + STAGES < tiles_k) fetch(ring.stage, (tile + STAGES) * BLOCK_K);
    }
    store_sums(c_ptr, top, m, n, M, N);
    store_sums(c_ptr, bottom, m + PIECE, n, M, N);
#endif
}
