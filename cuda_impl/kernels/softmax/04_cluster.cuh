// cluster: unlike onepass, the row is in the shared memory of a cluster's blocks, loaded by TMA. Hopper only.
//
// Grid: one cluster of CLUSTER blocks per row, each with `slice` columns of it, in tiles of BLOCK_N. TMA
// loads all tiles into shared memory; each is reduced as it lands. Each block sends its partial sum into the
// shared memory of all, and writes its slice when all partial sums have arrived. TMA copies whole 16-byte
// vectors, the body of a row; the first block has its edges. Rows of x start as far from a 16-byte boundary
// as y's; slice is a multiple of VEC. Shared memory has a line more than the slice.
#pragma once

#include "line.cuh"
#include "softmax/tile.cuh"

template <typename T, bool ALIGNED, int VECTORS, int THREADS, int CLUSTER>
__global__ __launch_bounds__(THREADS) CLUSTER_OF(CLUSTER) void softmax_cluster_kernel(
    const T* x_ptr, T* y_ptr, index_t N, index_t stride_xm, index_t slice) {
#if HAS_HOPPER_LEVELS
    constexpr int VEC = 16 / sizeof(T);
    constexpr int BLOCK_N = THREADS * VECTORS * VEC;
    constexpr int MOST_TILES = 52;  // 208 KB in the smallest
    DYNAMIC_SHARED(T, shared);
    __shared__ mbarrier_t full[MOST_TILES];
    __shared__ mbarrier_t arrived;
    __shared__ word_t block_results[CLUSTER];
    const int rank = cluster_block_rank();
    const index_t m = blockIdx.x / CLUSTER;
    const T* x_row = x_ptr + m * stride_xm;
    T* y_row = y_ptr + m * N;
    const Parts<T, ALIGNED> parts(y_row, N, threadIdx.x);
    const bool has_edge = parts.edge >= 0 && rank == 0;
    const index_t begin = rank * slice, left = parts.body - begin;
    const int columns = static_cast<int>(left < 0 ? 0 : left < slice ? left : slice);
    const int tiles = (columns + BLOCK_N - 1) / BLOCK_N;
    const T* x_slice = x_row + parts.head + begin;
    T* x_shared = ALIGNED ? shared : as_far_from_line(shared, x_slice);

    if (threadIdx.x == 0) {
        for (int tile = 0; tile < tiles; ++tile) mbarrier_init(&full[tile], 1);
        mbarrier_init(&arrived, 1);
        mbarrier_init_fence();
        mbarrier_arrive_expect_bytes(&arrived, sizeof(block_results));
        for (int tile = 0; tile < tiles; ++tile) {
            const int n = tile * BLOCK_N;
            const unsigned bytes = min(columns - n, BLOCK_N) * sizeof(T);
            mbarrier_arrive_expect_bytes(&full[tile], bytes);
            bulk_copy_to_shared(x_shared + n, x_slice + n, bytes, &full[tile]);
        }
    }
    __syncthreads();
    cluster_arrive_relaxed();

    Packed<T, VEC> x[VECTORS];
    float edge = 0.0f;
    if (has_edge) edge = float(x_row[parts.edge]);
    Running part = identity();
    for (int tile = 0; tile < tiles; ++tile) {
        mbarrier_wait(&full[tile], 0);
        const int n = tile * BLOCK_N;
        load_tile<THREADS>(x, x_shared + n, columns - n);
        part = include(part, x);
    }
    if (has_edge) part = combine(part, {edge, 1.0f});
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
        store_tile<THREADS>(y_row + parts.head + begin + n, x, row, columns - n);
    }
    if (has_edge) y_row[parts.edge] = T(__expf(edge - row.max) / row.sum);
#endif
}
