// layer_norm over rows: x[M,N], weight[N], bias[N] -> y[M,N],
//   y[m,n] = (x[m,n] - mean_m) / sqrt(variance_m + eps) * weight[n] + bias[n]
//
// Variants; triton_impl/layer_norm.py has the first two under the same names. The last is in Gluon,
// in triton_impl/gluon_cluster/. Its split exchanges partial sums through global memory instead.
//   online   a block reads its row twice: any row length
//   onepass  the row stays in registers between reduction and output, so it is read once: 64 KB
//   cluster  the blocks of a cluster share rows, which stay in their shared memory: Hopper
//
// The variance is the mean of squared deviations, never E[x^2] - E[x]^2. For a row with mean 1000 and
// variance 1 both terms are about 10^6, where the spacing of fp32 is 0.06. For a row in registers the second
// pass over it costs a few instructions and no memory traffic.
#pragma once

#include "hopper.cuh"
#include "norm.cuh"

// ---- online --------------------------------------------------------------------------------------------
// Grid: one block per row. Each thread keeps running moments of its vectors, its mean and its sum of squared
// deviations; they are combined at the row's end. The second read hits the L2 for what is still cached.
// Source: Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing sample
// variances" (1979): deviations within each part, and of its mean from the total mean.

template <typename T, bool ALIGNED, int THREADS>
__global__ __launch_bounds__(THREADS) void layer_norm_online_kernel(
    const T* __restrict__ x_ptr, const T* __restrict__ weight_ptr, const T* __restrict__ bias_ptr,
    T* __restrict__ y_ptr, index_t N, index_t stride_xm, float eps) {
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

    float vectors = 0.0f, own_mean = 0.0f, own_squares = 0.0f;
#pragma unroll 2
    for (index_t n = threadIdx.x * VEC; n < parts.body; n += BLOCK_N) {
        const Vec<T, VEC> x = load(n);
        float sum = 0.0f, squares = 0.0f;
#pragma unroll
        for (int v = 0; v < VEC; ++v) sum += to_float(x, v);
#pragma unroll
        for (int v = 0; v < VEC; ++v) {
            const float deviation = to_float(x, v) - sum / VEC;
            squares += deviation * deviation;
        }
        const float further = sum / VEC - own_mean, share = __fdividef(1.0f, vectors + 1.0f);
        own_mean += further * share;
        // 0 for the first vector, for any mean.
        own_squares += squares + (further * (vectors * VEC)) * (further * share);
        vectors += 1.0f;
    }
    float count = vectors * VEC;
    if (parts.edge >= 0) {
        const float further = float(x_row[parts.edge]) - own_mean;
        own_squares += further * (count / (count + 1.0f)) * further;  // 0 for a thread without vectors
        own_mean += further / (count + 1.0f);
        count += 1.0f;
    }
    const float mean = block_reduce<Sum, THREADS, 0>(count * own_mean) / N;
    const float distance = own_mean - mean;
    const float squares = block_reduce<Sum, THREADS, 1>(own_squares + count * distance * distance);
    const float scale = rsqrtf(squares / N + eps);

#pragma unroll 2
    for (index_t n = threadIdx.x * VEC; n < parts.body; n += BLOCK_N) {
        const Vec<T, VEC> x = load(n), weight = parameter(weight_ptr, n), bias = parameter(bias_ptr, n);
        Vec<T, VEC> y;
#pragma unroll
        for (int v = 0; v < VEC; ++v) {
            y[v] = T((to_float(x, v) - mean) * scale * to_float(weight, v) + to_float(bias, v));
        }
        store_vec(y_body + n, y);
    }
    if (parts.edge >= 0) {
        const float centred = float(x_row[parts.edge]) - mean;
        y_row[parts.edge] = T(centred * scale * float(weight_ptr[parts.edge]) + float(bias_ptr[parts.edge]));
    }
}

// ---- a tile in registers ---------------------------------------------------------------------------------

