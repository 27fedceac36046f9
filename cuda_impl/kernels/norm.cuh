// What layer_norm and rms_norm share: rows of x[M,N] are normalised, then scaled per column.
//
//   LayerNorm  y[m,n] = (x[m,n] - mean_m) / sqrt(mean of (x[m,n] - mean_m)^2 + eps) * weight[n] + bias[n]
//   RmsNorm    y[m,n] =  x[m,n]           / sqrt(mean of  x[m,n]^2           + eps) * weight[n]
//
// The second is the first with a mean of 0 and without a bias: Norm::CENTERED selects. The variants are
// listed in layer_norm.cuh and rms_norm.cuh.
//
// The variance is the mean of squared deviations, never E[x^2] - E[x]^2. For a row with mean 1000 and
// variance 1 both terms are about 10^6, where the spacing of fp32 is 0.06. For a row in registers the second
// pass over it costs a few instructions and no memory traffic.
//
// Rows of x are stride_xm elements apart; weight, bias and y are contiguous. VEC is 16 bytes' worth of
// elements if every row is 16-byte aligned, else 1. A vector is completely inside the row or outside.
#pragma once

#include "common.cuh"
#include "hopper.cuh"
#include "reduction.cuh"

// ---- sums ----------------------------------------------------------------------------------------------

// Every thread of the block gets the sum over all THREADS. Calls alternate between two rows of shared memory
// (double buffering): before a row is overwritten, all its readers have passed the other call's barrier.
template <int THREADS>
struct BlockSum {
    static constexpr int WARPS = THREADS / WARP;
    float (*of_warp)[WARPS];  // shared, two rows
    int turn = 0;

    __device__ __forceinline__ float operator()(float value) {
        float* place = of_warp[turn];
        turn ^= 1;
        value = warp_sum<WARP>(value);
        if (threadIdx.x % WARP == 0) place[threadIdx.x / WARP] = value;
        __syncthreads();
        return warp_sum<WARPS>(place[threadIdx.x % WARPS]);
    }
};

// ---- moments: mean and sum of squared deviations ---------------------------------------------------------

struct alignas(8) Moments {
    float mean;     // RmsNorm: 0
    float squares;  // the sum of the squared deviations from the mean
};

// Combines each lane's moments of `count` elements into those of all `total` elements of WIDTH lanes. Source:
// Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances"
// (1979), for many parts at once: deviations within each part, and of its mean from the total mean.
template <typename Norm, typename Sum>
__device__ __forceinline__ Moments combine(Moments part, float count, float total, Sum&& sum) {
    Moments all = {0.0f, part.squares};
    if constexpr (Norm::CENTERED) {
        all.mean = sum(count * part.mean) / total;
        const float deviation = part.mean - all.mean;
        all.squares += count * deviation * deviation;
    }
    all.squares = sum(all.squares);
    return all;
}

__device__ __forceinline__ float scale_of(Moments row, index_t N, float eps) {
    return rsqrtf(row.squares / static_cast<float>(N) + eps);
}

// ---- tiles: PACKS vectors per thread, THREADS vectors apart; zeros from `columns` on ----------------------

template <typename T, int VEC, int PACKS, int THREADS>
__device__ __forceinline__ void load_tile(Pack<T, VEC> (&x)[PACKS], const T* tile_ptr, int columns,
                                          int thread) {
#pragma unroll
    for (int p = 0; p < PACKS; ++p) {
        const int n = (p * THREADS + thread) * VEC;
        x[p] = n < columns ? load<T, VEC>(tile_ptr + n) : Pack<T, VEC>{};
    }
}

// An opaque no-op: otherwise the compiler would keep the unpacked fp32 elements for the next pass, in twice
// the registers.
template <typename T, int VEC, int PACKS>
__device__ __forceinline__ void stay_packed(Pack<T, VEC> (&x)[PACKS]) {
    if constexpr (VEC > 1) {
#pragma unroll
        for (int p = 0; p < PACKS; ++p) {
#pragma unroll
            for (int word = 0; word < 4; ++word) asm volatile("" : "+r"(x[p].word[word]));
        }
    }
}

