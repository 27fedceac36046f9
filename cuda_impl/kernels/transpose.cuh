// transpose: x[M,N] -> y[N,M],  y[n,m] = x[m,n]
//
// Variants, slow to fast. No arithmetic: coalesced access on both sides and bytes in flight decide.
// triton_impl/transpose.py has the first and the last; its compiler applies the steps between by itself:
//   naive       coalesced loads, stores M elements apart: uncoalesced
//   shared      coalesced loads and stores through a tile in shared memory: 32-way bank conflicts
//   padded      rows of the tile padded by one element: conflict-free
//   swizzled    XOR swizzle of the columns: conflict-free without padding
//   vectorized  16-byte vectorized accesses on both sides, and tiles whose rows are 256 bytes long
//               (unaligned rows: vectorized stores only, each row of y split at its own sector boundaries;
//               an x that lies in memory as y shall: stream_copy's vectorized copy)
//
// x has any strides, for vectorized rows of whole, aligned 16-byte vectors; y is contiguous.
#pragma once

#include "common.cuh"
#include "stream_copy.cuh"

constexpr int TILE = 32;

// ---- naive ---------------------------------------------------------------------------------------------
// Grid: one block per tile of TILE x TILE, numbered along x's rows. A warp reads 32 consecutive elements of a
// row of x (coalesced), and writes each to another row of y (uncoalesced).

template <typename T, int THREADS>
__global__ __launch_bounds__(THREADS) void transpose_naive_kernel(
    const T* __restrict__ x_ptr, T* __restrict__ y_ptr, index_t M, index_t N, index_t stride_xm,
    index_t stride_xn) {
    const unsigned tiles_n = (N + TILE - 1) / TILE;
    const index_t m0 = index_t(blockIdx.x / tiles_n) * TILE, n0 = index_t(blockIdx.x % tiles_n) * TILE;
    const int lane = threadIdx.x % TILE, warp = threadIdx.x / TILE;
#pragma unroll
    for (int i = 0; i < TILE; i += THREADS / TILE) {
        const index_t m = m0 + warp + i, n = n0 + lane;
        if (m < M && n < N) y_ptr[n * M + m] = x_ptr[m * stride_xm + n * stride_xn];
    }
}

// ---- shared --------------------------------------------------------------------------------------------
// Grid: as naive. A warp reads a row of the tile from x and later writes a column of it, as a row, to y: both
// coalesced. Shared memory has 32 banks of 4 bytes, each serving one word at a time: a warp's accesses to
// different words of one bank are serialised (bank conflict). Here a column is in one bank: 32-way bank
// conflict. Of 16-bit elements, in two banks: 16-way.

template <typename T, int THREADS>
__global__ __launch_bounds__(THREADS) void transpose_shared_kernel(
    const T* __restrict__ x_ptr, T* __restrict__ y_ptr, index_t M, index_t N, index_t stride_xm,
    index_t stride_xn) {
    const unsigned tiles_n = (N + TILE - 1) / TILE;
    const index_t m0 = index_t(blockIdx.x / tiles_n) * TILE, n0 = index_t(blockIdx.x % tiles_n) * TILE;
    const int lane = threadIdx.x % TILE, warp = threadIdx.x / TILE;
    __shared__ T tile[TILE][TILE];
#pragma unroll
    for (int i = 0; i < TILE; i += THREADS / TILE) {
        const index_t m = m0 + warp + i, n = n0 + lane;
        if (m < M && n < N) tile[warp + i][lane] = x_ptr[m * stride_xm + n * stride_xn];
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < TILE; i += THREADS / TILE) {
        const index_t m = m0 + lane, n = n0 + warp + i;
        if (m < M && n < N) y_ptr[n * M + m] = tile[lane][warp + i];
    }
}

// ---- padded --------------------------------------------------------------------------------------------
// As shared, with padding: one more element per row, so that consecutive rows start in consecutive banks.
// 32-way bank conflict -> none.

template <typename T, int THREADS>
__global__ __launch_bounds__(THREADS) void transpose_padded_kernel(
    const T* __restrict__ x_ptr, T* __restrict__ y_ptr, index_t M, index_t N, index_t stride_xm,
    index_t stride_xn) {
    const unsigned tiles_n = (N + TILE - 1) / TILE;
    const index_t m0 = index_t(blockIdx.x / tiles_n) * TILE, n0 = index_t(blockIdx.x % tiles_n) * TILE;
    const int lane = threadIdx.x % TILE, warp = threadIdx.x / TILE;
    __shared__ T tile[TILE][TILE + 1];
#pragma unroll
    for (int i = 0; i < TILE; i += THREADS / TILE) {
        const index_t m = m0 + warp + i, n = n0 + lane;
        if (m < M && n < N) tile[warp + i][lane] = x_ptr[m * stride_xm + n * stride_xn];
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < TILE; i += THREADS / TILE) {
        const index_t m = m0 + lane, n = n0 + warp + i;
        if (m < M && n < N) y_ptr[n * M + m] = tile[lane][warp + i];
    }
}

