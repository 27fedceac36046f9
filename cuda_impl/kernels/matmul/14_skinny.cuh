// matmul, level 14, skinny. Change: for at most 16 rows of a, as when a language model writes a token. The
// product then reads all of b for 16 rows or fewer: memory bound, and tiles of 64 rows or more would be
// mostly padding. Warps split K, not M: each loads b straight into the registers of mma, 16 bytes a load,
// without shared memory. A sum does not depend on the order of its terms, so a lane may number the terms of
// mma as they are in memory: that takes the place of ldmatrix. The sums of a block's warps, then those of a
// cluster's blocks through distributed shared memory, are added in order. 16-bit elements, sm_75; bf16 from
// sm_80; clusters from sm_90.
#pragma once

#include "matmul/cluster.cuh"
#include "tensor_core.cuh"

constexpr int SKINNY_M = 16, SKINNY_N = 64;  // a block's tile of c

// Eight elements of a row, of which `count` exist; the others are 0.
template <typename T>
__device__ __forceinline__ uint4 load_existing(const T* ptr, index_t count) {
    if (count >= 8) return *reinterpret_cast<const uint4*>(ptr);
    const auto element = [&](int i) -> unsigned {
        return i < count ? reinterpret_cast<const unsigned short*>(ptr)[i] : 0;
    };
    const auto two = [&](int i) { return element(i) | element(i + 1) << 16; };
    return make_uint4(two(0), two(2), two(4), two(6));
}

// Of two vectors of 16-bit elements, their i-th elements as one word.
__device__ __forceinline__ unsigned pair_of(const uint4& first, const uint4& second, int i) {
    const unsigned* words = &first.x;
    const unsigned* more = &second.x;
    return __byte_perm(words[i / 2], more[i / 2], i % 2 == 0 ? 0x5410 : 0x7632);
}

// a[M,K] @ b[K,N] -> c[M,N], M <= 16, rows of a contiguous. Grid: CLUSTER blocks per 64 columns of c. A warp
// multiplies `part` terms of K, a multiple of 32, in steps of 32: lane l has terms 8 * (l % 4) to
// 8 * (l % 4) + 7 of rows l / 4 and l / 4 + 8 of a. Row-major b: those terms of columns 8 * (l / 4) to
// 8 * (l / 4) + 7. Column-major b: of columns l / 4, l / 4 + 8, and so on.
template <typename T, bool B_BY_ROWS, int WARPS, int CLUSTER>
__global__ __launch_bounds__(WARPS * WARP, 2) CLUSTER_OF(CLUSTER) void matmul_skinny_kernel(
    const T* a_ptr, const T* b_ptr, T* c_ptr, int M, index_t N, index_t K, index_t lda, index_t ldb,
    index_t part) {
    constexpr int THREADS = WARPS * WARP, PITCH = SKINNY_N + 1;
    __shared__ float sums[WARPS][SKINNY_M * PITCH];
    int rank = 0;
#if HAS_HOPPER_UNITS
    if constexpr (CLUSTER > 1) rank = cluster_block_rank();
#endif
    const int warp = threadIdx.x / WARP, group = threadIdx.x % WARP / 4, term = threadIdx.x % 4 * 8;
    const index_t begin_n = static_cast<index_t>(blockIdx.x / CLUSTER) * SKINNY_N;
    const index_t begin_k = (rank * WARPS + warp) * part, end_k = min(begin_k + part, K);

    float sum[8][4] = {};
    // Rows of a past the last repeat it: they contribute to no valid row of c.
    const T* upper_ptr = a_ptr + min(group, M - 1) * lda;
    const T* lower_ptr = a_ptr + min(group + 8, M - 1) * lda;
    const index_t n = begin_n + group * (B_BY_ROWS ? 8 : 1);
    const bool all_columns = begin_n + SKINNY_N <= N;
    for (index_t begin = begin_k; begin < end_k; begin += 32) {
        const index_t k = begin + term, left = end_k - k;
        uint4 b[8], upper, lower;
        if (all_columns && begin + 32 <= end_k) {
            const T* ptr = b_ptr + (B_BY_ROWS ? k * ldb + n : n * ldb + k);
#pragma unroll
            for (int i = 0; i < 8; ++i) {  // b is read once: it stays out of L1
                b[i] = __ldcs(reinterpret_cast<const uint4*>(ptr + (B_BY_ROWS ? i : i * 8) * ldb));
            }
            upper = *reinterpret_cast<const uint4*>(upper_ptr + k);
            lower = *reinterpret_cast<const uint4*>(lower_ptr + k);
        } else {
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                const index_t row = B_BY_ROWS ? k + i : n + i * 8, rows = B_BY_ROWS ? end_k : N;
                const index_t column = B_BY_ROWS ? n : k, columns = B_BY_ROWS ? N : end_k;
                b[i] = load_existing(b_ptr + row * ldb + column, row < rows ? columns - column : 0);
            }
            upper = load_existing(upper_ptr + k, left);
            lower = load_existing(lower_ptr + k, left);
        }
#pragma unroll
        for (int step = 0; step < 2; ++step) {  // of a lane's eight terms, four each
            const unsigned a[4] = {
                (&upper.x)[step * 2], (&lower.x)[step * 2], (&upper.x)[step * 2 + 1],
                (&lower.x)[step * 2 + 1]};
#pragma unroll
            for (int j = 0; j < 8; ++j) {
                if constexpr (B_BY_ROWS) {
                    const uint4* rows = b + step * 4;
                    mma_m16n8k16<T>(
                        sum[j], a, pair_of(rows[0], rows[1], j), pair_of(rows[2], rows[3], j));
                } else {
                    mma_m16n8k16<T>(sum[j], a, (&b[j].x)[step * 2], (&b[j].x)[step * 2 + 1]);
                }
            }
        }
    }

#pragma unroll
    for (int j = 0; j < 8; ++j) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int m = group + i / 2 * 8, column = threadIdx.x % 4 * 2 + i % 2;  // of the j-th mma
            sums[warp][m * PITCH + (B_BY_ROWS ? column * 8 + j : j * 8 + column)] = sum[j][i];
        }
    }
    __syncthreads();
    for (int i = threadIdx.x; i < M * SKINNY_N; i += THREADS) {
        const int at = i / SKINNY_N * PITCH + i % SKINNY_N;
        float total = sums[0][at];
#pragma unroll
        for (int other = 1; other < WARPS; ++other) total += sums[other][at];
        sums[0][at] = total;
    }
    __syncthreads();
#if HAS_HOPPER_UNITS
    if constexpr (CLUSTER > 1) cluster_sync();
#endif
    for (int i = rank * THREADS + threadIdx.x; i < M * SKINNY_N; i += CLUSTER * THREADS) {
        const int at = i / SKINNY_N * PITCH + i % SKINNY_N;
        float total = sums[0][at];
#if HAS_HOPPER_UNITS
        if constexpr (CLUSTER > 1) {
            total = 0.0f;
#pragma unroll
            for (int block = 0; block < CLUSTER; ++block) total += load_from_block(&sums[0][at], block);
        }
#endif
        const index_t n = begin_n + i % SKINNY_N;
        if (n < N) c_ptr[i / SKINNY_N * N + n] = T(total);
    }
#if HAS_HOPPER_UNITS
    if constexpr (CLUSTER > 1) cluster_sync();  // a block's shared memory must outlive the others' reads
#endif
}
