// matmul, level 6, cp_async. Change: cp.async fills shared memory past the registers and in the background: a
// pipeline of STAGES stages, in which the next tiles are in flight while one is multiplied. fp32 only:
// cp.async copies 4 bytes at least, so it cannot transpose 16-bit elements.
#pragma once

#include "common.cuh"
#include "matmul/tiles.cuh"
#include "tensor_core.cuh"

// cp.async of a block's tiles of a (b), one after another along K, into tile[k][i] of BLOCK_K rows. A thread
// copies the same elements of every tile: 16 bytes at a time, or 4 where lines run along K, to transpose
// them. Rows are padded by 16 bytes: a warp's copies of 4 bytes, 8 along K and 4 across, go to 32 different
// banks.
template <bool ALONG_K, int BLOCK, int BLOCK_K, int THREADS>
struct AsyncCopy {
    static constexpr int PITCH = BLOCK + 4;
    static constexpr int LENGTH = ALONG_K ? 8 : BLOCK / 4;  // threads side by side on a line
    static constexpr int STEP = THREADS / LENGTH;           // lines between a thread's copies
    static_assert((ALONG_K ? BLOCK : BLOCK_K) % STEP == 0 && BLOCK_K % 8 == 0, "threads share a tile evenly");

    const float* from;
    index_t ld;
    int offset;  // in the tile
    int along;   // along K: elements left in the thread's line; across K: lines left below it
    int across;  // along K: lines from the thread's to the last; across K: elements left in the thread's line

    // The tiles start at `begin` along M (N), which is `size` long.
    __device__ __forceinline__ AsyncCopy(const float* ptr, index_t ld, index_t begin, index_t size, index_t K)
        : ld(ld) {
        const int line = threadIdx.x / LENGTH, column = threadIdx.x % LENGTH * (ALONG_K ? 1 : 4);
        offset = ALONG_K ? column * PITCH + line : line * PITCH + column;
        from = ALONG_K ? ptr + (begin + line) * ld + column : ptr + line * ld + begin + column;
        along = at_most(K, 0x7fffffff) - (ALONG_K ? column : line);
        across = at_most(size - begin, BLOCK) - (ALONG_K ? line + 1 : column);
    }

    // Starts the copies of the next tile. If the tile is not `whole`, elements past the end of K become 0.
    // Missing lines along K repeat the last line: they contribute to no valid element of c.
    __device__ __forceinline__ void next(float* tile, bool whole) {
        const float* line = from;
        if constexpr (ALONG_K) {
#pragma unroll
            for (int i = 0; i < BLOCK; i += STEP, line += STEP * ld) {
                if (!whole) line = from + min(i, across) * ld;
#pragma unroll
                for (int k = 0; k < BLOCK_K; k += 8) {
                    cp_async_4(tile + offset + k * PITCH + i, line + k, whole || along > k ? 4 : 0);
                }
            }
        } else {
            const int elements = max(min(across, 4), 0);
#pragma unroll
            for (int k = 0; k < BLOCK_K; k += STEP, line += STEP * ld) {
                cp_async_16(tile + offset + k * PITCH, line, whole ? 16 : along > k ? elements * 4 : 0);
            }
        }
        from += ALONG_K ? BLOCK_K : BLOCK_K * ld;
        along -= BLOCK_K;
    }
};

// a[M,K] @ b[K,N] -> c[M,N]. Grid: one block per tile of c of BLOCK_M x BLOCK_N, row by row. A thread's rows
// and columns come in fours, interleaved with other threads' fours: bank-conflict-free. One tile of a
// and b is used, STAGES - 1 are in flight.
template <
    bool A_BY_ROWS, bool B_BY_ROWS, int BLOCK_M, int BLOCK_N, int BLOCK_K, int THREAD_M, int THREAD_N,
    int STAGES>
