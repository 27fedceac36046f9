// matmul, level 14, split_k. Change: the operands are exchanged, c^T = b^T a^T. wgmma's 64 rows are columns
// of b, and its 8 to 256 columns are rows of a: a tile of c has 64, 128 or 192 columns and any multiple of 16
// rows. So there is one that leaves few multiprocessors idle. For M = 777, N = 4096 tma_store has 128 tiles
// of 128 x 256, an eighth of them empty. Here 128 tiles of 208 x 128 have 19% less work each: 39 us, not 46
// (H200). Where tiles are few even so, the blocks of a cluster divide the terms of one among them (split K).
//
// In a cluster of SPLIT = 4, block r multiplies a quarter of the K / 64 steps. Then it adds a quarter of the
// rows of all four sums, and stores them. The sums are in the shared memory of their block, where tiles of a
// and b were (distributed shared memory), and are added in the order of the ranks: the result does not depend
// on which block is first. Not split, tiles are assigned to persistent clusters.
#pragma once

#include "common.cuh"
#include "matmul/13_tma_store.cuh"

__device__ __forceinline__ void add_quad(float4& total, const float4& more) {
    total = make_float4(total.x + more.x, total.y + more.y, total.z + more.z, total.w + more.w);
}

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

constexpr int C_ROWS = 16, C_PASS = 64;  // of a TMA store; that a warpgroup stores at a time
template <int BLOCK_M>
constexpr int C_BYTES = (BLOCK_M < 2 * C_PASS ? BLOCK_M : 2 * C_PASS) * 128;  // of a warpgroup's buffers

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
        if (thread == 0) {  // TMA has read this buffer: of two passes ago, or, PASSES odd, of the tile before
            if (pass > 0 || PASSES % 2 == 0) {
                bulk_wait_group_read<1>();
            } else {
                bulk_wait_group_read<0>();
            }
        }
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

// Adds a tile's sums, which SPLIT blocks hold as `sum` of each thread, and stores this block's share of rows.
// `sums`: the same place in each block; no wgmma reads it any more. `next`: from a block to the next one, in
// ranks. Rows of the sums are 16 bytes longer than needed, so that a warp's stores are to different banks.
template <typename T, int BLOCK_N, int SPLIT, int COUNT, typename Epilogue>
__device__ __forceinline__ void add_and_store(
    float* sums, const float (&sum)[COUNT], int first_rank, int next, T* c_ptr, int m, int n, int M, int N,
    const Epilogue& epilogue) {
    constexpr int THREADS = BLOCK_N / PIECE * WARPGROUP, PITCH = BLOCK_N + 4, QUADS = BLOCK_N / 4;
    constexpr int SHARE = COUNT * 2 / SPLIT;  // rows
    static_assert(COUNT * 2 % SPLIT == 0);
    const int thread = threadIdx.x - WARPGROUP, lane = thread % WARP;
    float* const own = sums + lane % 4 * 2 * PITCH + thread / WARP * 16 + lane / 4;
#pragma unroll
    for (int j = 0; j < COUNT; ++j) {
        own[(j / 4 * 8 + j % 2) * PITCH + j / 2 % 2 * 8] = sum[j];
    }
    cluster_sync();
    const int first_row = (cluster_block_rank() - first_rank) / next * SHARE;
#pragma unroll 4
    for (int q = thread; q < SHARE * QUADS; q += THREADS) {
        const int row = first_row + q / QUADS, column = n + q % QUADS * 4;
        const float4* const quad = reinterpret_cast<float4*>(sums + row * PITCH) + q % QUADS;
        float4 total = load_from_block(quad, first_rank);
#pragma unroll
        for (int block = 1; block < SPLIT; ++block) {
            add_quad(total, load_from_block(quad, first_rank + block * next));
        }
        if (m + row >= M || column >= N) continue;
        const float2 left = epilogue.apply(epilogue.of(column, N), total.x, total.y);
        const float2 right = epilogue.apply(epilogue.of(column + 2, N), total.z, total.w);
        *reinterpret_cast<uint2*>(c_ptr + static_cast<index_t>(m + row) * N + column) =
            make_uint2(to_x2<T>(left.x, left.y), to_x2<T>(right.x, right.y));
    }
}

// a[M,K] @ b[K,N] -> c[M,N]; rows of c are 16-byte aligned. Warpgroups: a producer, and a consumer per 64
// columns of a tile. A cluster has CLUSTER_N tiles side by side, which share their loads of a, and SPLIT
// blocks for each, with at least a step for each block. SPLIT = 1: persistent clusters, TMA stores.
template <
    typename T, bool A_BY_ROWS, bool B_BY_ROWS, int BLOCK_M, int BLOCK_N, int STAGES, int CLUSTER_N,
    int SPLIT, typename Epilogue>
