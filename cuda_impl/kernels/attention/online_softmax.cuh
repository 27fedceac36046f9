// Online softmax on the accumulators of mma and wgmma. A warp has 16 rows of q, four warps 64. A thread has
// parts of two rows: with h = 0, 1, accumulator 4 * j + 2 * h + i is row 16 * warp + 8 * h + lane / 4, column
// 8 * j + 2 * (lane % 4) + i.
#pragma once

#include "attention/problem.cuh"

constexpr int GROUP_M = 64;  // rows of q of four warps

// The online softmax of a thread's two rows. A row's sum is that of this thread's columns until `finish`.
template <typename T, int D>
struct Softmax {
    static constexpr float SCALE_LOG2 = SCALE<D> * 1.4426950408889634f;
    static constexpr bool GUESSES = false;  // the maximum: level 8's does

    float max[2] = {negative_infinity(), negative_infinity()};  // of s * SCALE_LOG2
    float sum[2] = {0.0f, 0.0f};
    float factor[2];  // from sums of earlier tiles to the new maximum
    int row;          // of q, the first of the two; the other is 8 further
    Tile tile;

    __device__ __forceinline__ Softmax(const Tile& tile, int first_row)
        : row(first_row + threadIdx.x / WARP % 4 * 16 + threadIdx.x % WARP / 4), tile(tile) {}

    // s becomes exp2(s * SCALE_LOG2 - max): one FFMA and one MUFU.EX2 per element. n: the tile's first key.
    // Lazy rescaling (FlashAttention-4): max follows the row's maximum only when that is more than 8 above
    // it. p is then at most 2^8, which its formats hold with the same relative error, and most tiles need no
    // rescaling of o.
    template <int COUNT>
    __device__ __forceinline__ void update(float (&s)[COUNT], int n, int unmasked) {
        if (n + 2 * COUNT > unmasked) mask(s, n);
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            float highest = fmaxf(s[2 * h], s[2 * h + 1]);
#pragma unroll
            for (int j = 1; j < COUNT / 4; ++j) {
                highest = fmaxf(highest, fmaxf(s[4 * j + 2 * h], s[4 * j + 2 * h + 1]));
            }
            const float before = max[h];
            const float in_tile = warp_reduce<Max, 4>(highest) * SCALE_LOG2;
            max[h] = in_tile > before + 8.0f ? in_tile : before;
            const float subtract = max[h] == negative_infinity() ? 0.0f : max[h];  // no key yet: no NaN
            factor[h] = exp2f(before - subtract);
            sum[h] *= factor[h];
#pragma unroll
            for (int j = 0; j < COUNT / 4; ++j) {
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    float& element = s[4 * j + 2 * h + i];
                    element = exp2f(fmaf(element, SCALE_LOG2, -subtract));
                    sum[h] += element;
                }
            }
        }
    }

    template <int COUNT>
    __device__ __forceinline__ void mask(float (&s)[COUNT], int n) const {
        const int key = n + threadIdx.x % 4 * 2;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const int keys = tile.keys_of(row + 8 * h) - key;
#pragma unroll
            for (int j = 0; j < COUNT / 4; ++j) {
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    if (8 * j + i >= keys) s[4 * j + 2 * h + i] = negative_infinity();
                }
            }
        }
    }

    template <int COUNT>
    __device__ __forceinline__ void rescale(float (&o)[COUNT]) const {
        if (!__any_sync(FULL_WARP, factor[0] != 1.0f || factor[1] != 1.0f)) return;
#pragma unroll
        for (int i = 0; i < COUNT; ++i) o[i] *= factor[i / 2 % 2];
    }

    // Stores o / sum and lse. A row without a key has sum 0: o = 0, lse = -inf.
    template <int COUNT>
    __device__ __forceinline__ void finish(const float (&o)[COUNT], T* o_ptr, float* lse_ptr, int Hq) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const float total = warp_reduce<Sum, 4>(sum[h]);
            const float inverse = total == 0.0f ? 0.0f : 1.0f / total;
            unsigned words[D / 8];
#pragma unroll
            for (int j = 0; j < D / 8; ++j) {
                const float* const two = o + 4 * j + 2 * h;
                words[j] = to_x2<T>(two[0] * inverse, two[1] * inverse);
            }
#pragma unroll
            for (int j = 0; j < D / 8; j += 4) transpose_4x4(words + j);
            const int m = row + 8 * h;
            if (m >= tile.Sq) continue;
            const index_t at = (static_cast<index_t>(tile.batch) * tile.Sq + m) * Hq + tile.head;
            T* const to = o_ptr + at * D + threadIdx.x % 4 * 8;
#pragma unroll
            for (int j = 0; j < D / 8; j += 4) {
                *reinterpret_cast<uint4*>(to + 8 * j) =
                    make_uint4(words[j], words[j + 1], words[j + 2], words[j + 3]);
            }
            if (threadIdx.x % 4 == 0) {
                const index_t row_of_lse = static_cast<index_t>(tile.batch) * Hq + tile.head;
                lse_ptr[row_of_lse * tile.Sq + m] = (max[h] + log2f(total)) * 0.6931471805599453f;
            }
        }
    }
};

// p, rounded to T, in the order of wgmma's operand a, which is that of the accumulators of q @ k.
template <typename T, int COUNT>
__device__ __forceinline__ void round_p(unsigned (&p)[COUNT / 2], const float (&s)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT / 2; ++i) p[i] = to_x2<T>(s[2 * i], s[2 * i + 1]);
}
