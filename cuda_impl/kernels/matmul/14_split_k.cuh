// matmul, level 14, split_k. Change: a tile of c has 64 or 128 rows, and where there are fewer tiles than
// multiprocessors the blocks of a cluster divide the terms of one tile among them (split K). For M = 64,
// N = 1280, K = 8192 tma_store has 20 tiles, so 112 of 132 multiprocessors idle, and one has 128 steps of 64
// terms. Four blocks per tile of 64 x 64 have 32 steps each on 80 multiprocessors: 15 us, not 26 (H200).
//
// In a cluster of 4, block r multiplies a quarter of the K / 64 steps. Then it adds a quarter of the BLOCK_N
// columns of all four sums, and stores them:
//
//   a[m:, :] |  0  |  1  |  2  |  3  | x b[:, n:]    c[m:, n:] |  0  |  1  |  2  |  3  |
//
// The sums are in the shared memory of their block, where tiles of a and b were (distributed shared memory),
// and are added in the order of the ranks: the result does not depend on which block is first. Not split,
// tiles are assigned to persistent clusters. The tile is that of the least predicted time: compare/tiles.py.
#pragma once

#include "common.cuh"
#include "matmul/13_tma_store.cuh"

#if HAS_WGMMA

// Barrier that orders earlier writes to shared memory before reads by the cluster's other blocks.
__device__ __forceinline__ void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
    cluster_wait();
}

__device__ __forceinline__ float4 load_from_block(const float4* ptr, int rank) {
    float4 value;
    asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
                 : "r"(address_in_block(ptr, rank))
                 : "memory");
    return value;
}

// Adds a tile's sums, which the threads of SPLIT blocks hold as `sum`, and stores this block's share of the
// columns. `own`: where this thread's sums go, the same place in each block; no wgmma reads it any more.
template <typename T, int THREADS, int SPLIT, int COUNT, typename Epilogue>
__device__ __forceinline__ void add_and_store(
    float4* own, const float (&sum)[COUNT], T* c_ptr, int m, int n, int M, int N, const Epilogue& epilogue) {
    constexpr int QUADS = COUNT / 4, SHARE = QUADS / SPLIT;  // a thread's sums by four, each of 8 columns
    static_assert(QUADS % SPLIT == 0);
    const int rank = cluster_block_rank(), lane = threadIdx.x % WARP;
#pragma unroll
    for (int q = 0; q < QUADS; ++q) {
        own[q * THREADS] = make_float4(sum[q * 4], sum[q * 4 + 1], sum[q * 4 + 2], sum[q * 4 + 3]);
    }
    cluster_sync();
#pragma unroll 4
    for (int q = rank * SHARE; q < (rank + 1) * SHARE; ++q) {
        float4 total = load_from_block(own + q * THREADS, 0);
#pragma unroll
        for (int block = 1; block < SPLIT; ++block) {
            const float4 more = load_from_block(own + q * THREADS, block);
            total = make_float4(total.x + more.x, total.y + more.y, total.z + more.z, total.w + more.w);
        }
        const int column = n + q * 8 + lane % 4 * 2, row = m + lane / 4;
        const auto of_column = epilogue.of(column, N);
        const float2 upper = epilogue.apply(of_column, total.x, total.y);
        const float2 lower = epilogue.apply(of_column, total.z, total.w);
        unsigned* const c = reinterpret_cast<unsigned*>(c_ptr + static_cast<index_t>(row) * N + column);
        if (column < N && row < M) *c = to_x2<T>(upper.x, upper.y);
        if (column < N && row + 8 < M) c[4 * static_cast<index_t>(N)] = to_x2<T>(lower.x, lower.y);
    }
}

// a[M,K] @ b[K,N] -> c[M,N]; rows of c are 16-byte aligned. Warpgroups: a producer, and a consumer per 64
// rows of a tile. SPLIT = 1: persistent clusters of CLUSTER_M blocks, which share b as in multicast, and TMA
// stores as in tma_store. Else a cluster of SPLIT blocks per tile of c, with at least a step for each block.
template <
    typename T, bool A_BY_ROWS, bool B_BY_ROWS, int BLOCK_M, int BLOCK_N, int STAGES, int CLUSTER_M,
    int SPLIT, typename Epilogue>
