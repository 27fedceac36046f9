// fp8_matmul's level promoted. Change: the accumulator. Tensor cores add products of e4m3 with 13 bits behind
// the leading one, and lose more the longer a sum is. Here their sums end after 128 of K and are added in
// fp32 registers. That takes twice the registers per element of c, so a warpgroup multiplies half of a tile's
// columns after the other; while one warpgroup adds, the other one's products run. Source of the idea:
// DeepSeek-AI, "DeepSeek-V3 Technical Report", section 3.3.2.
#pragma once

#include "scaled_matmul/tiles.cuh"

// Grid: persistent, tiles of c of 128 x BLOCK_N assigned round-robin; all else as in persistent.
template <int BLOCK_N, int STAGES, bool C_ALIGNED>
__global__ __launch_bounds__((1 + CONSUMERS) * WARPGROUP, 1) void scaled_matmul_promoted_kernel(
    const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap b_map,
    const __grid_constant__ TensorMap c_map, const float* scale_a_ptr, const float* scale_b_ptr,
    __nv_bfloat16* c_ptr, int M, int N, int K) {
#if HAS_WGMMA_LEVELS
    constexpr int BLOCK_M = CONSUMERS * WARPGROUP_M, BYTES = STAGE_BYTES<BLOCK_M, BLOCK_N>;
    constexpr int GROUP_M = 16, PART_N = ::PART_N<BLOCK_N>, PARTS = ::PARTS<BLOCK_N>;
    DYNAMIC_SHARED(unsigned char, shared);
    unsigned char* const tiles = align_1024(shared);
    __shared__ mbarrier_t full[STAGES], empty[STAGES];
    const int tiles_m = (M + BLOCK_M - 1) / BLOCK_M, tiles_n = (N + BLOCK_N - 1) / BLOCK_N;
    const int tiles_c = tiles_m * tiles_n, tiles_k = (K + BLOCK_K - 1) / BLOCK_K;
    const int warpgroup = __shfl_sync(FULL_WARP, threadIdx.x / WARPGROUP, 0);

    if (threadIdx.x == 0) {
        for (int stage = 0; stage < STAGES; ++stage) {
            mbarrier_init(&full[stage], 1);
            mbarrier_init(&empty[stage], CONSUMERS);
        }
        mbarrier_init_fence();
    }
    __syncthreads();

    Ring<STAGES> ring;
    if (warpgroup == 0) {
        setmaxnreg_dec<PRODUCER_REGISTERS>();
        if (threadIdx.x > 0) return;
        for (int tile = blockIdx.x; tile < tiles_c; tile += gridDim.x) {
            const TileCoordinates at = grouped_tile<GROUP_M>(tile, tiles_m, tiles_n);
            for (int k = 0; k < tiles_k; ++k, ring.advance()) {
                mbarrier_wait(&empty[ring.stage], ring.parity ^ 1);
                fetch_tiles<BLOCK_M, BLOCK_N>(
                    tiles + ring.stage * BYTES, &a_map, &b_map, at.m * BLOCK_M, at.n * BLOCK_N, k * BLOCK_K,
                    M, &full[ring.stage]);
            }
        }
    } else {
        setmaxnreg_inc<CONSUMER_REGISTERS>();
        const int first = (warpgroup - 1) * WARPGROUP_M;  // of the tile's rows
        const matrix_t a_first = matrix_descriptor(tiles + first * BLOCK_K, 0);
        const matrix_t b_first = matrix_descriptor(tiles + BLOCK_M * BLOCK_K, 0);
        for (int tile = blockIdx.x; tile < tiles_c; tile += gridDim.x) {
            const TileCoordinates at = grouped_tile<GROUP_M>(tile, tiles_m, tiles_n);
            float sum[PARTS][PART_N / 2] = {};
            for (int k = 0; k < tiles_k; ++k, ring.advance()) {
                const matrix_t step = ring.stage * (BYTES >> 4);
                mbarrier_wait(&full[ring.stage], ring.parity);
#pragma unroll
                for (int i = 0; i < PARTS; ++i) {
                    const matrix_t b = b_first + step + i * (PART_N * BLOCK_K >> 4);
                    float part[PART_N / 2];
                    wgmma_fence();
                    multiply(part, a_first + step, b, false);
                    wgmma_commit_group();
                    wgmma_wait_group<0>(part);
                    if (i == PARTS - 1 && threadIdx.x % WARPGROUP == 0) mbarrier_arrive(&empty[ring.stage]);
#pragma unroll
                    for (int j = 0; j < PART_N / 2; ++j) sum[i][j] += part[j];
                }
            }
#pragma unroll
            for (int i = 0; i < PARTS; ++i) {
                const int m = at.m * BLOCK_M + first, n = at.n * BLOCK_N + i * PART_N;
                if constexpr (C_ALIGNED) {
                    const Scales<PART_N> scales(scale_a_ptr, scale_b_ptr, m, n, M, N);
                    tma_store_sums<PART_N>(&c_map, tiles + STAGES * BYTES, sum[i], scales, m, n);
                } else {
                    store_sums(c_ptr, sum[i], scale_a_ptr, scale_b_ptr, m, n, M, N);
                }
            }
        }
        if (C_ALIGNED && threadIdx.x % WARP == 0) bulk_wait_group_read<0>();
    }
#endif
}
