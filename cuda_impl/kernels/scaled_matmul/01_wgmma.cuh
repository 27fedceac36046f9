// int8_matmul's and fp8_matmul's level wgmma. Hopper's own units: TMA fills shared memory, wgmma multiplies
// tiles there, 32 of K an instruction, in int32 or in the tensor cores' own fp22. Scales are applied to the
// finished sums.
#pragma once

#include "scaled_matmul/tiles.cuh"

// a[M,K] @ b[N,K].T -> c[M,N]. Grid: one block of one warpgroup per tile of c of 128 x 128, row by row. One
// thread issues the TMA loads of a pipeline of STAGES stages. A stage is refilled when all warps have read
// it.
template <typename Sum, int STAGES>
__global__ __launch_bounds__(WARPGROUP) void scaled_matmul_wgmma_kernel(
    const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap b_map,
    const float* scale_a_ptr, const float* scale_b_ptr, __nv_bfloat16* c_ptr, int M, int N, int K) {
#if HAS_WGMMA_LEVELS
    constexpr int BLOCK_M = 2 * WARPGROUP_M, BLOCK_N = 128, BYTES = STAGE_BYTES<BLOCK_M, BLOCK_N>;
    DYNAMIC_SHARED(unsigned char, shared);
    unsigned char* const tiles = align_1024(shared);
    __shared__ mbarrier_t landed[STAGES];
    const int tiles_n = (N + BLOCK_N - 1) / BLOCK_N, tiles_k = (K + BLOCK_K - 1) / BLOCK_K;
    const int m = blockIdx.x / tiles_n * BLOCK_M, n = blockIdx.x % tiles_n * BLOCK_N;
    const auto fetch = [&](int stage, int k) {
        fetch_tiles<BLOCK_M, BLOCK_N>(tiles + stage * BYTES, &a_map, &b_map, m, n, k, M, &landed[stage]);
    };

    if (threadIdx.x == 0) {
        for (int stage = 0; stage < STAGES; ++stage) mbarrier_init(&landed[stage], 1);
        mbarrier_init_fence();
        for (int stage = 0; stage < STAGES && stage < tiles_k; ++stage) fetch(stage, stage * BLOCK_K);
    }
    __syncthreads();

    Sum top[BLOCK_N / 2], bottom[BLOCK_N / 2];  // rows 0 to 63 and 64 to 127
    const matrix_t a_first = matrix_descriptor(tiles, 0);
    const matrix_t b_first = matrix_descriptor(tiles + BLOCK_M * BLOCK_K, 0);
    Ring<STAGES> ring;
    for (int tile = 0; tile < tiles_k; ++tile, ring.advance()) {
        const matrix_t step = ring.stage * (BYTES >> 4), a = a_first + step, b = b_first + step;
        mbarrier_wait(&landed[ring.stage], ring.parity);
        wgmma_fence();
        multiply(top, a, b, tile > 0);
        multiply(bottom, a + (WARPGROUP_M * BLOCK_K >> 4), b, tile > 0);
        wgmma_commit_group();
        wgmma_wait_group<0>(top);
        wgmma_wait_group<0>(bottom);
        __syncthreads();  // all warps have read this stage
        if (threadIdx.x == 0 && tile + STAGES < tiles_k) fetch(ring.stage, (tile + STAGES) * BLOCK_K);
    }
    store_sums(c_ptr, top, scale_a_ptr, scale_b_ptr, m, n, M, N);
    store_sums(c_ptr, bottom, scale_a_ptr, scale_b_ptr, m + WARPGROUP_M, n, M, N);
#endif
}
