// int8_matmul's and fp8_matmul's level multicast. Change: the two blocks of a cluster have tiles of c in one
// column, which need the same tile of b. Each loads half of it, and TMA multicast writes that half into both:
// a third less to load, which twice the rate of 16-bit products makes worth it. Tiles of 64 columns are in
// one row instead and share a: where M is small, a tile of a is the larger; then b gets a cache hint. A stage
// is empty when the consumers of both blocks have released it, and full when both producers' copies have
// landed.
#pragma once

#include "scaled_matmul/tiles.cuh"

// Grid: persistent, clusters of two blocks; pairs of tiles of c of 128 x BLOCK_N are assigned round-robin.
// Warpgroups and C_ALIGNED as in persistent.
template <typename Sum, int BLOCK_N, int STAGES, bool C_ALIGNED>
__global__ __launch_bounds__((1 + CONSUMERS) * WARPGROUP, 1)
    CLUSTER_OF(2) void scaled_matmul_multicast_kernel(
        const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap b_map,
        const __grid_constant__ TensorMap c_map, const float* scale_a_ptr, const float* scale_b_ptr,
        __nv_bfloat16* c_ptr, int M, int N, int K) {
#if HAS_WGMMA_LEVELS
    constexpr int BLOCK_M = CONSUMERS * WARPGROUP_M, BYTES = STAGE_BYTES<BLOCK_M, BLOCK_N>, GROUP_M = 8;
    constexpr int CLUSTER = 2, CLUSTER_M = SHARES_B<BLOCK_N> ? 2 : 1, CLUSTER_N = CLUSTER / CLUSTER_M;
    DYNAMIC_SHARED(unsigned char, shared);
    unsigned char* const tiles = align_1024(shared);
    __shared__ mbarrier_t full[STAGES], empty[STAGES];
    const int rank = cluster_block_rank();
    const int rank_m = SHARES_B<BLOCK_N> ? rank : 0, rank_n = rank - rank_m;
    const int tiles_m = (M + CLUSTER_M * BLOCK_M - 1) / (CLUSTER_M * BLOCK_M);  // of both blocks together
    const int tiles_n = (N + CLUSTER_N * BLOCK_N - 1) / (CLUSTER_N * BLOCK_N);
    const int tiles_c = tiles_m * tiles_n, tiles_k = (K + BLOCK_K - 1) / BLOCK_K;
    const int cluster = blockIdx.x / CLUSTER, clusters = gridDim.x / CLUSTER;
    const int warpgroup = __shfl_sync(FULL_WARP, threadIdx.x / WARPGROUP, 0);

    if (threadIdx.x == 0) {
        prefetch_tensor_map(&a_map);
        prefetch_tensor_map(&b_map);
        if (C_ALIGNED) prefetch_tensor_map(&c_map);
        for (int stage = 0; stage < STAGES; ++stage) {
            mbarrier_init(&full[stage], 1);
            mbarrier_init(&empty[stage], CONSUMERS * CLUSTER);
        }
        mbarrier_init_fence();
    }
    __syncwarp();
    cluster_arrive_relaxed();
    cluster_wait();  // both blocks' mbarriers are initialised before any copy or arrival

    Ring<STAGES> ring;
    if (warpgroup == 0) {
        setmaxnreg_dec<PRODUCER_REGISTERS>();
        if (threadIdx.x > 0) return;
        // One row of tiles reads b once: the L2 keeps a instead, which all blocks read.
        const cache_policy_t of_a = M <= BLOCK_M ? evict_last_policy() : NO_POLICY;
        const cache_policy_t of_b = M <= BLOCK_M ? evict_first_policy() : NO_POLICY;
        const int half = rank * (SHARES_B<BLOCK_N> ? BLOCK_N : lines_of_a<BLOCK_M>(M)) / CLUSTER;
        for (int tile = cluster; tile < tiles_c; tile += clusters) {
            const TileCoordinates at = grouped_tile<GROUP_M>(tile, tiles_m, tiles_n);
            const int m = (at.m * CLUSTER_M + rank_m) * BLOCK_M;
            const int n = (at.n * CLUSTER_N + rank_n) * BLOCK_N;
            for (int k = 0; k < tiles_k * BLOCK_K; k += BLOCK_K, ring.advance()) {
                mbarrier_wait(&empty[ring.stage], ring.parity ^ 1);
                fetch_with_neighbour<BLOCK_M, BLOCK_N>(
                    tiles + ring.stage * BYTES, &a_map, &b_map, m, n, k, M, half, &full[ring.stage], of_a,
                    of_b);
            }
        }
        // The other block still arrives on this block's mbarriers: do not exit until all stages are empty.
        for (int stage = 0; stage < STAGES; ++stage, ring.advance()) {
            mbarrier_wait(&empty[ring.stage], ring.parity ^ 1);
        }
    } else {
        setmaxnreg_inc<CONSUMER_REGISTERS>();
        const int consumer = warpgroup - 1;
        const auto release = [&](int stage) {  // thread r of a consumer arrives at block r's mbarrier
            const int r = threadIdx.x % WARPGROUP;
            if (r < CLUSTER) mbarrier_arrive_in_block(&empty[stage], r);
        };
        const matrix_t a_first = matrix_descriptor(tiles + consumer * WARPGROUP_M * BLOCK_K, 0);
        const matrix_t b_first = matrix_descriptor(tiles + BLOCK_M * BLOCK_K, 0);
        Sum sum[BLOCK_N / 2];
        for (int tile = cluster; tile < tiles_c; tile += clusters) {
            const TileCoordinates at = grouped_tile<GROUP_M>(tile, tiles_m, tiles_n);
            const int m = (at.m * CLUSTER_M + rank_m) * BLOCK_M + consumer * WARPGROUP_M;
            const int n = (at.n * CLUSTER_N + rank_n) * BLOCK_N;
            int before = 0;
            for (int k = 0; k < tiles_k; ++k, ring.advance()) {
                const matrix_t step = ring.stage * (BYTES >> 4);
                mbarrier_wait(&full[ring.stage], ring.parity);
                wgmma_fence();
                multiply(sum, a_first + step, b_first + step, k > 0);
                wgmma_commit_group();
                wgmma_wait_group<1>(sum);
                if (k > 0) release(before);
                before = ring.stage;
            }
            // Loads overlap with the last product.
            const Scales<BLOCK_N> scales(scale_a_ptr, scale_b_ptr, m, n, M, N);
            wgmma_wait_group<0>(sum);
            release(before);
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
