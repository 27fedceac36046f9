// layer_norm over rows: x[M,N], weight[N], bias[N] -> y[M,N],
//   y[m,n] = (x[m,n] - mean_m) / sqrt(variance_m + eps) * weight[n] + bias[n]
//
// Variants; triton_impl/layer_norm.py has the first three under the same names, and gluon_cluster/ beside it
// has cluster. Triton's split, not written in CUDA, exchanges partial sums through global memory instead.
//   online   a block reads its row twice: any row length
//   onepass  the row stays in registers between reduction and output, so it is read once: 64 KB
//   packed   as onepass, but weights are loaded when they are needed: 128 KB
//   cluster  the blocks of a cluster share rows, which TMA prefetches into their shared memory: Hopper
//
// The variance is the mean of squared deviations, never E[x^2] - E[x]^2. For a row with mean 1000 and
// variance 1 both terms are about 10^6, where the spacing of fp32 is 0.06. For a row in registers the second
// pass over it costs a few instructions and no memory traffic.
#pragma once

#include "hopper.cuh"
#include "norm.cuh"
#include "row_ring.cuh"

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

// (x - mean) * scale * weight + bias in two FMAs.
template <typename T, int VEC>
__device__ __forceinline__ Vec<T, VEC> scaled(
    const Vec<T, VEC>& x, float mean, float scale, const Vec<T, VEC>& weight, const Vec<T, VEC>& bias) {
    const float shift = -mean * scale;
    Vec<T, VEC> y;
#pragma unroll
    for (int v = 0; v < VEC; ++v) {
        y[v] = T((to_float(x, v) * scale + shift) * to_float(weight, v) + to_float(bias, v));
    }
    return y;
}

