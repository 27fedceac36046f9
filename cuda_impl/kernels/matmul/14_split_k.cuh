// matmul, level 14, split_k. Change: tiles of many sizes, so that there is one that leaves few
// multiprocessors idle. wgmma's left operand has 64 rows, its right one 8 to 256 columns. With rows of a on
// the left, a tile has any multiple of 32 columns. With the operands exchanged, c^T = b^T a^T, columns of b
// are on the left, and a tile has any multiple of 16 rows. For M = 777, N = 4096 tma_store has 128 tiles of
// 128 x 256, an eighth of them empty. Here 128 tiles of 208 x 128 have 19% less work each: 39 us, not 46
// (H200). Where tiles are few even so, the blocks of a cluster divide the terms of one among them (split K).
//
// In a cluster of SPLIT = 4, block r multiplies a quarter of the K / 64 steps. Then it sends a quarter of its
// sums to each of the four blocks (distributed shared memory). Each adds what it gets in the order of the
// ranks, so that the result does not depend on which block is first, and stores it. Not split, tiles are
// assigned to persistent clusters.
#pragma once

#include "common.cuh"
#include "matmul/13_tma_store.cuh"

__device__ __forceinline__ void add_quad(float4& total, const float4& more) {
    total = make_float4(total.x + more.x, total.y + more.y, total.z + more.z, total.w + more.w);
}

template <int BLOCK_M, int BLOCK_N, bool EXCHANGED>
constexpr int SPLIT_K_THREADS = (1 + (EXCHANGED ? BLOCK_N : BLOCK_M) / PIECE) * WARPGROUP;

#if HAS_WGMMA_LEVELS

// Of TMA stores: rows and columns, if exchanged 64; rows that a warpgroup then stores at a time.
constexpr int C_ROWS = 16, C_COLUMNS = 32, C_PASS = 64;
template <int ROWS>
constexpr int C_BYTES = (ROWS < 2 * C_PASS ? ROWS : 2 * C_PASS) * 128;  // of a warpgroup's buffers, exchanged

// By the thread that stores: returns when TMA has read the next of two buffers. With an odd number of stores
// per tile a tile's first one may be the buffer of the store just before.
template <int STORES>
__device__ __forceinline__ void wait_for_buffer(bool first) {
    if (!first || STORES % 2 == 0) {
        bulk_wait_group_read<1>();
    } else {
        bulk_wait_group_read<0>();
    }
}

// Stores a warpgroup's 64 columns of a tile from (m, n) of c on, by way of two buffers of C_PASS rows. Its
// sums are transposed: of each 8 rows a thread has two neighbouring ones, in `column` and in column + 8.
template <typename T, int COUNT, typename Epilogue>
__device__ __forceinline__ void store_transposed(
    const TensorMap& c_map, unsigned char* buffers, const float (&sum)[COUNT], int m, int n, int N,
    const Epilogue& epilogue) {
    constexpr int ROWS = COUNT * 2, PASSES = (ROWS + C_PASS - 1) / C_PASS;
    const int thread = threadIdx.x % WARPGROUP, barrier = threadIdx.x / WARPGROUP;
    const int warp = thread / WARP, lane = thread % WARP, column = n + warp * 16 + lane / 4;
    const decltype(epilogue.of_one(n, N)) of_columns[2] = {
        epilogue.of_one(column, N), epilogue.of_one(column + 8, N)};
    // Lane l writes row l % 8 of the matrix l / 8: of rows 0 to 7 and 8 to 15, each of two groups of columns.
    const int row = lane / 16 * 8 + lane % 8, group = (warp * 2 + lane / 8 % 2) ^ row % 8;
#pragma unroll
    for (int pass = 0; pass < ROWS; pass += C_PASS) {
        unsigned char* const c = buffers + pass / C_PASS % 2 * C_PASS * 128;
        if (thread == 0) wait_for_buffer<PASSES>(pass == 0);
        named_barrier_sync<WARPGROUP>(barrier);
#pragma unroll
        for (int i = 0; i < C_PASS && pass + i < ROWS; i += 16) {
            const float* const own = sum + (pass + i) / 2;
            const auto two = [&](int j) {  // rows 2 * (lane % 4) and the next, of matrix j
                const float* const rows = own + j * 2;
                return to_x2<T>(
                    epilogue.apply_one(of_columns[j % 2], rows[0]),
                    epilogue.apply_one(of_columns[j % 2], rows[1]));
            };
            stmatrix_x4_trans(c + (i + row) * 128 + group * 16, two(0), two(1), two(2), two(3));
        }
        fence_proxy_async();
        named_barrier_sync<WARPGROUP>(barrier);
        if (thread == 0) {
#pragma unroll
            for (int i = 0; i < C_PASS && pass + i < ROWS; i += C_ROWS) {
                tensor_copy_to_global(&c_map, n, m + pass + i, c + i * 128);
            }
            bulk_commit_group();
        }
    }
}

