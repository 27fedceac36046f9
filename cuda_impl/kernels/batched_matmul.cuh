// batched_matmul: a[B,N,N] @ b[B,N,N] -> c[B,N,N],  products of small matrices, sums in fp32
//
// The ladder, slow to fast:
//   naive        a thread an element of c, straight from memory: every element is asked for N times
//   tiled        a block whole matrices, each read once; a thread 4 x 4 elements, without tensor cores
//   tensor_core  a block whole matrices, a warp 16 rows of one, by tensor cores
//   pipelined    as tensor_core, and a block takes group after group: the next is fetched meanwhile
//
// A matrix of 16 bits an element takes N / 3 operations a byte, so from tensor_core on memory is what binds,
// and what counts is how much of it is on its way at a time. Tiles have BLOCK_N rows: N if that is a multiple
// of 16, the height of what tensor cores multiply, else the next. Triton's are powers of two: 64 for N = 48.
//
// Matrices that are DENSE (rows and matrices follow each other, N is BLOCK_N, all start on 16-byte
// boundaries) move in packs of 16 bytes; all others, whatever their strides, element by element.
#pragma once

#include "tensor_core.cuh"

// Elements from one matrix, row and column of an operand to the next.
struct Strides {
    index_t matrix, row, column;
};

// ---- naive -------------------------------------------------------------------------------------------
// Grid: THREADS elements of c a block, neighbouring threads beside each other.

template <typename T, int THREADS>
__global__ __launch_bounds__(THREADS) void batched_matmul_naive_kernel(const T* a_ptr, const T* b_ptr,
                                                                       T* c_ptr, index_t B, index_t N,
                                                                       index_t stride_ab, index_t stride_ai,
                                                                       index_t stride_aj, index_t stride_bb,
                                                                       index_t stride_bi, index_t stride_bj) {
    const index_t element = index_t(blockIdx.x) * THREADS + threadIdx.x;
    if (element >= B * N * N) return;
    const index_t matrix = element / (N * N), i = element / N % N, j = element % N;
    const T* a_row = a_ptr + matrix * stride_ab + i * stride_ai;
    const T* b_column = b_ptr + matrix * stride_bb + j * stride_bj;
    float sum = 0;
    for (index_t k = 0; k < N; ++k) {
        sum += to_float(a_row[k * stride_aj]) * to_float(b_column[k * stride_bi]);
    }
    c_ptr[element] = from_float<T>(sum);
}

// ---- tiled -------------------------------------------------------------------------------------------
// Grid: a block MATRICES matrices. A thread computes 4 x 4 elements of c, so that 8 reads of 16 bytes from
// shared memory, where a and b lie in fp32, serve 64 multiplications.

template <int BLOCK_N>
struct FloatTile {
    static constexpr int PITCH = BLOCK_N + 4;  // a pack more, so that rows 4 apart lie in different banks
    static constexpr int ELEMENTS = BLOCK_N * PITCH;
};

// Brings the matrices from `first` on into tiles below each other; zeros where there is nothing.
template <typename T, int BLOCK_N, int MATRICES, int THREADS, bool DENSE>
__device__ __forceinline__ void fetch_floats(float* tiles, const T* ptr, index_t first, index_t B, int N,
                                             const Strides& stride) {
    constexpr int PITCH = FloatTile<BLOCK_N>::PITCH;
    if constexpr (DENSE) {
        constexpr int VEC = 16 / sizeof(T), PACKS = BLOCK_N / VEC;
#pragma unroll 4
        for (int p = threadIdx.x; p < MATRICES * BLOCK_N * PACKS; p += THREADS) {
            const int row = p / PACKS, column = p % PACKS * VEC;
            if (first + row / BLOCK_N >= B) break;
            const Pack<T, VEC> pack = load<T, VEC>(ptr + (first * BLOCK_N + row) * BLOCK_N + column);
#pragma unroll
            for (int v = 0; v < VEC; ++v) tiles[row * PITCH + column + v] = get(pack, v);
        }
    } else {
        for (int e = threadIdx.x; e < MATRICES * BLOCK_N * BLOCK_N; e += THREADS) {
            const int row = e / BLOCK_N, i = row % BLOCK_N, j = e % BLOCK_N;
            const index_t matrix = first + row / BLOCK_N;
            const T* from = ptr + matrix * stride.matrix + i * stride.row + j * stride.column;
            tiles[row * PITCH + j] = matrix < B && i < N && j < N ? to_float(*from) : 0.0f;
        }
    }
}

