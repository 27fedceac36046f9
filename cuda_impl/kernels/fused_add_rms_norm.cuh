// fused_add_rms_norm: x[M,N], residual[M,N], weight[N] -> y[M,N], h[M,N],
//   h[m,n] = x[m,n] + residual[m,n], rounded to T
//   y[m,n] = h[m,n] / sqrt(mean of h[m,n]^2 + eps) * weight[n]
//
// Variants; triton_impl/fused_add_rms_norm.py has the same under the same names:
//   online   a block writes h tile by tile, and reads it again for y: any row length
//   onepass  h stays in registers between reduction and output, so it is only written: 64 KB
//   split    several blocks share rows and exchange partial sums through global memory: few long rows
//
// What follows the addition is rms_norm.cuh's: sums of squares, and y of a vector or a tile. Rows of x and of
// residual start as far from 16-byte boundaries as those of h and y, which are contiguous: the host copies
// others. ALIGNED: every row is whole 16-byte vectors; else common.cuh's Parts says which elements are.
#pragma once

#include "rms_norm.cuh"
#include "x2.cuh"

// h = x + residual. The sum is rounded once, to T.
template <typename T>
__device__ __forceinline__ T add(T x, T residual) {
    return T(float(x) + float(residual));
}
// Of a 32-bit word: one instruction adds two 16-bit elements, and they stay packed.
template <typename T>
__device__ __forceinline__ unsigned add_words(unsigned x, unsigned residual) {
    using Word = typename WordOf<T>::type;
    const Word h = reinterpret_cast<const Word&>(x) + reinterpret_cast<const Word&>(residual);
    return reinterpret_cast<const unsigned&>(h);
}
template <typename T, int VEC>
__device__ __forceinline__ Packed<T, VEC> add_vec(const Packed<T, VEC>& x, const Packed<T, VEC>& residual) {
    const uint4 a = x.words, b = residual.words;
    return {make_uint4(
        add_words<T>(a.x, b.x), add_words<T>(a.y, b.y), add_words<T>(a.z, b.z), add_words<T>(a.w, b.w))};
}

// ---- online --------------------------------------------------------------------------------------------
// Grid: one block per row. What it reads again is the h that it wrote: half as much as x and residual, and a
// thread reads only what it wrote itself, so that no barrier is needed.

template <typename T, bool ALIGNED, int THREADS>
__global__ __launch_bounds__(THREADS) void fused_add_rms_norm_online_kernel(
    const T* __restrict__ x_ptr, const T* __restrict__ residual_ptr, const T* __restrict__ weight_ptr,
    T* h_ptr, T* __restrict__ y_ptr, index_t N, index_t stride_xm, index_t stride_rm, float eps) {
    constexpr int VEC = 16 / sizeof(T), BLOCK_N = THREADS * VEC;
    const index_t m = blockIdx.x;
    const Parts<T, ALIGNED> parts(y_ptr + m * N, N, threadIdx.x);
    const T* x_row = x_ptr + m * stride_xm;
    const T* residual_row = residual_ptr + m * stride_rm;
    T* h_row = h_ptr + m * N;
    T* y_row = y_ptr + m * N;
    const index_t first = parts.head + threadIdx.x * VEC, end = parts.head + parts.body;

    float squares = 0.0f;
    if (parts.edge >= 0) {
        const T h = add(x_row[parts.edge], residual_row[parts.edge]);
        h_row[parts.edge] = h;
        squares = square(float(h));
    }
#pragma unroll 2
    for (index_t n = first; n < end; n += BLOCK_N) {
        const Packed<T, VEC> h = add_vec(load_packed<VEC>(x_row + n), load_packed<VEC>(residual_row + n));
        store_vec(h_row + n, h.unpack());
        squares += vec_squares(h.unpack());
    }
    const float scale = rsqrtf(block_reduce<Sum, THREADS>(squares) / N + eps);

#pragma unroll 2
    for (index_t n = first; n < end; n += BLOCK_N) {
        const Vec<T, VEC> weight = load_shifted<ALIGNED, VEC>(weight_ptr + n).unpack();
        store_vec(y_row + n, scaled(load_vec<VEC>(h_row + n), scale, weight));
    }
    if (parts.edge >= 0) {
        y_row[parts.edge] = T(float(h_row[parts.edge]) * scale * float(weight_ptr[parts.edge]));
    }
}

// ---- a tile in registers ---------------------------------------------------------------------------------

