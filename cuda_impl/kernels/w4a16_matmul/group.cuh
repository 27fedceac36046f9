// What tensor_core and streamk share: a tile of a in shared memory, and a group's product on tensor cores.
//
// The sum over K has no order, so a lane chooses which k are its mma operands: of a group lane 4 * g + t has
// k = 32 * t to 32 * t + 31, of column g of the weights and of rows g and g + 8 of a. These are 16 bytes of
// packed and 64 of a row of a: 128-bit loads bring operands as they are, without ldmatrix.
#pragma once

#include "tensor_core.cuh"
#include "w4a16_matmul/int4.cuh"
#include "x2.cuh"

// Offset of a 16-byte vector of a tile of a, in elements. XOR swizzle: eight lanes of a 128-bit load, of two
// rows and four vectors 64 bytes apart, use all banks (4-way bank conflict -> none).
__device__ __forceinline__ int swizzle(int row, int vector) {
    return row * GROUP + (vector ^ (vector >> 3 | (row & 1) << 1)) * 8;
}

// Starts the copies of BLOCK_M rows of a, of the group that begins at k. Elements past M and K become 0.
template <int BLOCK_M, int THREADS, typename T>
__device__ __forceinline__ void fetch_a(
    T* tile, const T* a_ptr, index_t lda, index_t begin_m, index_t M, index_t k, index_t K) {
    constexpr int VECTORS = GROUP / 8;
    static_assert(BLOCK_M * VECTORS % THREADS == 0, "threads share a tile evenly");
#pragma unroll
    for (int i = 0; i < BLOCK_M * VECTORS; i += THREADS) {
        const int row = (i + threadIdx.x) / VECTORS, vector = threadIdx.x % VECTORS;
        const index_t m = begin_m + row, left = K - k - vector * 8;
        const bool inside = m < M && left > 0;
        const int bytes = inside ? static_cast<int>(left < 8 ? left : 8) * 2 : 0;
        cp_async_16(tile + swizzle(row, vector), inside ? a_ptr + m * lda + k + vector * 8 : a_ptr, bytes);
    }
}

// The order of eight elements of a that dequantized nibbles have: 0 and 4, 1 and 5, 2 and 6, 3 and 7.
__device__ __forceinline__ uint4 as_nibbles(const uint4& a) {
    return make_uint4(
        __byte_perm(a.x, a.z, 0x5410), __byte_perm(a.x, a.z, 0x7632), __byte_perm(a.y, a.w, 0x5410),
        __byte_perm(a.y, a.w, 0x7632));
}

// Of a warp's MATRICES_N x 8 columns of a group.
template <int MATRICES_N>
struct Quantized {
    uint4 words[MATRICES_N];    // 32 weights of column lane / 4
    unsigned bias[MATRICES_N];  // of that column
    float2 scale[MATRICES_N];   // of columns 2 * (lane % 4) and the next
};

// total[16 * MATRICES_M, 8 * MATRICES_N] += scale * a @ (q - zero).T. PAIRED: nibbles i and i + 4 of a word
// are neighbours along K; else they are four apart, as in packed.
template <bool PAIRED, typename T, int MATRICES_M, int MATRICES_N>
__device__ __forceinline__ void multiply_group(
    float (&total)[MATRICES_M][MATRICES_N][4], const T* a_tile, const Quantized<MATRICES_N>& w) {
    constexpr int WORDS = GROUP / NIBBLES / 4;  // of a lane
    const int lane = threadIdx.x % WARP;
    unsigned b[WORDS][MATRICES_N][4];
#pragma unroll
    for (int i = 0; i < WORDS * MATRICES_N; ++i) {
        const int j = i % MATRICES_N;
        dequantize<T>(b[i / MATRICES_N][j], word_of(w.words[j], i / MATRICES_N), w.bias[j]);
    }
#pragma unroll
    for (int i = 0; i < MATRICES_M; ++i) {
        float sum[MATRICES_N][4] = {};  // of the group: its terms are exact
#pragma unroll
        for (int step = 0; step < WORDS; ++step) {
            const int row = i * 16 + lane / 4, vector = lane % 4 * WORDS + step;
            uint4 upper = *reinterpret_cast<const uint4*>(a_tile + swizzle(row, vector));
            uint4 lower = *reinterpret_cast<const uint4*>(a_tile + swizzle(row + 8, vector));
            if constexpr (!PAIRED) upper = as_nibbles(upper), lower = as_nibbles(lower);
            const unsigned first[4] = {upper.x, lower.x, upper.y, lower.y};
            const unsigned second[4] = {upper.z, lower.z, upper.w, lower.w};
            // An mma waits for the sum of the one before: those of other columns come between the two.
#pragma unroll
            for (int j = 0; j < MATRICES_N; ++j) {
                mma_m16n8k16<T>(sum[j], first, b[step][j][0], b[step][j][1]);
            }
#pragma unroll
            for (int j = 0; j < MATRICES_N; ++j) {
                mma_m16n8k16<T>(sum[j], second, b[step][j][2], b[step][j][3]);
            }
        }
#pragma unroll
        for (int j = 0; j < MATRICES_N; ++j) {
#pragma unroll
            for (int e = 0; e < 4; ++e) total[i][j][e] += sum[j][e] * (e % 2 ? w.scale[j].y : w.scale[j].x);
        }
    }
}

// Writes a warp's elements of y that exist: columns n and n + 1 of a lane in one store if they are aligned.
template <typename T, int MATRICES_M, int MATRICES_N>
__device__ __forceinline__ void store_tile(
    T* y_ptr, const float (&total)[MATRICES_M][MATRICES_N][4], index_t begin_m, index_t begin_n, index_t M,
    index_t N) {
    const int lane = threadIdx.x % WARP;
#pragma unroll
    for (int i = 0; i < MATRICES_M * 2; ++i) {
        const index_t m = begin_m + i * 8 + lane / 4;
        if (m >= M) continue;
#pragma unroll
        for (int j = 0; j < MATRICES_N; ++j) {
            const index_t n = begin_n + j * 8 + lane % 4 * 2;
            const T left = T(total[i / 2][j][i % 2 * 2]), right = T(total[i / 2][j][i % 2 * 2 + 1]);
            T* const y = y_ptr + m * N + n;
            if (n + 1 < N && N % 2 == 0) {
                const T both[2] = {left, right};
                *reinterpret_cast<unsigned*>(y) = reinterpret_cast<const unsigned&>(both);
            } else {
                if (n < N) y[0] = left;
                if (n + 1 < N) y[1] = right;
            }
        }
    }
}
