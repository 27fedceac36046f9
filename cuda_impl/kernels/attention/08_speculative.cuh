// attention, level 8, speculative. Change: the weights of a tile are computed with the maximum of earlier
// tiles, so that no thread looks for one first. A row's sum, which is needed anyway, tells how far the
// maximum was too low. By up to 2^126 weights of bf16 are as precise as ever, and are divided by a power of
// two. Beyond it, seldom after the first tile, the warp does softmax again from the scores. Without the
// search for the maximum, softmax is so short that the consumers need not multiply in turn.
#pragma once

#include "attention/07_persistent.cuh"

#if HAS_WGMMA_LEVELS

template <typename T, int D>
struct GuessingSoftmax : Softmax<T, D> {
    using Base = Softmax<T, D>;
    using Base::Base, Base::max, Base::sum, Base::factor, Base::SCALE_LOG2;
    static constexpr bool GUESSES = true;

    // p = exp2(s * SCALE_LOG2 - max), rounded to T, with the maximum of earlier tiles. False for a sum above
    // MOST_FINITE, a NaN, or no maximum yet: s is still there for `update`. No weight is negative, so none is
    // above its thread's sum of the row.
    template <int COUNT>
    __device__ __forceinline__ bool guess(unsigned (&p)[COUNT / 2], float (&s)[COUNT], int n, int unmasked) {
        if (n + 2 * COUNT > unmasked) this->mask(s, n);
        constexpr float MOST = 4294967296.0f, MOST_FINITE = 8.507059173023462e37f;  // 2^32, 2^126
        float in_tile[2] = {};
#pragma unroll
        for (int i = 0; i < COUNT; i += 2) {
            const int h = i / 2 % 2;
            const float left = exp2f(fmaf(s[i], SCALE_LOG2, -max[h]));
            const float right = exp2f(fmaf(s[i + 1], SCALE_LOG2, -max[h]));
            in_tile[h] += left;
            in_tile[h] += right;
            p[i / 2] = to_x2<T>(left, right);
        }
        factor[0] = factor[1] = 1.0f;
        if (!__all_sync(FULL_WARP, in_tile[0] <= MOST && in_tile[1] <= MOST)) {
            if (!__all_sync(FULL_WARP, in_tile[0] < MOST_FINITE && in_tile[1] < MOST_FINITE)) return false;
            divide(p, in_tile, MOST);
        }
        sum[0] += in_tile[0];
        sum[1] += in_tile[1];
        return true;
    }

    // Divides weights and sums of rows above `most` by the power of two of the row's highest sum. What was
    // smaller than that by 2^126 becomes 0.
    template <int WORDS>
    __device__ __forceinline__ void divide(unsigned (&p)[WORDS], float (&in_tile)[2], float most) {
        using Word = typename WordOf<T>::type;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const float highest = warp_reduce<Max, 4>(in_tile[h]);
            if (highest > most) {
                const int bits = __float_as_int(highest) >> 23;  // 127 + the power
                factor[h] = __int_as_float((254 - bits) << 23);
                max[h] += bits - 127;
                sum[h] *= factor[h];
                in_tile[h] *= factor[h];
            }
            const unsigned by = to_x2<T>(factor[h], factor[h]);
#pragma unroll
            for (int i = h; i < WORDS; i += 2) {
                const Word two = __hmul2(reinterpret_cast<Word&>(p[i]), reinterpret_cast<const Word&>(by));
                p[i] = reinterpret_cast<const unsigned&>(two);
            }
        }
    }
};

#endif  // HAS_WGMMA_LEVELS

// Grid: persistent.
template <typename T, int D, int CONSUMERS, int BLOCK_N, int STAGES>
__global__ __launch_bounds__((1 + CONSUMERS) * WARPGROUP, 1) void attention_speculative_kernel(
    const __grid_constant__ TensorMap q_map, const __grid_constant__ TensorMap k_map,
    const __grid_constant__ TensorMap v_map, T* o_ptr, float* lse_ptr, unsigned long long* next_tile, int B,
    int Sq, int Skv, int Hq, int Hk, int causal) {
#if HAS_WGMMA_LEVELS
    attend_persistently<T, D, CONSUMERS, BLOCK_N, STAGES, GuessingSoftmax<T, D>>(
        q_map, k_map, v_map, o_ptr, lse_ptr, next_tile, B, Sq, Skv, Hq, Hk, causal);
#endif
}
