// rms_norm over rows: x[M,N], weight[N] -> y[M,N],
//   y[m,n] = x[m,n] / sqrt(mean of x[m,n]^2 + eps) * weight[n]
//
// Variants; triton_impl/rms_norm.py has the first two under the same names. The last is in Gluon,
// in triton_impl/gluon_cluster/. Its split exchanges partial sums through global memory instead.
//   online   a block reads its row twice: any row length
//   onepass  the row stays in registers between reduction and output, so it is read once: 64 KB
//   cluster  the blocks of a cluster share rows, which stay in their shared memory: Hopper
#pragma once

#include "hopper.cuh"
#include "norm.cuh"

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

// ---- cluster -------------------------------------------------------------------------------------------
// Grid: one cluster of CLUSTER blocks per BLOCK_M rows; each block has the same `slice` columns of all of
// them. TMA loads the slices into shared memory while the weights are loaded into registers, once for all
// rows. A block reduces its slice of a row and sends the sum into the shared memory of all blocks. Then it
// writes its slice of the previous row, whose sums have arrived meanwhile.
//
// Room for 768 threads, or two blocks of 512: while one waits, the others work. 65536 / 768 = 85 registers,
// allocated by eights: 80. The kernel takes 64, of which x and weight are 32.
//
// TMA copies the body of a row; the cluster's first block has the edges. Which weights a thread needs depends
// on where a row starts between 16-byte boundaries: a cluster has every STEP-th row, and these start alike.
// KEPT: a slice is one tile of THREADS * VECTORS vectors, so its weights stay in registers; else they are
// loaded tile by tile. Rows of x start as far from a boundary as y's; slice is a multiple of VEC; BLOCK_M
// <= 4.

template <typename T, bool ALIGNED, bool KEPT, int VECTORS, int THREADS, int CLUSTER>
__global__ __launch_bounds__(THREADS, (768 + THREADS - 1) / THREADS)
    CLUSTER_OF(CLUSTER) void rms_norm_cluster_kernel(
        const T* x_ptr, const T* weight_ptr, T* y_ptr, index_t M, index_t N, index_t stride_xm, int slice,
        int BLOCK_M, float eps) {
#if HAS_HOPPER_UNITS
    constexpr int VEC = 16 / sizeof(T), TILE = THREADS * VECTORS * VEC;
    constexpr int MOST_ROWS = 4, STEP = ALIGNED ? 1 : VEC;
    DYNAMIC_SHARED(T, x_shared);
    __shared__ mbarrier_t full[MOST_ROWS], arrived[MOST_ROWS];
    __shared__ unsigned long long block_sums[MOST_ROWS][CLUSTER];  // each block's sum of squares, in 8 bytes
    const int thread = threadIdx.x, rank = cluster_block_rank(), first = thread * VEC;
    const index_t cluster = blockIdx.x / CLUSTER;
    const index_t first_m = cluster / STEP * STEP * BLOCK_M + cluster % STEP;
    const auto row_m = [&](int row) { return first_m + row * STEP; };
    const index_t rows_left = (M - first_m + STEP - 1) / STEP;  // none or fewer for the last clusters
    const int rows = static_cast<int>(rows_left < BLOCK_M ? rows_left : BLOCK_M);
    const index_t begin = static_cast<index_t>(rank) * slice;
    const auto parts_of = [&](int row) { return Parts<T, ALIGNED>(y_ptr + row_m(row) * N, N, thread); };
    const index_t body = parts_of(0).body;  // as in every row
    const int head = parts_of(0).head;      // as in the cluster's other rows
    const int columns = slice_columns(body, begin, slice);

    if (thread == 0) {
        for (int row = 0; row < rows; ++row) {
            mbarrier_init(&full[row], 1);
            mbarrier_init(&arrived[row], 1);
        }
        mbarrier_init_fence();
        const unsigned bytes = columns * sizeof(T);
        for (int row = 0; row < rows; ++row) {
            mbarrier_arrive_expect_bytes(&arrived[row], sizeof(block_sums[row]));
            mbarrier_arrive_expect_bytes(&full[row], bytes);
            if (bytes > 0) {
                bulk_copy_to_shared(
                    x_shared + row * slice, x_ptr + row_m(row) * stride_xm + head + begin, bytes, &full[row]);
            }
        }
    }
    __syncthreads();
    cluster_arrive_relaxed();
    Packed<T, VEC> x[VECTORS], weight[VECTORS];
    if (KEPT) load_parameters<THREADS, ALIGNED>(weight, weight_ptr + head + begin + first, columns - first);

    const auto reduce = [&](int row) {
        const index_t edge = rank == 0 ? parts_of(row).edge : -1;
        float own = 0.0f;
        if (edge >= 0) own = square(float(x_ptr[row_m(row) * stride_xm + edge]));
        mbarrier_wait(&full[row], 0);
        for (int n = first; n < (KEPT ? first + 1 : columns); n += TILE) {
            load_tile<THREADS>(x, x_shared + row * slice + n, columns - n);
            own += tile_squares(x);
        }
        // Two calls by turns: the other one's barrier is between two uses of one call's shared memory.
        const float squares =
            row % 2 == 0 ? block_reduce<Sum, THREADS, 0>(own) : block_reduce<Sum, THREADS, 1>(own);
        if (thread < CLUSTER) {
            store_async_to_block(&block_sums[row][rank], thread, __float_as_uint(squares), &arrived[row]);
        }
    };
    const auto write = [&](int row) {
        T* y_row = y_ptr + row_m(row) * N;
        const Parts<T, ALIGNED> parts = parts_of(row);
        mbarrier_wait(&arrived[row], 0);
        const float part = __uint_as_float(static_cast<unsigned>(block_sums[row][thread % CLUSTER]));
        const float scale = rsqrtf(warp_reduce<Sum, CLUSTER>(part) / N + eps);
        for (int n = first; n < (KEPT ? first + 1 : columns); n += TILE) {
            const index_t at = head + begin + n;
            if (!KEPT) load_parameters<THREADS, ALIGNED>(weight, weight_ptr + at, columns - n);
            load_tile<THREADS>(x, x_shared + row * slice + n, columns - n);
            store_tile<THREADS>(y_row + at, x, scale, weight, columns - n);
        }
        if (parts.edge >= 0 && rank == 0) {
            const float edge = float(x_ptr[row_m(row) * stride_xm + parts.edge]);
            y_row[parts.edge] = T(edge * scale * float(weight_ptr[parts.edge]));
        }
    };

    cluster_wait();  // all blocks of the cluster have started: their shared memory may be written
    for (int row = 0; row <= rows; ++row) {
        if (row < rows) reduce(row);
        if (row > 0) write(row - 1);
    }
#endif
}
