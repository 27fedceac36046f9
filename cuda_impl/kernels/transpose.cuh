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
// A pack of y is VEC rows of the tile, one below the other, so a thread gathers it word by word: a word is
// one fp32 element or two 16-bit ones, whose columns become two packs. Packs keep whole in shared memory;
// what changes places are the 8 packs of 128 bytes, in every VEC rows in another way.

template <typename T, int BLOCK>
struct Packed {
    static constexpr int VEC = 16 / sizeof(T);
    static constexpr int COLUMNS = 4 / sizeof(T);  // of a word
    static constexpr int ROW_WORDS = BLOCK / COLUMNS;
    static_assert(ROW_WORDS % WARP == 0, "a row is a whole number of lines of banks");

    static __device__ __forceinline__ int place(int row, int word) {
        return row * ROW_WORDS + (word ^ (row / VEC % 8 * 4));
    }
};

// The words of a column, or of two: of 16-bit elements the lower halves are one and the upper halves the
// other.
template <typename T>
__device__ __forceinline__ void columns_of(const unsigned (&word)[4], Pack<T, 4> (&column)[1]) {
#pragma unroll
    for (int w = 0; w < 4; ++w) column[0].word[w] = word[w];
}
template <typename T>
__device__ __forceinline__ void columns_of(const unsigned (&word)[8], Pack<T, 8> (&column)[2]) {
#pragma unroll
    for (int w = 0; w < 4; ++w) {
        column[0].word[w] = (word[2 * w] & 0xffffu) | word[2 * w + 1] << 16;
        column[1].word[w] = word[2 * w] >> 16 | (word[2 * w + 1] & 0xffff0000u);
    }
}

template <typename T, int BLOCK, int THREADS>
__global__ __launch_bounds__(THREADS) void transpose_vectorized_kernel(const T* __restrict__ x_ptr,
                                                                       T* __restrict__ y_ptr, index_t M,
                                                                       index_t N, index_t stride_xm) {
    using Layout = Packed<T, BLOCK>;
    constexpr int VEC = Layout::VEC, COLUMNS = Layout::COLUMNS;
    constexpr int ROW_PACKS = BLOCK / VEC, PACKS = BLOCK * ROW_PACKS / THREADS;
    DYNAMIC_SHARED(unsigned, tile);
    const Corner corner = tile_of_block<BLOCK>(N);
    const int rows = part_of_tile<BLOCK>(M, corner.m), columns = part_of_tile<BLOCK>(N, corner.n);

    // All of a thread's loads are on their way before it waits for the first. Where the tile is cut short,
    // its last row and pack are read again instead: a condition on each load would have the compiler wait
    // between.
    {
        constexpr int STEP = THREADS / ROW_PACKS;
        const int row = threadIdx.x / ROW_PACKS, column = threadIdx.x % ROW_PACKS * VEC;
        const T* x = x_ptr + corner.m * stride_xm + corner.n + (column < columns ? column : columns - VEC);
        Pack<T, VEC> pack[PACKS];
#pragma unroll
        for (int p = 0; p < PACKS; ++p) {
            const int there = row + p * STEP < rows ? row + p * STEP : rows - 1;
            pack[p] = load<T, VEC>(x + there * stride_xm);
        }
#pragma unroll
        for (int p = 0; p < PACKS; ++p) {
            *reinterpret_cast<uint4*>(tile + Layout::place(row + p * STEP, column / COLUMNS)) =
                make_uint4(pack[p].word[0], pack[p].word[1], pack[p].word[2], pack[p].word[3]);
        }
    }
    __syncthreads();

    // A warp gathers 4 words wide and 8 packs high: all banks at every step, and 128 bytes of a row of y.
    {
        constexpr int HIGH = ROW_PACKS / 8, STEP = THREADS / WARP / HIGH * 4;
        const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
        const int row = (warp % HIGH * 8 + lane / 4) * VEC, word = warp / HIGH * 4 + lane % 4;
        T* y = y_ptr + (corner.n + word * COLUMNS) * M + corner.m + row;
#pragma unroll
        for (int p = 0; p < PACKS / COLUMNS; ++p) {
            const unsigned* in_tile = tile + Layout::place(row, word + p * STEP);
            unsigned gathered[VEC];
#pragma unroll
            for (int v = 0; v < VEC; ++v) gathered[v] = in_tile[v * Layout::ROW_WORDS];
            Pack<T, VEC> pack[COLUMNS];
            columns_of(gathered, pack);
#pragma unroll
            for (int c = 0; c < COLUMNS; ++c) {
                const int column = p * STEP * COLUMNS + c;
                if (row < rows && word * COLUMNS + column < columns) store(y + column * M, pack[c]);
            }
        }
    }
}
