// Two 16-bit elements in a 32-bit word, the first in the lower half: PTX's f16x2 and bf16x2.
#pragma once

#include "common.cuh"

template <typename T>
constexpr bool IS_BF16 = false;
template <>
constexpr bool IS_BF16<__nv_bfloat16> = true;

// A word of elements, as the operators of packed arithmetic take it; of fp32 one element.
template <typename T>
struct WordOf {
    using type = T;
};
template <>
struct WordOf<__half> {
    using type = __half2;
};
template <>
struct WordOf<__nv_bfloat16> {
    using type = __nv_bfloat162;
};

__device__ __forceinline__ unsigned word_of(const uint4& words, int i) {
    return i == 0 ? words.x : i == 1 ? words.y : i == 2 ? words.z : words.w;
}

// Rounds both by one instruction.
template <typename T>
__device__ __forceinline__ unsigned to_x2(float low, float high) {
    if constexpr (IS_BF16<T>) {
        const __nv_bfloat162 two = __floats2bfloat162_rn(low, high);
        return reinterpret_cast<const unsigned&>(two);
    } else {
        const __half2 two = __floats2half2_rn(low, high);
        return reinterpret_cast<const unsigned&>(two);
    }
}

template <typename T>
__device__ __forceinline__ float2 from_x2(unsigned two) {
    if constexpr (IS_BF16<T>) {  // the upper half of fp32
        return make_float2(__uint_as_float(two << 16), __uint_as_float(two & 0xffff0000u));
    } else {
        return __half22float2(reinterpret_cast<const __half2&>(two));
    }
}
