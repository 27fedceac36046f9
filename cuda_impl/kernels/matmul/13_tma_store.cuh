// matmul, level 13, tma_store. Change: c goes from registers to shared memory, 64 columns at a time, and TMA
// stores it from there in whole lines while the consumers continue with the next tile. Beside that, BLOCK_N
// is 256, 192 or 64, whichever makes the last multiprocessor finish first; and if the launch allows it
// (programmatic dependent launch), everything before the first copy overlaps with the previous grid.
#pragma once

#include "common.cuh"
#include "matmul/tma_tiles.cuh"

// A warp's buffers for pieces of c, used round-robin; a tile starts with the first. For an even number of
// pieces two are enough.
template <int BLOCK_N>
constexpr int C_BUFFERS = BLOCK_N / PIECE % 2 == 0 ? 2 : BLOCK_N / PIECE;
constexpr int C_WARP_BYTES = 16 * PIECE * 2;  // a warp's 16 rows of a piece of c

#if HAS_WGMMA_LEVELS

// A TMA load into this block, or by multicast into BLOCKS blocks of the cluster from rank `first` on.
template <int BLOCKS>
__device__ __forceinline__ void tensor_copy(
    unsigned char* to, const TensorMap* from, int column, int row, mbarrier_t* barrier, int first = 0) {
    if constexpr (BLOCKS > 1) {
        tensor_copy_to_blocks(to, from, column, row, barrier, ((1 << BLOCKS) - 1) << first);
    } else {
        tensor_copy_to_shared(to, from, column, row, barrier);
    }
}

// Stores a warp's 16 rows of a tile, whose first element is (m, n) of c, by way of its buffers. Lane l writes
// 16 bytes of row l % 16, in the column group of l / 16, swizzled as c_map expects.
template <typename T, int BUFFERS, int COUNT>
__device__ __forceinline__ void store_by_tma(
    const TensorMap& c_map, unsigned char* c_warp, const float (&sum)[COUNT], int m, int n) {
    const int lane = threadIdx.x % WARP, row = lane % 16, first = lane / 16;
#pragma unroll
    for (int piece = 0; piece < COUNT / (PIECE / 2); ++piece) {
        unsigned char* const c = c_warp + piece % BUFFERS * C_WARP_BYTES;
        if (lane == 0) bulk_wait_group_read<BUFFERS - 1>();  // TMA has read this buffer
        __syncwarp();
#pragma unroll
        for (int j = 0; j < PIECE / 8; j += 2) {  // 8 columns, and the 8 next to them
            const float* const own = sum + piece * (PIECE / 2) + j * 4;
            const auto two = [&](int i) { return to_x2<T>(own[i * 2], own[i * 2 + 1]); };
            stmatrix_x4(c + row * 128 + ((j + first) ^ row % 8) * 16, two(0), two(1), two(2), two(3));
        }
        fence_proxy_async();
        __syncwarp();
        if (lane == 0) {
            tensor_copy_to_global(&c_map, n + piece * PIECE, m, c);
            bulk_commit_group();
        }
    }
}

#endif  // HAS_WGMMA_LEVELS

