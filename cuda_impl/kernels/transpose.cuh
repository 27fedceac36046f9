// transpose: x[M,N] -> y[N,M],  y[n,m] = x[m,n]
//
// The ladder, slow to fast. Nothing is computed, so what counts is that a warp's accesses fill whole lines of
// memory, on both sides, and that enough of them are on their way. triton_impl/transpose.py has the first and
// the last rung; those between are what its compiler does by itself:
//   naive       neighbours are read together and written M elements apart
//   shared      a tile passes through shared memory, so neighbours are written together too
//   padded      its rows are one element longer, so that its columns lie in different banks
//   swizzled    the same without the extra element: columns change places, in every row in another way
//   vectorized  16 bytes a thread and access on both sides, and tiles whose rows are 256 bytes long
//
// x lies as its strides say, for vectorized in rows of whole packs of 16 bytes; y is dense.
#pragma once

#include "common.cuh"

// ---- which tile a block has: they are counted along x's rows ---------------------------------------------

struct Corner {
    index_t m, n;
};

template <int BLOCK>
__device__ __forceinline__ Corner tile_of_block(index_t N) {
    const unsigned tiles_n = static_cast<unsigned>((N + BLOCK - 1) / BLOCK);
    return {static_cast<index_t>(blockIdx.x / tiles_n) * BLOCK,
            static_cast<index_t>(blockIdx.x % tiles_n) * BLOCK};
}

// How many rows, or columns, the tile has that begins at `begin` of `size`.
template <int BLOCK>
__device__ __forceinline__ int part_of_tile(index_t size, index_t begin) {
    return static_cast<int>(size - begin < BLOCK ? size - begin : BLOCK);
}

// ---- naive ---------------------------------------------------------------------------------------------
// Grid: a block a tile of TILE x TILE. A warp reads 32 neighbours of a row of x, and writes each to another
// row of y.

constexpr int TILE = 32;

template <typename T, int THREADS>
__global__ __launch_bounds__(THREADS) void transpose_naive_kernel(const T* __restrict__ x_ptr,
                                                                  T* __restrict__ y_ptr, index_t M, index_t N,
                                                                  index_t stride_xm, index_t stride_xn) {
    const Corner corner = tile_of_block<TILE>(N);
    const index_t n = corner.n + threadIdx.x % TILE;
#pragma unroll
    for (int i = 0; i < TILE; i += THREADS / TILE) {
        const index_t m = corner.m + threadIdx.x / TILE + i;
        if (m < M && n < N) y_ptr[n * M + m] = x_ptr[m * stride_xm + n * stride_xn];
    }
}

// ---- shared, padded, swizzled ----------------------------------------------------------------------------
// Grid: a block a tile of TILE x TILE. A warp reads a row of the tile from x and later writes a column of it,
// as a row, to y. The three differ in where an element of the tile lies in shared memory, whose 32 banks of 4
// bytes serve a word each at a time: words that a warp wants from one bank are served one after the other.

// A column lies in one bank (of 16-bit elements in two, for two rows are one line of banks).
struct Shared {
    static constexpr int ELEMENTS = TILE * TILE;
    static __device__ __forceinline__ int place(int row, int column) { return row * TILE + column; }
};

// An element more, and each row begins in the bank next to where the one above began.
struct Padded {
    static constexpr int ELEMENTS = TILE * (TILE + 1);
    static __device__ __forceinline__ int place(int row, int column) { return row * (TILE + 1) + column; }
};

// An exclusive or with a row's number maps the 32 columns onto themselves, for no two rows alike.
struct Swizzled {
    static constexpr int ELEMENTS = TILE * TILE;
    static __device__ __forceinline__ int place(int row, int column) { return row * TILE + (column ^ row); }
};

template <typename Layout, typename T, int THREADS>
__device__ __forceinline__ void through_shared_memory(const T* __restrict__ x_ptr, T* __restrict__ y_ptr,
                                                      index_t M, index_t N, index_t stride_xm,
                                                      index_t stride_xn) {
    constexpr int STEP = THREADS / TILE;
    __shared__ T tile[Layout::ELEMENTS];
    const Corner corner = tile_of_block<TILE>(N);
    const int lane = threadIdx.x % TILE, first = threadIdx.x / TILE;

#pragma unroll
    for (int row = 0; row < TILE; row += STEP) {
        const index_t m = corner.m + first + row, n = corner.n + lane;
        if (m < M && n < N) {
            tile[Layout::place(first + row, lane)] = x_ptr[m * stride_xm + n * stride_xn];
        }
    }
    __syncthreads();
#pragma unroll
    for (int column = 0; column < TILE; column += STEP) {
        const index_t m = corner.m + lane, n = corner.n + first + column;
        if (m < M && n < N) y_ptr[n * M + m] = tile[Layout::place(lane, first + column)];
    }
}

template <typename T, int THREADS>
__global__ __launch_bounds__(THREADS) void transpose_shared_kernel(const T* __restrict__ x_ptr,
                                                                   T* __restrict__ y_ptr, index_t M,
                                                                   index_t N, index_t stride_xm,
                                                                   index_t stride_xn) {
    through_shared_memory<Shared, T, THREADS>(x_ptr, y_ptr, M, N, stride_xm, stride_xn);
}

