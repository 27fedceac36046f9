// matmul, level 12, multicast. Change: the two blocks of a cluster have tiles of c in one column, which need
// the same tile of b. Each loads half of it, and TMA multicast writes that half into both: a third less to
// load. So a stage is empty when the consumers of both blocks have released it, and full when both producers'
// copies have landed.
#pragma once

#include "common.cuh"
#include "matmul/tma_tiles.cuh"

// a[M,K] @ b[K,N] -> c[M,N]. Grid: persistent, clusters of two blocks; pairs of tiles of c of 128 x BLOCK_N
// are assigned round-robin. Warpgroups as in specialized.
template <typename T, bool A_BY_ROWS, bool B_BY_ROWS, int BLOCK_N, int STAGES>
__global__ __launch_bounds__((1 + CONSUMERS) * WARPGROUP, 1) CLUSTER_OF(2) void matmul_multicast_kernel(
    const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap b_map, T* c_ptr, int M, int N,
    int K) {
#if HAS_WGMMA_LEVELS
    constexpr int BLOCK_M = CONSUMERS * PIECE, BLOCK_K = PIECE, GROUP_M = 8, CLUSTER = 2;
    constexpr int A_BYTES = BLOCK_M * BLOCK_K * 2, BYTES = A_BYTES + BLOCK_N * BLOCK_K * 2;
    constexpr int HALF_N = BLOCK_N / CLUSTER;
    DYNAMIC_SHARED(unsigned char, shared);
    unsigned char* const tiles = align_1024(shared);
    __shared__ mbarrier_t full[STAGES], empty[STAGES];
    const int rank = cluster_block_rank();
    const int tiles_m = (M + CLUSTER * BLOCK_M - 1) / (CLUSTER * BLOCK_M);  // of both blocks together
    const int tiles_n = (N + BLOCK_N - 1) / BLOCK_N;
    const int tiles_c = tiles_m * tiles_n, tiles_k = (K + BLOCK_K - 1) / BLOCK_K;
    const int cluster = blockIdx.x / CLUSTER, clusters = gridDim.x / CLUSTER;
    const int warpgroup = __shfl_sync(FULL_WARP, threadIdx.x / WARPGROUP, 0);  // now warp-uniform

    if (threadIdx.x == 0) {
        prefetch_tensor_map(&a_map);
        prefetch_tensor_map(&b_map);
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
        for (int tile = cluster; tile < tiles_c; tile += clusters) {
            const TileCoordinates at = grouped_tile<GROUP_M>(tile, tiles_m, tiles_n);
            const int m = (at.m * CLUSTER + rank) * BLOCK_M, n = at.n * BLOCK_N + rank * HALF_N;
            for (int k = 0; k < tiles_k * BLOCK_K; k += BLOCK_K, ring.advance()) {
                unsigned char* const a = tiles + ring.stage * BYTES;
                unsigned char* const b = a + A_BYTES + rank * HALF_N * BLOCK_K * 2;
                mbarrier_t* const landed = &full[ring.stage];
                mbarrier_wait(&empty[ring.stage], ring.parity ^ 1);
                mbarrier_arrive_expect_bytes(landed, BYTES);  // own copies and the other block's half of b
                fetch_tile<A_BY_ROWS, BLOCK_M>(a, m, k, [&](unsigned char* to, int column, int row) {
                    tensor_copy_to_shared(to, &a_map, column, row, landed);
                });
                fetch_tile<!B_BY_ROWS, HALF_N>(b, n, k, [&](unsigned char* to, int column, int row) {
                    tensor_copy_to_blocks(to, &b_map, column, row, landed, 0b11);
                });
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
        float sum[BLOCK_N / 2];
        for (int tile = cluster; tile < tiles_c; tile += clusters) {
            const TileCoordinates at = grouped_tile<GROUP_M>(tile, tiles_m, tiles_n);
            int before = 0;
            for (int k = 0; k < tiles_k; ++k, ring.advance()) {
                const unsigned char* const a = tiles + ring.stage * BYTES;
                mbarrier_wait(&full[ring.stage], ring.parity);
                wgmma_fence();
                multiply<T, A_BY_ROWS, B_BY_ROWS>(sum, a + consumer * PIECE_BYTES, a + A_BYTES, k > 0);
                wgmma_commit_group();
                wgmma_wait_group<1>(sum);
                if (k > 0) release(before);
                before = ring.stage;
            }
            wgmma_wait_group<0>(sum);
            release(before);
            const int m = (at.m * CLUSTER + rank) * BLOCK_M + consumer * PIECE;
            store_sums(c_ptr, sum, m, at.n * BLOCK_N, M, N);
        }
    }
#endif
}