template <typename T, int VEC, int VECTORS>
__device__ __forceinline__ float tile_sum(const Packed<T, VEC> (&packed)[VECTORS]) {
    float sum = 0.0f;
#pragma unroll
    for (int p = 0; p < VECTORS; ++p) {
        const Vec<T, VEC> x = packed[p].unpack();
#pragma unroll
        for (int v = 0; v < VEC; ++v) sum += to_float(x, v);
    }
    return sum;
}

// The sum of squared deviations from `mean`.
template <int THREADS, typename T, int VEC, int VECTORS>
__device__ __forceinline__ float tile_squares(
    const Packed<T, VEC> (&packed)[VECTORS], float mean, int columns) {
    float squares = 0.0f;
#pragma unroll
    for (int p = 0; p < VECTORS; ++p) {
        if (p * THREADS * VEC >= columns) continue;  // padding: x is 0, the mean is not
        const Vec<T, VEC> x = packed[p].unpack();
#pragma unroll
        for (int v = 0; v < VEC; ++v) {
            const float deviation = to_float(x, v) - mean;
            squares += deviation * deviation;
        }
    }
    return squares;
}

template <int THREADS, typename T, int VEC, int VECTORS>
__device__ __forceinline__ void store_tile(
    T* tile_ptr, const Packed<T, VEC> (&packed)[VECTORS], const Packed<T, VEC> (&weights)[VECTORS],
    const Packed<T, VEC> (&biases)[VECTORS], float mean, float scale, int columns) {
#pragma unroll
    for (int p = 0; p < VECTORS; ++p) {
        const int n = p * THREADS * VEC;
        const Vec<T, VEC> x = packed[p].unpack(), weight = weights[p].unpack(), bias = biases[p].unpack();
        Vec<T, VEC> y;
#pragma unroll
        for (int v = 0; v < VEC; ++v) {
            y[v] = T((to_float(x, v) - mean) * scale * to_float(weight, v) + to_float(bias, v));
        }
        store_vec_if(n < columns, tile_ptr + n, y);
    }
}

// ---- onepass -------------------------------------------------------------------------------------------
// Unlike online, the row stays in registers, so it is read once. Grid: one block per BLOCK_M rows.
// THREADS / BLOCK_M threads share a row and hold all of it, VECTORS vectors each:
// N <= THREADS / BLOCK_M * VECTORS * VEC. A row of more than one warp has a block to itself. Weights are
// loaded together with the row, so that nothing waits after the reduction. Registers are limited so that one
// block reads while another writes: 40 for VECTORS == 2, else 64. Blocks of two warps: 14 of them in place of
// 16, with 72 registers (65536 / 896 = 73, allocated by eights), of which x, weight and bias take 48.

constexpr int resident_threads(int VECTORS, int THREADS) {
    return VECTORS == 2 ? SMALL_TILE_THREADS : THREADS == 64 ? 896 : 1024;
}

