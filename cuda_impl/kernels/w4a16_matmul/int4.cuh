// Weights of four bits as 16-bit floating-point numbers, in registers. Source: Kim et al., "Who Says
// Elephants Can't Run: Bringing Large Scale MoE Models into Cloud Scale Production" (2022), section on
// dequantization.
#pragma once

#include "common.cuh"

constexpr int GROUP = 128;  // of K, that share a scale and a zero point
constexpr int NIBBLES = 8;  // in a word

// The number whose last bits count ones: its bits | q are the number + q. fp16 has ten bits behind the
// leading one, and 1024 a last bit of 1; bf16 has seven, and 128.
template <typename T>
struct Int4;
template <>
struct Int4<__half> {
    static constexpr unsigned ORIGIN = 0x6400;  // 1024
    using Pair = __half2;
};
template <>
struct Int4<__nv_bfloat16> {
    static constexpr unsigned ORIGIN = 0x4300;  // 128
    using Pair = __nv_bfloat162;
};

// Two of ORIGIN + zero.
template <typename T>
__device__ __forceinline__ unsigned bias_of(unsigned zero) {
    return (Int4<T>::ORIGIN | zero) * 0x00010001u;
}

// Nibbles i and i + 4 of a word as q - zero, exact: pair[i] is a word of two. One LOP3 masks the bits and
// adds those of ORIGIN; one subtraction removes ORIGIN and the zero point.
template <typename T>
__device__ __forceinline__ void dequantize(unsigned (&pair)[4], unsigned word, unsigned bias) {
    using Pair = typename Int4<T>::Pair;
    constexpr unsigned NIBBLE = 0x000f000fu, ORIGINS = Int4<T>::ORIGIN * 0x00010001u;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const unsigned shifted = (word >> 4 * i & NIBBLE) | ORIGINS;
        const Pair two = __hsub2(reinterpret_cast<const Pair&>(shifted), reinterpret_cast<const Pair&>(bias));
        pair[i] = reinterpret_cast<const unsigned&>(two);
    }
}
