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
//               (where rows begin anywhere, to y alone, and each row of y is cut where its own sectors begin)
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

// ---- vectorized, where rows begin anywhere ---------------------------------------------------------------
// Grid: a block a tile of WORDS x COLUMNS words, counted down x's columns. x is no smaller than a tile, and
// tiles that would reach past its end lie against it instead: no load has a condition.
//
// Where rows of y begin anywhere, tiles cut them within sectors of 32 bytes, of which two blocks then write a
// part each. Memory takes far longer for that than for a whole one. So each row of y has cuts of its own
// here, where sectors begin: a tile reads SECTOR rows more than a WINDOW is wide, and writes of each row of y
// the window that begins with a sector.

template <typename T>
struct Windowed {
    static constexpr int PER_WORD = 4 / sizeof(T), VEC = 16 / sizeof(T), SECTOR = 32 / sizeof(T);
    static constexpr int COLUMNS = 64, WORDS = 64, ROWS = WORDS * PER_WORD, WINDOW = ROWS - SECTOR;

    // Elements of 16 bits share a word of shared memory with the one below.
    struct alignas(4) Word {
        T element[PER_WORD];
    };
    // Padded. The 16 packs that a warp takes from each of two columns want each bank twice.
    static __device__ __forceinline__ int place(int word, int column) {
        return word * (COLUMNS + 1) + column;
    }
};

// ALONG_M: neighbours in x's columns are neighbours in memory, so a warp reads along these.
// 48 registers are enough for all loads of a thread to be on their way at once.
template <typename T, bool ALONG_M, int THREADS>
__global__ __maxnreg__(48) void transpose_windowed_kernel(const T* __restrict__ x_ptr, T* __restrict__ y_ptr,
                                                          index_t M, index_t N, index_t stride_xm,
                                                          index_t stride_xn) {
    using Tile = Windowed<T>;
    using Word = typename Tile::Word;
    constexpr int PER_WORD = Tile::PER_WORD, VEC = Tile::VEC, SECTOR = Tile::SECTOR;
    constexpr int LINES = THREADS / 64, LOADS = 64 / LINES;
    __shared__ Word tile[Tile::WORDS * (Tile::COLUMNS + 1)];
    const unsigned tiles_m = static_cast<unsigned>((M + SECTOR - 2) / Tile::WINDOW + 1);
    const index_t window = static_cast<index_t>(blockIdx.x % tiles_m) * Tile::WINDOW;
    const index_t begin = window == 0 ? 0 : window - (SECTOR - 1);
    const index_t right = static_cast<index_t>(blockIdx.x / tiles_m) * Tile::COLUMNS;
    const Corner corner = {begin < M - Tile::ROWS ? begin : M - Tile::ROWS,
                           right < N - Tile::COLUMNS ? right : N - Tile::COLUMNS};

    const int lane = threadIdx.x % 64, line = threadIdx.x / 64;
    const int word = ALONG_M ? lane : line, column = ALONG_M ? line : lane;
    const T* x = x_ptr + (corner.m + word * PER_WORD) * stride_xm + (corner.n + column) * stride_xn;
    Word words[LOADS];
#pragma unroll
    for (int i = 0; i < LOADS; ++i, x += LINES * (ALONG_M ? stride_xn : stride_xm * PER_WORD)) {
#pragma unroll
        for (int e = 0; e < PER_WORD; ++e) words[i].element[e] = x[e * stride_xm];
    }
#pragma unroll
    for (int i = 0; i < LOADS; ++i) {
        const int further = i * LINES;
        tile[ALONG_M ? Tile::place(word, column + further) : Tile::place(word + further, column)] = words[i];
    }
    __syncthreads();

    // A thread has the same pack of every STEP-th row of y. These rows begin alike, so it shifts them alike.
    constexpr int PACKS = Tile::ROWS / VEC, STEP = THREADS / PACKS;
    static_assert(STEP % SECTOR == 0, "rows that are STEP apart are whole sectors apart");
    const int pack = threadIdx.x % PACKS, first = threadIdx.x / PACKS;
    if (pack >= Tile::WINDOW / VEC) return;
    const int shift = (static_cast<unsigned>(corner.n) + first) * static_cast<unsigned>(M) % SECTOR;
    const int m = static_cast<int>(window - corner.m) - shift + pack * VEC;
    T* y = y_ptr + (corner.n + first) * M + corner.m + m;
#pragma unroll
    for (int n = first; n < first + Tile::COLUMNS; n += STEP, y += STEP * M) {
        if (m >= 0 && m + VEC < Tile::ROWS) {
            unsigned part[5];  // a pack of 16-bit elements may begin with the second half of a word
#pragma unroll
            for (int w = 0; w < 5; ++w) {
                part[w] = reinterpret_cast<const unsigned&>(tile[Tile::place(m / PER_WORD + w, n)]);
            }
            Pack<T, VEC> row;
#pragma unroll
            for (int w = 0; w < 4; ++w) {
                const unsigned long long two = static_cast<unsigned long long>(part[w + 1]) << 32 | part[w];
                row.word[w] = static_cast<unsigned>(two >> m % PER_WORD * 16);
            }
            store(y, row);
        } else {  // the ends of a row of y
            for (int v = 0; v < VEC; ++v) {
                if (m + v < 0 || m + v >= Tile::ROWS) continue;
                y[v] = tile[Tile::place((m + v) / PER_WORD, n)].element[(m + v) % PER_WORD];
            }
        }
    }
}