// Turns a tile of x into one of h, writes it and returns its sum of squares.
template <int THREADS, typename T, int VEC, int VECTORS>
__device__ __forceinline__ float add_and_store_tile(
    T* tile_ptr, Packed<T, VEC> (&h)[VECTORS], const Packed<T, VEC> (&residual)[VECTORS], int columns) {
    float squares = 0.0f;
#pragma unroll
    for (int p = 0; p < VECTORS; ++p) {
        const int n = p * THREADS * VEC;
        h[p] = add_vec(h[p], residual[p]);
        store_vec_if(n < columns, tile_ptr + n, h[p].unpack());
        squares += vec_squares(h[p].unpack());
    }
    return squares;
}

// ---- onepass -------------------------------------------------------------------------------------------
// Unlike online, h stays in registers, so nothing is read twice. Grid: one block per BLOCK_M rows.
// THREADS / BLOCK_M threads share a row and hold all of it, VECTORS vectors each:
// N <= THREADS / BLOCK_M * VECTORS * VEC. A row of more than one warp has a block to itself.
//
// For short rows the weights are loaded together with the rows, so that nothing waits after the reduction.
// For long rows they are loaded when x and residual have left their registers to h: 64 registers let one
// block read while another writes.

template <typename T, bool ALIGNED, int VECTORS, int THREADS, int BLOCK_M>
__global__ __launch_bounds__(THREADS, 1024 / THREADS) void fused_add_rms_norm_onepass_kernel(
    const T* x_ptr, const T* residual_ptr, const T* weight_ptr, T* h_ptr, T* y_ptr, index_t M, index_t N,
    index_t stride_xm, index_t stride_rm, float eps) {
    constexpr int VEC = 16 / sizeof(T), ROW_THREADS = THREADS / BLOCK_M;
    constexpr bool WEIGHTS_FIRST = VECTORS <= 2;
    const int thread = threadIdx.x % ROW_THREADS;
    const index_t m = static_cast<index_t>(blockIdx.x) * BLOCK_M + threadIdx.x / ROW_THREADS;
    // Without a row a thread still shuffles.
    const Parts<T, ALIGNED> parts(y_ptr + m * N, m < M ? static_cast<int>(N) : 0, thread);
    const int first = parts.head + thread * VEC, columns = static_cast<int>(parts.body) - thread * VEC;
    const int at_edge = static_cast<int>(parts.edge);
    const T* weight_tile = weight_ptr + first;
    T* h_tile = h_ptr + m * N + first;
    T* y_tile = y_ptr + m * N + first;
    Packed<T, VEC> h[VECTORS], residual[VECTORS], weight[VECTORS];

    load_tile<ROW_THREADS>(h, x_ptr + m * stride_xm + first, columns);
    load_tile<ROW_THREADS>(residual, residual_ptr + m * stride_rm + first, columns);
    if (WEIGHTS_FIRST) load_parameters<ROW_THREADS, ALIGNED>(weight, weight_tile, columns);
    float squares = add_and_store_tile<ROW_THREADS>(h_tile, h, residual, columns);
    T edge = T(0.0f);
    if (at_edge >= 0) {
        edge = add(x_ptr[m * stride_xm + at_edge], residual_ptr[m * stride_rm + at_edge]);
        h_ptr[m * N + at_edge] = edge;
        squares += square(float(edge));
    }
    if (!WEIGHTS_FIRST) load_parameters<ROW_THREADS, ALIGNED>(weight, weight_tile, columns);
    const float scale = rsqrtf(row_reduce<Sum, THREADS, BLOCK_M>(squares) / N + eps);
    store_tile<ROW_THREADS>(y_tile, h, scale, weight, columns);
    if (at_edge >= 0) y_ptr[m * N + at_edge] = T(float(edge) * scale * float(weight_ptr[at_edge]));
}

// ---- split ---------------------------------------------------------------------------------------------
// Unlike onepass, several blocks share a row, so it may be longer than a block's registers, and few rows
// occupy the whole GPU. Rows are split into `chunks` chunks of BLOCK_N columns; a block has the same columns
// of many rows. Each iteration writes its chunk of h, keeps it in registers and publishes its sum of squares.
// When the row's other blocks have published theirs, it writes its chunk of y. Its next row is prefetched, so
// that loads are in flight while it waits.
//
// Invariant: all blocks are resident, because they wait for each other; their number is a multiple of
// `chunks`. The host ensures both. of_chunk[M * chunks] starts as 0: one nonzero word is both result and
// flag.

