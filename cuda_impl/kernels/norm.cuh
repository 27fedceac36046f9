// What layer_norm and rms_norm share: access to a row's vectors, and how many threads are resident.
//
// Rows of x are stride_xm elements apart; weight, bias and y are contiguous. VEC is 16 bytes' worth of
// elements if every row is 16-byte aligned, else 1. A vector is completely inside the row or outside.
#pragma once

#include "common.cuh"

// PACKS vectors per thread, THREADS vectors apart; zeros from `columns` on.
template <int THREADS, typename T, int VEC, int PACKS>
__device__ __forceinline__ void load_tile(
    Packed<T, VEC> (&x)[PACKS], const T* tile_ptr, int columns, int thread) {
#pragma unroll
    for (int p = 0; p < PACKS; ++p) {
        const int n = (p * THREADS + thread) * VEC;
        x[p] = n < columns ? load_packed<VEC>(tile_ptr + n) : Packed<T, VEC>{};
    }
}

// Number of columns in a cluster's slice at `begin`, of at most `most`, in a row of N.
__device__ __forceinline__ int slice_columns(index_t N, index_t begin, int most) {
    return static_cast<int>(begin >= N ? 0 : N - begin < most ? N - begin : most);
}
