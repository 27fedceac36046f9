// rms_norm_backward: dy[M,N], x[M,N], weight[N], rstd[M] -> dx[M,N], dweight[N].  With x_hat = x * rstd:
//   dx[m,n]    = rstd[m] * (dy * weight - x_hat * mean over n of (dy * weight * x_hat))
//   dweight[n] = sum over m of dy * x_hat
// One sum runs along rows, the other along columns: that is what makes a backward hard to fuse.
//
// Variants; triton_impl/rms_norm_backward.py has the same under the same names:
//   online   two kernels: a block per row for dx, which reads it twice, and a thread per column for dweight
//   onepass  one kernel: persistent blocks keep a row in registers, and their rows' sums of dweight as well
// In both, blocks write partial sums of dweight, partial[P,N] in fp32; a last kernel adds these in order.
#pragma once

#include "norm.cuh"

// ---- one element -----------------------------------------------------------------------------------------

template <typename T, int VEC>
struct Gradients {  // of VEC columns of a row
    float x_hat[VEC], dx_hat[VEC], dy[VEC];

    __device__ __forceinline__
    Gradients(const Vec<T, VEC>& dy_vec, const Vec<T, VEC>& x_vec, const Vec<T, VEC>& weight, float rstd) {
#pragma unroll
        for (int v = 0; v < VEC; ++v) {
            dy[v] = to_float(dy_vec, v);
            x_hat[v] = to_float(x_vec, v) * rstd;
            dx_hat[v] = dy[v] * to_float(weight, v);
        }
    }
    __device__ __forceinline__ float products() const {  // its share of the row's sum
        float sum = 0.0f;
#pragma unroll
        for (int v = 0; v < VEC; ++v) sum += dx_hat[v] * x_hat[v];
        return sum;
    }
    __device__ __forceinline__ Vec<T, VEC> dx(float rstd, float mean) const {
        Vec<T, VEC> result;
#pragma unroll
        for (int v = 0; v < VEC; ++v) result[v] = T(rstd * (dx_hat[v] - x_hat[v] * mean));
        return result;
    }
};

// ---- online ----------------------------------------------------------------------------------------------
// Grid: one block per row. The second read hits the L2 for what is still cached.

template <typename T, int VEC, int THREADS>
__global__ __launch_bounds__(THREADS) void rms_norm_backward_online_kernel(
    const T* __restrict__ dy_ptr, const T* __restrict__ x_ptr, const T* __restrict__ weight_ptr,
    const float* __restrict__ rstd_ptr, T* __restrict__ dx_ptr, index_t N, index_t stride_dym,
    index_t stride_xm, index_t stride_rm) {
    constexpr int BLOCK_N = THREADS * VEC;
    const index_t m = blockIdx.x;
    const T* dy_row = dy_ptr + m * stride_dym;
    const T* x_row = x_ptr + m * stride_xm;
    const float rstd = rstd_ptr[m * stride_rm];
    const auto gradients = [&](index_t n) {
        return Gradients<T, VEC>(
            load_vec<VEC>(dy_row + n), load_vec<VEC>(x_row + n), load_vec<VEC>(weight_ptr + n), rstd);
    };

    float sum = 0.0f;
    for (index_t n = threadIdx.x * VEC; n < N; n += BLOCK_N) sum += gradients(n).products();
    const float mean = block_reduce<Sum, THREADS>(sum) / N;

    for (index_t n = threadIdx.x * VEC; n < N; n += BLOCK_N) {
        store_vec(dx_ptr + m * N + n, gradients(n).dx(rstd, mean));
    }
}

// Partial sums of dweight. Grid: `tiles` blocks along N for each of P chunks of `rows` rows. A thread adds
// VEC columns; a warp's threads have neighbouring columns: coalesced.
template <typename T, int VEC, int THREADS>
__global__ __launch_bounds__(THREADS) void rms_norm_backward_columns_kernel(
    const T* __restrict__ dy_ptr, const T* __restrict__ x_ptr, const float* __restrict__ rstd_ptr,
    float* __restrict__ partial_ptr, index_t M, index_t N, index_t stride_dym, index_t stride_xm,
    index_t stride_rm, int tiles, index_t rows) {
    const index_t n = (blockIdx.x % tiles * static_cast<index_t>(THREADS) + threadIdx.x) * VEC;
    const index_t chunk = blockIdx.x / tiles, begin = chunk * rows;
    if (n >= N) return;
    float dweight[VEC] = {};
#pragma unroll 4
    for (index_t m = begin; m < min(begin + rows, M); ++m) {
        const float rstd = rstd_ptr[m * stride_rm];
        const Vec<T, VEC> dy = load_vec<VEC>(dy_ptr + m * stride_dym + n);
        const Vec<T, VEC> x = load_vec<VEC>(x_ptr + m * stride_xm + n);
#pragma unroll
        for (int v = 0; v < VEC; ++v) dweight[v] += to_float(dy, v) * (to_float(x, v) * rstd);
    }
#pragma unroll
    for (int v = 0; v < VEC; ++v) partial_ptr[chunk * N + n + v] = dweight[v];
}