template <typename T, int VEC, int PACKS>
__device__ __forceinline__ float tile_sum(const Pack<T, VEC> (&x)[PACKS]) {
    float sum = 0.0f;
#pragma unroll
    for (int p = 0; p < PACKS; ++p) {
#pragma unroll
        for (int v = 0; v < VEC; ++v) sum += get(x[p], v);
    }
    return sum;
}

// The sum of squared deviations from `mean`.
template <typename Norm, int THREADS, typename T, int VEC, int PACKS>
__device__ __forceinline__ float tile_squares(const Pack<T, VEC> (&x)[PACKS], float mean, int columns,
                                              int thread) {
    float squares = 0.0f;
#pragma unroll
    for (int p = 0; p < PACKS; ++p) {
        if (Norm::CENTERED && (p * THREADS + thread) * VEC >= columns) continue;  // padding: x is 0, mean not
#pragma unroll
        for (int v = 0; v < VEC; ++v) {
            const float deviation = Norm::CENTERED ? get(x[p], v) - mean : get(x[p], v);
            squares += deviation * deviation;
        }
    }
    return squares;
}

// The moments of a tile held by THREADS threads: `sum` adds over the threads that hold its `count` elements.
template <typename Norm, int THREADS, typename T, int VEC, int PACKS, typename Sum>
__device__ __forceinline__ Moments tile_moments(Pack<T, VEC> (&x)[PACKS], int columns, int thread, int count,
                                                Sum&& sum) {
    Moments tile = {0.0f, 0.0f};
    if constexpr (Norm::CENTERED) tile.mean = sum(tile_sum(x)) / static_cast<float>(max(count, 1));
    stay_packed(x);
    tile.squares = sum(tile_squares<Norm, THREADS>(x, tile.mean, columns, thread));
    stay_packed(x);
    return tile;
}

// Number of a tile's elements held by one warp of the block.
template <int VEC, int THREADS>
__device__ __forceinline__ int warp_elements(int columns, int warp) {
    const int packs = columns / VEC, last = packs % THREADS - warp * WARP;
    return (packs / THREADS * WARP + min(max(last, 0), WARP)) * VEC;
}

// The moments of a tile held by a block, for all its threads. Each warp reduces its own part; after the only
// barrier each warp combines all parts. To be called once.
template <typename Norm, int THREADS, typename T, int VEC, int PACKS>
__device__ __forceinline__ Moments block_moments(Pack<T, VEC> (&x)[PACKS], int columns) {
    constexpr int WARPS = THREADS / WARP;
    __shared__ Moments of_warp[WARPS];
    const int thread = threadIdx.x, warp = thread / WARP, other = thread % WARPS;
    const auto in_warp = [](float value) { return warp_sum<WARP>(value); };
    const auto of_warps = [](float value) { return warp_sum<WARPS>(value); };
    const int count = warp_elements<VEC, THREADS>(columns, warp);
    const Moments part = tile_moments<Norm, THREADS>(x, columns, thread, count, in_warp);
    if (thread % WARP == 0) of_warp[warp] = part;
    __syncthreads();
    const int other_count = warp_elements<VEC, THREADS>(columns, other);
    return combine<Norm>(of_warp[other], other_count, columns, of_warps);
}

// Weight and bias of a tile's columns.
template <typename Norm, typename T, int VEC, int PACKS>
struct Parameters {
    Pack<T, VEC> weight[PACKS];
    Pack<T, VEC> bias[PACKS];  // LayerNorm