// a[M,K] @ b[K,N] -> c[M,N]; rows of c are 16-byte aligned. Grid: as multicast's. A warp has one to three
// buffers (C_BUFFERS) of its own for its 16 rows of c, and waits for no other warp. If half a tile of b is
// not whole pieces, the blocks of a cluster are side by side and share a instead of b.
template <typename T, bool A_BY_ROWS, bool B_BY_ROWS, int BLOCK_N, int STAGES>
__global__ __launch_bounds__((1 + CONSUMERS) * WARPGROUP, 1) CLUSTER_OF(2) void matmul_tma_store_kernel(
    const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap b_map,
    const __grid_constant__ TensorMap c_map, int M, int N, int K) {
#if HAS_WGMMA_LEVELS
    constexpr int BLOCK_M = CONSUMERS * PIECE, BLOCK_K = PIECE, GROUP_M = 8, CLUSTER = 2;
    constexpr int A_BYTES = BLOCK_M * BLOCK_K * 2, BYTES = A_BYTES + BLOCK_N * BLOCK_K * 2;
    constexpr bool SHARE_B = BLOCK_N % (CLUSTER * PIECE) == 0;  // else a
    // A cluster has CLUSTER_M x CLUSTER_N tiles of c; a block loads its share of the operands' tiles.
    constexpr int CLUSTER_M = SHARE_B ? CLUSTER : 1, CLUSTER_N = CLUSTER / CLUSTER_M;
    constexpr int A_ROWS = BLOCK_M / CLUSTER_N, B_COLUMNS = BLOCK_N / CLUSTER_M;
    constexpr int BUFFERS = C_BUFFERS<BLOCK_N>;
    constexpr bool MANY_SUMS = BLOCK_N > 64;  // 64 need no more than an equal share: 65536 / 384 registers
    DYNAMIC_SHARED(unsigned char, shared);
    unsigned char* const tiles = align_1024(shared);
    __shared__ mbarrier_t full[STAGES], empty[STAGES];
    const int rank = cluster_block_rank();
    const int rank_m = SHARE_B ? rank : 0, rank_n = rank - rank_m;
    const int a_row = rank_n * A_ROWS, b_column = rank_m * B_COLUMNS;  // where the block's share begins
    const int tiles_m = (M + CLUSTER_M * BLOCK_M - 1) / (CLUSTER_M * BLOCK_M);
    const int tiles_n = (N + CLUSTER_N * BLOCK_N - 1) / (CLUSTER_N * BLOCK_N);
    const int tiles_c = tiles_m * tiles_n, tiles_k = (K + BLOCK_K - 1) / BLOCK_K;
    const int cluster = blockIdx.x / CLUSTER, clusters = gridDim.x / CLUSTER;
    const int warpgroup = __shfl_sync(FULL_WARP, threadIdx.x / WARPGROUP, 0);

    if (threadIdx.x == 0) {
        prefetch_tensor_map(&a_map);
        prefetch_tensor_map(&b_map);
        prefetch_tensor_map(&c_map);
        for (int stage = 0; stage < STAGES; ++stage) {
            mbarrier_init(&full[stage], 1);
            mbarrier_init(&empty[stage], CONSUMERS * CLUSTER);
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
        if (threadIdx.x > 0) return;
        previous_grid_wait();  // consumers need no wait: they write nothing before the first copy has landed
        for (int tile = cluster; tile < tiles_c; tile += clusters) {
            const TileCoordinates at = grouped_tile<GROUP_M>(tile, tiles_m, tiles_n);
            const int m = (at.m * CLUSTER_M + rank_m) * BLOCK_M + a_row;
            const int n = (at.n * CLUSTER_N + rank_n) * BLOCK_N + b_column;
            for (int k = 0; k < tiles_k * BLOCK_K; k += BLOCK_K, ring.advance()) {
                unsigned char* const a = tiles + ring.stage * BYTES + a_row * BLOCK_K * 2;
                unsigned char* const b = tiles + ring.stage * BYTES + A_BYTES + b_column * BLOCK_K * 2;
                mbarrier_t* const landed = &full[ring.stage];
                mbarrier_wait(&empty[ring.stage], ring.parity ^ 1);
                mbarrier_arrive_expect_bytes(landed, BYTES);
                fetch_tile<A_BY_ROWS, A_ROWS>(a, m, k, [&](unsigned char* to, int column, int row) {
                    tensor_copy<CLUSTER_N>(to, &a_map, column, row, landed);
                });
                fetch_tile<!B_BY_ROWS, B_COLUMNS>(b, n, k, [&](unsigned char* to, int column, int row) {
                    tensor_copy<CLUSTER_M>(to, &b_map, column, row, landed);
                });
            }
        }
        for (int stage = 0; stage < STAGES; ++stage, ring.advance()) {
            mbarrier_wait(&empty[ring.stage], ring.parity ^ 1);
        }
    } else {
        if constexpr (MANY_SUMS) setmaxnreg_inc<CONSUMER_REGISTERS>();
        const int consumer = warpgroup - 1;
        const int warp = threadIdx.x % WARPGROUP / WARP, lane = threadIdx.x % WARP;
        const auto release = [&](int stage) {
            const int r = threadIdx.x % WARPGROUP;
            if (r < CLUSTER) mbarrier_arrive_in_block(&empty[stage], r);
        };
        unsigned char* const c_warp = tiles + STAGES * BYTES + (consumer * 4 + warp) * BUFFERS * C_WARP_BYTES;
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
            const int m = (at.m * CLUSTER_M + rank_m) * BLOCK_M + consumer * PIECE + warp * 16;
            const int n = (at.n * CLUSTER_N + rank_n) * BLOCK_N;
            wgmma_wait_group<0>(sum);
            release(before);

            store_by_tma<T, BUFFERS>(c_map, c_warp, sum, m, n);
        }
        if (lane == 0) bulk_wait_group_read<0>();
    }
#endif
}
