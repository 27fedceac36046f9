// transpose: x[M,N] -> y[N,M],  y[n,m] = x[m,n]
//
// Variants, slow to fast. No arithmetic: coalesced access on both sides and bytes in flight decide.
// triton_impl/transpose.py has the first and the last; its compiler applies the steps between by itself:
//   naive       coalesced loads, stores M elements apart: uncoalesced
//   shared      coalesced loads and stores through a tile in shared memory: 32-way bank conflicts
//   padded      rows of the tile padded by one element: conflict-free
//   swizzled    XOR swizzle of the columns: conflict-free without padding
//   vectorized  16-byte vectorized accesses on both sides, and tiles whose rows are 256 bytes long
//               (unaligned rows: vectorized stores only, each row of y split at its own sector boundaries)
//
// x has any strides, for vectorized rows of whole, aligned 16-byte vectors; y is contiguous.
#pragma once

#include "common.cuh"

// ---- which tile a block has: numbered along x's rows -----------------------------------------------------

struct Corner {
    index_t m, n;
};

template <int BLOCK>
__device__ __forceinline__ Corner tile_of_block(index_t N) {
    const unsigned tiles_n = static_cast<unsigned>((N + BLOCK - 1) / BLOCK);
    return {static_cast<index_t>(blockIdx.x / tiles_n) * BLOCK,
            static_cast<index_t>(blockIdx.x % tiles_n) * BLOCK};
}

// Number of rows, or columns, of the tile at `begin` of `size`.
template <int BLOCK>
__device__ __forceinline__ int part_of_tile(index_t size, index_t begin) {
    return static_cast<int>(size - begin < BLOCK ? size - begin : BLOCK);
}

// ---- naive ---------------------------------------------------------------------------------------------
// Grid: one block per tile of TILE x TILE. A warp reads 32 consecutive elements of a row of x (coalesced),
// and writes each to another row of y (uncoalesced).

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
// Grid: one block per tile of TILE x TILE. A warp reads a row of the tile from x and later writes a column of
// it, as a row, to y: both coalesced. The three differ in the tile's layout in shared memory. It has 32 banks
// of 4 bytes, each serving one word at a time: a warp's accesses to different words of one bank are
// serialised (bank conflict).

// A column is in one bank: 32-way bank conflict. Of 16-bit elements, in two banks: 16-way.
struct Shared {
    static constexpr int ELEMENTS = TILE * TILE;
    static __device__ __forceinline__ int place(int row, int column) { return row * TILE + column; }
};

// Padding: one more element per row, so that consecutive rows start in consecutive banks. Conflict-free.
struct Padded {
    static constexpr int ELEMENTS = TILE * (TILE + 1);
    static __device__ __forceinline__ int place(int row, int column) { return row * (TILE + 1) + column; }
};

// XOR swizzle: the column's position is column ^ row, a different permutation for every row. Conflict-free.
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
// Grid: one block per tile of BLOCK x BLOCK, with BLOCK * BLOCK elements of dynamic shared memory. Rows of x
// and of y are whole 16-byte vectors, aligned.
//
// A thread takes squares of VEC x VEC elements: one vector from each of VEC rows. It transposes a square in
// registers, which yields vectors of y's rows. Shared memory then only redistributes vectors among threads,
// with 16-byte accesses. A warp writes y as it has read x: parts of a tile's row, 256 bytes long.

template <typename T, int BLOCK>
struct Packed {
    static constexpr int VEC = 16 / sizeof(T);
    static constexpr int ROW_PACKS = BLOCK / VEC;
    static_assert(ROW_PACKS % 8 == 0, "a row is a whole number of lines of banks");

    // XOR swizzle: eight lanes with neighbouring squares store vectors to rows VEC apart, at one position.
    // The XOR permutes the 8 vectors of each 128 bytes, with another pattern for every VEC rows:
    // conflict-free.
    static __device__ __forceinline__ int place(int row, int pack) {
        return row * ROW_PACKS + (pack ^ (row / VEC % 8));
    }
};

// Row j of the transposed square.
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

// Register limit: twice the 64 / sizeof(T) registers of a square. Half of a multiprocessor's registers can
// then hold loads in flight.
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

    // All loads of a square are in flight before the thread waits for the first. A partial tile reads its
    // last squares again instead of none: a condition on each load would make the compiler wait in between.
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

// ---- vectorized, unaligned rows --------------------------------------------------------------------------
// Grid: one block per tile of WORDS x COLUMNS words, numbered down x's columns. x is no smaller than a tile.
// Tiles at the end are shifted back inside: no load has a condition.
//
// If rows of y are unaligned, tile boundaries fall inside 32-byte sectors, so that two blocks write a part
// each. Memory takes far longer for that than for a whole sector. So each row of y is split at its own sector
// boundaries: a tile reads SECTOR rows more than a WINDOW is wide, and writes the window of each row of y
// that starts at a sector.

template <typename T>
struct Windowed {
    static constexpr int PER_WORD = 4 / sizeof(T), VEC = 16 / sizeof(T), SECTOR = 32 / sizeof(T);
    static constexpr int COLUMNS = 64, WORDS = 64, ROWS = WORDS * PER_WORD, WINDOW = ROWS - SECTOR;

    // In 16 bits an element shares a word of shared memory with the one below.
    struct alignas(4) Word {
        T element[PER_WORD];
    };
    // Padding. 2-way conflict: the 16 vectors that a warp takes from each of two columns use each bank twice.
    static __device__ __forceinline__ int place(int word, int column) {
        return word * (COLUMNS + 1) + column;
    }
};

// ALONG_M: x is contiguous along its columns, so a warp reads along these.
// 48 registers suffice for all loads of a thread in flight at once.
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

    // A thread has the same vector of every STEP-th row of y. These rows have one alignment, so one shift
    // serves all.
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
            unsigned part[5];  // a vector of 16-bit elements may start in the middle of a word
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