    template <int THREADS>
    __device__ __forceinline__ void load_from(const T* weight_ptr, const T* bias_ptr, int columns,
                                              int thread) {
        load_tile<T, VEC, PACKS, THREADS>(weight, weight_ptr, columns, thread);
        if constexpr (Norm::CENTERED) {
            load_tile<T, VEC, PACKS, THREADS>(bias, bias_ptr, columns, thread);
        }
    }
};

template <typename Norm, int THREADS, typename T, int VEC, int PACKS>
__device__ __forceinline__ void store_tile(T* tile_ptr, const Pack<T, VEC> (&x)[PACKS],
                                           const Parameters<Norm, T, VEC, PACKS>& parameters, Moments row,
                                           float scale, int columns, int thread) {
#pragma unroll
    for (int p = 0; p < PACKS; ++p) {
        const int n = (p * THREADS + thread) * VEC;
        float out[VEC];
#pragma unroll
        for (int v = 0; v < VEC; ++v) {
            const float weight = get(parameters.weight[p], v);
            if constexpr (Norm::CENTERED) {
                out[v] = (get(x[p], v) - row.mean) * scale * weight + get(parameters.bias[p], v);
            } else {
                out[v] = get(x[p], v) * scale * weight;
            }
        }
        Pack<T, VEC> y;
        set(y, out);
        if (n < columns) store(tile_ptr + n, y);
    }
}

// Number of columns in the tile at `begin`, of at most `most`, in a row of N.
__device__ __forceinline__ int tile_columns(index_t N, index_t begin, int most) {
    return static_cast<int>(begin >= N ? 0 : N - begin < most ? N - begin : most);
}

// ---- online --------------------------------------------------------------------------------------------
// Grid: one block per row, tile by tile. Each thread keeps running moments, which are combined at the row's
// end. The second read hits the L2 for what is still cached.

// Adds `count` elements with these moments to `seen_count` elements.
template <typename Norm>
__device__ __forceinline__ void include(Moments& seen, float& seen_count, Moments tile, float count) {
    if constexpr (Norm::CENTERED) {
        const float share = count / (seen_count + count), further = tile.mean - seen.mean;
        seen.mean += further * share;
        seen.squares += (further * seen_count) * (further * share);  // 0 for the first tile, for any mean
    }
    seen.squares += tile.squares;
    seen_count += count;
}

template <typename Norm, typename T, int VEC, int PACKS, int THREADS>
__global__ __launch_bounds__(THREADS) void norm_online_kernel(const T* x_ptr, const T* weight_ptr,
                                                              const T* bias_ptr, T* y_ptr, index_t N,
                                                              index_t stride_xm, float eps) {
    constexpr int BLOCK_N = THREADS * PACKS * VEC;
    __shared__ float of_warp[2][THREADS / WARP];
    BlockSum<THREADS> block_sum{of_warp};
    const T* x_row = x_ptr + blockIdx.x * stride_xm;
    T* y_row = y_ptr + blockIdx.x * N;
    const int thread = threadIdx.x;
    Pack<T, VEC> x[PACKS];

    Moments seen = {0.0f, 0.0f};
    float seen_count = 0.0f;
    for (index_t begin = 0; begin < N; begin += BLOCK_N) {
        const int columns = tile_columns(N, begin, BLOCK_N);
        load_tile<T, VEC, PACKS, THREADS>(x, x_row + begin, columns, thread);
        const int count = (columns / VEC - thread + THREADS - 1) / THREADS * VEC;  // of this thread
        const auto alone = [](float value) { return value; };
        const Moments tile = tile_moments<Norm, THREADS>(x, columns, thread, count, alone);
        if (count > 0) include<Norm>(seen, seen_count, tile, static_cast<float>(count));
    }
    const Moments row = combine<Norm>(seen, seen_count, static_cast<float>(N), block_sum);
    const float scale = scale_of(row, N, eps);

    for (index_t begin = 0; begin < N; begin += BLOCK_N) {
        const int columns = tile_columns(N, begin, BLOCK_N);
        Parameters<Norm, T, VEC, PACKS> parameters;
        load_tile<T, VEC, PACKS, THREADS>(x, x_row + begin, columns, thread);
        parameters.template load_from<THREADS>(weight_ptr + begin, bias_ptr + begin, columns, thread);
        store_tile<Norm, THREADS>(y_row + begin, x, parameters, row, scale, columns, thread);
    }
}

