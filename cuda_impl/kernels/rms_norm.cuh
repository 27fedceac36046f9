// rms_norm over rows: x[M,N], weight[N] -> y[M,N],
//   y[m,n] = x[m,n] / sqrt(mean of x[m,n]^2 + eps) * weight[n]
//
// Variants; triton_impl/rms_norm.py has the first three under the same names, and gluon_cluster/ beside it
// has cluster. Triton's split, not written in CUDA, exchanges partial sums through global memory instead.
//   online   a block reads its row twice: any row length
//   onepass  the row stays in registers between reduction and output, so it is read once: 64 KB
//   packed   as onepass, but weights are loaded when they are needed: 128 KB
//   cluster  the blocks of a cluster share rows, which TMA prefetches into their shared memory: Hopper
#pragma once

#include "hopper.cuh"
#include "norm.cuh"
#include "row_ring.cuh"

template <typename T, int VEC>
__device__ __forceinline__ float vec_squares(const Vec<T, VEC>& x) {
    float squares = 0.0f;
#pragma unroll
    for (int v = 0; v < VEC; ++v) squares += square(to_float(x, v));
    return squares;
}

template <typename T, int VEC>
__device__ __forceinline__ Vec<T, VEC> scaled(const Vec<T, VEC>& x, float scale, const Vec<T, VEC>& weight) {
    Vec<T, VEC> y;
#pragma unroll
    for (int v = 0; v < VEC; ++v) y[v] = T(to_float(x, v) * scale * to_float(weight, v));
    return y;
}

// ---- online --------------------------------------------------------------------------------------------
// Grid: one block per row. The second read hits the L2 for what is still cached.

template <typename T, bool ALIGNED, int THREADS>
__global__ __launch_bounds__(THREADS) void rms_norm_online_kernel(
    const T* __restrict__ x_ptr, const T* __restrict__ weight_ptr, T* __restrict__ y_ptr, index_t N,
    index_t stride_xm, float eps) {
    constexpr int VEC = 16 / sizeof(T), BLOCK_N = THREADS * VEC;
    const T* x_row = x_ptr + blockIdx.x * stride_xm;
    T* y_row = y_ptr + blockIdx.x * N;
    const Parts<T, ALIGNED> parts(y_row, N, threadIdx.x);
    const T* x_body = x_row + parts.head;
    T* y_body = y_row + parts.head;
    const auto load = [&](index_t n) { return load_body<ALIGNED, VEC>(x_body + n).unpack(); };
    const auto parameter = [&](const T* ptr, index_t n) {
        return load_shifted<ALIGNED, VEC>(ptr + parts.head + n).unpack();
    };

    float squares = 0.0f;
    if (parts.edge >= 0) squares = square(float(x_row[parts.edge]));
#pragma unroll 2
    for (index_t n = threadIdx.x * VEC; n < parts.body; n += BLOCK_N) squares += vec_squares(load(n));
    const float scale = rsqrtf(block_reduce<Sum, THREADS>(squares) / N + eps);

#pragma unroll 2
    for (index_t n = threadIdx.x * VEC; n < parts.body; n += BLOCK_N) {
        store_vec(y_body + n, scaled(load(n), scale, parameter(weight_ptr, n)));
    }
    if (parts.edge >= 0) {
        y_row[parts.edge] = T(float(x_row[parts.edge]) * scale * float(weight_ptr[parts.edge]));
    }
}

// ---- a tile in registers ---------------------------------------------------------------------------------

template <typename T, int VEC, int VECTORS>
__device__ __forceinline__ float tile_squares(const Packed<T, VEC> (&x)[VECTORS]) {
    float squares = 0.0f;
#pragma unroll
    for (int p = 0; p < VECTORS; ++p) squares += vec_squares(x[p].unpack());
    return squares;
}

template <int THREADS, typename T, int VEC, int VECTORS>
__device__ __forceinline__ void store_tile(
    T* tile_ptr, const Packed<T, VEC> (&x)[VECTORS], float scale, const Packed<T, VEC> (&weight)[VECTORS],
    int columns) {
#pragma unroll
    for (int p = 0; p < VECTORS; ++p) {
        const int n = p * THREADS * VEC;
        const Vec<T, VEC> y = scaled(x[p].unpack(), scale, weight[p].unpack());
        if (n < columns) store_vec(tile_ptr + n, y);
    }
}