// A sum of squares in an 8-byte word, written by one store; its sign bit makes it never 0. volatile bypasses
// the L1, which is not coherent with other blocks' writes.
__device__ __forceinline__ void publish(word_t* of_chunk, float squares) {
    *static_cast<volatile word_t*>(of_chunk) = __float_as_uint(squares) | 0x80000000u;
}

// This thread's share of a row's sum of squares: of the chunk `thread`, and every THREADS-th after it. Polls
// until each one's word is not 0.
template <int THREADS>
__device__ __forceinline__ float wait_for_row(const word_t* of_row, int chunks, int thread) {
    float squares = 0.0f;
    for (int c = thread; c < chunks; c += THREADS) {
        const volatile word_t* of_chunk = of_row + c;
        word_t word = *of_chunk;
        while (word == 0) {
            __nanosleep(32);
            word = *of_chunk;
        }
        squares += __uint_as_float(static_cast<unsigned>(word) & 0x7fffffffu);
    }
    __syncwarp();  // reconverge: lanes that waited less would go on alone
    return squares;
}

template <typename T, bool ALIGNED, int VECTORS, int THREADS, int BLOCKS>
__global__ __launch_bounds__(THREADS, BLOCKS) void fused_add_rms_norm_split_kernel(
    const T* x_ptr, const T* residual_ptr, const T* weight_ptr, T* h_ptr, T* y_ptr, index_t M, index_t N,
    index_t stride_xm, index_t stride_rm, int chunks, word_t* of_chunk_ptr, float eps) {
    constexpr int VEC = 16 / sizeof(T), BLOCK_N = THREADS * VECTORS * VEC;
    const int thread = threadIdx.x, c = blockIdx.x % chunks;
    const index_t first_m = blockIdx.x / chunks, step = gridDim.x / chunks;
    const index_t begin = static_cast<index_t>(c) * BLOCK_N;
    Packed<T, VEC> next_x[VECTORS], next_residual[VECTORS], weight[VECTORS], h[VECTORS];
    const auto parts_of = [&](index_t m) { return Parts<T, ALIGNED>(y_ptr + m * N, N, thread); };
    // From this thread's first vector, as in onepass.
    const auto columns_of = [&](const Parts<T, ALIGNED>& parts) {
        return slice_columns(parts.body, begin, BLOCK_N) - thread * VEC;
    };
    const auto load_next = [&](index_t m) {
        const Parts<T, ALIGNED> parts = parts_of(m);
        const index_t first = parts.head + begin + thread * VEC;
        const int columns = m < M ? columns_of(parts) : 0;
        load_tile<THREADS>(next_x, x_ptr + m * stride_xm + first, columns);
        load_tile<THREADS>(next_residual, residual_ptr + m * stride_rm + first, columns);
    };

    load_next(first_m);
    for (index_t m = first_m; m < M; m += step) {
        const Parts<T, ALIGNED> parts = parts_of(m);
        const index_t first = parts.head + begin + thread * VEC;
        const index_t at_edge = c == 0 ? parts.edge : -1;  // a row's edges are its first chunk's
        const int columns = columns_of(parts);
        word_t* of_row = of_chunk_ptr + m * chunks;
#pragma unroll
        for (int p = 0; p < VECTORS; ++p) h[p] = next_x[p];
        float squares = add_and_store_tile<THREADS>(h_ptr + m * N + first, h, next_residual, columns);
        T edge = T(0.0f);
        if (at_edge >= 0) {
            edge = add(x_ptr[m * stride_xm + at_edge], residual_ptr[m * stride_rm + at_edge]);
            h_ptr[m * N + at_edge] = edge;
            squares += square(float(edge));
        }
        squares = block_reduce<Sum, THREADS, 0>(squares);
        if (thread == 0) publish(of_row + c, squares);
        load_next(m + step);
        load_parameters<THREADS, ALIGNED>(weight, weight_ptr + first, columns);
        // The other call's barrier is between two uses of one call's shared memory.
        squares = block_reduce<Sum, THREADS, 1>(wait_for_row<THREADS>(of_row, chunks, thread));
        const float scale = rsqrtf(squares / N + eps);
        store_tile<THREADS>(y_ptr + m * N + first, h, scale, weight, columns);
        if (at_edge >= 0) y_ptr[m * N + at_edge] = T(float(edge) * scale * float(weight_ptr[at_edge]));
    }
}