// ---- onepass -------------------------------------------------------------------------------------------
// Grid: one block per BLOCK_M rows. THREADS / BLOCK_M threads share a row and hold all of it, PACKS vectors
// each: N <= THREADS / BLOCK_M * PACKS * VEC. A row of more than one warp has a block to itself. Weights are
// loaded together with the row, so that nothing waits after the reduction. Registers are limited so that
// several blocks share a multiprocessor: one reads while another writes.

#if __CUDA_ARCH__ >= 800
constexpr int MOST_THREADS = 1536;
#else
constexpr int MOST_THREADS = 1024;
#endif

// Resident threads per multiprocessor: 40 registers for PACKS == 2, 72 for blocks of two warps, else 64.
constexpr int onepass_room(int PACKS, int THREADS) {
    return PACKS == 2 ? MOST_THREADS : THREADS == 64 ? 896 : 1024;
}

template <typename Norm, typename T, int VEC, int PACKS, int THREADS, int BLOCK_M>
__global__ __launch_bounds__(THREADS, onepass_room(PACKS, THREADS) / THREADS) void norm_onepass_kernel(
    const T* x_ptr, const T* weight_ptr, const T* bias_ptr, T* y_ptr, index_t M, index_t N, index_t stride_xm,
    float eps) {
    constexpr int ROW_THREADS = THREADS / BLOCK_M;
    static_assert(BLOCK_M == 1 || ROW_THREADS <= WARP, "several rows a block: each within a warp");
    const int thread = threadIdx.x % ROW_THREADS;
    const index_t m = static_cast<index_t>(blockIdx.x) * BLOCK_M + threadIdx.x / ROW_THREADS;
    const int columns = m < M ? static_cast<int>(N) : 0;  // without a row a thread still shuffles
    Pack<T, VEC> x[PACKS];
    Parameters<Norm, T, VEC, PACKS> parameters;

    load_tile<T, VEC, PACKS, ROW_THREADS>(x, x_ptr + m * stride_xm, columns, thread);
    parameters.template load_from<ROW_THREADS>(weight_ptr, bias_ptr, columns, thread);
    Moments row;
    if constexpr (BLOCK_M == 1) {
        row = block_moments<Norm, THREADS>(x, columns);
    } else {
        row = tile_moments<Norm, ROW_THREADS>(x, columns, thread, columns, warp_sum<ROW_THREADS>);
    }
    const float scale = scale_of(row, N, eps);
    store_tile<Norm, ROW_THREADS>(y_ptr + m * N, x, parameters, row, scale, columns, thread);
}

// ---- cluster -------------------------------------------------------------------------------------------
// Grid: one cluster of CLUSTER blocks per BLOCK_M rows; each block has the same `slice` columns of all of
// them. TMA loads the slices into shared memory while the weights are loaded into registers, once for all
// rows. A block reduces its slice of a row and sends the moments into the shared memory of all blocks. Then
// it writes its slice of the previous row, whose moments have arrived meanwhile. Registers are limited so
// that a multiprocessor has room for 768 threads, and for two blocks of 512: while one waits, the others
// work. Rows of x are 16-byte aligned; N and slice are multiples of VEC; slice <= THREADS * PACKS * VEC;
// BLOCK_M <= 4.

using word_t = unsigned long long;

__device__ __forceinline__ word_t to_word(Moments value) {
    return __float_as_uint(value.mean) | static_cast<word_t>(__float_as_uint(value.squares)) << 32;
}
__device__ __forceinline__ Moments from_word(word_t word) {
    return {__uint_as_float(static_cast<unsigned>(word)), __uint_as_float(static_cast<unsigned>(word >> 32))};
}

