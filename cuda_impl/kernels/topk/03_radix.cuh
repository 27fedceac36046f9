// radix: histograms of digits find the K-th largest.
//
// Grid: `tiles` blocks per row. Unlike bitonic, nothing is sorted but the result: the row is read once, into
// registers; the K-th largest key is found digit by digit; the elements that reach it are collected in shared
// memory in any order, and sorted.
#pragma once

#include "topk/tile.cuh"

template <typename T, bool ALIGNED, int VECTORS, int THREADS>
__global__ __launch_bounds__(THREADS, 768 / THREADS) void topk_radix_kernel(
    const T* __restrict__ x_ptr, const index_t* __restrict__ columns_ptr, T* __restrict__ values_ptr,
    index_t* __restrict__ indices_ptr, int N, index_t stride_xm, int tiles, int has_columns, int K) {
    __shared__ Candidates candidates;
    const Part<T> part(x_ptr, columns_ptr, has_columns, N, stride_xm, tiles, K);
    const Tile<T, ALIGNED, VECTORS, THREADS> tile(part.ptr, part.N);
    const unsigned bound = radix_select<THREADS, 8 * sizeof(T)>(
        K, [&](auto count) { tile.each([&](unsigned key, int) { count(key); }); });
    const int count = collect_exact<THREADS>(tile, candidates, bound, part.N, K);
    part.template store_sorted<THREADS>(candidates, count, values_ptr, indices_ptr);
}