// ---- onepass -------------------------------------------------------------------------------------------
// Unlike online, the row stays in registers, so it is read once. Grid: one block per BLOCK_M rows.
// THREADS / BLOCK_M threads share a row and hold all of it, VECTORS vectors each:
// N <= THREADS / BLOCK_M * VECTORS * VEC. A row of more than one warp has a block to itself. Weights are
// loaded together with the row, so that nothing waits after the reduction. Registers are limited so that one
// block reads while another writes: 32 for VECTORS == 2, else 64. The barrel shifter of 16-bit weights takes
// 40; with 32 they would spill.

template <typename T>
constexpr int resident_threads(bool ALIGNED, int VECTORS) {
    return VECTORS != 2 ? 1024 : ALIGNED || sizeof(T) == 4 ? MOST_THREADS : SMALL_TILE_THREADS;
}

template <typename T, bool ALIGNED, int VECTORS, int THREADS, int BLOCK_M>
__global__
__launch_bounds__(THREADS, resident_threads<T>(ALIGNED, VECTORS) / THREADS) void rms_norm_onepass_kernel(
    const T* x_ptr, const T* weight_ptr, T* y_ptr, index_t M, index_t N, index_t stride_xm, float eps) {
    constexpr int VEC = 16 / sizeof(T), ROW_THREADS = THREADS / BLOCK_M;
    const int thread = threadIdx.x % ROW_THREADS;
    const index_t m = static_cast<index_t>(blockIdx.x) * BLOCK_M + threadIdx.x / ROW_THREADS;
    // Without a row a thread still shuffles.
    const Parts<T, ALIGNED> parts(y_ptr + m * N, m < M ? static_cast<int>(N) : 0, thread);
    const int first = parts.head + thread * VEC, columns = static_cast<int>(parts.body) - thread * VEC;
    const int at_edge = static_cast<int>(parts.edge);
    Packed<T, VEC> x[VECTORS], weight[VECTORS];

    load_tile<ROW_THREADS, ALIGNED>(x, x_ptr + m * stride_xm + first, columns);
    load_parameters<ROW_THREADS, ALIGNED>(weight, weight_ptr + first, columns);
    const float edge = at_edge >= 0 ? float(x_ptr[m * stride_xm + at_edge]) : 0.0f;
    const float squares = tile_squares(x) + square(edge);
    const float scale = rsqrtf(row_reduce<Sum, THREADS, BLOCK_M>(squares) / N + eps);
    store_tile<ROW_THREADS>(y_ptr + m * N + first, x, scale, weight, columns);
    if (at_edge >= 0) y_ptr[m * N + at_edge] = T(edge * scale * float(weight_ptr[at_edge]));
}

// ---- packed --------------------------------------------------------------------------------------------
// As onepass, for rows of up to 128 KB: x takes 32 of 64 registers, so weights are loaded vector by vector,
// one vector ahead. Grid: one block per row.
//
// The body of an unaligned row starts at any column, so its weights lie across 16-byte boundaries.
// `windows`[VEC, pitch] has copies of them from column 0, 1, 2 ... on, of which one is aligned to the body.
// If ALIGNED, it is the weights themselves. Rows of x start as far from a boundary as y's.

template <typename T, bool ALIGNED, int VECTORS, int THREADS>
__global__ __launch_bounds__(THREADS, 1024 / THREADS) void rms_norm_packed_kernel(
    const T* x_ptr, const T* weight_ptr, const T* windows_ptr, T* y_ptr, index_t N, index_t stride_xm,
    index_t pitch, float eps) {
    constexpr int VEC = 16 / sizeof(T), STRIDE = THREADS * VEC;
    const index_t m = blockIdx.x;
    const T* x_row = x_ptr + m * stride_xm;
    T* y_row = y_ptr + m * N;
    const Parts<T, ALIGNED> parts(y_row, static_cast<int>(N), threadIdx.x);
    const int first = threadIdx.x * VEC, columns = static_cast<int>(parts.body) - first;
    const int at_edge = static_cast<int>(parts.edge);
    const T* weights = windows_ptr + parts.head * pitch + first;
    Packed<T, VEC> x[VECTORS], next[1];

    load_tile<THREADS>(x, x_row + parts.head + first, columns);
    const float edge = at_edge >= 0 ? float(x_row[at_edge]) : 0.0f;
    const float squares = tile_squares(x) + square(edge);
    load_tile<THREADS>(next, weights, columns);
    const float scale = rsqrtf(block_reduce<Sum, THREADS>(squares) / N + eps);
#pragma unroll
    for (int p = 0; p < VECTORS; ++p) {
        const Packed<T, VEC> weight = next[0];
        const int n = p * STRIDE;
        if (p + 1 < VECTORS) load_tile<THREADS>(next, weights + n + STRIDE, columns - n - STRIDE);
        store_vec_if(
            n < columns, y_row + parts.head + first + n, scaled(x[p].unpack(), scale, weight.unpack()));
    }
    if (at_edge >= 0) y_row[at_edge] = T(edge * scale * float(weight_ptr[at_edge]));
}