// ---- onepass ---------------------------------------------------------------------------------------------
// Unlike online, rows stay in registers, so dy and x are read once, and both sums are made of them. Grid: P
// persistent blocks, rows round-robin. THREADS threads share a row and hold all of it, VECTORS vectors each.
// weight is loaded once per block, and dweight is one register per column. Where registers allow, the next
// row is prefetched, so that loads are in flight during the reduction.

template <typename T, int VEC, int VECTORS, int THREADS>
__global__ __launch_bounds__(THREADS) void rms_norm_backward_onepass_kernel(
    const T* dy_ptr, const T* x_ptr, const T* weight_ptr, const float* rstd_ptr, T* dx_ptr,
    float* partial_ptr, index_t M, index_t N, index_t stride_dym, index_t stride_xm, index_t stride_rm) {
    constexpr bool PREFETCH = VECTORS * VEC <= 8 || THREADS <= 512;
    const int first = threadIdx.x * VEC, columns = static_cast<int>(N) - first;
    Packed<T, VEC> weight[VECTORS], dy[VECTORS], x[VECTORS], next_dy[VECTORS], next_x[VECTORS];
    const auto load = [&](index_t m) {
        load_tile<THREADS>(next_dy, dy_ptr + m * stride_dym + first, m < M ? columns : 0);
        load_tile<THREADS>(next_x, x_ptr + m * stride_xm + first, m < M ? columns : 0);
    };
    load(blockIdx.x);
    load_tile<THREADS>(weight, weight_ptr + first, columns);
    float dweight[VECTORS][VEC] = {};

    int row = 0;
    for (index_t m = blockIdx.x; m < M; m += gridDim.x, ++row) {
        if (!PREFETCH && row > 0) load(m);
#pragma unroll
        for (int p = 0; p < VECTORS; ++p) dy[p] = next_dy[p], x[p] = next_x[p];
        const float rstd = rstd_ptr[m * stride_rm];
        if (PREFETCH) load(m + gridDim.x);
        float sum = 0.0f;
#pragma unroll
        for (int p = 0; p < VECTORS; ++p) {
            const Gradients<T, VEC> of(dy[p].unpack(), x[p].unpack(), weight[p].unpack(), rstd);
            sum += of.products();
#pragma unroll
            for (int v = 0; v < VEC; ++v) dweight[p][v] += of.dy[v] * of.x_hat[v];
        }
        // Two calls by turns: the other one's barrier is between two uses of one call's shared memory.
        sum = row % 2 == 0 ? block_reduce<Sum, THREADS, 0>(sum) : block_reduce<Sum, THREADS, 1>(sum);
        const float mean = sum / N;
#pragma unroll
        for (int p = 0; p < VECTORS; ++p) {
            const Gradients<T, VEC> of(dy[p].unpack(), x[p].unpack(), weight[p].unpack(), rstd);
            const int n = p * THREADS * VEC;
            store_vec_if(n < columns, dx_ptr + m * N + first + n, of.dx(rstd, mean));
        }
    }
#pragma unroll
    for (int p = 0; p < VECTORS; ++p) {
        const int n = p * THREADS * VEC;
        float* partial = partial_ptr + blockIdx.x * N + first + n;
#pragma unroll
        for (int v = 0; v < VEC; ++v) {
            if (n < columns) partial[v] = dweight[p][v];
        }
    }
}

// ---- the sum of partial[P,N] along P ---------------------------------------------------------------------
// Grid: one block per 32 columns. Each warp adds every WARPS-th row, a column per lane: coalesced. Then the
// first warp adds the warps' sums.

template <typename T, int THREADS>
__global__ __launch_bounds__(THREADS) void rms_norm_backward_sum_kernel(
    const float* __restrict__ partial_ptr, T* __restrict__ dweight_ptr, int P, index_t N) {
    constexpr int WARPS = THREADS / WARP;
    __shared__ float of_warp[WARPS][WARP];
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const index_t n = static_cast<index_t>(blockIdx.x) * WARP + lane;
    float sum = 0.0f;
    if (n < N) {
#pragma unroll 4
        for (int p = warp; p < P; p += WARPS) sum += partial_ptr[p * N + n];
    }
    of_warp[warp][lane] = sum;
    __syncthreads();
    if (warp > 0 || n >= N) return;
#pragma unroll
    for (int other = 1; other < WARPS; ++other) sum += of_warp[other][lane];
    dweight_ptr[n] = T(sum);
}