// The same of sums that are not transposed: a warp stores its 16 rows from (m, n) of c on, 32 columns at a
// time, by way of two buffers of its own, with 64-byte swizzle.
template <typename T, int COUNT, typename Epilogue>
__device__ __forceinline__ void store_rows(
    const TensorMap& c_map, unsigned char* buffers, const float (&sum)[COUNT], int m, int n, int N,
    const Epilogue& epilogue) {
    constexpr int PIECES = COUNT * 2 / C_COLUMNS, BYTES = C_ROWS * C_COLUMNS * 2;
    const int lane = threadIdx.x % WARP, row = lane % 16, first = lane / 16;
#pragma unroll
    for (int piece = 0; piece < PIECES; ++piece) {
        unsigned char* const c = buffers + piece % 2 * BYTES;
        if (lane == 0) wait_for_buffer<PIECES>(piece == 0);
        __syncwarp();
#pragma unroll
        for (int j = 0; j < C_COLUMNS / 8; j += 2) {  // 8 columns, and the 8 next to them
            const float* const own = sum + (piece * (C_COLUMNS / 8) + j) * 4;
            const int column = n + piece * C_COLUMNS + j * 8 + lane % 4 * 2;
            const decltype(epilogue.of(n, N)) of_columns[2] = {
                epilogue.of(column, N), epilogue.of(column + 8, N)};
            const auto two = [&](int i) {
                const float2 outputs = epilogue.apply(of_columns[i / 2], own[i * 2], own[i * 2 + 1]);
                return to_x2<T>(outputs.x, outputs.y);
            };
            unsigned char* const to = c + row * 64 + ((j + first) ^ row / 2 % 4) * 16;
            stmatrix_x4(to, two(0), two(1), two(2), two(3));
        }
        fence_proxy_async();
        __syncwarp();
        if (lane == 0) {
            tensor_copy_to_global(&c_map, n + piece * C_COLUMNS, m, c);
            bulk_commit_group();
        }
    }
}

// Sends a share of a thread's sums to each of the first blocks, its adder, and adds what this block gets, in
// the order of the ranks. `parts`: the same place in each block, used for nothing else. `first_rank`: of the
// first of these blocks; from one to the next there are `next` ranks.
template <int SPLIT, int THREADS, int COUNT, int ALL>
__device__ __forceinline__ void add_shares(
    float (&total)[COUNT], const float (&sum)[ALL], float4* parts, int first_rank, int next) {
    constexpr int QUADS = COUNT / 4;  // of a share
    float4* const own = parts + threadIdx.x - WARPGROUP;
    const int part = (cluster_block_rank() - first_rank) / next;
#pragma unroll
    for (int adder = 0; adder < ALL / COUNT; ++adder) {
        float4* const to = own + part * QUADS * THREADS;
#pragma unroll
        for (int q = 0; q < QUADS; ++q) {
            const float* const quad = sum + (adder * QUADS + q) * 4;
            store_to_block(
                to + q * THREADS, first_rank + adder * next, make_float4(quad[0], quad[1], quad[2], quad[3]));
        }
    }
    cluster_sync();
    if (part >= ALL / COUNT) return;
#pragma unroll
    for (int q = 0; q < QUADS; ++q) {
        float4 quad = own[q * THREADS];
#pragma unroll
        for (int other = 1; other < SPLIT; ++other) add_quad(quad, own[(other * QUADS + q) * THREADS]);
        total[q * 4] = quad.x, total[q * 4 + 1] = quad.y, total[q * 4 + 2] = quad.z,
                  total[q * 4 + 3] = quad.w;
    }
}

// a[M,K] @ b[K,N] -> c[M,N]; rows of c are 16-byte aligned. Warpgroups: a producer, and a consumer per 64
// rows of wgmma's left operand. A cluster has SHARING tiles next to each other, which share their loads of
// the right operand, and SPLIT blocks for each, with at least a step for each block. SPLIT = 1: persistent
// clusters. EXCHANGED: columns of b are the left operand. ADDERS of the SPLIT blocks add and store shares.
template <
    typename T, bool A_BY_ROWS, bool B_BY_ROWS, int BLOCK_M, int BLOCK_N, int STAGES, int SHARING, int SPLIT,
    bool EXCHANGED, int ADDERS, typename Epilogue>