// ---- cluster -------------------------------------------------------------------------------------------
// For rows that are longer still. Grid: clusters of CLUSTER blocks, each with several rows; a block has the
// same `slice` columns of all of them, whose weights stay in registers. TMA loads slices into a ring in
// shared memory: row_ring.cuh has the schedule. A block reduces its slice of a row and sends the sum to all
// blocks. Then it writes its slice of the previous row, whose sums have arrived meanwhile.
//
// TMA copies the body of a row; the cluster's first block has the edges. Which weights a thread needs depends
// on where a row starts between 16-byte boundaries: all rows of a cluster start alike, and the weights are
// packed's windows. Rows of x start as far from a boundary as y's; slice is a multiple of VEC. BLOCKS fit on
// a multiprocessor: while one waits, the others work. SLOTS > 1: a slice is at most one tile of THREADS *
// VECTORS vectors. SLOTS == 1: it is several tiles, whose weights are loaded tile by tile, and a cluster has
// one row.

template <typename T, bool ALIGNED, int SLOTS, int BLOCKS, int VECTORS, int THREADS, int CLUSTER>
__global__ __launch_bounds__(THREADS, BLOCKS) CLUSTER_OF(CLUSTER) void rms_norm_cluster_kernel(
    const T* x_ptr, const T* weight_ptr, const T* windows_ptr, T* y_ptr, index_t M, index_t N,
    index_t stride_xm, index_t pitch, int slice, int rows_each, int* taken, float eps) {
#if HAS_HOPPER_LEVELS
    constexpr int VEC = 16 / sizeof(T), TILE = THREADS * VECTORS * VEC;
    constexpr bool KEPT = SLOTS > 1;
    DYNAMIC_SHARED(T, slots);
    __shared__ RowRing<T, SLOTS, CLUSTER> ring;
    const ClusterRows<T, ALIGNED, CLUSTER> my(x_ptr, y_ptr, M, N, stride_xm, slice, rows_each);
    const int thread = threadIdx.x, first = thread * VEC, columns = my.columns;
    ring.start(my, slots, taken != nullptr);
    Packed<T, VEC> x[VECTORS], weight[VECTORS];
    const auto load_weights = [&](int n) {
        load_tile<THREADS>(weight, my.window(windows_ptr, pitch) + n, columns - n);
    };
    if (KEPT) load_weights(first);
    const T edge_weight = my.edge_of(weight_ptr);
    T next_edge = my.x_edge(my.nth(0)), edge = next_edge, old_edge = edge;  // loaded a row ahead
    const float inverse_N = 1.0f / N;

    const auto reduce = [&](int n, int i) {
        old_edge = edge;
        edge = next_edge;
        if (i >= my.rows) return;
        ring.wait_for_slice(n);
        const T* slice_ptr = ring.slot(slots, n, i, my);
        float squares = square(float(edge));
        for (int at = first; at < (KEPT ? first + 1 : columns); at += TILE) {
            load_tile<THREADS>(x, slice_ptr + at, columns - at);
            squares += tile_squares(x);
        }
        ring.send(n, my.rank, __float_as_uint(block_reduce<Sum, THREADS>(squares)));
        next_edge = my.x_edge(ring.next_place(n));
    };
    const auto write = [&](int n, int i) {
        const float squares = __uint_as_float(static_cast<unsigned>(ring.receive(n)));
        const float scale = rsqrtf(warp_reduce<Sum, CLUSTER>(squares) * inverse_N + eps);
        const T* slice_ptr = ring.slot(slots, n, i, my);
        T* y_slice = my.y_row(i) + my.begin;
        for (int at = first; at < (KEPT ? first + 1 : columns); at += TILE) {
            if (!KEPT) load_weights(at);
            load_tile<THREADS>(x, slice_ptr + at, columns - at);
            store_tile<THREADS>(y_slice + at, x, scale, weight, columns - at);
        }
        if (my.edge >= 0) my.y_row(i)[my.edge] = T(float(old_edge) * scale * float(edge_weight));
    };
    run_ring<false>(ring, my, slots, taken, reduce, write);
#endif
}
