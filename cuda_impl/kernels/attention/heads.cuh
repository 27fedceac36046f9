// Heads of x[B,S,H,D] in memory, and pairs of 16-bit elements: for attention and its gradients.
#pragma once

#include "x2.cuh"

// Elements between batches, positions and heads. The elements of a head are contiguous.
struct Strides {
    index_t b, s, h;
};

// The row of a head at a position.
template <typename T>
__device__ __forceinline__ const T* row_of(
    const T* ptr, const Strides& stride, int batch, int position, int head) {
    return ptr + batch * stride.b + position * stride.s + head * stride.h;
}

// Among the four lanes of a row, lane l's word w becomes lane w's word l: stores are then of 16 bytes.
__device__ __forceinline__ void transpose_4x4(unsigned* words) {
#pragma unroll
    for (int step = 1; step < 4; step *= 2) {
        const bool upper = threadIdx.x & step;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            if (i & step) continue;
            const unsigned other = __shfl_xor_sync(FULL_WARP, upper ? words[i] : words[i + step], step);
            words[i] = upper ? other : words[i];
            words[i + step] = upper ? words[i + step] : other;
        }
    }
}
