// int8_matmul's and fp8_matmul's level persistent. Change: no wait between tiles. One block per
// multiprocessor computes tile after tile, in grouped order, for the L2. The ring continues across tiles:
// while the consumers write c, the producer prefetches the next tile. c goes through shared memory, and TMA
// stores it in whole lines while the next tile is multiplied.
#pragma once

#include "scaled_matmul/tiles.cuh"

// Grid: persistent, tiles of c of 128 x BLOCK_N assigned round-robin. Warpgroups as in specialized. Without
// C_ALIGNED, rows of c are not 16-byte aligned, and c is stored from registers.
template <typename Sum, int BLOCK_N, int STAGES, bool C_ALIGNED>
__global__ __launch_bounds__((1 + CONSUMERS) * WARPGROUP, 1) void scaled_matmul_persistent_kernel(
    const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap b_map,
    const __grid_constant__ TensorMap c_map, const float* scale_a_ptr, const float* scale_b_ptr,
    __nv_bfloat16* c_ptr, int M, int N, int K) {
#if HAS_WGMMA_LEVELS
    constexpr int BLOCK_M = CONSUMERS * WARPGROUP_M, BYTES = STAGE_BYTES<BLOCK_M, BLOCK_N>, GROUP_M = 16;
    DYNAMIC_SHARED(unsigned char, shared);
    unsigned char* const tiles = align_1024(shared);
    __shared__ mbarrier_t full[STAGES], empty[STAGES];
    const int tiles_m = (M + BLOCK_M - 1) / BLOCK_M, tiles_n = (N + BLOCK_N - 1) / BLOCK_N;
    const int tiles_c = tiles_m * tiles_n, tiles_k = (K + BLOCK_K - 1) / BLOCK_K;
    const int warpgroup = __shfl_sync(FULL_WARP, threadIdx.x / WARPGROUP, 0);

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
        const int consumer = warpgroup - 1;
        const bool releases = threadIdx.x % WARPGROUP == 0;
        const matrix_t a_first = matrix_descriptor(tiles + consumer * WARPGROUP_M * BLOCK_K, 0);
        const matrix_t b_first = matrix_descriptor(tiles + BLOCK_M * BLOCK_K, 0);
        Sum sum[BLOCK_N / 2];
        for (int tile = blockIdx.x; tile < tiles_c; tile += gridDim.x) {
            const TileCoordinates at = grouped_tile<GROUP_M>(tile, tiles_m, tiles_n);
            const int m = at.m * BLOCK_M + consumer * WARPGROUP_M, n = at.n * BLOCK_N;
            int before = 0;
            for (int k = 0; k < tiles_k; ++k, ring.advance()) {
                const matrix_t step = ring.stage * (BYTES >> 4);
                mbarrier_wait(&full[ring.stage], ring.parity);
                wgmma_fence();
                multiply(sum, a_first + step, b_first + step, k > 0);
                wgmma_commit_group();
                wgmma_wait_group<1>(sum);
                if (k > 0 && releases) mbarrier_arrive(&empty[before]);
                before = ring.stage;
            }
            // Loads overlap with the last product.
            const Scales<BLOCK_N> scales(scale_a_ptr, scale_b_ptr, m, n, M, N);
            wgmma_wait_group<0>(sum);
            if (releases) mbarrier_arrive(&empty[before]);
            if constexpr (C_ALIGNED) {
                tma_store_sums<BLOCK_N>(&c_map, tiles + STAGES * BYTES, sum, scales, m, n);
            } else {
                store_sums(c_ptr, sum, scale_a_ptr, scale_b_ptr, m, n, M, N);
            }
        }
        if (C_ALIGNED && threadIdx.x % WARP == 0) bulk_wait_group_read<0>();
    }
#endif
}
