// softmax over rows: x[M,N] -> y[M,N],  y[m,n] = exp(x[m,n] - max_m) / sum_n exp(x[m,n] - max_m)
//
// Variants; triton_impl/softmax.py has the first four under the same names, and gluon_cluster/ beside it has
// cluster, in registers. ring is not written in Triton here; its `gluon` has a ring without TMA:
//   online   below: a block reads its row twice: any row length
//   onepass  the row stays in registers between reduction and output, so it is read once: 32768 columns
//   packed   as onepass, but 16-bit elements stay in half as many registers: 128 KB
//   split    several blocks share a row and exchange partial sums through global memory: long rows, any GPU
//   cluster  the blocks of a cluster share a row, which stays in their shared memory: Hopper
//   ring     as split, and TMA prefetches the next chunks into shared memory: Hopper
//
// Rows of x are stride_xm elements apart, y is contiguous. ALIGNED: every row is whole 16-byte vectors,
// aligned; else common.cuh's Parts says which elements of a row are. ring takes aligned rows only.
#pragma once

#include "running.cuh"
#include "softmax/02_onepass.cuh"
#include "softmax/03_split.cuh"
#include "softmax/04_cluster.cuh"
#include "softmax/05_ring.cuh"

// online: a block reads its row twice, first for maximum and sum, then to write. Grid: one block per row. The
// second read hits the L2 for what is still cached. VEC is 16 bytes' worth of elements if rows are aligned,
// else 1.
template <typename T, int VEC, int THREADS>
__global__ __launch_bounds__(THREADS) void softmax_online_kernel(
    const T* __restrict__ x_ptr, T* __restrict__ y_ptr, index_t N, index_t stride_xm) {
    const T* x_row = x_ptr + blockIdx.x * stride_xm;
    T* y_row = y_ptr + blockIdx.x * N;
    constexpr int BLOCK_N = THREADS * VEC;
    [[maybe_unused]] constexpr int UNROLL = VEC > 1 ? 2 : 8;  // loads in flight per thread

    Running row = identity();
#pragma unroll UNROLL
    for (index_t n = threadIdx.x * VEC; n < N; n += BLOCK_N) {
        const Vec<T, VEC> x = load_vec<VEC>(x_row + n);
        float max = row.max;
#pragma unroll
        for (int v = 0; v < VEC; ++v) max = fmaxf(max, to_float(x, v));
        const float shift = finite_shift(max);
        float vec_sum = 0.0f;
#pragma unroll
        for (int v = 0; v < VEC; ++v) vec_sum += __expf(to_float(x, v) - shift);
        row.sum = row.sum * __expf(row.max - shift) + vec_sum;  // the old sum is rescaled once per vector
        row.max = max;
    }
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