template <int THREADS, bool STAGED = false, typename T, int VEC, int VECTORS>
__device__ __forceinline__ void store_tile(
    T* tile_ptr, const Packed<T, VEC> (&x)[VECTORS], const Packed<T, VEC> (&weight)[VECTORS],
    const Packed<T, VEC> (&bias)[VECTORS], float mean, float scale, int columns) {
#pragma unroll
    for (int p = 0; p < VECTORS; ++p) {
        const int n = p * THREADS * VEC;
        const Vec<T, VEC> y = scaled(x[p].unpack(), mean, scale, weight[p].unpack(), bias[p].unpack());
        store_row_vec_if<STAGED>(n < columns, tile_ptr + n, y);
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

// ---- packed --------------------------------------------------------------------------------------------
// As onepass, for rows of up to 128 KB: x takes 32 of 64 registers, so weight and bias are loaded vector by
// vector, one vector ahead. Grid: one block per row.
//
// The body of an unaligned row starts at any column, so its weights lie across 16-byte boundaries.
// `windows`[VEC, pitch] has copies of them from column 0, 1, 2 ... on, of which one is aligned to the body;
// `bias_windows` likewise. If ALIGNED, they are weight and bias themselves. Rows of x start as far from a
// boundary as y's.

template <typename T, bool ALIGNED, int VECTORS, int THREADS>
__global__ __launch_bounds__(THREADS, 1024 / THREADS) void layer_norm_packed_kernel(
    const T* x_ptr, const T* weight_ptr, const T* bias_ptr, const T* windows_ptr, const T* bias_windows_ptr,
    T* y_ptr, index_t N, index_t stride_xm, index_t pitch, float eps) {
    constexpr int VEC = 16 / sizeof(T), STRIDE = THREADS * VEC;
    const index_t m = blockIdx.x;
    const T* x_row = x_ptr + m * stride_xm;
    T* y_row = y_ptr + m * N;
    const Parts<T, ALIGNED> parts(y_row, static_cast<int>(N), threadIdx.x);
    const int first = threadIdx.x * VEC, columns = static_cast<int>(parts.body) - first;
    const int at_edge = static_cast<int>(parts.edge);
    const T* weights = windows_ptr + parts.head * pitch + first;
    const T* biases = bias_windows_ptr + parts.head * pitch + first;
    Packed<T, VEC> x[VECTORS], next[1], next_bias[1];

    load_tile<THREADS>(x, x_row + parts.head + first, columns);
    const float edge = at_edge >= 0 ? float(x_row[at_edge]) : 0.0f;
    const float mean = block_reduce<Sum, THREADS, 0>(tile_sum(x) + edge) / N;
    float squares = tile_squares<THREADS>(x, mean, columns);
    if (at_edge >= 0) squares += square(edge - mean);
    load_tile<THREADS>(next, weights, columns);
    load_tile<THREADS>(next_bias, biases, columns);
    const float scale = rsqrtf(block_reduce<Sum, THREADS, 1>(squares) / N + eps);
#pragma unroll
    for (int p = 0; p < VECTORS; ++p) {
        const Packed<T, VEC> weight = next[0], bias = next_bias[0];
        const int n = p * STRIDE;
        if (p + 1 < VECTORS) {
            load_tile<THREADS>(next, weights + n + STRIDE, columns - n - STRIDE);
            load_tile<THREADS>(next_bias, biases + n + STRIDE, columns - n - STRIDE);
        }
        const Vec<T, VEC> y = scaled(x[p].unpack(), mean, scale, weight.unpack(), bias.unpack());
        store_vec_if(n < columns, y_row + parts.head + first + n, y);
    }
    if (at_edge >= 0) {
        const float y = (edge - mean) * scale * float(weight_ptr[at_edge]) + float(bias_ptr[at_edge]);
        y_row[at_edge] = T(y);
    }
}

// ---- cluster -------------------------------------------------------------------------------------------
// For rows that are longer still. Grid: clusters of CLUSTER blocks, each with several rows; a block has the
// same `slice` columns of all of them, whose weights stay in registers. TMA loads slices into a ring in
// shared memory: row_ring.cuh has the schedule. A block reduces its slice of a row and sends the moments to
// all blocks. Then it writes its slice of the previous row, whose moments have arrived meanwhile.
//
// A thread's deviations are from its own first element, not from its mean, so that one pass is enough. That
// loses no digits: the element is one of those whose squares are summed, n of them, so the sum is at most n
// times the sum of squared deviations from the mean.
//
// TMA copies the body of a row; the cluster's first block has the edges. Which weights a thread needs depends
// on where a row starts between 16-byte boundaries: all rows of a cluster start alike, and the weights are
// packed's windows. Rows of x start as far from a boundary as y's; slice is a multiple of VEC. BLOCKS fit on
// a multiprocessor: while one waits, the others work. SLOTS > 1: a slice is at most one tile of THREADS *
// VECTORS vectors. SLOTS == 1: it is several tiles, whose weights are loaded tile by tile, and a cluster has
// one row. If not ALIGNED, TMA writes the output too: a warp's stores would cross lines of 128 bytes.

// Mean, and the sum of squared deviations from it.
struct Moments {
    float mean, squares;

    __device__ __forceinline__ word_t word() const {
        return __float_as_uint(mean) | static_cast<word_t>(__float_as_uint(squares)) << 32;
    }
    __device__ __forceinline__ static Moments from(word_t word) {
        return {
            __uint_as_float(static_cast<unsigned>(word)), __uint_as_float(static_cast<unsigned>(word >> 32))};
    }
};

// Every lane of each group of WIDTH neighbouring lanes gets the combination of the group's, of `count`
// elements each. Source: Chan, Golub and LeVeque, as above.
template <int WIDTH>
__device__ __forceinline__ Moments combine(Moments part, float count, float inverse_total) {
    const float mean = warp_reduce<Sum, WIDTH>(count * part.mean) * inverse_total;
    const float deviation = part.mean - mean;  // its square may be infinite, and a count 0
    return {mean, warp_reduce<Sum, WIDTH>(part.squares + count * deviation * deviation)};
}

// Adds a tile's deviations from `pivot`, and their squares.
template <int THREADS, typename T, int VEC, int VECTORS>
__device__ __forceinline__ void include(
    const Packed<T, VEC> (&packed)[VECTORS], float pivot, int columns, float& sum, float& squares) {
#pragma unroll
    for (int p = 0; p < VECTORS; ++p) {
        const Vec<T, VEC> x = packed[p].unpack();
        float vec_sum = 0.0f, vec_squares = 0.0f;
#pragma unroll
        for (int v = 0; v < VEC; ++v) {
            const float deviation = to_float(x, v) - pivot;
            vec_sum += deviation;
            vec_squares += deviation * deviation;
        }
        const bool inside = p * THREADS * VEC < columns;  // padding: x is 0, the pivot is not
        sum += inside ? vec_sum : 0.0f;
        squares += inside ? vec_squares : 0.0f;
    }
}

template <typename T, bool ALIGNED, int SLOTS, int BLOCKS, int VECTORS, int THREADS, int CLUSTER>
__global__ __launch_bounds__(THREADS, BLOCKS) CLUSTER_OF(CLUSTER) void layer_norm_cluster_kernel(
    const T* x_ptr, const T* weight_ptr, const T* bias_ptr, const T* windows_ptr, const T* bias_windows_ptr,
    T* y_ptr, index_t M, index_t N, index_t stride_xm, index_t pitch, int slice, int rows_each, int* taken,
    float eps) {
#if HAS_HOPPER_LEVELS
    constexpr int VEC = 16 / sizeof(T), STRIDE = THREADS * VEC, TILE = STRIDE * VECTORS,
                  WARPS = THREADS / WARP;
    constexpr bool KEPT = SLOTS > 1, STAGED = !ALIGNED;
    DYNAMIC_SHARED(T, slots);
    __shared__ RowRing<T, SLOTS, CLUSTER> ring;
    __shared__ word_t of_warps[WARPS];
    const ClusterRows<T, ALIGNED, CLUSTER> my(x_ptr, y_ptr, M, N, stride_xm, slice, rows_each);
    const int thread = threadIdx.x, first = thread * VEC, columns = my.columns;
    ring.start(my, slots, taken != nullptr);
    Packed<T, VEC> x[VECTORS], weight[VECTORS], bias[VECTORS];
    const auto load_weights = [&](int n) {
        load_tile<THREADS>(weight, my.window(windows_ptr, pitch) + n, columns - n);
        load_tile<THREADS>(bias, my.window(bias_windows_ptr, pitch) + n, columns - n);
    };
    if (KEPT) load_weights(first);
    const T edge_weight = my.edge_of(weight_ptr), edge_bias = my.edge_of(bias_ptr);
    T next_edge = my.x_edge(my.nth(0)), edge = next_edge, old_edge = edge;  // loaded a row ahead

    // Numbers of elements: of the block and the warp whose moments this lane combines, and of this thread,
    // and, as inverses, of its own warp and block. A row's edges are the first warp's.
    const float block_count = my.count_of(thread % CLUSTER);
    const auto warp_count = [&](int warp) {
        const int last = min(max(columns % STRIDE - warp * WARP * VEC, 0), WARP * VEC);
        return float(columns / STRIDE * WARP * VEC + last + (warp == 0 ? my.edges() : 0));
    };
    const float count = warp_count(thread % WARPS),
                inverse_count = 1.0f / fmaxf(warp_count(thread / WARP), 1.0f);
    const float own_count =
                    float(max(columns - first + STRIDE - 1, 0) / STRIDE * VEC + (my.edge >= 0 ? 1 : 0)),
                inverse_own = 1.0f / fmaxf(own_count, 1.0f);
    const float inverse_block = 1.0f / fmaxf(my.count_of(my.rank), 1.0f), inverse_N = 1.0f / N;

    const auto reduce = [&](int n, int i) {
        old_edge = edge;
        edge = next_edge;
        if (i >= my.rows) return;
        ring.wait_for_slice(n);
        const T* slice_ptr = ring.slot(slots, n, i, my);
        const float pivot = first < columns ? float(slice_ptr[first]) : float(edge);
        float sum = 0.0f, squares = 0.0f;
        for (int at = first; at < (KEPT ? first + 1 : columns); at += TILE) {
            load_tile<THREADS>(x, slice_ptr + at, columns - at);
            include<THREADS>(x, pivot, columns - at, sum, squares);
        }
        if (my.edge >= 0) {
            sum += float(edge) - pivot;
            squares += square(float(edge) - pivot);
        }
        const float from_pivot = sum * inverse_own;
        const Moments own = {pivot + from_pivot, squares - sum * from_pivot};
        const Moments moments = combine<WARP>(own, own_count, inverse_count);
        if (thread % WARP == 0) of_warps[thread / WARP] = moments.word();
        __syncthreads();
        const Moments of_warp = Moments::from(of_warps[thread % WARPS]);
        ring.send(n, my.rank, combine<WARPS>(of_warp, count, inverse_block).word());
        next_edge = my.x_edge(ring.next_place(n));
    };
    const auto write = [&](int n, int i) {
        const Moments moments = combine<CLUSTER>(Moments::from(ring.receive(n)), block_count, inverse_N);
        const float mean = moments.mean, scale = rsqrtf(moments.squares * inverse_N + eps);
        T* slice_ptr = ring.slot(slots, n, i, my);
        T* y_slice = STAGED ? slice_ptr : my.y_row(i) + my.begin;
        for (int at = first; at < (KEPT ? first + 1 : columns); at += TILE) {
            if (!KEPT) load_weights(at);
            load_tile<THREADS>(x, slice_ptr + at, columns - at);
            store_tile<THREADS, STAGED>(y_slice + at, x, weight, bias, mean, scale, columns - at);
        }
        if (STAGED) fence_proxy_async();
        if (my.edge >= 0) {
            const float y = (float(old_edge) - mean) * scale * float(edge_weight) + float(edge_bias);
            my.y_row(i)[my.edge] = T(y);
        }
    };
    run_ring<STAGED>(ring, my, slots, taken, reduce, write);
#endif
}
