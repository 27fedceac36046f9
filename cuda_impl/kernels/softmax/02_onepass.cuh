// onepass: unlike online, the row stays in registers, so it is read once: maximum, exponentials, sum, output.
// Grid: one block per BLOCK_M rows. THREADS / BLOCK_M threads share a row and hold all of it, VECTORS vectors
// each: N <= THREADS / BLOCK_M * VECTORS * VEC. A row of more than one warp has a block to itself. At most 64
// registers per thread, or 32 where 16 elements leave room: some blocks read while others write.
#pragma once

#include "softmax/tile.cuh"

// Blocks per multiprocessor: 32 registers a thread hold up to four fp32 vectors, 64 hold twice as many, or
// the addresses of edges.
template <typename T, bool ALIGNED, int VECTORS, int THREADS>
constexpr int ONEPASS_BLOCKS = (ALIGNED && sizeof(T) == 4 && VECTORS <= 4 ? MOST_THREADS : 1024) / THREADS;

template <typename T, bool ALIGNED, int VECTORS, int THREADS, int BLOCK_M>
__global__
__launch_bounds__(THREADS, (ONEPASS_BLOCKS<T, ALIGNED, VECTORS, THREADS>)) void softmax_onepass_kernel(
    const T* x_ptr, T* y_ptr, index_t M, index_t N, index_t stride_xm) {
    constexpr int VEC = 16 / sizeof(T), ROW_THREADS = THREADS / BLOCK_M;
    const int thread = threadIdx.x % ROW_THREADS;
    const index_t m = static_cast<index_t>(blockIdx.x) * BLOCK_M + threadIdx.x / ROW_THREADS;
    const T* x_row = x_ptr + m * stride_xm;
    // Without a row a thread still shuffles.
    const Parts<T, ALIGNED> parts(y_ptr + m * N, m < M ? static_cast<int>(N) : 0, thread);
    const int columns = parts.body;
    Packed<T, VEC> loads[VECTORS];
    float x[VECTORS][VEC];

#pragma unroll
    for (int p = 0; p < VECTORS; ++p) {  // all loads are in flight before the first is used
        const int n = (p * ROW_THREADS + thread) * VEC;
        if (n < columns) loads[p] = load_body<ALIGNED, VEC>(x_row + parts.head + n);
    }
    float edge = parts.edge >= 0 ? float(x_row[parts.edge]) : negative_infinity();
    float max = edge;
#pragma unroll
    for (int p = 0; p < VECTORS; ++p) {
        const int n = (p * ROW_THREADS + thread) * VEC;
        const Vec<T, VEC> loaded = loads[p].unpack();
#pragma unroll
        for (int v = 0; v < VEC; ++v) {
            x[p][v] = n < columns ? to_float(loaded, v) : negative_infinity();
            max = fmaxf(max, x[p][v]);
        }
    }
    max = row_reduce<Max, THREADS, BLOCK_M>(max);

    float sum = 0.0f;
    if (parts.edge >= 0) sum = edge = __expf(edge - max);
#pragma unroll
    for (int p = 0; p < VECTORS; ++p) {
#pragma unroll
        for (int v = 0; v < VEC; ++v) sum += x[p][v] = __expf(x[p][v] - max);
    }
    const float inverse_sum = 1.0f / row_reduce<Sum, THREADS, BLOCK_M>(sum);

#pragma unroll
    for (int p = 0; p < VECTORS; ++p) {
        const int n = (p * ROW_THREADS + thread) * VEC;
        Vec<T, VEC> y;
#pragma unroll
        for (int v = 0; v < VEC; ++v) y[v] = T(x[p][v] * inverse_sum);
        store_vec_if(n < columns, y_ptr + m * N + parts.head + n, y);
    }
    if (parts.edge >= 0) y_ptr[m * N + parts.edge] = T(edge * inverse_sum);
}

// packed: as onepass, but the row stays in registers as loaded, in half as many if it is of 16 bits: 128 KB.
// Exponentials are computed twice, for the sum and for the output. Grid: one block per row. Rows of x start
// as far from a 16-byte boundary as y's, so that all loads of a body are vectorized.
template <typename T, bool ALIGNED, int VECTORS, int THREADS>
__global__ __launch_bounds__(THREADS, 1024 / THREADS) void softmax_packed_kernel(
    const T* x_ptr, T* y_ptr, index_t N, index_t stride_xm) {
    constexpr int VEC = 16 / sizeof(T);
    const T* x_row = x_ptr + blockIdx.x * stride_xm;
    T* y_row = y_ptr + blockIdx.x * N;
    const Parts<T, ALIGNED> parts(y_row, static_cast<int>(N), threadIdx.x);
    const int columns = static_cast<int>(parts.body);
    Packed<T, VEC> x[VECTORS];

    load_tile<THREADS>(x, x_row + parts.head, columns);
    const float edge = parts.edge >= 0 ? float(x_row[parts.edge]) : negative_infinity();
    Running row = {edge, 0.0f};
#pragma unroll
    for (int p = 0; p < VECTORS; ++p) {
        const Vec<T, VEC> loaded = x[p].unpack();
#pragma unroll
        for (int v = 0; v < VEC; ++v) row.max = fmaxf(row.max, to_float(loaded, v));
    }
    row.max = block_reduce<Max, THREADS, 0>(row.max);

    row.sum = __expf(edge - row.max);
#pragma unroll
    for (int p = 0; p < VECTORS; ++p) {
        const Vec<T, VEC> loaded = x[p].unpack();
#pragma unroll
        for (int v = 0; v < VEC; ++v) row.sum += __expf(to_float(loaded, v) - row.max);
    }
    row.sum = block_reduce<Sum, THREADS, 1>(row.sum);

    store_tile<THREADS>(y_row + parts.head, x, row, columns);
    if (parts.edge >= 0) y_row[parts.edge] = T(__expf(edge - row.max) / row.sum);
}
