// Online softmax state: a running maximum and sum of exponentials, kept per thread and then combined. Source:
// Milakov and Gimelshein, "Online normalizer calculation for softmax" (2018).
#pragma once

#include "common.cuh"

// The maximum of the elements so far, and sum(exp(x - maximum)).
struct alignas(8) Running {
    float max;
    float sum;
};

// Of no elements.
__device__ __forceinline__ Running identity() {
    return {negative_infinity(), 0.0f};
}

__device__ __forceinline__ Running combine(Running a, Running b) {
    const float max = fmaxf(a.max, b.max);
    const float shift = finite_shift(max);
    return {max, a.sum * __expf(a.max - shift) + b.sum * __expf(b.max - shift)};
}

// Every lane of each group of WIDTH neighbouring lanes gets the combination of the group.
template <int WIDTH>
__device__ __forceinline__ Running warp_combine(Running seen) {
    const float max = warp_reduce<Max, WIDTH>(seen.max);
    return {max, warp_reduce<Sum, WIDTH>(seen.sum * __expf(seen.max - finite_shift(max)))};
}

// Every thread of the block gets the combination over all THREADS, for each of COUNT values.
// Needs another barrier between two calls: warp_results is reused.
template <int THREADS, int COUNT>
__device__ __forceinline__ void block_combine(Running (&seen)[COUNT]) {
    constexpr int WARPS = THREADS / WARP;
    __shared__ Running warp_results[COUNT][WARPS];
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
        seen[i] = warp_combine<WARP>(seen[i]);
        if (threadIdx.x % WARP == 0) warp_results[i][threadIdx.x / WARP] = seen[i];
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < COUNT; ++i) seen[i] = warp_combine<WARPS>(warp_results[i][threadIdx.x % WARPS]);
}

template <int THREADS>
__device__ __forceinline__ Running block_combine(Running seen) {
    Running one[1] = {seen};
    block_combine<THREADS>(one);
    return one[0];
}

// Includes a vector: its maximum first, so that the old sum is rescaled once per vector. A vector is summed
// by itself: added one by one to the sum of a long row, its elements would all be rounded the same way.
template <typename T, int VEC>
__device__ __forceinline__ Running include(Running seen, const Vec<T, VEC>& x) {
    float max = seen.max;
#pragma unroll
    for (int v = 0; v < VEC; ++v) max = fmaxf(max, to_float(x, v));
    const float shift = finite_shift(max);
    float sum = 0.0f;
#pragma unroll
    for (int v = 0; v < VEC; ++v) sum += __expf(to_float(x, v) - shift);
    return {max, seen.sum * __expf(seen.max - shift) + sum};
}

// Both in one word.
__device__ __forceinline__ word_t to_word(Running value) {
    return __float_as_uint(value.max) | static_cast<word_t>(__float_as_uint(value.sum)) << 32;
}
__device__ __forceinline__ Running from_word(word_t word) {
    return {__uint_as_float(static_cast<unsigned>(word)), __uint_as_float(static_cast<unsigned>(word >> 32))};
}