template <typename T, bool ALIGNED, int VECTORS, int THREADS, int BLOCK_M>
__global__
__launch_bounds__(THREADS, resident_threads(VECTORS, THREADS) / THREADS) void layer_norm_onepass_kernel(
    const T* x_ptr, const T* weight_ptr, const T* bias_ptr, T* y_ptr, index_t M, index_t N, index_t stride_xm,
    float eps) {
    constexpr int VEC = 16 / sizeof(T), ROW_THREADS = THREADS / BLOCK_M;
    const int thread = threadIdx.x % ROW_THREADS;
    const index_t m = static_cast<index_t>(blockIdx.x) * BLOCK_M + threadIdx.x / ROW_THREADS;
    // Without a row a thread still shuffles.
    const Parts<T, ALIGNED> parts(y_ptr + m * N, m < M ? static_cast<int>(N) : 0, thread);
    const int first = parts.head + thread * VEC, columns = static_cast<int>(parts.body) - thread * VEC;
    const int at_edge = static_cast<int>(parts.edge);
    Packed<T, VEC> x[VECTORS], weight[VECTORS], bias[VECTORS];

    load_tile<ROW_THREADS, ALIGNED>(x, x_ptr + m * stride_xm + first, columns);
    load_parameters<ROW_THREADS, ALIGNED>(weight, weight_ptr + first, columns);
    load_parameters<ROW_THREADS, ALIGNED>(bias, bias_ptr + first, columns);
    const float edge = at_edge >= 0 ? float(x_ptr[m * stride_xm + at_edge]) : 0.0f;
    const float mean = row_reduce<Sum, THREADS, BLOCK_M, 0>(tile_sum(x) + edge) / N;
    float squares = tile_squares<ROW_THREADS>(x, mean, columns);
    if (at_edge >= 0) squares += square(edge - mean);
    const float scale = rsqrtf(row_reduce<Sum, THREADS, BLOCK_M, 1>(squares) / N + eps);
    store_tile<ROW_THREADS>(y_ptr + m * N + first, x, weight, bias, mean, scale, columns);
    if (at_edge >= 0) {
        const float y = (edge - mean) * scale * float(weight_ptr[at_edge]) + float(bias_ptr[at_edge]);
        y_ptr[m * N + at_edge] = T(y);
    }
}

// ---- cluster -------------------------------------------------------------------------------------------
// Grid: one cluster of CLUSTER blocks per BLOCK_M rows; each block has the same `slice` columns of all of
// them. TMA loads the slices into shared memory while the weights are loaded into registers, once for all
// rows. A block reduces its slice of a row and sends the moments into the shared memory of all blocks. Then
// it writes its slice of the previous row, whose moments have arrived meanwhile.
//
// Room for 768 threads, or two blocks of 512: while one waits, the others work. 65536 / 768 = 85 registers,
// allocated by eights: 80. The kernel takes 78, of which x, weight and bias are 48; without the limit 123.
//
// TMA copies the body of a row; the cluster's first block has the edges. Which weights a thread needs depends
// on where a row starts between 16-byte boundaries: a cluster has every STEP-th row, and these start alike.
// KEPT: a slice is one tile of THREADS * VECTORS vectors, so its weights stay in registers; else they are
// loaded tile by tile. Rows of x start as far from a boundary as y's; slice is a multiple of VEC; BLOCK_M
// <= 4.