// ---- swizzled ------------------------------------------------------------------------------------------
// As shared, with an XOR swizzle: an element is stored at column ^ row, a different permutation for every
// row. 32-way bank conflict -> none, without padding.

template <typename T, int THREADS>
__global__ __launch_bounds__(THREADS) void transpose_swizzled_kernel(
    const T* __restrict__ x_ptr, T* __restrict__ y_ptr, index_t M, index_t N, index_t stride_xm,
    index_t stride_xn) {
    const unsigned tiles_n = (N + TILE - 1) / TILE;
    const index_t m0 = index_t(blockIdx.x / tiles_n) * TILE, n0 = index_t(blockIdx.x % tiles_n) * TILE;
    const int lane = threadIdx.x % TILE, warp = threadIdx.x / TILE;
    __shared__ T tile[TILE][TILE];
#pragma unroll
    for (int i = 0; i < TILE; i += THREADS / TILE) {
        const index_t m = m0 + warp + i, n = n0 + lane;
        if (m < M && n < N) tile[warp + i][lane ^ (warp + i)] = x_ptr[m * stride_xm + n * stride_xn];
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < TILE; i += THREADS / TILE) {
        const index_t m = m0 + lane, n = n0 + warp + i;
        if (m < M && n < N) y_ptr[n * M + m] = tile[lane][lane ^ (warp + i)];
    }
}

// ---- vectorized ----------------------------------------------------------------------------------------
// Grid: one block per tile of BLOCK x BLOCK, with BLOCK * BLOCK elements of dynamic shared memory. Rows of x
// and of y are whole 16-byte vectors, aligned.
//
// A thread takes squares of VEC x VEC elements: one vector from each of VEC rows. It transposes a square in
// registers, which yields vectors of y's rows. Shared memory then only redistributes vectors among threads,
// with 16-byte accesses. A warp writes y as it has read x: parts of a tile's row, 256 bytes long.
//
// Register limit: twice the 64 / sizeof(T) registers of a square. Half of a multiprocessor's registers can
// then hold loads in flight.

template <typename T, int BLOCK, int THREADS>
__global__ __maxnreg__(128 / sizeof(T)) void transpose_vectorized_kernel(
    const T* __restrict__ x_ptr, T* __restrict__ y_ptr, index_t M, index_t N, index_t stride_xm) {
    constexpr int VEC = 16 / sizeof(T), ACROSS = BLOCK / VEC, SQUARES = ACROSS * ACROSS;
    static_assert(ACROSS % 8 == 0, "a row of the tile is a whole number of lines of banks");
    static_assert(SQUARES % THREADS == 0, "each thread takes as many squares");
    using Vector = Vec<T, VEC>;
    DYNAMIC_SHARED(Vector, tile);
    // XOR swizzle: eight lanes with neighbouring squares store vectors to rows VEC apart, at one position.
    // The XOR permutes the 8 vectors of each 128 bytes, with another pattern for every VEC rows:
    // conflict-free.
    const auto swizzle = [](int row, int vector) { return row * ACROSS + (vector ^ (row / VEC % 8)); };
    const unsigned tiles_n = (N + BLOCK - 1) / BLOCK;
    const index_t m0 = index_t(blockIdx.x / tiles_n) * BLOCK, n0 = index_t(blockIdx.x % tiles_n) * BLOCK;
    const int rows = M - m0 < BLOCK ? M - m0 : BLOCK, columns = N - n0 < BLOCK ? N - n0 : BLOCK;

    // All loads of a square are in flight before the thread waits for the first. A partial tile reads its
    // last squares again instead of none: a condition on each load would make the compiler wait in between.
#pragma unroll
    for (int s = 0; s < SQUARES; s += THREADS) {
        const int square_m = (threadIdx.x + s) / ACROSS, square_n = (threadIdx.x + s) % ACROSS;
        const int m = square_m * VEC, n = square_n * VEC;
        const T* x =
            x_ptr + (m0 + (m < rows ? m : rows - VEC)) * stride_xm + n0 + (n < columns ? n : columns - VEC);
        Vector square[VEC], row;
#pragma unroll
        for (int i = 0; i < VEC; ++i) square[i] = reinterpret_cast<const Vector&>(x[i * stride_xm]);
#pragma unroll
        for (int j = 0; j < VEC; ++j) {
#pragma unroll
            for (int i = 0; i < VEC; ++i) row[i] = square[i][j];
            tile[swizzle(n + j, square_m)] = row;
        }
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < SQUARES * VEC; i += THREADS) {
        const int n = (threadIdx.x + i) / ACROSS, vector = (threadIdx.x + i) % ACROSS, m = vector * VEC;
        if (m < rows && n < columns) {
            reinterpret_cast<Vector&>(y_ptr[(n0 + n) * M + m0 + m]) = tile[swizzle(n, vector)];
        }
    }
}