template <typename T, int BLOCK_N, int MATRICES, bool DENSE>
__global__ __launch_bounds__(MATRICES * BLOCK_N * BLOCK_N / 16) void batched_matmul_tiled_kernel(
    const T* a_ptr, const T* b_ptr, T* c_ptr, index_t B, int N, index_t stride_ab, index_t stride_ai,
    index_t stride_aj, index_t stride_bb, index_t stride_bi, index_t stride_bj) {
    constexpr int ACROSS = BLOCK_N / 4, THREADS = MATRICES * ACROSS * ACROSS;
    constexpr int PITCH = FloatTile<BLOCK_N>::PITCH;
    DYNAMIC_SHARED(float, tiles);
    float* a_tiles = tiles;
    float* b_tiles = tiles + MATRICES * FloatTile<BLOCK_N>::ELEMENTS;
    const index_t first = index_t(blockIdx.x) * MATRICES;
    const Strides a_stride = {stride_ab, stride_ai, stride_aj}, b_stride = {stride_bb, stride_bi, stride_bj};
    fetch_floats<T, BLOCK_N, MATRICES, THREADS, DENSE>(a_tiles, a_ptr, first, B, N, a_stride);
    fetch_floats<T, BLOCK_N, MATRICES, THREADS, DENSE>(b_tiles, b_ptr, first, B, N, b_stride);
    __syncthreads();

    const int own = threadIdx.x / (ACROSS * ACROSS);
    const int i = threadIdx.x / ACROSS % ACROSS * 4, j = threadIdx.x % ACROSS * 4;
    const index_t matrix = first + own;
    if (matrix >= B) return;
    const float* a_rows = a_tiles + (own * BLOCK_N + i) * PITCH;
    const float* b_columns = b_tiles + own * BLOCK_N * PITCH + j;
    float sum[4][4] = {};
#pragma unroll 2
    for (int k = 0; k < BLOCK_N; k += 4) {
        Pack<float, 4> a[4], b[4];
#pragma unroll
        for (int r = 0; r < 4; ++r) {
            a[r] = load<float, 4>(a_rows + r * PITCH + k);
            b[r] = load<float, 4>(b_columns + (k + r) * PITCH);
        }
#pragma unroll
        for (int step = 0; step < 4; ++step) {
#pragma unroll
            for (int r = 0; r < 4; ++r) {
#pragma unroll
                for (int s = 0; s < 4; ++s) sum[r][s] += get(a[r], step) * get(b[step], s);
            }
        }
    }
#pragma unroll
    for (int r = 0; r < 4; ++r) {
#pragma unroll
        for (int s = 0; s < 4; ++s) {
            if (i + r < N && j + s < N) {
                c_ptr[(matrix * N + i + r) * N + j + s] = from_float<T>(sum[r][s]);
            }
        }
    }
}

// ---- tensor_core -------------------------------------------------------------------------------------
// Grid: a block MATRICES matrices, a warp 16 rows of one. T is a 16-bit type. Tiles lie below each other in
// shared memory, so that rows of all of a block's matrices are numbered through: warp w has rows 16 * w on.

template <int BLOCK_N>
struct HalfTile {
    static constexpr int PITCH = BLOCK_N + 8;  // an odd number of packs: 8 rows' lie in different banks
    static constexpr int ELEMENTS = BLOCK_N * PITCH;
    static constexpr int PACKS = BLOCK_N / 8;  // of a row
    static_assert(BLOCK_N % 16 == 0, "tensor cores multiply 16 rows at a time");
};

