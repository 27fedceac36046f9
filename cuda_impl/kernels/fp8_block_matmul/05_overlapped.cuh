// fp8_block_matmul, level 5, overlapped. Change: as prefetched, without clusters, but a consumer has two sets
// of partial sums: while it scales and adds one, its own products of the next block of K run. A tile of 64
// columns is so little work that its latency counts: two consumers alone do not hide it. Registers are enough
// for tiles of 128 rows and up to 128 columns.
#pragma once

#include "fp8_block_matmul/prefetched_scales.cuh"

// Grid: persistent, tiles of c of 128 x BLOCK_N are assigned round-robin. Warpgroups as in specialized.
template <int BLOCK_N, int STAGES, int GROUP_M, bool C_ALIGNED>
__global__ __launch_bounds__((1 + CONSUMERS) * WARPGROUP, 1) void fp8_block_matmul_overlapped_kernel(
    const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap b_map,
    const __grid_constant__ TensorMap c_map, const float* scale_a_ptr, const float* scale_b_ptr,
    __nv_bfloat16* c_ptr, int M, int N, int blocks_k) {
#if HAS_WGMMA_LEVELS
    constexpr int BLOCK_M = ROWS<1>, BYTES = STAGE_BYTES<BLOCK_M, BLOCK_N>;
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
            const TilePlace place = grouped_tile<GROUP_M>(tile, tiles_m, tiles_n);
            for (int k = 0; k < blocks_k; ++k, ring.advance()) {
                mbarrier_wait(&empty[ring.stage], ring.parity ^ 1);
                fetch_tiles<BLOCK_M, BLOCK_N>(stages + ring.stage * BYTES, &a_map, &b_map, place.m * BLOCK_M,
                                              place.n * BLOCK_N, k * BLOCK_K, M, &full[ring.stage]);
            }
        }
    } else {
        setmaxnreg_inc<CONSUMER_REGISTERS>();
        const int consumer = group - 1, first_row = consumer * WARPGROUP_M;
        const matrix_t a_first = matrix_descriptor(stages + first_row * BLOCK_K, 0);
        const matrix_t b_first = matrix_descriptor(stages + BLOCK_M * BLOCK_K, 0);
        const bool tells = threadIdx.x % WARPGROUP == 0;
        PrefetchedScales<BLOCK_N, 1> scales({scale_a_ptr, scale_b_ptr, blocks_k}, M, N);
        const auto place_of = [&](int tile) { return grouped_tile<GROUP_M>(tile, tiles_m, tiles_n); };
        const auto prefetch = [&](int tile) {
            const TilePlace place = place_of(tile);
            scales.start(place.m * BLOCK_M + first_row, place.n * BLOCK_N);
        };
        if (blockIdx.x < tiles) prefetch(blockIdx.x);
        for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
            const TilePlace place = place_of(tile);
            const int m = place.m * BLOCK_M + first_row, n = place.n * BLOCK_N;
            float sum[BLOCK_N / 2] = {}, even[BLOCK_N / 2], odd[BLOCK_N / 2];  // partial sums of blocks of K
            BlockScale<BLOCK_N> scale;  // of the block whose products run
            int before = 0;             // their stage
            scales.advance(0);
            const auto start = [&](float (&part)[BLOCK_N / 2]) {
                const matrix_t step = ring.stage * (BYTES >> 4);
                mbarrier_wait(&full[ring.stage], ring.parity);
                wgmma_fence();
                multiply(part, a_first + step, b_first + step, false);
                wgmma_commit_group();
            };
            // Starts the products of block k; scales and adds those of the block before.
            const auto step = [&](float (&part)[BLOCK_N / 2], float (&last)[BLOCK_N / 2], int k) {
                start(part);
                const BlockScale<BLOCK_N> next_scale = scales.of(0, k, n);
                if (k % 4 == 3) scales.advance(k + 1);
                wgmma_wait_group<1>(last);
                if (tells) mbarrier_arrive(&empty[before]);
                scale.add(sum, last);
                scale = next_scale;
                before = ring.stage;
                ring.advance();
            };
            const auto finish = [&](float (&part)[BLOCK_N / 2]) {
                wgmma_wait_group<0>(part);
                if (tells) mbarrier_arrive(&empty[before]);
                scale.add(sum, part);
            };
            start(even);
            scale = scales.of(0, 0, n);
            before = ring.stage;
            ring.advance();
            for (int k = 1; k + 1 < blocks_k; k += 2) {
                step(odd, even, k);
                step(even, odd, k + 1);
            }
            if (blocks_k % 2 == 0) {
                step(odd, even, blocks_k - 1);
                finish(odd);
            } else {
                finish(even);
            }
            if (tile + gridDim.x < tiles) prefetch(tile + gridDim.x);  // overlaps with the stores
            if constexpr (C_ALIGNED) {
                tma_store_sums<BLOCK_N>(&c_map, stages + STAGES * BYTES, sum, Unscaled(), m, n);
            } else {
                store_rows(c_ptr, sum, m + own_row(), n, M, N);
            }
        }
        if (C_ALIGNED && threadIdx.x % WARP == 0) bulk_wait_group_read<0>();
    }
#endif
}