// ---- vectorized, unaligned rows --------------------------------------------------------------------------
// Grid: one block per tile of ROWS x COLUMNS, numbered down x's columns. x is no smaller than a tile. Tiles
// at the end are shifted back inside: no load has a condition.
//
// If rows of y are unaligned, tile boundaries fall inside 32-byte sectors, so that two blocks write a part
// each. Memory takes far longer for that than for a whole sector. So each row of y is split at its own sector
// boundaries: a tile reads SECTOR rows more than a WINDOW is wide, and writes of each row of y the window
// that starts at a sector. Picture: docs/ops/transpose_windowed.svg.
//
// ALONG_M: x is contiguous along its columns, so a warp reads along these.
// 48 registers suffice for all loads of a thread in flight at once.

// 32 of the 64 bits of `high` and `low`, from bit `shift` on.
__device__ __forceinline__ unsigned funnel_shift(unsigned high, unsigned low, int shift) {
    return unsigned((static_cast<unsigned long long>(high) << 32 | low) >> shift);
}

template <typename T, bool ALONG_M, int THREADS>
__global__ __maxnreg__(48) void transpose_windowed_kernel(
    const T* __restrict__ x_ptr, T* __restrict__ y_ptr, index_t M, index_t N, index_t stride_xm,
    index_t stride_xn) {
    constexpr int PER_WORD = 4 / sizeof(T), VEC = 16 / sizeof(T), SECTOR = 32 / sizeof(T);
    constexpr int COLUMNS = 64, WORDS = 64, ROWS = WORDS * PER_WORD, WINDOW = ROWS - SECTOR;
    constexpr int LINES = THREADS / 64, LOADS = 64 / LINES;
    // In 16 bits an element shares a word of shared memory with the one below. Padding: 2-way bank conflict,
    // as the 16 vectors that a warp takes from each of two columns use each bank twice.
    using Word = Vec<T, PER_WORD>;
    __shared__ Word tile[WORDS * (COLUMNS + 1)];
    const auto place = [](int word, int column) { return word * (COLUMNS + 1) + column; };
    const unsigned tiles_m = (M + SECTOR - 2) / WINDOW + 1;
    // The window of an aligned row of y begins at `window`, that of any row less than a sector before.
    const index_t window = index_t(blockIdx.x % tiles_m) * WINDOW;
    const index_t earliest = window == 0 ? 0 : window - (SECTOR - 1);
    const index_t right = index_t(blockIdx.x / tiles_m) * COLUMNS;
    const index_t m0 = earliest < M - ROWS ? earliest : M - ROWS;
    const index_t n0 = right < N - COLUMNS ? right : N - COLUMNS;

    const int lane = threadIdx.x % 64, line = threadIdx.x / 64;
    const int word = ALONG_M ? lane : line, column = ALONG_M ? line : lane;
    const T* x = x_ptr + (m0 + word * PER_WORD) * stride_xm + (n0 + column) * stride_xn;
    Word words[LOADS];
#pragma unroll
    for (int i = 0; i < LOADS; ++i, x += LINES * (ALONG_M ? stride_xn : stride_xm * PER_WORD)) {
#pragma unroll
        for (int e = 0; e < PER_WORD; ++e) words[i][e] = x[e * stride_xm];
    }
#pragma unroll
    for (int i = 0; i < LOADS; ++i) {
        tile[ALONG_M ? place(word, column + i * LINES) : place(word + i * LINES, column)] = words[i];
    }
    __syncthreads();

    // A thread has the same vector of every STEP-th row of y. These rows have one alignment.
    constexpr int VECTORS = ROWS / VEC, STEP = THREADS / VECTORS;
    static_assert(STEP % SECTOR == 0, "rows that are STEP apart are whole sectors apart");
    const int vector = threadIdx.x % VECTORS, first = threadIdx.x / VECTORS;
    if (vector >= WINDOW / VEC) return;
    // Row n of y begins n * M % SECTOR elements past a sector boundary: its windows begin as much earlier.
    const int past_boundary = (unsigned(n0) + first) * unsigned(M) % SECTOR;
    const int window_begin = int(window - m0) - past_boundary;  // in the tile
    const int m = window_begin + vector * VEC;
    T* y = y_ptr + (n0 + first) * M + m0 + m;
#pragma unroll
    for (int n = first; n < first + COLUMNS; n += STEP, y += STEP * M) {
        if (m >= 0 && m + VEC < ROWS) {
            // A vector of 16-bit elements may start at the upper half of a word: then it is in 5 words.
            unsigned part[5];
            Vec<unsigned, 4> row;
#pragma unroll
            for (int w = 0; w < 5; ++w)
                part[w] = reinterpret_cast<unsigned&>(tile[place(m / PER_WORD + w, n)]);
#pragma unroll
            for (int w = 0; w < 4; ++w) row[w] = funnel_shift(part[w + 1], part[w], m % PER_WORD * 16);
            store_vec(reinterpret_cast<unsigned*>(y), row);
        } else {  // the ends of a row of y
            for (int v = 0; v < VEC; ++v) {
                if (0 <= m + v && m + v < ROWS) y[v] = tile[place((m + v) / PER_WORD, n)][(m + v) % PER_WORD];
            }
        }
    }
}
