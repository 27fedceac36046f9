// matmul, level 11, persistent. Change: one block per multiprocessor computes tile after tile. The ring
// continues across tiles: while the consumers write c, the producer prefetches the next tile. Tiles are in
// grouped order, for the L2.
#pragma once

#include "common.cuh"
#include "matmul/tma_tiles.cuh"

// a[M,K] @ b[K,N] -> c[M,N]. Grid: persistent, tiles of c of 128 x BLOCK_N assigned round-robin. Warpgroups
// as in specialized.
template <typename T, bool A_BY_ROWS, bool B_BY_ROWS, int BLOCK_N, int STAGES>
__global__ __launch_bounds__((1 + CONSUMERS) * WARPGROUP, 1) void matmul_persistent_kernel(
    const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap b_map, T* c_ptr, int M, int N,
    int K) {
#if HAS_WGMMA_LEVELS
    constexpr int BLOCK_M = CONSUMERS * PIECE, BLOCK_K = PIECE, GROUP_M = 16;
    constexpr int A_BYTES = BLOCK_M * BLOCK_K * 2, BYTES = A_BYTES + BLOCK_N * BLOCK_K * 2;
    DYNAMIC_SHARED(unsigned char, shared);
    unsigned char* const tiles = align_1024(shared);
    __shared__ mbarrier_t full[STAGES], empty[STAGES];
    const int tiles_m = (M + BLOCK_M - 1) / BLOCK_M, tiles_n = (N + BLOCK_N - 1) / BLOCK_N;
    const int tiles_c = tiles_m * tiles_n, tiles_k = (K + BLOCK_K - 1) / BLOCK_K;

    if (threadIdx.x == 0) {
        for (int stage = 0; stage < STAGES; ++stage) {
            mbarrier_init(&full[stage], 1);
            mbarrier_init(&empty[stage], CONSUMERS);
        }
        mbarrier_init_fence();
    }
    __syncthreads();

    Ring<STAGES> ring;
    if (threadIdx.x < WARPGROUP) {
        setmaxnreg_dec<PRODUCER_REGISTERS>();
        if (threadIdx.x > 0) return;
        for (int tile = blockIdx.x; tile < tiles_c; tile += gridDim.x) {
            const TileCoordinates at = grouped_tile<GROUP_M>(tile, tiles_m, tiles_n);
            const int m = at.m * BLOCK_M, n = at.n * BLOCK_N;
            for (int k = 0; k < tiles_k * BLOCK_K; k += BLOCK_K, ring.advance()) {
                mbarrier_wait(&empty[ring.stage], ring.parity ^ 1);
                fetch_tiles<A_BY_ROWS, B_BY_ROWS, BLOCK_M, BLOCK_N>(
                    tiles + ring.stage * BYTES, &a_map, &b_map, m, n, k, &full[ring.stage]);
            }
        }
    } else {
        setmaxnreg_inc<CONSUMER_REGISTERS>();
        const int consumer = threadIdx.x / WARPGROUP - 1;
        const bool releases = threadIdx.x % WARPGROUP == 0;
        float sum[BLOCK_N / 2];
        for (int tile = blockIdx.x; tile < tiles_c; tile += gridDim.x) {
            const TileCoordinates at = grouped_tile<GROUP_M>(tile, tiles_m, tiles_n);
            int before = 0;
            for (int k = 0; k < tiles_k; ++k, ring.advance()) {
                const unsigned char* const a = tiles + ring.stage * BYTES;
                mbarrier_wait(&full[ring.stage], ring.parity);
                wgmma_fence();
                multiply<T, A_BY_ROWS, B_BY_ROWS>(sum, a + consumer * PIECE_BYTES, a + A_BYTES, k > 0);
                wgmma_commit_group();
                wgmma_wait_group<1>(sum);
                if (k > 0 && releases) mbarrier_arrive(&empty[before]);
                before = ring.stage;
            }
            wgmma_wait_group<0>(sum);
            if (releases) mbarrier_arrive(&empty[before]);
            store_sums(c_ptr, sum, at.m * BLOCK_M + consumer * PIECE, at.n * BLOCK_N, M, N);
        }
    }
#endif
}
