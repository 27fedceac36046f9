// matmul, level 5, vectorized. Change: 16 bytes per access, of global and of shared memory. For that a tile
// of a is transposed in shared memory, so that a thread's rows are neighbours, as its columns of b are.
// Operands are now row- or column-major, with 16-byte aligned rows (columns).
#pragma once

#include "common.cuh"

// Loads BLOCK_K x BLOCK elements of a (b) into tile[k][i], from `first_k` along K and `first` along M (N),
// which is `size` long. Out of bounds they count as 0. Lines of contiguous elements, ld apart, run along K or
// across. Rows of `tile` are padded by 16 bytes: an fp32 store of lines along K then has 2-way bank
// conflicts, not 4-way.
template <typename T, bool ALONG_K, int BLOCK, int BLOCK_K, int THREADS>
__device__ __forceinline__ void load_by_vectors(
    float (&tile)[BLOCK_K][BLOCK + 4], const T* ptr, index_t ld, index_t first, index_t size, index_t first_k,
    index_t K) {
    constexpr int VEC = 16 / sizeof(T), VECTORS = (ALONG_K ? BLOCK_K : BLOCK) / VEC;  // per line
    static_assert(BLOCK * BLOCK_K % (VEC * THREADS) == 0, "threads share a tile evenly");
#pragma unroll
    for (int vector = 0; vector < BLOCK * BLOCK_K / VEC; vector += THREADS) {
        const int line = (vector + threadIdx.x) / VECTORS, column = (vector + threadIdx.x) % VECTORS * VEC;
        const int i = ALONG_K ? line : column, k = ALONG_K ? column : line;
        const index_t left_i = size - first - i, left_k = K - first_k - k;  // up to the operand's end
        const T* from = ptr + (ALONG_K ? (first + i) * ld + first_k + k : (first_k + k) * ld + first + i);
        const index_t left = left_i > 0 && left_k > 0 ? (ALONG_K ? left_k : left_i) : 0;
        Vec<T, VEC> x;
        if (left >= VEC) {
            x = *reinterpret_cast<const Vec<T, VEC>*>(from);
        } else {
#pragma unroll
            for (int e = 0; e < VEC; ++e) x[e] = e < left ? from[e] : T(0.0f);
        }
        if constexpr (ALONG_K) {
#pragma unroll
            for (int e = 0; e < VEC; ++e) tile[k + e][i] = to_float(x, e);
        } else {
#pragma unroll
            for (int e = 0; e < VEC; e += 4) {
                const Vec<float, 4> four = {
                    to_float(x, e), to_float(x, e + 1), to_float(x, e + 2), to_float(x, e + 3)};
                *reinterpret_cast<Vec<float, 4>*>(&tile[k][i + e]) = four;
            }
        }
    }
}

// a[M,K] @ b[K,N] -> c[M,N]. Grid: one block per tile of c of BLOCK_M x BLOCK_N, row by row. A thread's rows
// and columns come in fours, interleaved with other threads' fours: bank-conflict-free.
template <
    typename T, bool A_BY_ROWS, bool B_BY_ROWS, int BLOCK_M, int BLOCK_N, int BLOCK_K, int THREAD_M,
    int THREAD_N>
__global__ __launch_bounds__((BLOCK_M / THREAD_M) * (BLOCK_N / THREAD_N), 2) void matmul_vectorized_kernel(
    const T* a_ptr, const T* b_ptr, T* c_ptr, index_t M, index_t N, index_t K, index_t lda, index_t ldb) {
    constexpr int THREADS_M = BLOCK_M / THREAD_M, THREADS_N = BLOCK_N / THREAD_N;
    constexpr int THREADS = THREADS_M * THREADS_N;
    __shared__ __align__(16) float a_tile[BLOCK_K][BLOCK_M + 4], b_tile[BLOCK_K][BLOCK_N + 4];
    const int thread_m = threadIdx.x / THREADS_N, thread_n = threadIdx.x % THREADS_N;
    const index_t tiles_n = (N + BLOCK_N - 1) / BLOCK_N;
    const index_t begin_m = blockIdx.x / tiles_n * BLOCK_M, begin_n = blockIdx.x % tiles_n * BLOCK_N;

    float sum[THREAD_M][THREAD_N] = {};
    for (index_t begin_k = 0; begin_k < K; begin_k += BLOCK_K) {
        load_by_vectors<T, A_BY_ROWS, BLOCK_M, BLOCK_K, THREADS>(a_tile, a_ptr, lda, begin_m, M, begin_k, K);
        load_by_vectors<T, !B_BY_ROWS, BLOCK_N, BLOCK_K, THREADS>(b_tile, b_ptr, ldb, begin_n, N, begin_k, K);
        __syncthreads();
#pragma unroll
        for (int k = 0; k < BLOCK_K; ++k) {
            Vec<float, 4> a[THREAD_M / 4], b[THREAD_N / 4];
#pragma unroll
            for (int i = 0; i < THREAD_M / 4; ++i) {
                a[i] = *reinterpret_cast<Vec<float, 4>*>(&a_tile[k][(i * THREADS_M + thread_m) * 4]);
            }
#pragma unroll
            for (int j = 0; j < THREAD_N / 4; ++j) {
                b[j] = *reinterpret_cast<Vec<float, 4>*>(&b_tile[k][(j * THREADS_N + thread_n) * 4]);
            }
#pragma unroll
            for (int i = 0; i < THREAD_M; ++i) {
#pragma unroll
                for (int j = 0; j < THREAD_N; ++j) sum[i][j] += a[i / 4][i % 4] * b[j / 4][j % 4];
            }
        }
        __syncthreads();
    }

#pragma unroll
    for (int i = 0; i < THREAD_M; ++i) {
        const index_t m = begin_m + (i / 4 * THREADS_M + thread_m) * 4 + i % 4;
        if (m >= M) continue;
#pragma unroll
        for (int j = 0; j < THREAD_N; ++j) {
            const index_t n = begin_n + (j / 4 * THREADS_N + thread_n) * 4 + j % 4;
            if (n < N) c_ptr[m * N + n] = T(sum[i][j]);
        }
    }
}
