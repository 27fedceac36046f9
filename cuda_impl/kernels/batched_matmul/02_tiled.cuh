// batched_matmul, level 2, tiled. Change: a block loads whole matrices into shared memory once, and a thread
// computes ROWS x 4 elements of c from registers.
#pragma once

#include "common.cuh"

// Loads the matrices from `first` on into tiles, one after another; zeros outside. A thread has the same
// columns of many rows and keeps AHEAD loads in flight. VEC is 16 bytes' worth of elements, or 1 for operands
// of any strides.
template <typename T, int VEC>
__device__ __forceinline__ void fetch_floats(
    float* tiles, const T* ptr, index_t first, index_t B, int N, int side, int matrices, index_t stride_b,
    index_t stride_i, index_t stride_j) {
    constexpr int AHEAD = 4, WIDE = VEC > 1 ? 4 : 1;
    const int vectors = side / VEC;  // per row; N is a whole number of them
    const int pitch = side + 4, step = blockDim.x / vectors;
    const int begin = threadIdx.x / vectors, j = threadIdx.x % vectors * VEC;
    if (begin >= step) return;
    for (int rows = begin; rows < matrices * side; rows += AHEAD * step) {
        Packed<T, VEC> ahead[AHEAD];
        bool inside[AHEAD];
#pragma unroll
        for (int p = 0; p < AHEAD; ++p) {
            const int row = rows + p * step, i = row % side;
            const index_t matrix = first + row / side;
            inside[p] = row < matrices * side && matrix < B && i < N && j < N;
            const T* from = ptr + matrix * stride_b + i * stride_i + j * stride_j;
            if (inside[p]) ahead[p] = load_packed<VEC>(from);
        }
#pragma unroll
        for (int p = 0; p < AHEAD; ++p) {
            const int row = rows + p * step;
            if (row >= matrices * side) break;
            const Vec<T, VEC> x = ahead[p].unpack();
#pragma unroll
            for (int v = 0; v < VEC; v += WIDE) {
                Vec<float, WIDE> wide;
#pragma unroll
                for (int w = 0; w < WIDE; ++w) wide[w] = inside[p] ? to_float(x, v + w) : 0.0f;
                *reinterpret_cast<Vec<float, WIDE>*>(tiles + row * pitch + j + v) = wide;
            }
        }
    }
}

// Threads of a block: side / ROWS * side / 4 per matrix.
constexpr int most_threads(int ROWS) {
    return 4096 / ROWS;
}

// Grid: one block per `matrices` matrices. For every 4 terms, ROWS + 4 16-byte loads from shared memory,
// which holds a and b in fp32, serve 16 * ROWS multiplications. A tile has `side` rows and columns: N rounded
// up to a multiple of ROWS. Rows are padded by 16 bytes. A thread's rows are far apart and its neighbours'
// rows lie between them: mostly no bank conflicts.
template <typename T, bool PACKED, int ROWS>
__global__ __launch_bounds__(most_threads(ROWS)) void batched_matmul_tiled_kernel(
    const T* a_ptr, const T* b_ptr, T* c_ptr, index_t B, int N, int matrices, index_t stride_ab,
    index_t stride_ai, index_t stride_aj, index_t stride_bb, index_t stride_bi, index_t stride_bj) {
    constexpr int VEC = PACKED ? 16 / sizeof(T) : 1;
    const int down = (N + ROWS - 1) / ROWS, side = ROWS * down, across = side / 4, pitch = side + 4;
    DYNAMIC_SHARED(float, a_tiles);
    float* b_tiles = a_tiles + matrices * side * pitch;
    const index_t first = index_t(blockIdx.x) * matrices;
    fetch_floats<T, VEC>(a_tiles, a_ptr, first, B, N, side, matrices, stride_ab, stride_ai, stride_aj);
    fetch_floats<T, VEC>(b_tiles, b_ptr, first, B, N, side, matrices, stride_bb, stride_bi, stride_bj);
    __syncthreads();

    const int own = threadIdx.x / (down * across);
    const int i = threadIdx.x / across % down, j = threadIdx.x % across * 4;
    const index_t matrix = first + own;
    if (matrix >= B) return;
    const float* a_rows = a_tiles + (own * side + i) * pitch;
    const float* b_columns = b_tiles + own * side * pitch + j;
    using Four = Vec<float, 4>;
    float sum[ROWS][4] = {};
    for (int k = 0; k < side; k += 4) {
        Four a[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; ++r) a[r] = *reinterpret_cast<const Four*>(a_rows + r * down * pitch + k);
#pragma unroll
        for (int step = 0; step < 4; ++step) {
            const Four b = *reinterpret_cast<const Four*>(b_columns + (k + step) * pitch);
#pragma unroll
            for (int r = 0; r < ROWS; ++r) {
#pragma unroll
                for (int s = 0; s < 4; ++s) sum[r][s] += a[r][step] * b[s];
            }
        }
    }
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        const int row = i + r * down;
        T* c_row = c_ptr + (matrix * N + row) * N + j;
        Vec<T, 4> c;
#pragma unroll
        for (int s = 0; s < 4; ++s) c[s] = T(sum[r][s]);
        if constexpr (PACKED) {
            if (row < N && j < N) *reinterpret_cast<Vec<T, 4>*>(c_row) = c;
        } else {
#pragma unroll
            for (int s = 0; s < 4; ++s) {
                if (row < N && j + s < N) c_row[s] = c[s];
            }
        }
    }
}