__device__ __forceinline__ void multiply_and_split(
    const TensorMap& a_map, const TensorMap& b_map, const TensorMap& c_map, T* c_ptr, int M, int N, int K,
    const Epilogue& epilogue) {
    static_assert(CLUSTER_M == 1 || (CLUSTER_M == 2 && SPLIT == 1));
    constexpr int CLUSTER = CLUSTER_M * SPLIT, BLOCK_K = PIECE, GROUP_M = 8;
    constexpr int THREADS = BLOCK_M / PIECE * WARPGROUP;  // of consumers
    constexpr int A_BYTES = BLOCK_M * BLOCK_K * 2, BYTES = A_BYTES + BLOCK_N * BLOCK_K * 2;
    constexpr int B_COLUMNS = BLOCK_N / CLUSTER_M, BUFFERS = C_BUFFERS<BLOCK_N>;  // of a TMA load; of a warp
    constexpr bool MANY_SUMS = BLOCK_M > PIECE && BLOCK_N > 64;
    static_assert(BLOCK_M * BLOCK_N * 4 <= STAGES * BYTES);  // sums of a tile
    DYNAMIC_SHARED(unsigned char, shared);
    unsigned char* const tiles = align_1024(shared);
    __shared__ mbarrier_t full[STAGES], empty[STAGES];
    const int rank_m = CLUSTER_M > 1 ? cluster_block_rank() : 0,
              rank_k = SPLIT > 1 ? cluster_block_rank() : 0;
    const int tiles_m = (M + CLUSTER_M * BLOCK_M - 1) / (CLUSTER_M * BLOCK_M);
    const int tiles_n = (N + BLOCK_N - 1) / BLOCK_N;
    const int tiles_c = tiles_m * tiles_n, tiles_k = (K + BLOCK_K - 1) / BLOCK_K;
    const int first = static_cast<int>(static_cast<index_t>(tiles_k) * rank_k / SPLIT);  // of this block
    const int last = static_cast<int>(static_cast<index_t>(tiles_k) * (rank_k + 1) / SPLIT);
    const int cluster = blockIdx.x / CLUSTER, clusters = gridDim.x / CLUSTER;
    const int warpgroup = __shfl_sync(FULL_WARP, threadIdx.x / WARPGROUP, 0);

    if (threadIdx.x == 0) {
        prefetch_tensor_map(&a_map);
        prefetch_tensor_map(&b_map);
        if constexpr (SPLIT == 1) prefetch_tensor_map(&c_map);
        for (int stage = 0; stage < STAGES; ++stage) {
            mbarrier_init(&full[stage], 1);
            mbarrier_init(&empty[stage], THREADS / WARPGROUP * CLUSTER_M);
        }
        mbarrier_init_fence();
    }
    __syncwarp();
    cluster_arrive_relaxed();
    cluster_wait();
    next_grid_may_start();

    Ring<STAGES> ring;
    if (warpgroup == 0) {
        if constexpr (MANY_SUMS) setmaxnreg_dec<PRODUCER_REGISTERS>();
        if (threadIdx.x == 0) {
            previous_grid_wait();
            for (int tile = cluster; tile < tiles_c; tile += clusters) {
                const TileCoordinates at = grouped_tile<GROUP_M>(tile, tiles_m, tiles_n);
                const int m = (at.m * CLUSTER_M + rank_m) * BLOCK_M, n = at.n * BLOCK_N + rank_m * B_COLUMNS;
#pragma unroll 1
                for (int step = first; step < last; ++step, ring.advance()) {
                    unsigned char* const a = tiles + ring.stage * BYTES;
                    unsigned char* const b = a + A_BYTES + rank_m * B_COLUMNS * BLOCK_K * 2;
                    mbarrier_t* const landed = &full[ring.stage];
                    mbarrier_wait(&empty[ring.stage], ring.parity ^ 1);
                    mbarrier_arrive_expect_bytes(landed, BYTES);
                    const int k = step * BLOCK_K;
                    fetch_tile<A_BY_ROWS, BLOCK_M>(a, m, k, [&](unsigned char* to, int column, int row) {
                        tensor_copy_to_shared(to, &a_map, column, row, landed);
                    });
                    fetch_tile<!B_BY_ROWS, B_COLUMNS>(b, n, k, [&](unsigned char* to, int column, int row) {
                        tensor_copy<(CLUSTER_M > 1)>(to, &b_map, column, row, landed);
                    });
                }
            }
        }
        __syncwarp();
        if constexpr (SPLIT > 1) cluster_sync();  // all threads take part in the barrier before the addition
    } else {
        if constexpr (MANY_SUMS) setmaxnreg_inc<CONSUMER_REGISTERS>();
        const int thread = threadIdx.x - WARPGROUP, consumer = warpgroup - 1;
        const int warp = thread / WARP, lane = thread % WARP;
        const auto release = [&](int stage) {
            const int r = thread % WARPGROUP;  // arrives at the mbarrier of this block of the cluster
            if (CLUSTER_M == 1 && r == 0) mbarrier_arrive(&empty[stage]);
            if (CLUSTER_M > 1 && r < CLUSTER_M) mbarrier_arrive_in_block(&empty[stage], r);
        };
        unsigned char* const c_warp = tiles + STAGES * BYTES + warp * BUFFERS * C_WARP_BYTES;
        float sum[BLOCK_N / 2];
        for (int tile = cluster; tile < tiles_c; tile += clusters) {
            const TileCoordinates at = grouped_tile<GROUP_M>(tile, tiles_m, tiles_n);
            int before = 0;
            for (int step = first; step < last; ++step, ring.advance()) {
                const unsigned char* const a = tiles + ring.stage * BYTES;
                mbarrier_wait(&full[ring.stage], ring.parity);
                wgmma_fence();
                multiply<T, A_BY_ROWS, B_BY_ROWS>(sum, a + consumer * PIECE_BYTES, a + A_BYTES, step > first);
                wgmma_commit_group();
                wgmma_wait_group<1>(sum);
                if (step > first) release(before);
                before = ring.stage;
            }
            const int m = (at.m * CLUSTER_M + rank_m) * BLOCK_M + warp * 16, n = at.n * BLOCK_N;
            if constexpr (SPLIT == 1) {
                decltype(epilogue.of(n, N)) of_columns[BLOCK_N / 8];  // loads overlap with the last wgmma
#pragma unroll
                for (int j = 0; j < BLOCK_N / 8; ++j)
                    of_columns[j] = epilogue.of(n + j * 8 + lane % 4 * 2, N);
                wgmma_wait_group<0>(sum);
                release(before);
                store_by_tma<T, BUFFERS>(c_map, c_warp, sum, of_columns, m, n, epilogue);
            } else {
                wgmma_wait_group<0>(sum);
                // The consumers without the producer: now no wgmma of this block reads the ring any more.
                asm volatile("barrier.sync 1, %0;" ::"n"(THREADS) : "memory");
                float4* const own = reinterpret_cast<float4*>(tiles) + thread;
                add_and_store<T, THREADS, SPLIT>(own, sum, c_ptr, m, n, M, N, epilogue);
            }
        }
        if (SPLIT == 1 && lane == 0) bulk_wait_group_read<0>();
        __syncwarp();
    }
    // A block's mbarriers and sums must outlive the accesses of the cluster's other blocks.
    if constexpr (CLUSTER > 1) cluster_sync();
}

#endif  // HAS_WGMMA

template <
    typename T, bool A_BY_ROWS, bool B_BY_ROWS, int BLOCK_M, int BLOCK_N, int STAGES, int CLUSTER_M,
    int SPLIT>
__global__ __launch_bounds__((1 + BLOCK_M / PIECE) * WARPGROUP, 1)
    CLUSTER_OF(CLUSTER_M* SPLIT) void matmul_split_k_kernel(
        const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap b_map,
        const __grid_constant__ TensorMap c_map, T* c_ptr, int M, int N, int K) {
#if HAS_WGMMA
    multiply_and_split<T, A_BY_ROWS, B_BY_ROWS, BLOCK_M, BLOCK_N, STAGES, CLUSTER_M, SPLIT>(
        a_map, b_map, c_map, c_ptr, M, N, K, Identity());
#endif
}
