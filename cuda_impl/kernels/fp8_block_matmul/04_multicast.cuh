// fp8_block_matmul, level 4, multicast. Change: the two blocks of a cluster share a tile of b, or of a, as in
// scaled_matmul's multicast. Each loads half of it, and TMA multicast writes that half into both: a third
// less to load. Where b is read once, it gets a cache hint.
#pragma once

#include "fp8_block_matmul/prefetched_scales.cuh"

// Grid: persistent, clusters of two blocks; pairs of tiles of c are assigned round-robin. All else as in
// prefetched.
template <int BLOCK_N, int STAGES, int GROUP_M, bool C_ALIGNED>
__global__ __launch_bounds__((1 + CONSUMERS) * WARPGROUP, 1)
    CLUSTER_OF(2) void fp8_block_matmul_multicast_kernel(
        const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap b_map,
        const __grid_constant__ TensorMap c_map, const float* scale_a_ptr, const float* scale_b_ptr,
        __nv_bfloat16* c_ptr, int M, int N, int blocks_k) {
#if HAS_WGMMA_LEVELS
    constexpr int BYTES = STAGE_BYTES<BLOCK_M, BLOCK_N>;
    constexpr int PART_N = ::PART_N<BLOCK_N>, PARTS = ::PARTS<BLOCK_N>;
    constexpr int CLUSTER = 2, CLUSTER_M = SHARES_B<BLOCK_N> ? 2 : 1, CLUSTER_N = CLUSTER / CLUSTER_M;
    DYNAMIC_SHARED(unsigned char, shared);
    unsigned char* const stages = align_1024(shared);
    __shared__ mbarrier_t full[STAGES], empty[STAGES];
    const int rank = cluster_block_rank();
    const int rank_m = SHARES_B<BLOCK_N> ? rank : 0, rank_n = rank - rank_m;
    const int tiles_m = (M + CLUSTER_M * BLOCK_M - 1) / (CLUSTER_M * BLOCK_M);  // of both blocks together
    const int tiles_n = (N + CLUSTER_N * BLOCK_N - 1) / (CLUSTER_N * BLOCK_N);
    const int tiles = tiles_m * tiles_n, cluster = blockIdx.x / CLUSTER, clusters = gridDim.x / CLUSTER;
    const int group = __shfl_sync(FULL_WARP, threadIdx.x / WARPGROUP, 0);

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

    // The first row and column of this block's tile of c.
    const auto coordinates = [&](int tile) {
        const TileCoordinates at = grouped_tile<GROUP_M>(tile, tiles_m, tiles_n);
        return TileCoordinates{(at.m * CLUSTER_M + rank_m) * BLOCK_M, (at.n * CLUSTER_N + rank_n) * BLOCK_N};
    };
    Ring<STAGES> ring;
    if (group == 0) {
        setmaxnreg_dec<PRODUCER_REGISTERS>();
        if (threadIdx.x > 0) return;
        // One row of tiles reads b once: the L2 keeps a instead, which all blocks read.
        const cache_policy_t of_a = M <= BLOCK_M ? evict_last_policy() : NO_POLICY;
        const cache_policy_t of_b = M <= BLOCK_M ? evict_first_policy() : NO_POLICY;
        const int half = rank * (SHARES_B<BLOCK_N> ? BLOCK_N : lines_of_a<BLOCK_M>(M)) / CLUSTER;
        for (int tile = cluster; tile < tiles; tile += clusters) {
            const TileCoordinates at = coordinates(tile);
            for (int k = 0; k < blocks_k * BLOCK_K; k += BLOCK_K, ring.advance()) {
                mbarrier_wait(&empty[ring.stage], ring.parity ^ 1);
                fetch_with_neighbour<BLOCK_M, BLOCK_N>(
                    stages + ring.stage * BYTES, &a_map, &b_map, at.m, at.n, k, M, half, &full[ring.stage],
                    of_a, of_b);
            }
        }
        // The other block still arrives on this block's mbarriers: do not exit until all stages are empty.
        for (int stage = 0; stage < STAGES; ++stage, ring.advance()) {
            mbarrier_wait(&empty[ring.stage], ring.parity ^ 1);
        }
    } else {
        setmaxnreg_inc<CONSUMER_REGISTERS>();
        const int first_row = (group - 1) * WARPGROUP_M;
        const matrix_t a_first = matrix_descriptor(stages + first_row * BLOCK_K, 0);
        const matrix_t b_first = matrix_descriptor(stages + BLOCK_M * BLOCK_K, 0);
        PrefetchedScales<PARTS> scales({scale_a_ptr, scale_b_ptr, blocks_k}, M, N);
        const auto prefetch = [&](int tile) {
            const TileCoordinates at = coordinates(tile);
            scales.start(at.m + first_row, at.n);
        };
        if (cluster < tiles) prefetch(cluster);
        for (int tile = cluster; tile < tiles; tile += clusters) {
            const TileCoordinates at = coordinates(tile);
            const int m = at.m + first_row, n = at.n;
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
                    if (i == PARTS - 1) {  // thread r of a consumer arrives at block r's mbarrier
                        const int r = threadIdx.x % WARPGROUP;
                        if (r < CLUSTER) mbarrier_arrive_in_block(&empty[ring.stage], r);
                    }
                    scale.add(sum[i], part);
                }
            }
            if (tile + clusters < tiles) prefetch(tile + clusters);  // overlaps with the stores
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
