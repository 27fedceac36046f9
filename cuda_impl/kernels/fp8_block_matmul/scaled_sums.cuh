// What fp8_block_matmul's levels share: a tile's operands in shared memory, and sums scaled block by block.
//
// A tile of c is BLOCK_M = 128 * WAVES rows by BLOCK_N columns. Each of two consumer warpgroups has
// 64 * WAVES rows, WAVES products of 64 rows one after another. A stage of the ring has BLOCK_M lines of a
// and BLOCK_N of b, of 128 of K each: as much as shares a scale.
#pragma once

#include "common.cuh"
#include "matmul/tiles.cuh"
#include "wgmma_8bit.cuh"

constexpr int BLOCK_K = 128, GROUP_M = 64, CONSUMERS = 2;
constexpr int PRODUCER_REGISTERS = 40, CONSUMER_REGISTERS = 232;  // of 65536 for 128 + 256 threads

template <int BLOCK_N, int WAVES>
constexpr int STAGE_BYTES = (CONSUMERS * GROUP_M * WAVES + BLOCK_N) * LINE_BYTES;

#if HAS_WGMMA_LEVELS

// The matrices' scales, contiguous, and how many blocks of K there are.
struct Scales {
    const float *a, *b;
    int blocks;
};

// Fetches block k of K of the tile at (m, n). The tensor maps' fourth dimension counts blocks of K.
template <int BLOCK_N, int WAVES>
__device__ __forceinline__ void fetch_block(unsigned char* stage, const TensorMap* a_map,
                                            const TensorMap* b_map, int m, int n, int k, mbarrier_t* landed) {
    mbarrier_arrive_expect_bytes(landed, STAGE_BYTES<BLOCK_N, WAVES>);
    head_copy_to_shared(stage, a_map, m, k, 0, landed);
    head_copy_to_shared(stage + CONSUMERS * GROUP_M * WAVES * LINE_BYTES, b_map, n, k, 0, landed);
}

// A consumer warpgroup's sums, of which a thread has rows 8 * half + lane / 4 of its warp's 16 of each wave.
template <int BLOCK_N, int WAVES>
struct ScaledSums {
    float sum[WAVES][BLOCK_N / 2] = {};
    int row;  // of c, this thread's first

    // `m`: the warpgroup's first row.
    __device__ __forceinline__ explicit ScaledSums(int m)
        : row(m + threadIdx.x % WARPGROUP / WARP * 16 + threadIdx.x % WARP / 4) {}

    // sum += partial sums of the stage's 128 of K * their scales. Tensor cores add with fewer digits than
    // fp32; here their sums end after 128 terms. The scales are loaded while the tensor cores multiply. The
    // stage is `empty` for this warpgroup once its last product is done.
    __device__ __forceinline__ void add_block(const unsigned char* stage, mbarrier_t* empty, int consumer,
                                              const Scales& scales, int k, int n, int M) {
        const matrix_t b = matrix_descriptor(stage + CONSUMERS * GROUP_M * WAVES * LINE_BYTES, 0);
        const unsigned char* const own = stage + consumer * GROUP_M * WAVES * LINE_BYTES;
        const float of_b = scales.b[n / BLOCK_K * scales.blocks + k];
#pragma unroll
        for (int wave = 0; wave < WAVES; ++wave) {
            const matrix_t a = matrix_descriptor(own + wave * GROUP_M * LINE_BYTES, 0);
            float part[BLOCK_N / 2];
            wgmma_fence();
#pragma unroll
            for (int i = 0; i < BLOCK_K / 32; ++i) wgmma_e4m3(part, a + 2 * i, b + 2 * i, i > 0);
            wgmma_commit_group();
            float scale[2];
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int m = row + wave * GROUP_M + half * 8;
                scale[half] = m < M ? scales.a[static_cast<index_t>(m) * scales.blocks + k] * of_b : 0.0f;
            }
            wgmma_wait_group<0>(part);
            if (wave == WAVES - 1 && threadIdx.x % WARPGROUP == 0) mbarrier_arrive(empty);
#pragma unroll
            for (int i = 0; i < BLOCK_N / 2; ++i) sum[wave][i] += part[i] * scale[i / 2 % 2];
        }
    }

    // Stores the sums, whose first column is n: two neighbours per store if N is even.
    __device__ __forceinline__ void store(__nv_bfloat16* c_ptr, int n, int M, int N) const {
        const int n_thread = n + threadIdx.x % 4 * 2;
#pragma unroll
        for (int wave = 0; wave < WAVES; ++wave) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int m = row + wave * GROUP_M + half * 8;
                if (m >= M) break;
                __nv_bfloat16* const c_row = c_ptr + static_cast<index_t>(m) * N;
#pragma unroll
                for (int j = 0; j < BLOCK_N / 8; ++j) {
                    const int column = n_thread + j * 8;
                    const float x = sum[wave][j * 4 + half * 2], y = sum[wave][j * 4 + half * 2 + 1];
                    if (N % 2 == 0) {
                        const __nv_bfloat162 two = __floats2bfloat162_rn(x, y);
                        if (column < N) *reinterpret_cast<__nv_bfloat162*>(c_row + column) = two;
                    } else {
                        if (column < N) c_row[column] = __float2bfloat16_rn(x);
                        if (column + 1 < N) c_row[column + 1] = __float2bfloat16_rn(y);
                    }
                }
            }
        }
    }
};

#endif  // HAS_WGMMA_LEVELS
