// What packed, split, cluster and ring share: a tile of a row, VECTORS vectors per thread, THREADS vectors
// apart; -inf from `columns` on.
#pragma once

#include "running.cuh"

template <int THREADS, bool ALIGNED = true, typename T, int VEC, int VECTORS>
__device__ __forceinline__ void load_tile(Packed<T, VEC> (&x)[VECTORS], const T* tile_ptr, int columns) {
    Vec<T, VEC> nothing;
#pragma unroll
    for (int v = 0; v < VEC; ++v) nothing[v] = T(negative_infinity());
#pragma unroll
    for (int p = 0; p < VECTORS; ++p) {
        const int n = (p * THREADS + threadIdx.x) * VEC;
        if (n < columns) {
            x[p] = load_body<ALIGNED, VEC>(tile_ptr + n);
        } else {
            x[p] = reinterpret_cast<const Packed<T, VEC>&>(nothing);
        }
    }
}

// As running.cuh's include, but the old sum is rescaled once per tile.
template <typename T, int VEC, int VECTORS>
__device__ __forceinline__ Running include(Running seen, const Packed<T, VEC> (&packed)[VECTORS]) {
    float max = seen.max;
#pragma unroll
    for (int p = 0; p < VECTORS; ++p) {
        const Vec<T, VEC> x = packed[p].unpack();
#pragma unroll
        for (int v = 0; v < VEC; ++v) max = fmaxf(max, to_float(x, v));
    }
    const float shift = finite_shift(max);
    float sum = 0.0f;
#pragma unroll
    for (int p = 0; p < VECTORS; ++p) {
        const Vec<T, VEC> x = packed[p].unpack();
#pragma unroll
        for (int v = 0; v < VEC; ++v) sum += __expf(to_float(x, v) - shift);
    }
    return {max, seen.sum * __expf(seen.max - shift) + sum};
}

template <int THREADS, typename T, int VEC, int VECTORS>
__device__ __forceinline__ void store_tile(
    T* tile_ptr, const Packed<T, VEC> (&packed)[VECTORS], Running row, int columns) {
    const float inverse_sum = 1.0f / row.sum;
#pragma unroll
    for (int p = 0; p < VECTORS; ++p) {
        const int n = (p * THREADS + threadIdx.x) * VEC;
        const Vec<T, VEC> x = packed[p].unpack();
        Vec<T, VEC> y;
#pragma unroll
        for (int v = 0; v < VEC; ++v) y[v] = T(__expf(to_float(x, v) - row.max) * inverse_sum);
        store_vec_if(n < columns, tile_ptr + n, y);
    }
}

// Number of columns in the tile at `begin` of a row of N.
template <int BLOCK_N>
__device__ __forceinline__ int tile_columns(index_t N, index_t begin) {
    return static_cast<int>(N - begin < BLOCK_N ? N - begin : BLOCK_N);
}
