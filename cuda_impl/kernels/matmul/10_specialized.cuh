// matmul, level 10, specialized. Change: warp specialization. A producer warp fetches, two consumer
// warpgroups multiply, so that the tensor cores do not wait while loads are issued. The producer gives its
// registers to the consumers (setmaxnreg): a tile of up to 128 x 256. One wgmma is in flight while the
// previous stage is released.
#pragma once

#include "common.cuh"
#include "matmul/tma_tiles.cuh"

// a[M,K] @ b[K,N] -> c[M,N]. Grid: one block of three warpgroups per tile of c of 128 x BLOCK_N, row by row.
// One thread of the first, the producer, issues TMA loads. A stage of the ring belongs to the producer while
// `empty` and to the consumers while `full`. Each consumer warpgroup has 64 rows of c. One of its threads
// releases a stage: wgmma is a warpgroup's instruction, and its wait covers the reads of all four warps, as
// CUTLASS' PipelineTmaAsync assumes. Where threads read shared memory themselves, all of them must arrive.
template <typename T, bool A_BY_ROWS, bool B_BY_ROWS, int BLOCK_N, int STAGES>
__global__ __launch_bounds__((1 + CONSUMERS) * WARPGROUP, 1) void matmul_specialized_kernel(
    const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap b_map, T* c_ptr, int M, int N,
    int K) {
#if HAS_WGMMA_LEVELS
    constexpr int BLOCK_M = CONSUMERS * PIECE, BLOCK_K = PIECE;
    constexpr int A_BYTES = BLOCK_M * BLOCK_K * 2, BYTES = A_BYTES + BLOCK_N * BLOCK_K * 2;
    DYNAMIC_SHARED(unsigned char, shared);
    unsigned char* const tiles = align_1024(shared);
    __shared__ mbarrier_t full[STAGES], empty[STAGES];
    const int tiles_n = (N + BLOCK_N - 1) / BLOCK_N, tiles_k = (K + BLOCK_K - 1) / BLOCK_K;
    const int m = blockIdx.x / tiles_n * BLOCK_M, n = blockIdx.x % tiles_n * BLOCK_N;

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
        for (int tile = 0; tile < tiles_k; ++tile, ring.advance()) {
            mbarrier_wait(&empty[ring.stage], ring.parity ^ 1);  // in the first round all stages are empty
            fetch_tiles<A_BY_ROWS, B_BY_ROWS, BLOCK_M, BLOCK_N>(
                tiles + ring.stage * BYTES, &a_map, &b_map, m, n, tile * BLOCK_K, &full[ring.stage]);
        }
    } else {
        setmaxnreg_inc<CONSUMER_REGISTERS>();
        const int consumer = threadIdx.x / WARPGROUP - 1;
        float sum[BLOCK_N / 2];
        int before = 0;
        for (int tile = 0; tile < tiles_k; ++tile, ring.advance()) {
            const unsigned char* const a = tiles + ring.stage * BYTES;
            mbarrier_wait(&full[ring.stage], ring.parity);
            wgmma_fence();
            multiply<T, A_BY_ROWS, B_BY_ROWS>(sum, a + consumer * PIECE_BYTES, a + A_BYTES, tile > 0);
            wgmma_commit_group();
            wgmma_wait_group<1>(sum);  // this wgmma is in flight; the previous one has read its stage
            if (tile > 0 && threadIdx.x % WARPGROUP == 0) mbarrier_arrive(&empty[before]);
            before = ring.stage;
        }
        wgmma_wait_group<0>(sum);
        store_sums(c_ptr, sum, m + consumer * PIECE, n, M, N);
    }
#endif
}
