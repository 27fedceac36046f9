// fp8_block_matmul, level 3, prefetched. Change: scales are loaded four blocks of K ahead. In persistent
// their loads start with the products and return after them: partial sums wait for an L2 hit. Beside that,
// TMA stores c, as in scaled_matmul's persistent.
#pragma once

#include "fp8_block_matmul/prefetched_scales.cuh"

// Grid: persistent, tiles of c are assigned round-robin. Warpgroups as in specialized. C_ALIGNED: rows of c
// are 16-byte aligned.
template <int BLOCK_N, int STAGES, int GROUP_M, bool C_ALIGNED>
__global__ __launch_bounds__((1 + CONSUMERS) * WARPGROUP, 1) void fp8_block_matmul_prefetched_kernel(
    const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap b_map,
    const __grid_constant__ TensorMap c_map, const float* scale_a_ptr, const float* scale_b_ptr,
    __nv_bfloat16* c_ptr, int M, int N, int blocks_k) {
#if HAS_WGMMA_LEVELS
    constexpr int BYTES = STAGE_BYTES<BLOCK_M, BLOCK_N>;
    constexpr int PART_N = ::PART_N<BLOCK_N>, PARTS = ::PARTS<BLOCK_N>;
    DYNAMIC_SHARED(unsigned char, shared);
    unsigned char* const stages = align_1024(shared);
    __shared__ mbarrier_t full[STAGES], empty[STAGES];
    const int tiles_m = (M + BLOCK_M - 1) / BLOCK_M, tiles_n = (N + BLOCK_N - 1) / BLOCK_N;
    const int tiles = tiles_m * tiles_n;
    const int group = __shfl_sync(FULL_WARP, threadIdx.x / WARPGROUP, 0);

    if (threadIdx.x == 0) {
        prefetch_tensor_map(&a_map);
        prefetch_tensor_map(&b_map);
        if (C_ALIGNED) prefetch_tensor_map(&c_map);
        for (int stage = 0; stage < STAGES; ++stage) {
            mbarrier_init(&full[stage], 1);
            mbarrier_init(&empty[stage], CONSUMERS);
        }
        mbarrier_init_fence();
    }
    __syncthreads();

    Ring<STAGES> ring;
    if (group == 0) {
        setmaxnreg_dec<PRODUCER_REGISTERS>();
        if (threadIdx.x > 0) return;
        for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
            const TileCoordinates at = grouped_tile<GROUP_M>(tile, tiles_m, tiles_n);
            for (int k = 0; k < blocks_k; ++k, ring.advance()) {
                mbarrier_wait(&empty[ring.stage], ring.parity ^ 1);
                fetch_tiles<BLOCK_M, BLOCK_N>(
                    stages + ring.stage * BYTES, &a_map, &b_map, at.m * BLOCK_M, at.n * BLOCK_N, k * BLOCK_K,
                    M, &full[ring.stage]);
            }
        }
    } else {
        setmaxnreg_inc<CONSUMER_REGISTERS>();
        const int first_row = (group - 1) * WARPGROUP_M;
        const matrix_t a_first = matrix_descriptor(stages + first_row * BLOCK_K, 0);
        const matrix_t b_first = matrix_descriptor(stages + BLOCK_M * BLOCK_K, 0);
        PrefetchedScales<PARTS> scales({scale_a_ptr, scale_b_ptr, blocks_k}, M, N);
        const auto coordinates = [&](int tile) { return grouped_tile<GROUP_M>(tile, tiles_m, tiles_n); };
        const auto prefetch = [&](int tile) {
            const TileCoordinates at = coordinates(tile);
            scales.start(at.m * BLOCK_M + first_row, at.n * BLOCK_N);
        };
        if (blockIdx.x < unsigned(tiles)) prefetch(blockIdx.x);
        for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
            const TileCoordinates at = coordinates(tile);
            const int m = at.m * BLOCK_M + first_row, n = at.n * BLOCK_N;
            float sum[PARTS][PART_N / 2] = {};
            scales.advance(0);
            for (int k = 0; k < blocks_k; ++k, ring.advance()) {
                const matrix_t step = ring.stage * (BYTES >> 4);
                mbarrier_wait(&full[ring.stage], ring.parity);
#pragma unroll
                for (int i = 0; i < PARTS; ++i) {
                    float part[PART_N / 2];
                    wgmma_fence();
                    multiply(part, a_first + step, b_first + step + i * (PART_N * BLOCK_K >> 4), false);
                    wgmma_commit_group();
                    const BlockScale scale = scales.of(i, k);
                    if (i == PARTS - 1 && k % 4 == 3) scales.advance(k + 1);
                    wgmma_wait_group<0>(part);
                    if (i == PARTS - 1 && threadIdx.x % WARPGROUP == 0) mbarrier_arrive(&empty[ring.stage]);
                    scale.add(sum[i], part);
                }
            }
            if (tile + gridDim.x < unsigned(tiles)) prefetch(tile + gridDim.x);  // overlaps with the stores
#pragma unroll
            for (int i = 0; i < PARTS; ++i) {
                const int column = n + i * PART_N;
                if constexpr (C_ALIGNED) {
                    tma_store_sums<PART_N>(&c_map, stages + STAGES * BYTES, sum[i], Unscaled(), m, column);
                } else {
                    store_rows(c_ptr, sum[i], m + own_row(), column, M, N);
                }
            }
        }
        if (C_ALIGNED && threadIdx.x % WARP == 0) bulk_wait_group_read<0>();
    }
#endif
}
