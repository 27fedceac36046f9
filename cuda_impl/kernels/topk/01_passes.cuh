// passes: K passes over the row.
//
// Grid: one block per row. All words of a row differ, so the next one is the maximum of those that are less
// than the last one. The row is read K times, from the L2 where it fits.
#pragma once

#include "topk/order.cuh"

struct LargerWord {
    __device__ __forceinline__ word_t operator()(word_t a, word_t b) const { return a > b ? a : b; }
};

template <typename T, int THREADS>
__global__ __launch_bounds__(THREADS) void topk_passes_kernel(
    const T* __restrict__ x_ptr, T* __restrict__ values_ptr, index_t* __restrict__ indices_ptr, int N,
    index_t stride_xm, int K) {
    const index_t m = blockIdx.x;
    const T* row = x_ptr + m * stride_xm;
    word_t last = 0;
    for (int k = 0; k < K; ++k) {
        word_t best = 0;
        for (int n = threadIdx.x; n < N; n += THREADS) {
            const word_t word = make_word(key_of(row[n]), n);
            if (k == 0 || word < last) best = LargerWord()(best, word);
        }
        last = block_reduce<LargerWord, THREADS>(best);
        if (threadIdx.x == 0) {
            values_ptr[m * K + k] = value_of<T>(key_of_word(last));
            indices_ptr[m * K + k] = column_of_word(last);
        }
        __syncthreads();  // before the next reduction reuses its shared memory
    }
}
