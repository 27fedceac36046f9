// What matmul's levels from 9 on share: tiles for TMA and wgmma, sm_90a. They take 16-bit elements.
// A tile is a sequence of pieces of 64 x 64 elements. A row of a piece is 128 bytes, the widest that TMA
// swizzles (128-byte swizzle): a column of 16-byte vectors in eight rows is in different banks.
#pragma once

#include "common.cuh"
#include "matmul/tiles.cuh"
#include "ring.cuh"

constexpr int PIECE = 64;
constexpr int PIECE_BYTES = PIECE * PIECE * 2;

// From level 10 on: consumer warpgroups of a block, and registers per thread, in steps of 8 (setmaxnreg).
constexpr int CONSUMERS = 2, PRODUCER_REGISTERS = 40, CONSUMER_REGISTERS = 232;
static_assert(WARPGROUP * (PRODUCER_REGISTERS + CONSUMERS * CONSUMER_REGISTERS) <= REGISTERS_PER_BLOCK);

#if HAS_WGMMA_LEVELS

// Fetches the tile at `begin` along M or N, and k. `copy` issues one TMA load: of the whole tile if its lines
// run along K, else of one piece, because a swizzled box is at most 128 bytes wide.
template <bool ALONG_K, int BLOCK, typename Copy>
__device__ __forceinline__ void fetch_tile(unsigned char* tile, int begin, int k, Copy copy) {
    if constexpr (ALONG_K) {
        copy(tile, k, begin);
    } else {
#pragma unroll
        for (int i = 0; i < BLOCK / PIECE; ++i) copy(tile + i * PIECE_BYTES, begin + i * PIECE, k);
    }
}

// Fetches a tile of a, and after it one of b. The phase of `landed` completes when both have arrived.
template <bool A_BY_ROWS, bool B_BY_ROWS, int BLOCK_M, int BLOCK_N>
__device__ __forceinline__ void fetch_tiles(
    unsigned char* tiles, const TensorMap* a_map, const TensorMap* b_map, int m, int n, int k,
    mbarrier_t* landed) {
    constexpr int A_BYTES = BLOCK_M * PIECE * 2, BYTES = A_BYTES + BLOCK_N * PIECE * 2;
    mbarrier_arrive_expect_bytes(landed, BYTES);
    fetch_tile<A_BY_ROWS, BLOCK_M>(tiles, m, k, [&](unsigned char* to, int column, int row) {
        tensor_copy_to_shared(to, a_map, column, row, landed);
    });
    fetch_tile<!B_BY_ROWS, BLOCK_N>(tiles + A_BYTES, n, k, [&](unsigned char* to, int column, int row) {
        tensor_copy_to_shared(to, b_map, column, row, landed);
    });
}

// sum (+)= a piece of a @ a tile of b: four wgmma of 16 of K each. No transposition: wgmma takes lines along
// K and across K. B_LINE: elements of a line of b.
template <typename T, bool A_BY_ROWS, bool B_BY_ROWS, int B_LINE = PIECE, int COUNT>
__device__ __forceinline__ void multiply(
    float (&sum)[COUNT], const unsigned char* a, const unsigned char* b, bool add) {
    constexpr int ALONG_K = 16 * 2, ACROSS_K = 16 * 2 * PIECE;  // bytes to the next 16 of K
    const matrix_t a_first = matrix_descriptor(a, PIECE_BYTES);
    const matrix_t b_first = matrix_descriptor<B_LINE>(b, PIECE * B_LINE * 2);
#pragma unroll
    for (int k = 0; k < PIECE / 16; ++k) {
        const matrix_t a_k = a_first + k * ((A_BY_ROWS ? ALONG_K : ACROSS_K) >> 4);
        const matrix_t b_k = b_first + k * ((B_BY_ROWS ? 16 * 2 * B_LINE : ALONG_K) >> 4);
        wgmma<T, !A_BY_ROWS, B_BY_ROWS>(sum, a_k, b_k, add || k > 0);
    }
}

// Stores a warpgroup's sums, whose first is (m, n) of c: two neighbours per store if N is even.
template <typename T, int COUNT>
__device__ __forceinline__ void store_sums(T* c_ptr, const float (&sum)[COUNT], int m, int n, int M, int N) {
    const int lane = threadIdx.x % WARP, warp = threadIdx.x % WARPGROUP / WARP;
    const int n_thread = n + lane % 4 * 2;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int row = m + warp * 16 + half * 8 + lane / 4;
        if (row >= M) break;
        T* c_row = c_ptr + static_cast<index_t>(row) * N;
        if (N % 2 == 0) {
#pragma unroll
            for (int j = 0; j < COUNT / 4; ++j) {
                const int column = n_thread + j * 8;
                const unsigned two = to_x2<T>(sum[j * 4 + half * 2], sum[j * 4 + half * 2 + 1]);
                if (column < N) *reinterpret_cast<unsigned*>(c_row + column) = two;
            }
        } else {
#pragma unroll
            for (int j = 0; j < COUNT / 4; ++j) {
                const int column = n_thread + j * 8;
                if (column < N) c_row[column] = T(sum[j * 4 + half * 2]);
                if (column + 1 < N) c_row[column + 1] = T(sum[j * 4 + half * 2 + 1]);
            }
        }
    }
}

#endif  // HAS_WGMMA_LEVELS
