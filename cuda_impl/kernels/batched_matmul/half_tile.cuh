// What the levels on tensor cores share: tiles of 16-bit matrices in shared memory, and a warp's product.
//
// A block has MATRICES tiles of a, then as many of b, each BLOCK_N x BLOCK_N and contiguous. So a block's
// rows are numbered across its matrices, and warp w has the 16 rows from 16 * w on. A column-major operand is
// copied as it is: the rows of its tile are its columns.
#pragma once

#include "tensor_core.cuh"

// XOR swizzle: the offset of a row's 16-byte vector, in elements, so that ldmatrix is conflict-free. ldmatrix
// reads one vector from each of 8 rows, and 8 vectors cover all 32 banks: two conflict if their positions are
// equal modulo 8. Rows start VECTORS positions apart. So TWOS = gcd(VECTORS, 8) of 8 rows start in the same
// banks; they are 8 / TWOS rows apart. The XOR with the row's index among those sends equal columns to
// different banks. The pattern repeats every 8 rows.
template <int BLOCK_N>
__device__ __forceinline__ int swizzle(int row, int vector) {
    static_assert(BLOCK_N % 16 == 0, "tensor cores multiply 16 rows at a time");
    constexpr int VECTORS = BLOCK_N / 8, TWOS = VECTORS % 8 == 0 ? 8 : VECTORS % 4 == 0 ? 4 : 2;
    return (row * VECTORS + (vector ^ (row / (8 / TWOS) % TWOS))) * 8;
}

// cp.async of the matrices from `first` on, zeros outside: all copies are in flight at once, and bypass
// registers. In the tile of matrix `own` a thread has one 16-byte vector of `row` and of every 16th row after
// it. Coalesced. `stride_row` is of a row of the tile.
template <int BLOCK_N, typename T>
__device__ __forceinline__ void fetch_tiles(
    T* tiles, const T* ptr, index_t first, index_t B, int N, index_t stride_matrix, index_t stride_row) {
    constexpr int VECTORS = BLOCK_N / 8, THREADS = 2 * BLOCK_N;  // per matrix
    const int own = threadIdx.x / THREADS, row = threadIdx.x % THREADS / VECTORS;
    const int vector = threadIdx.x % VECTORS;
    const bool inside = first + own < B && vector * 8 < N;
    T* to = tiles + swizzle<BLOCK_N>(own * BLOCK_N + row, vector);
    const T* from = ptr + (first + own) * stride_matrix + row * stride_row + vector * 8;
#pragma unroll
    for (int i = 0; i < BLOCK_N; i += 16) {
        const bool there = inside && row + i < N;
        cp_async_16(to + i * BLOCK_N, there ? from + i * stride_row : ptr, there ? 16 : 0);
    }
}

// Loads 16 x 16 elements of an operand at (row, column) as four 8 x 8 matrices: upper left, lower left, and
// the two to their right. In the tile of a column-major operand, `below` is to the right. TRANS: a lane's two
// elements of each matrix are neighbours down the tile and not along it.
template <bool BY_ROWS, bool TRANS, int BLOCK_N, typename T>
__device__ __forceinline__ void read_square(unsigned (&square)[4], const T* tile, int row, int column) {
    const int lane = threadIdx.x % WARP, in_matrix = lane % 8, below = lane / 8 % 2, right = lane / 16;
    const T* line = BY_ROWS
                        ? tile + row * BLOCK_N + swizzle<BLOCK_N>(below * 8 + in_matrix, column / 8 + right)
                        : tile + column * BLOCK_N + swizzle<BLOCK_N>(right * 8 + in_matrix, row / 8 + below);
    if constexpr (TRANS) {
        ldmatrix_x4_trans(square, line);
    } else {
        ldmatrix_x4(square, line);
    }
}

// A warp's 16 rows of c from row `begin` on: these rows of a times all of b.
template <bool A_BY_ROWS, bool B_BY_ROWS, int BLOCK_N, typename T>
__device__ __forceinline__ void multiply(
    float (&sum)[BLOCK_N / 8][4], const T* a_tile, const T* b_tile, int begin) {
#pragma unroll
    for (int k = 0; k < BLOCK_N; k += 16) {
        unsigned a[4];  // pairs along K are along a's rows, and down b's columns
        read_square<A_BY_ROWS, !A_BY_ROWS, BLOCK_N>(a, a_tile, begin, k);
#pragma unroll
        for (int j = 0; j < BLOCK_N; j += 16) {
            unsigned b[4];
            read_square<B_BY_ROWS, B_BY_ROWS, BLOCK_N>(b, b_tile, k, j);
            mma_m16n8k16<T>(sum[j / 8], a, b[0], b[1]);
            mma_m16n8k16<T>(sum[j / 8 + 1], a, b[2], b[3]);
        }
    }
}

// A warp multiplies its 16 rows and stores them. A lane's sums are pairs, spread over 8 rows, so c passes
// through shared memory to be stored with 16-byte accesses. It reuses the space of the same rows of a's tile.
// If a is row-major, no other warp reads these rows. If a is column-major, they hold parts of every warp's
// rows, and a block barrier is needed first.
template <bool A_BY_ROWS, bool B_BY_ROWS, int BLOCK_N, typename T>
__device__ __forceinline__ void multiply_rows(
    T* a_tiles, const T* b_tiles, T* c_ptr, index_t first, index_t B, int N) {
    constexpr int VECTORS = BLOCK_N / 8, WARPS = BLOCK_N / 16;  // per row, per matrix
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const int own = warp / WARPS, begin = warp % WARPS * 16;
    T* a_tile = a_tiles + own * BLOCK_N * BLOCK_N;
    float sum[BLOCK_N / 8][4] = {};
    multiply<A_BY_ROWS, B_BY_ROWS, BLOCK_N>(sum, a_tile, b_tiles + own * BLOCK_N * BLOCK_N, begin);

    T* rows = a_tile + begin * BLOCK_N;
    if constexpr (A_BY_ROWS) {
        __syncwarp();
    } else {
        __syncthreads();
    }
#pragma unroll
    for (int j = 0; j < BLOCK_N / 8; ++j) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            Vec<T, 2> pair;
            pair[0] = T(sum[j][half * 2]), pair[1] = T(sum[j][half * 2 + 1]);
            T* to = rows + swizzle<BLOCK_N>(half * 8 + lane / 4, j) + lane % 4 * 2;
            *reinterpret_cast<Vec<T, 2>*>(to) = pair;
        }
    }
    __syncwarp();

    if (first + own >= B) return;
    T* c_rows = c_ptr + ((first + own) * N + begin) * N;
#pragma unroll
    for (int v = lane; v < 16 * VECTORS; v += WARP) {
        const int row = v / VECTORS, vector = v % VECTORS;
        if (begin + row < N && vector * 8 < N) {
            store_vec(c_rows + row * N + vector * 8, load_vec<8>(rows + swizzle<BLOCK_N>(row, vector)));
        }
    }
}
