// cluster: unlike onepass, the row is in the shared memory of a cluster's blocks, loaded by TMA. Hopper only.
//
// Grid: one cluster of CLUSTER blocks per row, each with `slice` columns of it, in tiles of BLOCK_N. TMA
// loads all tiles into shared memory; each is reduced as it lands. Each block sends its partial sum into the
// shared memory of all, and writes its slice when all partial sums have arrived. Rows of x are 16-byte
// aligned; N and slice are multiples of VEC.
#pragma once

#include "hopper.cuh"
#include "softmax/tile.cuh"

template <typename T, int PACKS, int THREADS, int CLUSTER>
__global__ __launch_bounds__(THREADS) CLUSTER_OF(CLUSTER) void softmax_cluster_kernel(
    const T* x_ptr, T* y_ptr, index_t N, index_t stride_xm, index_t slice) {
#if HAS_HOPPER_UNITS
    constexpr int VEC = 16 / sizeof(T);
    constexpr int BLOCK_N = THREADS * PACKS * VEC;
    constexpr int MOST_TILES = 32;
    DYNAMIC_SHARED(T, x_shared);
    __shared__ mbarrier_t full[MOST_TILES];
    __shared__ mbarrier_t arrived;
    __shared__ word_t block_results[CLUSTER];
    const int rank = cluster_block_rank();
    const index_t m = blockIdx.x / CLUSTER;
    const index_t begin = rank * slice;
    const int columns = static_cast<int>(begin >= N ? 0 : begin + slice < N ? slice : N - begin);
    const int tiles = (columns + BLOCK_N - 1) / BLOCK_N;

    if (threadIdx.x == 0) {
        for (int tile = 0; tile < tiles; ++tile) mbarrier_init(&full[tile], 1);
        mbarrier_init(&arrived, 1);
        mbarrier_init_fence();
        mbarrier_arrive_expect_bytes(&arrived, sizeof(block_results));
        for (int tile = 0; tile < tiles; ++tile) {
            const int n = tile * BLOCK_N;
            const unsigned bytes = min(columns - n, BLOCK_N) * sizeof(T);
            mbarrier_arrive_expect_bytes(&full[tile], bytes);
            bulk_copy_to_shared(x_shared + n, x_ptr + m * stride_xm + begin + n, bytes, &full[tile]);
        }
    }
    __syncthreads();
    cluster_arrive_relaxed();

    Packed<T, VEC> x[PACKS];
    Running part = identity();
    for (int tile = 0; tile < tiles; ++tile) {
        mbarrier_wait(&full[tile], 0);
        const int n = tile * BLOCK_N;
        load_tile<THREADS>(x, x_shared + n, columns - n);
        part = include(part, x);
    }
    part = block_combine<THREADS>(part);

    cluster_wait();  // all blocks of the cluster have started: their shared memory may be written
    if (threadIdx.x < CLUSTER) {
        store_async_to_block(&block_results[rank], threadIdx.x, to_word(part), &arrived);
    }
    mbarrier_wait(&arrived, 0);
    const Running row = warp_combine<CLUSTER>(from_word(block_results[threadIdx.x % CLUSTER]));

    for (int tile = 0; tile < tiles; ++tile) {
        const int n = tile * BLOCK_N;
        load_tile<THREADS>(x, x_shared + n, columns - n);
        store_tile<THREADS>(y_ptr + m * N + begin + n, x, row, columns - n);
    }
#endif
}