__device__ __forceinline__ void multiply_and_split(
    const TensorMap& a_map, const TensorMap& b_map, const TensorMap& c_map, int M, int N, int K,
    const Epilogue& epilogue) {
    constexpr int LEFT = EXCHANGED ? BLOCK_N : BLOCK_M, RIGHT = EXCHANGED ? BLOCK_M : BLOCK_N;
    constexpr bool LEFT_ALONG_K = EXCHANGED ? !B_BY_ROWS : A_BY_ROWS;
    constexpr bool RIGHT_ALONG_K = EXCHANGED ? A_BY_ROWS : !B_BY_ROWS;
    static_assert(LEFT % PIECE == 0 && RIGHT % (8 * SHARING) == 0);
    static_assert(ADDERS <= SPLIT && RIGHT % ((EXCHANGED ? C_ROWS : C_COLUMNS) * ADDERS) == 0);
    constexpr int CLUSTER = SHARING * SPLIT, BLOCK_K = PIECE, GROUP_M = 8;
    constexpr int THREADS = LEFT / PIECE * WARPGROUP;  // of consumers
    constexpr int LINE = EXCHANGED || RIGHT_ALONG_K || RIGHT % PIECE == 0 ? PIECE : C_COLUMNS,
                  LINE_BYTES = LINE * BLOCK_K * 2;
    constexpr int RIGHT_PIECES = (RIGHT + LINE - 1) / LINE, RIGHT_SHARE = RIGHT / SHARING;
    constexpr int RIGHT_BYTES = RIGHT_ALONG_K ? RIGHT * BLOCK_K * 2 : RIGHT_PIECES * LINE_BYTES;
    constexpr int BYTES = RIGHT_BYTES + LEFT * BLOCK_K * 2;
    constexpr bool MANY_SUMS = LEFT == CONSUMERS * PIECE && RIGHT > 64;  // else an equal share is enough
    DYNAMIC_SHARED(unsigned char, shared);
    unsigned char* const tiles = align_1024(shared);
    __shared__ mbarrier_t full[STAGES], empty[STAGES];
    const int rank = CLUSTER > 1 ? cluster_block_rank() : 0;
    const int rank_left = rank % SHARING, rank_k = rank / SHARING;
    const int first_rank = rank - rank_left;  // of the blocks with the same terms
    constexpr int CLUSTER_M = EXCHANGED ? BLOCK_M : SHARING * BLOCK_M;
    constexpr int CLUSTER_N = EXCHANGED ? SHARING * BLOCK_N : BLOCK_N;
    const int tiles_m = (M + CLUSTER_M - 1) / CLUSTER_M, tiles_n = (N + CLUSTER_N - 1) / CLUSTER_N;
    const int tiles_c = tiles_m * tiles_n, tiles_k = (K + BLOCK_K - 1) / BLOCK_K;
    const int first = static_cast<int>(static_cast<index_t>(tiles_k) * rank_k / SPLIT);  // of this block
    const int last = static_cast<int>(static_cast<index_t>(tiles_k) * (rank_k + 1) / SPLIT);
    const int cluster = blockIdx.x / CLUSTER, clusters = gridDim.x / CLUSTER;
    const int warpgroup = __shfl_sync(FULL_WARP, threadIdx.x / WARPGROUP, 0);

    if (threadIdx.x == 0) {
        prefetch_tensor_map(&a_map);
        prefetch_tensor_map(&b_map);
        prefetch_tensor_map(&c_map);
        for (int stage = 0; stage < STAGES; ++stage) {
            mbarrier_init(&full[stage], 1);
            mbarrier_init(&empty[stage], THREADS / WARPGROUP * SHARING);
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
                const int left = (EXCHANGED ? at.n * CLUSTER_N : at.m * CLUSTER_M) + rank_left * LEFT;
                const int right = EXCHANGED ? at.m * CLUSTER_M : at.n * CLUSTER_N;
#pragma unroll 1
                for (int step = first; step < last; ++step, ring.advance()) {
                    unsigned char* const right_tile = tiles + ring.stage * BYTES;
                    mbarrier_t* const landed = &full[ring.stage];
                    const auto copy_right = [&](unsigned char* to, int column, int row) {
                        tensor_copy<SHARING>(
                            to, EXCHANGED ? &a_map : &b_map, column, row, landed, first_rank);
                    };
                    mbarrier_wait(&empty[ring.stage], ring.parity ^ 1);
                    mbarrier_arrive_expect_bytes(landed, BYTES);
                    const int k = step * BLOCK_K;
                    if constexpr (RIGHT_ALONG_K) {
                        copy_right(
                            right_tile + rank_left * RIGHT_SHARE * BLOCK_K * 2, k,
                            right + rank_left * RIGHT_SHARE);
                    } else {
#pragma unroll
                        for (int i = 0; i < RIGHT_PIECES; ++i) {
                            if (i % SHARING == rank_left) {
                                copy_right(right_tile + i * LINE_BYTES, right + i * LINE, k);
                            }
                        }
                    }
                    fetch_tile<LEFT_ALONG_K, LEFT>(
                        right_tile + RIGHT_BYTES, left, k, [&](unsigned char* to, int column, int row) {
                            tensor_copy_to_shared(to, EXCHANGED ? &b_map : &a_map, column, row, landed);
                        });
                }
            }
        }
        __syncwarp();
        if constexpr (SPLIT > 1) cluster_sync();  // all threads take part in the barrier before the addition
    } else {
        if constexpr (MANY_SUMS) setmaxnreg_inc<CONSUMER_REGISTERS>();
        const int consumer = warpgroup - 1;
        const auto release = [&](int stage) {
            const int r = threadIdx.x % WARPGROUP;  // it arrives at the mbarrier of block first_rank + r
            if (SHARING == 1 && r == 0) mbarrier_arrive(&empty[stage]);
            if (SHARING > 1 && r < SHARING) mbarrier_arrive_in_block(&empty[stage], first_rank + r);
        };
        float sum[RIGHT / 2];
        for (int tile = cluster; tile < tiles_c; tile += clusters) {
            const TileCoordinates at = grouped_tile<GROUP_M>(tile, tiles_m, tiles_n);
            int before = 0;
            for (int step = first; step < last; ++step, ring.advance()) {
                const unsigned char* const right_tile = tiles + ring.stage * BYTES;
                mbarrier_wait(&full[ring.stage], ring.parity);
                wgmma_fence();
                multiply<T, LEFT_ALONG_K, !RIGHT_ALONG_K, LINE>(
                    sum, right_tile + RIGHT_BYTES + consumer * PIECE_BYTES, right_tile, step > first);
                wgmma_commit_group();
                wgmma_wait_group<1>(sum);
                if (step > first) release(before);
                before = ring.stage;
            }
            wgmma_wait_group<0>(sum);
            const int share = rank_k * (RIGHT / ADDERS);
            const int m = at.m * CLUSTER_M + (EXCHANGED ? share : rank_left * BLOCK_M);
            const int n = at.n * CLUSTER_N + (EXCHANGED ? rank_left * BLOCK_N : share);
            const auto store = [&](unsigned char* buffers, const auto& sums) {
                if constexpr (EXCHANGED) {
                    buffers += consumer * C_BYTES<RIGHT / ADDERS>;
                    store_transposed<T>(c_map, buffers, sums, m, n + consumer * PIECE, N, epilogue);
                } else {
                    const int warp = threadIdx.x / WARP - WARPGROUP / WARP;
                    buffers += warp * (2 * C_ROWS * C_COLUMNS * 2);
                    store_rows<T>(c_map, buffers, sums, m + warp * 16, n, N, epilogue);
                }
            };
            if constexpr (SPLIT == 1) {
                release(before);
                store(tiles + STAGES * BYTES, sum);
            } else {
                float total[RIGHT / 2 / ADDERS];
                float4* const parts = reinterpret_cast<float4*>(tiles + STAGES * BYTES);
                add_shares<SPLIT, THREADS>(total, sum, parts, rank_left, SHARING);
                if (rank_k < ADDERS)
                    store(tiles, total);  // after the barrier of the cluster no wgmma reads the ring any more
            }
        }
        if (threadIdx.x % WARP == 0) bulk_wait_group_read<0>();
        __syncwarp();
    }
    // A block's mbarriers must outlive the accesses of the cluster's other blocks.
    if constexpr (CLUSTER > 1 && SPLIT == 1) cluster_sync();
}

#endif  // HAS_WGMMA_LEVELS

template <
    typename T, bool A_BY_ROWS, bool B_BY_ROWS, int BLOCK_M, int BLOCK_N, int STAGES, int SHARING, int SPLIT,
    bool EXCHANGED, int ADDERS>
__global__ __launch_bounds__(SPLIT_K_THREADS<BLOCK_M, BLOCK_N, EXCHANGED>, 1)
    CLUSTER_OF(SHARING* SPLIT) void matmul_split_k_kernel(
        const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap b_map,
        const __grid_constant__ TensorMap c_map, int M, int N, int K) {
#if HAS_WGMMA_LEVELS
    multiply_and_split<T, A_BY_ROWS, B_BY_ROWS, BLOCK_M, BLOCK_N, STAGES, SHARING, SPLIT, EXCHANGED, ADDERS>(
        a_map, b_map, c_map, M, N, K, Identity());
#endif
}