// Starts the copies of the matrices from `first` on; zeros where there is nothing.
template <typename T, int BLOCK_N, int MATRICES, bool DENSE>
__device__ __forceinline__ void fetch_tiles(T* tiles, const T* ptr, index_t first, index_t B, int N,
                                            const Strides& stride) {
    using Tile = HalfTile<BLOCK_N>;
    constexpr int THREADS = MATRICES * BLOCK_N / 16 * WARP;
    if constexpr (DENSE) {
        // Rows of neighbouring matrices follow each other, and so do their packs: all are on their way at
        // once, and none passes through a register.
        const T* from = ptr + first * (BLOCK_N * BLOCK_N);
        const index_t left = (B - first) * BLOCK_N;
#pragma unroll
        for (int i = 0; i < BLOCK_N / 16; ++i) {
            const int p = i * THREADS + threadIdx.x;
            const int row = p / Tile::PACKS, column = p % Tile::PACKS * 8;
            cp_async_16(tiles + row * Tile::PITCH + column, from + index_t(p) * 8, row < left ? 16 : 0);
        }
    } else {
        for (int e = threadIdx.x; e < MATRICES * BLOCK_N * BLOCK_N; e += THREADS) {
            const int row = e / BLOCK_N, i = row % BLOCK_N, j = e % BLOCK_N;
            const index_t matrix = first + row / BLOCK_N;
            const T* from = ptr + matrix * stride.matrix + i * stride.row + j * stride.column;
            tiles[row * Tile::PITCH + j] = matrix < B && i < N && j < N ? *from : from_float<T>(0.0f);
        }
    }
}

// A warp's 16 rows of c: its rows of a times all of b. They take the place of a's rows in shared memory,
// which no other warp reads, and leave from there in packs: a lane's sums are pairs, scattered over 8 rows.
template <typename T, int BLOCK_N, int MATRICES, bool DENSE>
__device__ __forceinline__ void multiply_rows(T* a_tiles, const T* b_tiles, T* c_ptr, index_t first,
                                              index_t B, int N) {
    using Tile = HalfTile<BLOCK_N>;
    constexpr int PITCH = Tile::PITCH, WARPS = BLOCK_N / 16;  // of a matrix
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const index_t matrix = first + warp / WARPS;
    T* rows = a_tiles + warp * 16 * PITCH;
    const T* a_from = rows + lane % 16 * PITCH + lane / 16 * 8;
    const T* b_from = b_tiles + (warp / WARPS * BLOCK_N + lane % 16) * PITCH + lane / 16 * 8;

    float sum[BLOCK_N / 8][4] = {};
#pragma unroll
    for (int k = 0; k < BLOCK_N; k += 16) {
        unsigned a[4];
        ldmatrix_x4(a, a_from + k);
#pragma unroll
        for (int j = 0; j < BLOCK_N; j += 16) {
            unsigned b[4];
            ldmatrix_x4_trans(b, b_from + k * PITCH + j);
            mma_m16n8k16<T>(sum[j / 8], a, b[0], b[1]);
            mma_m16n8k16<T>(sum[j / 8 + 1], a, b[2], b[3]);
        }
    }

    __syncwarp();  // all lanes have read their rows of a
#pragma unroll
    for (int j = 0; j < BLOCK_N / 8; ++j) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            T* pair = rows + (half * 8 + lane / 4) * PITCH + j * 8 + lane % 4 * 2;
            T two[2] = {from_float<T>(sum[j][half * 2]), from_float<T>(sum[j][half * 2 + 1])};
            *reinterpret_cast<unsigned*>(pair) = *reinterpret_cast<const unsigned*>(two);
        }
    }
    __syncwarp();
    if (matrix >= B) return;
    if constexpr (DENSE) {
        T* to = c_ptr + (first * BLOCK_N + warp * 16) * BLOCK_N;
#pragma unroll
        for (int i = 0; i < BLOCK_N / 16; ++i) {
            const int p = i * WARP + lane, row = p / Tile::PACKS, column = p % Tile::PACKS * 8;
            store(to + p * 8, load<T, 8>(rows + row * PITCH + column));
        }
    } else {
        const int begin = warp % WARPS * 16;
        for (int e = lane; e < 16 * BLOCK_N; e += WARP) {
            const int row = e / BLOCK_N, i = begin + row, j = e % BLOCK_N;
            if (i < N && j < N) c_ptr[(matrix * N + i) * N + j] = rows[row * PITCH + j];
        }
    }
}

