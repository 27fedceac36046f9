// matmul, level 15, split_k. Change: the blocks of a cluster may divide the terms of one tile of c among them
// (split K), where there are fewer tiles than multiprocessors, or the last wave of tiles is short. Each then
// has its sums in its own shared memory, and all add a share of the tile from all of it, in the order of
// their ranks: the result does not depend on which block is first. A tile has 64 or 128 rows. Which tile and
// cluster are fastest depends on M, N and K: the launch estimates each (cuda_impl/launches/matmul.py).
#pragma once

#include "common.cuh"
#include "matmul/13_tma_store.cuh"
#include "matmul/cluster.cuh"

#if HAS_WGMMA

// A block's part of the work: a tile of c whose first element is (m, n), and the steps of 64 terms. `is_split`:
// of fewer than all terms; `is_alone`: no other block needs the same operands.
struct Part {
    int m, n, begin, end;
    bool is_split, is_alone;
};

// A TMA load into these blocks of the cluster, or with none into this one.
template <bool MAY_MULTICAST>
__device__ __forceinline__ void copy_tile(
    unsigned char* to, const TensorMap* from, int column, int row, mbarrier_t* barrier, unsigned short blocks) {
    if (MAY_MULTICAST && blocks != 0) {
        tensor_copy_to_blocks(to, from, column, row, barrier, blocks);
    } else {
        tensor_copy_to_shared(to, from, column, row, barrier);
    }
}

// The consumers of a block, without its producer.
template <int THREADS>
__device__ __forceinline__ void consumers_sync() {
    asm volatile("barrier.sync 1, %0;" ::"n"(THREADS) : "memory");
}

// a[M,K] @ b[K,N] -> c[M,N]; rows of c are 16-byte aligned. Warpgroups: a producer, and a consumer per 64
// rows of a tile. A cluster has CLUSTER_M x CLUSTER_N tiles at a time, whose operands its blocks share as in
// tma_store. With more blocks than that, each tile is split among CLUSTER / (CLUSTER_M x CLUSTER_N), and a
// cluster has one group of tiles. Else clusters are persistent, groups assigned round-robin: the first `whole`
// of them; of the tiles of the others a cluster splits at most one, its last, among all its blocks. A tile
// that is split has at least a step of 64 terms for each block.
template <
    typename T, bool A_BY_ROWS, bool B_BY_ROWS, int BLOCK_M, int BLOCK_N, int STAGES, int CLUSTER_M,
    int CLUSTER_N, int CLUSTER, typename Epilogue>
