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

// (word & mask) | bits, in one LOP3. The compiler would take two, with a constant in each.
__device__ __forceinline__ unsigned and_or(unsigned word, unsigned mask, unsigned bits) {
#ifdef HOST_BUILD
    return (word & mask) | bits;
#else
    asm("lop3.b32 %0, %0, %1, %2, 0xea;" : "+r"(word) : "r"(mask), "r"(bits));
    return word;
#endif
}

// x * y + z in each half.
__device__ __forceinline__ __half2 multiply_add(__half2 x, __half2 y, __half2 z) {
#ifdef HOST_BUILD
    return __floats2half2_rn(
        fmaf(__low2float(x), __low2float(y), __low2float(z)),
        fmaf(__high2float(x), __high2float(y), __high2float(z)));
#else
    return __hfma2(x, y, z);
#endif
}

// Nibbles i and i + 4 of a word as q - zero, exact: pair[i] is a word of two. One LOP3 masks the bits and
// adds those of ORIGIN; one subtraction removes ORIGIN and the zero point.
template <typename T>
__device__ __forceinline__ void dequantize(unsigned (&pair)[4], unsigned word, unsigned bias) {
    using Pair = typename Int4<T>::Pair;
    constexpr unsigned NIBBLE = 0x000f000fu, ORIGINS = Int4<T>::ORIGIN * 0x00010001u;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const unsigned shifted = and_or(word >> 4 * i, NIBBLE, ORIGINS);
        const Pair two = __hsub2(reinterpret_cast<const Pair&>(shifted), reinterpret_cast<const Pair&>(bias));
        pair[i] = reinterpret_cast<const unsigned&>(two);
    }
}

// In fp16 ten bits hold a nibble 4 bits up as well: those of 1024 + 16 * q. A fused multiply-add divides by
// 16, and one shift instead of three is left. 64 + zero has a last bit of 1/16.
template <>
__device__ __forceinline__ void dequantize<__half>(unsigned (&pair)[4], unsigned word, unsigned bias) {
    constexpr unsigned NIBBLE = 0x000f000fu, ORIGINS = 0x64006400u, SIXTEENTHS = 0x2c002c00u;
    const unsigned minus_64 = and_or(bias << 4, NIBBLE << 4, 0xd400d400u);  // -(64 + zero), twice
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
        const unsigned low = and_or(word >> 4 * i, NIBBLE, ORIGINS);
        const unsigned high = and_or(word >> 4 * i, NIBBLE << 4, ORIGINS);
        const __half2 first =
            __hsub2(reinterpret_cast<const __half2&>(low), reinterpret_cast<const __half2&>(bias));
        const __half2 second = multiply_add(
            reinterpret_cast<const __half2&>(high), reinterpret_cast<const __half2&>(SIXTEENTHS),
            reinterpret_cast<const __half2&>(minus_64));
        pair[i] = reinterpret_cast<const unsigned&>(first);
        pair[i + 1] = reinterpret_cast<const unsigned&>(second);
    }
}

// The scale of a word that has the zero point above it.
template <typename T>
__device__ __forceinline__ float scale_in(unsigned word) {
    const unsigned short bits = static_cast<unsigned short>(word);
    return float(reinterpret_cast<const T&>(bits));
}