template <typename T, int BLOCK_N, int MATRICES, bool DENSE>
__global__ __launch_bounds__(MATRICES * BLOCK_N * 2) void batched_matmul_tensor_core_kernel(
    const T* a_ptr, const T* b_ptr, T* c_ptr, index_t B, int N, index_t stride_ab, index_t stride_ai,
    index_t stride_aj, index_t stride_bb, index_t stride_bi, index_t stride_bj) {
    DYNAMIC_SHARED(T, tiles);
    T* a_tiles = tiles;
    T* b_tiles = tiles + MATRICES * HalfTile<BLOCK_N>::ELEMENTS;
    const index_t first = index_t(blockIdx.x) * MATRICES;
    const Strides a_stride = {stride_ab, stride_ai, stride_aj}, b_stride = {stride_bb, stride_bi, stride_bj};
    fetch_tiles<T, BLOCK_N, MATRICES, DENSE>(a_tiles, a_ptr, first, B, N, a_stride);
    fetch_tiles<T, BLOCK_N, MATRICES, DENSE>(b_tiles, b_ptr, first, B, N, b_stride);
    cp_async_commit();
    cp_async_wait<0>();
    __syncthreads();  // other blocks of the multiprocessor multiply meanwhile
    multiply_rows<T, BLOCK_N, MATRICES, DENSE>(a_tiles, b_tiles, c_ptr, first, B, N);
}

// ---- pipelined ---------------------------------------------------------------------------------------
// Grid: as many blocks as run at a time, BLOCKS a multiprocessor; each takes every gridDim-th group of
// MATRICES matrices. Two groups have a place in shared memory: one is multiplied, the other on its way, so
// that the memory is never idle while tensor cores are at work.

template <typename T, int BLOCK_N, int MATRICES, int BLOCKS, bool DENSE>
__global__ __launch_bounds__(MATRICES * BLOCK_N * 2, BLOCKS) void batched_matmul_pipelined_kernel(
    const T* a_ptr, const T* b_ptr, T* c_ptr, index_t B, int N, index_t stride_ab, index_t stride_ai,
    index_t stride_aj, index_t stride_bb, index_t stride_bi, index_t stride_bj) {
    constexpr int OPERAND = MATRICES * HalfTile<BLOCK_N>::ELEMENTS;
    DYNAMIC_SHARED(T, tiles);
    const Strides a_stride = {stride_ab, stride_ai, stride_aj}, b_stride = {stride_bb, stride_bi, stride_bj};
    const index_t step = index_t(gridDim.x) * MATRICES;
    const auto fetch = [&](int stage, index_t first) {
        T* a_tiles = tiles + stage * 2 * OPERAND;
        if (first < B) {
            fetch_tiles<T, BLOCK_N, MATRICES, DENSE>(a_tiles, a_ptr, first, B, N, a_stride);
            fetch_tiles<T, BLOCK_N, MATRICES, DENSE>(a_tiles + OPERAND, b_ptr, first, B, N, b_stride);
        }
        cp_async_commit();
    };
    index_t first = index_t(blockIdx.x) * MATRICES;
    fetch(0, first);
    for (int stage = 0; first < B; first += step, stage ^= 1) {
        cp_async_wait<0>();
        __syncthreads();  // this group is there, and all are done with the one before, whose place is free
        fetch(stage ^ 1, first + step);
        T* a_tiles = tiles + stage * 2 * OPERAND;
        multiply_rows<T, BLOCK_N, MATRICES, DENSE>(a_tiles, a_tiles + OPERAND, c_ptr, first, B, N);
    }
}