template <typename Norm, typename T, int PACKS, int THREADS, int CLUSTER>
__global__ __launch_bounds__(THREADS, (768 + THREADS - 1) / THREADS)
    CLUSTER_OF(CLUSTER) void norm_cluster_kernel(const T* x_ptr, const T* weight_ptr, const T* bias_ptr,
                                                 T* y_ptr, index_t M, index_t N, index_t stride_xm, int slice,
                                                 int BLOCK_M, float eps) {
#if HAS_HOPPER_UNITS
    constexpr int VEC = 16 / sizeof(T);
    constexpr int MOST_ROWS = 4;
    DYNAMIC_SHARED(T, x_shared);
    __shared__ mbarrier_t landed[MOST_ROWS], heard[MOST_ROWS];
    __shared__ word_t of_block[MOST_ROWS][CLUSTER];
    __shared__ float of_warp[2][THREADS / WARP];
    BlockSum<THREADS> block_sum{of_warp};
    const int thread = threadIdx.x, rank = cluster_block_rank();
    const index_t m = blockIdx.x / CLUSTER * static_cast<index_t>(BLOCK_M);
    const int rows = static_cast<int>(M - m < BLOCK_M ? M - m : BLOCK_M);
    const index_t begin = static_cast<index_t>(rank) * slice;
    const int columns = tile_columns(N, begin, slice);

    if (thread == 0) {
        for (int row = 0; row < rows; ++row) {
            mbarrier_init(&landed[row], 1);
            mbarrier_init(&heard[row], 1);
        }
        mbarrier_init_fence();
        const unsigned bytes = columns * sizeof(T);
        for (int row = 0; row < rows; ++row) {
            mbarrier_arrive_expect_bytes(&heard[row], sizeof(of_block[row]));
            mbarrier_arrive_expect_bytes(&landed[row], bytes);
            if (bytes > 0) {
                bulk_copy_to_shared(x_shared + row * slice, x_ptr + (m + row) * stride_xm + begin, bytes,
                                    &landed[row]);
            }
        }
    }
    __syncthreads();
    cluster_arrive_relaxed();
    Parameters<Norm, T, VEC, PACKS> parameters;
    parameters.template load_from<THREADS>(weight_ptr + begin, bias_ptr + begin, columns, thread);

    Pack<T, VEC> x[PACKS];
    const auto reduce = [&](int row) {
        mbarrier_wait(&landed[row], 0);
        load_tile<T, VEC, PACKS, THREADS>(x, x_shared + row * slice, columns, thread);
        const Moments part = tile_moments<Norm, THREADS>(x, columns, thread, columns, block_sum);
        if (thread < CLUSTER) {
            store_async_to_block(&of_block[row][rank], thread, to_word(part), &heard[row]);
        }
    };
    const auto write = [&](int row) {
        mbarrier_wait(&heard[row], 0);
        const int other = thread % CLUSTER;
        const Moments part = from_word(of_block[row][other]);
        const int count = tile_columns(N, static_cast<index_t>(other) * slice, slice);
        const Moments all = combine<Norm>(part, static_cast<float>(count), static_cast<float>(N),
                                          [](float value) { return warp_sum<CLUSTER>(value); });
        load_tile<T, VEC, PACKS, THREADS>(x, x_shared + row * slice, columns, thread);
        stay_packed(parameters.weight);
        if constexpr (Norm::CENTERED) stay_packed(parameters.bias);
        store_tile<Norm, THREADS>(y_ptr + (m + row) * N + begin, x, parameters, all, scale_of(all, N, eps),
                                  columns, thread);
    };

    cluster_wait();  // all blocks of the cluster have started: their shared memory may be written
    for (int row = 0; row <= rows; ++row) {
        if (row < rows) reduce(row);
        if (row > 0) write(row - 1);
    }
#endif
}
