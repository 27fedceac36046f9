// What split, cluster and ring share: how a tile of a row is written.
#pragma once

#include "running.cuh"

template <int THREADS, typename T, int VEC, int PACKS>
__device__ __forceinline__ void store_tile(
    T* tile_ptr, const Packed<T, VEC> (&packed)[PACKS], Running row, int columns) {
    const float inverse_sum = 1.0f / row.sum;
#pragma unroll
    for (int p = 0; p < PACKS; ++p) {
        const int n = (p * THREADS + threadIdx.x) * VEC;
        const Vec<T, VEC> x = packed[p].unpack();
        Vec<T, VEC> y;
#pragma unroll
        for (int v = 0; v < VEC; ++v) y[v] = T(__expf(to_float(x, v) - row.max) * inverse_sum);
        store_vec_if(n < columns, tile_ptr + n, y);
    }
}