template <typename T, int THREADS>
__global__ __launch_bounds__(THREADS) void transpose_padded_kernel(const T* __restrict__ x_ptr,
                                                                   T* __restrict__ y_ptr, index_t M,
                                                                   index_t N, index_t stride_xm,
                                                                   index_t stride_xn) {
    through_shared_memory<Padded, T, THREADS>(x_ptr, y_ptr, M, N, stride_xm, stride_xn);
}

template <typename T, int THREADS>
__global__ __launch_bounds__(THREADS) void transpose_swizzled_kernel(const T* __restrict__ x_ptr,
                                                                     T* __restrict__ y_ptr, index_t M,
                                                                     index_t N, index_t stride_xm,
                                                                     index_t stride_xn) {
    through_shared_memory<Swizzled, T, THREADS>(x_ptr, y_ptr, M, N, stride_xm, stride_xn);
}

// ---- vectorized ----------------------------------------------------------------------------------------
// Grid: a block a tile of BLOCK x BLOCK, BLOCK * BLOCK elements of dynamic shared memory. Rows of x and of y
// are whole packs that start on 16-byte boundaries.
//
// A thread takes squares of VEC x VEC elements: VEC packs, one below the other. Those hold the packs of y's
// rows as well, in other words of other registers, so a square is turned before it goes anywhere. What is
// left for shared memory is to change who has which pack: it takes and gives 16 bytes an access, and a warp
// then writes to y as it has read from x, stretches of a tile's row, 256 bytes long.

template <typename T, int BLOCK>
struct Packed {
    static constexpr int VEC = 16 / sizeof(T);
    static constexpr int ROW_PACKS = BLOCK / VEC;
    static_assert(ROW_PACKS % 8 == 0, "a row is a whole number of lines of banks");

    // Eight lanes that turned squares beside each other have packs of rows that are VEC apart, and one number
    // in the row: what changes places are the 8 packs of 128 bytes, in every VEC rows in another way.
    static __device__ __forceinline__ int place(int row, int pack) {
        return row * ROW_PACKS + (pack ^ (row / VEC % 8));
    }
};

// Row j of what a square is when it is turned.
__device__ __forceinline__ Pack<float, 4> turned(const Pack<float, 4> (&square)[4], int j) {
    Pack<float, 4> row;
#pragma unroll
    for (int w = 0; w < 4; ++w) row.word[w] = square[w].word[j];
    return row;
}
template <typename T>
__device__ __forceinline__ Pack<T, 8> turned(const Pack<T, 8> (&square)[8], int j) {
    Pack<T, 8> row;
#pragma unroll
    for (int w = 0; w < 4; ++w) {
        const unsigned above = square[2 * w].word[j / 2], below = square[2 * w + 1].word[j / 2];
        row.word[w] = j % 2 == 0 ? (above & 0xffffu) | below << 16 : above >> 16 | (below & 0xffff0000u);
    }
    return row;
}

// Twice the 64 / sizeof(T) registers that a square takes, and no more: half of a multiprocessor's registers
// can then be squares on their way.
template <typename T, int BLOCK, int THREADS>
__global__ __maxnreg__(128 / sizeof(T)) void transpose_vectorized_kernel(const T* __restrict__ x_ptr,
                                                                         T* __restrict__ y_ptr, index_t M,
                                                                         index_t N, index_t stride_xm) {
    using Layout = Packed<T, BLOCK>;
    using Row = Pack<T, Layout::VEC>;
    constexpr int VEC = Layout::VEC, ROW_PACKS = Layout::ROW_PACKS, SQUARES = ROW_PACKS * ROW_PACKS;
    static_assert(SQUARES % THREADS == 0, "each thread takes as many squares");
    DYNAMIC_SHARED(Row, tile);
    const Corner corner = tile_of_block<BLOCK>(N);
    const int rows = part_of_tile<BLOCK>(M, corner.m), columns = part_of_tile<BLOCK>(N, corner.n);

    // All loads of a square are on their way before the thread waits for the first. Where the tile is cut
    // short, its last squares are read again instead: a condition on each load would have the compiler wait
    // between.
#pragma unroll
    for (int s = 0; s < SQUARES / THREADS; ++s) {
        const int at = threadIdx.x + s * THREADS;
        const int pack = at / ROW_PACKS, m = pack * VEC, n = at % ROW_PACKS * VEC;
        const index_t row = corner.m + (m < rows ? m : rows - VEC);
        const T* x = x_ptr + row * stride_xm + corner.n + (n < columns ? n : columns - VEC);
        Row square[VEC];
#pragma unroll
        for (int i = 0; i < VEC; ++i) square[i] = load<T, VEC>(x + i * stride_xm);
#pragma unroll
        for (int j = 0; j < VEC; ++j) tile[Layout::place(n + j, pack)] = turned(square, j);
    }
    __syncthreads();
#pragma unroll
    for (int p = 0; p < SQUARES * VEC / THREADS; ++p) {
        const int at = threadIdx.x + p * THREADS;
        const int n = at / ROW_PACKS, pack = at % ROW_PACKS, m = pack * VEC;
        if (m < rows && n < columns) {
            store(y_ptr + (corner.n + n) * M + corner.m + m, tile[Layout::place(n, pack)]);
        }
    }
}