__global__ __launch_bounds__((BLOCK_M / THREAD_M) * (BLOCK_N / THREAD_N), 2) void matmul_cp_async_kernel(
    const float* a_ptr, const float* b_ptr, float* c_ptr, index_t M, index_t N, index_t K, index_t lda,
    index_t ldb) {
    constexpr int THREADS_M = BLOCK_M / THREAD_M, THREADS_N = BLOCK_N / THREAD_N;
    constexpr int THREADS = THREADS_M * THREADS_N;
    using ACopy = AsyncCopy<A_BY_ROWS, BLOCK_M, BLOCK_K, THREADS>;
    using BCopy = AsyncCopy<!B_BY_ROWS, BLOCK_N, BLOCK_K, THREADS>;
    DYNAMIC_SHARED(float, a_tiles);
    float* b_tiles = a_tiles + STAGES * BLOCK_K * ACopy::PITCH;
    const int thread_m = threadIdx.x / THREADS_N, thread_n = threadIdx.x % THREADS_N;
    const index_t tiles_n = (N + BLOCK_N - 1) / BLOCK_N;
    const index_t begin_m = blockIdx.x / tiles_n * BLOCK_M, begin_n = blockIdx.x % tiles_n * BLOCK_N;

    ACopy a_copy(a_ptr, lda, begin_m, M, K);
    BCopy b_copy(b_ptr, ldb, begin_n, N, K);
    const bool inside = begin_m + BLOCK_M <= M && begin_n + BLOCK_N <= N;
    int whole = inside ? at_most(K / BLOCK_K, 0x7fffffff) : 0;  // complete tiles not yet fetched
    const auto fetch = [&](int stage) {
        float* a_tile = a_tiles + stage * BLOCK_K * ACopy::PITCH;
        float* b_tile = b_tiles + stage * BLOCK_K * BCopy::PITCH;
        if (--whole >= 0) {
            a_copy.next(a_tile, true);
            b_copy.next(b_tile, true);
        } else {
            a_copy.next(a_tile, false);
            b_copy.next(b_tile, false);
        }
        cp_async_commit();
    };
#pragma unroll
    for (int stage = 0; stage < STAGES - 1; ++stage) fetch(stage);

    float sum[THREAD_M][THREAD_N] = {};
    int stage = 0, free_stage = STAGES - 1;
    const int tiles_k = at_most((K + BLOCK_K - 1) / BLOCK_K, 0x7fffffff);
    for (int tile = 0; tile < tiles_k; ++tile) {
        cp_async_wait<STAGES - 2>();
        __syncthreads();  // this tile has landed, and all have read the one before
        fetch(free_stage);
        const float* a_tile = a_tiles + stage * BLOCK_K * ACopy::PITCH;
        const float* b_tile = b_tiles + stage * BLOCK_K * BCopy::PITCH;
#pragma unroll
        for (int k = 0; k < BLOCK_K; ++k) {
            Vec<float, 4> a[THREAD_M / 4], b[THREAD_N / 4];
#pragma unroll
            for (int i = 0; i < THREAD_M / 4; ++i) {
                a[i] = *reinterpret_cast<const Vec<float, 4>*>(
                    a_tile + k * ACopy::PITCH + (i * THREADS_M + thread_m) * 4);
            }
#pragma unroll
            for (int j = 0; j < THREAD_N / 4; ++j) {
                b[j] = *reinterpret_cast<const Vec<float, 4>*>(
                    b_tile + k * BCopy::PITCH + (j * THREADS_N + thread_n) * 4);
            }
#pragma unroll
            for (int i = 0; i < THREAD_M; ++i) {
#pragma unroll
                for (int j = 0; j < THREAD_N; ++j) sum[i][j] += a[i / 4][i % 4] * b[j / 4][j % 4];
            }
        }
        free_stage = stage;
        stage = stage + 1 == STAGES ? 0 : stage + 1;
    }

#pragma unroll
    for (int i = 0; i < THREAD_M; ++i) {
        const index_t m = begin_m + (i / 4 * THREADS_M + thread_m) * 4 + i % 4;
        if (m >= M) continue;
#pragma unroll
        for (int j = 0; j < THREAD_N; ++j) {
            const index_t n = begin_n + (j / 4 * THREADS_N + thread_n) * 4 + j % 4;
            if (n < N) c_ptr[m * N + n] = sum[i][j];
        }
    }
}
