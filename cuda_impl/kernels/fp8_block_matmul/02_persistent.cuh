// fp8_block_matmul, level 2, persistent. Change: one block per multiprocessor computes tile after tile. The
// ring continues across tiles: while the consumers write c, the producer prefetches the next tile.
#pragma once

#include "fp8_block_matmul/scaled_sums.cuh"

// Grid: persistent, tiles of c are assigned round-robin. Warpgroups as in specialized.
template <int BLOCK_N, int STAGES>
__global__ __launch_bounds__((1 + CONSUMERS) * WARPGROUP, 1) void fp8_block_matmul_persistent_kernel(
    const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap b_map,
    const float* scale_a_ptr, const float* scale_b_ptr, __nv_bfloat16* c_ptr, int M, int N, int blocks_k) {
#if HAS_WGMMA_LEVELS
    constexpr int BYTES = STAGE_BYTES<BLOCK_M, BLOCK_N>;
    DYNAMIC_SHARED(unsigned char, shared);
    unsigned char* const stages = align_1024(shared);
    __shared__ mbarrier_t full[STAGES], empty[STAGES];
    const int tiles_m = (M + BLOCK_M - 1) / BLOCK_M, tiles_n = (N + BLOCK_N - 1) / BLOCK_N;
    const int group = __shfl_sync(FULL_WARP, threadIdx.x / WARPGROUP, 0);

    if (threadIdx.x == 0) {
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
        for (int tile = blockIdx.x; tile < tiles_m * tiles_n; tile += gridDim.x) {
            const TileCoordinates at = grouped_tile<16>(tile, tiles_m, tiles_n);
            for (int k = 0; k < blocks_k; ++k, ring.advance()) {
                mbarrier_wait(&empty[ring.stage], ring.parity ^ 1);
                fetch_tiles<BLOCK_M, BLOCK_N>(
                    stages + ring.stage * BYTES, &a_map, &b_map, at.m * BLOCK_M, at.n * BLOCK_N, k * BLOCK_K,
                    M, &full[ring.stage]);
            }
        }
    } else {
        setmaxnreg_inc<CONSUMER_REGISTERS>();
        const int consumer = group - 1;
        const BlockScales scales = {scale_a_ptr, scale_b_ptr, blocks_k};
        for (int tile = blockIdx.x; tile < tiles_m * tiles_n; tile += gridDim.x) {
            const TileCoordinates at = grouped_tile<16>(tile, tiles_m, tiles_n);
            const int n = at.n * BLOCK_N;
            ScaledSums<BLOCK_N> sums(at.m * BLOCK_M + consumer * WARPGROUP_M);
            for (int k = 0; k < blocks_k; ++k, ring.advance()) {
                mbarrier_wait(&full[ring.stage], ring.parity);
                sums.add_block(stages + ring.stage * BYTES, &empty[ring.stage], consumer, scales, k, n, M, N);
            }
            sums.store(c_ptr, n, M, N);
        }
    }
#endif
}