__device__ __forceinline__ void multiply_and_split(
    const TensorMap& a_map, const TensorMap& b_map, const TensorMap& c_map, T* c_ptr, int M, int N, int K,
    const Epilogue& epilogue) {
    static_assert(BLOCK_M % 16 == 0 && BLOCK_M % (8 * CLUSTER_N) == 0);
    constexpr int CLUSTER = CLUSTER_N * SPLIT, BLOCK_K = PIECE, GROUP_M = 8;
    constexpr int THREADS = BLOCK_N / PIECE * WARPGROUP;  // of consumers
    constexpr int A_PIECES = (BLOCK_M + PIECE - 1) / PIECE, A_SHARE = BLOCK_M / CLUSTER_N;
    constexpr int A_BYTES = A_BY_ROWS ? BLOCK_M * BLOCK_K * 2 : A_PIECES * PIECE_BYTES;
    constexpr int BYTES = A_BYTES + BLOCK_N * BLOCK_K * 2;
    static_assert(SPLIT == 1 || BLOCK_M * (BLOCK_N + 4) * 4 <= STAGES * BYTES);  // sums in place of tiles
    constexpr bool MANY_SUMS = BLOCK_N == CONSUMERS * PIECE && BLOCK_M > 64;  // else an equal share is enough
    DYNAMIC_SHARED(unsigned char, shared);
    unsigned char* const tiles = align_1024(shared);
    __shared__ mbarrier_t full[STAGES], empty[STAGES];
    const int rank = CLUSTER > 1 ? cluster_block_rank() : 0, rank_n = rank % CLUSTER_N,
              rank_k = rank / CLUSTER_N;
    const int first_rank = rank - rank_n;  // of the blocks with the same terms
    const int tiles_m = (M + BLOCK_M - 1) / BLOCK_M,
              tiles_n = (N + CLUSTER_N * BLOCK_N - 1) / (CLUSTER_N * BLOCK_N);
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
            mbarrier_init(&empty[stage], THREADS / WARPGROUP * CLUSTER_N);
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
                const int m = at.m * BLOCK_M, n = (at.n * CLUSTER_N + rank_n) * BLOCK_N;
#pragma unroll 1
                for (int step = first; step < last; ++step, ring.advance()) {
                    unsigned char* const a = tiles + ring.stage * BYTES;
                    mbarrier_t* const landed = &full[ring.stage];
                    const auto copy_a = [&](unsigned char* to, int column, int row) {
                        tensor_copy<CLUSTER_N>(to, &a_map, column, row, landed, first_rank);
                    };
                    mbarrier_wait(&empty[ring.stage], ring.parity ^ 1);
                    mbarrier_arrive_expect_bytes(landed, BYTES);
                    const int k = step * BLOCK_K;
                    if constexpr (A_BY_ROWS) {
                        copy_a(a + rank_n * A_SHARE * BLOCK_K * 2, k, m + rank_n * A_SHARE);
                    } else {
#pragma unroll
                        for (int i = 0; i < A_PIECES; ++i) {
                            if (i % CLUSTER_N == rank_n) copy_a(a + i * PIECE_BYTES, m + i * PIECE, k);
                        }
                    }
                    fetch_tile<!B_BY_ROWS, BLOCK_N>(
                        a + A_BYTES, n, k, [&](unsigned char* to, int column, int row) {
                            tensor_copy_to_shared(to, &b_map, column, row, landed);
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
            if (CLUSTER_N == 1 && r == 0) mbarrier_arrive(&empty[stage]);
            if (CLUSTER_N > 1 && r < CLUSTER_N) mbarrier_arrive_in_block(&empty[stage], first_rank + r);
        };
        unsigned char* const buffers = tiles + STAGES * BYTES + consumer * C_BYTES<BLOCK_M>;
        float sum[BLOCK_M / 2];
        for (int tile = cluster; tile < tiles_c; tile += clusters) {
            const TileCoordinates at = grouped_tile<GROUP_M>(tile, tiles_m, tiles_n);
            int before = 0;
            for (int step = first; step < last; ++step, ring.advance()) {
                const unsigned char* const a = tiles + ring.stage * BYTES;
                mbarrier_wait(&full[ring.stage], ring.parity);
                wgmma_fence();
                // c^T = b^T a^T
                multiply<T, !B_BY_ROWS, !A_BY_ROWS>(
                    sum, a + A_BYTES + consumer * PIECE_BYTES, a, step > first);
                wgmma_commit_group();
                wgmma_wait_group<1>(sum);
                if (step > first) release(before);
                before = ring.stage;
            }
            wgmma_wait_group<0>(sum);
            const int m = at.m * BLOCK_M, n = (at.n * CLUSTER_N + rank_n) * BLOCK_N;
            if constexpr (SPLIT == 1) {
                release(before);
                store_transposed<T>(c_map, buffers, sum, m, n + consumer * PIECE, N, epilogue);
            } else {
                // The consumers without the producer: now no wgmma of this block reads the ring any more.
                named_barrier_sync<THREADS>(1);
                add_and_store<T, BLOCK_N, SPLIT>(
                    reinterpret_cast<float*>(tiles), sum, rank_n, CLUSTER_N, c_ptr, m, n, M, N, epilogue);
            }
        }
        if (SPLIT == 1 && threadIdx.x % WARPGROUP == 0) bulk_wait_group_read<0>();
        __syncwarp();
    }
    // A block's mbarriers and sums must outlive the accesses of the cluster's other blocks.
    if constexpr (CLUSTER > 1) cluster_sync();
}

#endif  // HAS_WGMMA

template <
    typename T, bool A_BY_ROWS, bool B_BY_ROWS, int BLOCK_M, int BLOCK_N, int STAGES, int CLUSTER_N,
    int SPLIT>
__global__ __launch_bounds__((1 + BLOCK_N / PIECE) * WARPGROUP, 1)
    CLUSTER_OF(CLUSTER_N* SPLIT) void matmul_split_k_kernel(
        const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap b_map,
        const __grid_constant__ TensorMap c_map, T* c_ptr, int M, int N, int K) {
#if HAS_WGMMA
    multiply_and_split<T, A_BY_ROWS, B_BY_ROWS, BLOCK_M, BLOCK_N, STAGES, CLUSTER_N, SPLIT>(
        a_map, b_map, c_map, c_ptr, M, N, K, Identity());
#endif
}
