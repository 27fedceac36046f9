// onepass: unlike online, the row stays in registers, so it is read once: maximum, exponentials, sum, output.
// Grid: one block per BLOCK_M rows. THREADS / BLOCK_M threads share a row and hold all of it, VECTORS vectors
// each: N <= THREADS / BLOCK_M * VECTORS * VEC. A row of more than one warp has a block to itself. At most 64
// registers per thread, or 32 where 16 elements leave room: some blocks read while others write.
#pragma once

#include "common.cuh"

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