template <typename T, bool ALIGNED, bool KEPT, int VECTORS, int THREADS, int CLUSTER>
__global__ __launch_bounds__(THREADS, (768 + THREADS - 1) / THREADS)
    CLUSTER_OF(CLUSTER) void layer_norm_cluster_kernel(
        const T* x_ptr, const T* weight_ptr, const T* bias_ptr, T* y_ptr, index_t M, index_t N,
        index_t stride_xm, int slice, int BLOCK_M, float eps) {
#if HAS_HOPPER_UNITS
    constexpr int VEC = 16 / sizeof(T), TILE = THREADS * VECTORS * VEC;
    constexpr int MOST_ROWS = 4, STEP = ALIGNED ? 1 : VEC;
    DYNAMIC_SHARED(T, x_shared);
    __shared__ mbarrier_t full[MOST_ROWS], arrived[MOST_ROWS];
    __shared__ word_t block_moments[MOST_ROWS][CLUSTER];  // mean, and the sum of squared deviations from it
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
    const auto count_of = [&](int block) {  // elements of a block, edges included
        const int count = slice_columns(body, static_cast<index_t>(block) * slice, slice);
        return block == 0 ? count + static_cast<int>(N - body) : count;
    };

    if (thread == 0) {
        for (int row = 0; row < rows; ++row) {
            mbarrier_init(&full[row], 1);
            mbarrier_init(&arrived[row], 1);
        }
        mbarrier_init_fence();
        const unsigned bytes = columns * sizeof(T);
        for (int row = 0; row < rows; ++row) {
            mbarrier_arrive_expect_bytes(&arrived[row], sizeof(block_moments[row]));
            mbarrier_arrive_expect_bytes(&full[row], bytes);
            if (bytes > 0) {
                bulk_copy_to_shared(
                    x_shared + row * slice, x_ptr + row_m(row) * stride_xm + head + begin, bytes, &full[row]);
            }
        }
    }
    __syncthreads();
    cluster_arrive_relaxed();
    Packed<T, VEC> x[VECTORS], weight[VECTORS], bias[VECTORS];
    if (KEPT) {
        load_parameters<THREADS, ALIGNED>(weight, weight_ptr + head + begin + first, columns - first);
        load_parameters<THREADS, ALIGNED>(bias, bias_ptr + head + begin + first, columns - first);
    }

    const auto reduce = [&](int row) {
        const index_t edge_column = rank == 0 ? parts_of(row).edge : -1;
        float edge = 0.0f;
        if (edge_column >= 0) edge = float(x_ptr[row_m(row) * stride_xm + edge_column]);
        mbarrier_wait(&full[row], 0);
        float sum = 0.0f, deviations = 0.0f;
        for (int n = first; n < (KEPT ? first + 1 : columns); n += TILE) {
            load_tile<THREADS>(x, x_shared + row * slice + n, columns - n);
            sum += tile_sum(x);
        }
        if (edge_column >= 0) sum += edge;
        const float mean = block_reduce<Sum, THREADS, 0>(sum) / max(count_of(rank), 1);
        for (int n = first; n < (KEPT ? first + 1 : columns); n += TILE) {
            if (!KEPT) load_tile<THREADS>(x, x_shared + row * slice + n, columns - n);
            deviations += tile_squares<THREADS>(x, mean, columns - n);
        }
        if (edge_column >= 0) deviations += square(edge - mean);
        const float squares = block_reduce<Sum, THREADS, 1>(deviations);
        if (thread < CLUSTER) {
            const word_t word = __float_as_uint(mean) | static_cast<word_t>(__float_as_uint(squares)) << 32;
            store_async_to_block(&block_moments[row][rank], thread, word, &arrived[row]);
        }
    };
    const auto write = [&](int row) {
        T* y_row = y_ptr + row_m(row) * N;
        const Parts<T, ALIGNED> parts = parts_of(row);
        mbarrier_wait(&arrived[row], 0);
        const word_t word = block_moments[row][thread % CLUSTER];
        const float block_mean = __uint_as_float(static_cast<unsigned>(word));
        const float block_squares = __uint_as_float(static_cast<unsigned>(word >> 32));
        const float count = count_of(thread % CLUSTER);
        const float mean = warp_reduce<Sum, CLUSTER>(count * block_mean) / N;
        const float distance = block_mean - mean;
        const float squares = warp_reduce<Sum, CLUSTER>(block_squares + count * distance * distance);
        const float scale = rsqrtf(squares / N + eps);
        for (int n = first; n < (KEPT ? first + 1 : columns); n += TILE) {
            const index_t at = head + begin + n;
            if (!KEPT) {
                load_parameters<THREADS, ALIGNED>(weight, weight_ptr + at, columns - n);
                load_parameters<THREADS, ALIGNED>(bias, bias_ptr + at, columns - n);
            }
            load_tile<THREADS>(x, x_shared + row * slice + n, columns - n);
            store_tile<THREADS>(y_row + at, x, weight, bias, mean, scale, columns - n);
        }
        if (parts.edge >= 0 && rank == 0) {
            const float centred = float(x_ptr[row_m(row) * stride_xm + parts.edge]) - mean;
            y_row[parts.edge] =
                T(centred * scale * float(weight_ptr[parts.edge]) + float(bias_ptr[parts.edge]));
        }
    };

    cluster_wait();  // all blocks of the cluster have started: their shared memory may be written
    for (int row = 0; row <= rows; ++row) {
        if (row < rows) reduce(row);
        if (row > 0) write(row - 1);
    }
#endif
}
