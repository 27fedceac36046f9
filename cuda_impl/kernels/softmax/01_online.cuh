// online: a block reads its row twice, first for maximum and sum, then to write. Any row length.
// Grid: one block per row. The second read hits the L2 for what is still cached.
#pragma once

#include "running.cuh"

template <typename T, int VEC, int THREADS>
__global__ __launch_bounds__(THREADS) void softmax_online_kernel(const T* __restrict__ x_ptr,
                                                                 T* __restrict__ y_ptr, index_t N,
                                                                 index_t stride_xm) {
    const T* x_row = x_ptr + blockIdx.x * stride_xm;
    T* y_row = y_ptr + blockIdx.x * N;
    constexpr int BLOCK_N = THREADS * VEC;
    [[maybe_unused]] constexpr int UNROLL = VEC > 1 ? 2 : 8;  // loads in flight per thread

    Running row = nothing_seen();
#pragma unroll UNROLL
    for (index_t n = threadIdx.x * VEC; n < N; n += BLOCK_N) row = include(row, load_vec<VEC>(x_row + n));
    row = block_combine<THREADS>(row);

    const float inverse_sum = 1.0f / row.sum;
#pragma unroll UNROLL
    for (index_t n = threadIdx.x * VEC; n < N; n += BLOCK_N) {
        const Vec<T, VEC> x = load_vec<VEC>(x_row + n);
        Vec<T, VEC> y;
#pragma unroll
        for (int v = 0; v < VEC; ++v) y[v] = T(__expf(to_float(x, v) - row.max) * inverse_sum);
        store_vec(y_row + n, y);
    }
}