__device__ __forceinline__ void multiply_and_split(
    const TensorMap& a_map, const TensorMap& b_map, const TensorMap& c_map, T* c_ptr, int M, int N, int K,
    int whole, const Epilogue& epilogue) {
    constexpr int TILES = CLUSTER_M * CLUSTER_N;  // of a cluster at a time
    constexpr bool SPLITS_ALL = TILES < CLUSTER;
    constexpr int SPLIT = SPLITS_ALL ? CLUSTER / TILES : CLUSTER;  // blocks that split a tile
    static_assert(TILES <= 2 && CLUSTER % TILES == 0);
    constexpr int BLOCK_K = PIECE, GROUP_M = 8, THREADS = BLOCK_M / PIECE * WARPGROUP;  // of consumers
    constexpr int A_BYTES = BLOCK_M * BLOCK_K * 2, BYTES = A_BYTES + BLOCK_N * BLOCK_K * 2;
    constexpr int A_ROWS = BLOCK_M / CLUSTER_N, B_COLUMNS = BLOCK_N / CLUSTER_M;  // of a TMA load
    constexpr int BUFFERS = C_BUFFERS<BLOCK_N>, QUADS = BLOCK_N / 8;              // a thread's sums by four
    constexpr bool MANY_SUMS = BLOCK_M > PIECE && BLOCK_N > 64;
    static_assert(THREADS * QUADS * 16 <= STAGES * BYTES && QUADS % SPLIT == 0);
    DYNAMIC_SHARED(unsigned char, shared);
    unsigned char* const tiles = align_1024(shared);
    __shared__ mbarrier_t full[STAGES], empty[STAGES];
    const int rank = CLUSTER > 1 ? cluster_block_rank() : 0;
    const int of_group = rank % TILES, first_of_group = rank - of_group;  // the blocks of a group of tiles
    const int of_split = SPLITS_ALL ? rank / TILES : rank;
    const int rank_m = CLUSTER_M > 1 ? of_group : 0, rank_n = CLUSTER_N > 1 ? of_group : 0;
    const int tiles_m = (M + CLUSTER_M * BLOCK_M - 1) / (CLUSTER_M * BLOCK_M);
    const int tiles_n = (N + CLUSTER_N * BLOCK_N - 1) / (CLUSTER_N * BLOCK_N);
    const int tiles_k = (K + BLOCK_K - 1) / BLOCK_K;
    // Parts of a cluster each: a group of tiles, or one tile.
    const int parts = SPLITS_ALL ? tiles_m * tiles_n : whole + (tiles_m * tiles_n - whole) * TILES;
    const int cluster = blockIdx.x / CLUSTER, clusters = gridDim.x / CLUSTER;
    const int last = cluster + (parts - 1 - cluster) / clusters * clusters;
    const bool splits = CLUSTER > 1 && last >= whole;
    const int warpgroup = __shfl_sync(FULL_WARP, threadIdx.x / WARPGROUP, 0);
    const auto part_of = [&](int i) -> Part {
        const bool is_split = SPLITS_ALL || (CLUSTER > 1 && i >= whole);
        const bool is_alone = is_split && !SPLITS_ALL;
        const int group = is_alone ? whole + (i - whole) / TILES : i;
        const int within = is_alone ? (i - whole) % TILES : of_group;
        const TileCoordinates at = grouped_tile<GROUP_M>(group, tiles_m, tiles_n);
        return {
            (at.m * CLUSTER_M + (CLUSTER_M > 1 ? within : 0)) * BLOCK_M,
            (at.n * CLUSTER_N + (CLUSTER_N > 1 ? within : 0)) * BLOCK_N,
            is_split ? static_cast<int>(static_cast<index_t>(tiles_k) * of_split / SPLIT) : 0,
            is_split ? static_cast<int>(static_cast<index_t>(tiles_k) * (of_split + 1) / SPLIT) : tiles_k,
            is_split, is_alone};
    };

    if (threadIdx.x == 0) {
        prefetch_tensor_map(&a_map);
        prefetch_tensor_map(&b_map);
        if constexpr (!SPLITS_ALL) prefetch_tensor_map(&c_map);
        for (int stage = 0; stage < STAGES; ++stage) {
            mbarrier_init(&full[stage], 1);
            mbarrier_init(&empty[stage], THREADS / WARPGROUP * TILES);
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
            for (int i = cluster; i < parts; i += clusters) {
                const Part part = part_of(i);
#pragma unroll 1
                for (int step = part.begin; step < part.end; ++step, ring.advance()) {
                    const int k = step * BLOCK_K;
                    unsigned char* const a = tiles + ring.stage * BYTES;
                    mbarrier_t* const landed = &full[ring.stage];
                    mbarrier_wait(&empty[ring.stage], ring.parity ^ 1);
                    mbarrier_arrive_expect_bytes(landed, BYTES);
                    // A block loads its share of a tile for all blocks of the group; alone, all shares.
                    const unsigned short blocks = part.is_alone ? 0 : ((1 << TILES) - 1) << first_of_group;
                    const auto fetch_a = [&](int share) {
                        fetch_tile<A_BY_ROWS, A_ROWS>(
                            a + share * A_ROWS * BLOCK_K * 2, part.m + share * A_ROWS, k,
                            [&](unsigned char* to, int column, int row) {
                                copy_tile<(CLUSTER_N > 1)>(to, &a_map, column, row, landed, blocks);
                            });
                    };
                    const auto fetch_b = [&](int share) {
                        fetch_tile<!B_BY_ROWS, B_COLUMNS>(
                            a + A_BYTES + share * B_COLUMNS * BLOCK_K * 2, part.n + share * B_COLUMNS, k,
                            [&](unsigned char* to, int column, int row) {
                                copy_tile<(CLUSTER_M > 1)>(to, &b_map, column, row, landed, blocks);
                            });
                    };
                    fetch_a(rank_n);
                    fetch_b(rank_m);
                    if (CLUSTER_N > 1 && part.is_alone) fetch_a(1 - rank_n);
                    if (CLUSTER_M > 1 && part.is_alone) fetch_b(1 - rank_m);
                }
            }
        }
        __syncwarp();
        if (splits) cluster_sync();
    } else {
        if constexpr (MANY_SUMS) setmaxnreg_inc<CONSUMER_REGISTERS>();
        const int thread = threadIdx.x - WARPGROUP, consumer = warpgroup - 1;
        const int warp = thread / WARP, lane = thread % WARP;
        unsigned char* const c_warp = tiles + STAGES * BYTES + warp * BUFFERS * C_WARP_BYTES;
        float sum[BLOCK_N / 2];
        for (int i = cluster; i < parts; i += clusters) {
            const Part part = part_of(i);
            // Alone, a stage is this block's only: all arrivals are at its own mbarrier.
            const auto release = [&](int stage) {
                const int r = thread % WARPGROUP;
                if constexpr (TILES == 1) {
                    if (r == 0) mbarrier_arrive(&empty[stage]);
                } else {
                    if (r < TILES) mbarrier_arrive_in_block(&empty[stage], part.is_alone ? rank : first_of_group + r);
                }
            };
            int before = 0;
            for (int step = part.begin; step < part.end; ++step, ring.advance()) {
                const unsigned char* const a = tiles + ring.stage * BYTES;
                mbarrier_wait(&full[ring.stage], ring.parity);
                wgmma_fence();
                multiply<T, A_BY_ROWS, B_BY_ROWS>(
                    sum, a + consumer * PIECE_BYTES, a + A_BYTES, step > part.begin);
                wgmma_commit_group();
                wgmma_wait_group<1>(sum);
                if (step > part.begin) release(before);
                before = ring.stage;
            }
            const int m = part.m + warp * 16;
            if (!part.is_split) {
                decltype(epilogue.of(m, N)) of_columns[QUADS];  // loads overlap with the last wgmma
#pragma unroll
                for (int j = 0; j < QUADS; ++j) of_columns[j] = epilogue.of(part.n + j * 8 + lane % 4 * 2, N);
                wgmma_wait_group<0>(sum);
                release(before);
                store_by_tma<T, BUFFERS>(c_map, c_warp, sum, of_columns, m, part.n, epilogue);
            } else if constexpr (CLUSTER > 1) {
                wgmma_wait_group<0>(sum);
                release(before);
                consumers_sync<THREADS>();  // no warp's wgmma reads the ring any more
                float4* const own = reinterpret_cast<float4*>(tiles) + thread;
#pragma unroll
                for (int q = 0; q < QUADS; ++q) {
                    own[q * THREADS] = make_float4(sum[q * 4], sum[q * 4 + 1], sum[q * 4 + 2], sum[q * 4 + 3]);
                }
                cluster_sync();
                // This block adds the sums of its share of the columns.
                constexpr int SHARE = QUADS / SPLIT, AT_A_TIME = SHARE < 4 ? SHARE : SHARE % 4 == 0 ? 4 : 3;
                static_assert(SHARE % AT_A_TIME == 0);
#pragma unroll 1
                for (int first = of_split * SHARE; first < (of_split + 1) * SHARE; first += AT_A_TIME) {
                    float4 total[AT_A_TIME];
#pragma unroll
                    for (int split = 0; split < SPLIT; ++split) {
                        const int block = SPLITS_ALL ? split * TILES + of_group : split;
                        float4 more[AT_A_TIME];
#pragma unroll
                        for (int q = 0; q < AT_A_TIME; ++q) {
                            more[q] = load_from_block(own + (first + q) * THREADS, block);
                        }
#pragma unroll
                        for (int q = 0; q < AT_A_TIME; ++q) {
                            total[q] = split == 0 ? more[q]
                                                  : make_float4(
                                                        total[q].x + more[q].x, total[q].y + more[q].y,
                                                        total[q].z + more[q].z, total[q].w + more[q].w);
                        }
                    }
#pragma unroll
                    for (int q = 0; q < AT_A_TIME; ++q) {
                        const int n = part.n + (first + q) * 8 + lane % 4 * 2, row = m + lane / 4;
                        const auto columns = epilogue.of(n, N);
                        const float2 upper = epilogue.apply(columns, total[q].x, total[q].y);
                        const float2 lower = epilogue.apply(columns, total[q].z, total[q].w);
                        unsigned* const c = reinterpret_cast<unsigned*>(c_ptr + static_cast<index_t>(row) * N + n);
                        if (n < N && row < M) *c = to_x2<T>(upper.x, upper.y);
                        if (n < N && row + 8 < M) c[4 * static_cast<index_t>(N)] = to_x2<T>(lower.x, lower.y);
                    }
                }
            }
        }
        if (lane == 0) bulk_wait_group_read<0>();
        __syncwarp();
    }
    // A block's mbarriers and sums must outlive the accesses of the cluster's other blocks.
    if constexpr (CLUSTER > 1) cluster_sync();
}

#endif  // HAS_WGMMA

template <
    typename T, bool A_BY_ROWS, bool B_BY_ROWS, int BLOCK_M, int BLOCK_N, int STAGES, int CLUSTER_M,
    int CLUSTER_N, int CLUSTER>
__global__ __launch_bounds__((1 + BLOCK_M / PIECE) * WARPGROUP, 1) CLUSTER_OF(CLUSTER) void matmul_split_k_kernel(
    const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap b_map,
    const __grid_constant__ TensorMap c_map, T* c_ptr, int M, int N, int K, int whole) {
#if HAS_WGMMA
    multiply_and_split<T, A_BY_ROWS, B_BY_ROWS, BLOCK_M, BLOCK_N, STAGES, CLUSTER_M, CLUSTER_N, CLUSTER>(
        a_map, b_map, c_map, c_ptr, M, N, K, whole, Identity());
#endif
}
