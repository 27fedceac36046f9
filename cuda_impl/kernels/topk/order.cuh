// What all levels share: elements as integers in the same order, and words that order equal elements too.
#pragma once

#include "common.cuh"

// Keys: unsigned integers in the order of the elements; a 16-bit element's key is in the upper half. NaN has
// the largest, and -0 one less than 0. No element has key 0, which stands for a missing one.

template <typename T>
constexpr unsigned INFINITY_BITS = 0x7f80u;
template <>
constexpr unsigned INFINITY_BITS<float> = 0x7f800000u;
template <>
constexpr unsigned INFINITY_BITS<__half> = 0x7c00u;

// The keys of the 32-bit element, or of the two 16-bit elements, in a register: both at once. Negative
// numbers are inverted, and the sign bit of all others is set.
template <typename T>
__device__ __forceinline__ unsigned ordered_keys(unsigned word) {
    constexpr unsigned BITS = 8 * sizeof(T), ONES = BITS == 32 ? 1u : 0x00010001u;
    constexpr unsigned REST = (1u << (BITS - 1)) - 1, SIGNS = ONES << (BITS - 1);
    const unsigned negative = (word & SIGNS) >> (BITS - 1);
    const unsigned keys = word ^ (negative * REST | SIGNS);
    const unsigned past_infinity = (word & ~SIGNS) + (REST - INFINITY_BITS<T>)*ONES;
    return keys | ((past_infinity & SIGNS) >> (BITS - 1)) * (2 * REST + 1);  // NaN: all ones
}

template <typename T>
__device__ __forceinline__ unsigned key_of(T x) {
    if constexpr (sizeof(T) == 4) return ordered_keys<T>(__float_as_uint(x));
    return ordered_keys<T>(reinterpret_cast<const unsigned short&>(x)) << 16;
}
template <typename T>
__device__ __forceinline__ T value_of(unsigned key) {
    const unsigned bits = key >> 31 ? key ^ 0x80000000u : ~key;
    if constexpr (sizeof(T) == 4) return __uint_as_float(bits);
    const unsigned short upper = static_cast<unsigned short>(bits >> 16);
    return reinterpret_cast<const T&>(upper);
}

// A key, and below it the inverted column: of equal elements the one with the lowest index is the largest.
__device__ __forceinline__ word_t make_word(unsigned key, int n) {
    return static_cast<word_t>(key) << 32 | ~static_cast<unsigned>(n);
}
__device__ __forceinline__ unsigned key_of_word(word_t word) {
    return static_cast<unsigned>(word >> 32);
}
__device__ __forceinline__ int column_of_word(word_t word) {
    return static_cast<int>(~static_cast<unsigned>(word));
}
