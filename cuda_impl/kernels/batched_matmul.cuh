// batched_matmul: a[B,N,N] @ b[B,N,N] -> c[B,N,N],  products of small matrices, sums in fp32
//
// The ladder, slow to fast:
//   naive        a thread an element of c, straight from memory: every element is asked for N times
//   tiled        a block whole matrices, each read once; a thread ROWS x 4 elements, without tensor cores
//   tensor_core  a block whole matrices, a warp 16 rows of one, by tensor cores
//   pipelined    as tensor_core, and a block takes group after group: the next are fetched meanwhile
//
// A matrix of 16 bits an element takes N / 3 operations a byte, so from tensor_core on memory is what binds,
// and what counts is how much of it is on its way at a time. Tiles have BLOCK_N rows: N if that is a multiple
// of 16, the height of what tensor cores multiply, else the next. Triton's are powers of two: 64 for N = 48.
//
// PACKED operands, whose rows are whole packs of 16 bytes that start on such a boundary, move so; all others,
// whatever their strides, element by element. For tensor cores it may be columns (A_BY_ROWS, B_BY_ROWS),
// which they take out of a tile as well; and what only begins between boundaries still moves in packs:
// matrices without gaps, of an N that is no multiple of 16, and c always.
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
// Grid: a block `matrices` matrices. A thread computes ROWS x 4 elements of c, so that for every 4 terms
// ROWS + 4 reads of 16 bytes from shared memory, where a and b lie in fp32, serve 16 * ROWS multiplications.
// Rows of a tile are `side` long, N or as many more as make it a multiple of ROWS, and a pack further apart.
// A thread's rows are far apart and its neighbours' between them, so that what is read at a time lies mostly
// in different banks.

// Brings the matrices from `first` on into tiles below each other; zeros where there is nothing. A thread has
// the same columns of many rows, AHEAD of them on their way before the first is waited for.
template <typename T, bool PACKED>
__device__ __forceinline__ void fetch_floats(float* tiles, const T* ptr, index_t first, index_t B, int N,
                                             int side, int matrices, const Strides& stride) {
    constexpr int VEC = PACKED ? 16 / sizeof(T) : 1, WIDE = PACKED ? 4 : 1, AHEAD = 4;
    const int packs = side / VEC;  // of a row; N is a whole number of them
    const int pitch = side + 4, step = blockDim.x / packs;
    const int begin = threadIdx.x / packs, j = threadIdx.x % packs * VEC;
    if (begin >= step) return;
    for (int rows = begin; rows < matrices * side; rows += AHEAD * step) {
        Pack<T, VEC> ahead[AHEAD];
        bool inside[AHEAD];
#pragma unroll
        for (int p = 0; p < AHEAD; ++p) {
            const int row = rows + p * step, i = row % side;
            const index_t matrix = first + row / side;
            inside[p] = row < matrices * side && matrix < B && i < N && j < N;
            const T* from = ptr + matrix * stride.matrix + i * stride.row + j * stride.column;
            if (inside[p]) ahead[p] = load<T, VEC>(from);
        }
#pragma unroll
        for (int p = 0; p < AHEAD; ++p) {
            const int row = rows + p * step;
            if (row >= matrices * side) break;
#pragma unroll
            for (int v = 0; v < VEC; v += WIDE) {
                float value[WIDE];
#pragma unroll
                for (int w = 0; w < WIDE; ++w) value[w] = inside[p] ? get(ahead[p], v + w) : 0.0f;
                Pack<float, WIDE> pack;
                set(pack, value);
                *reinterpret_cast<Pack<float, WIDE>*>(tiles + row * pitch + j + v) = pack;
            }
        }
    }
}

// Four neighbours of c, each rounded once, in one instruction.
__device__ __forceinline__ void store_four(float* ptr, const float (&value)[4]) {
    Pack<float, 4> pack;
    set(pack, value);
    store(ptr, pack);
}
template <typename T>
__device__ __forceinline__ void store_four(T* ptr, const float (&value)[4]) {
    struct alignas(8) Words {
        unsigned word[2];
    } words;
#pragma unroll
    for (int v = 0; v < 4; ++v) reinterpret_cast<T*>(words.word)[v] = from_float<T>(value[v]);
    *reinterpret_cast<Words*>(ptr) = words;
}

// Threads of a block: for each of its matrices side / ROWS * side / 4.
constexpr int most_threads(int ROWS) {
    return 4096 / ROWS;
}

template <typename T, bool PACKED, int ROWS>
__global__ __launch_bounds__(most_threads(ROWS)) void batched_matmul_tiled_kernel(
    const T* a_ptr, const T* b_ptr, T* c_ptr, index_t B, int N, int matrices, index_t stride_ab,
    index_t stride_ai, index_t stride_aj, index_t stride_bb, index_t stride_bi, index_t stride_bj) {
    const int down = (N + ROWS - 1) / ROWS, side = ROWS * down, across = side / 4, pitch = side + 4;
    DYNAMIC_SHARED(float, tiles);
    float* a_tiles = tiles;
    float* b_tiles = tiles + matrices * side * pitch;
    const index_t first = index_t(blockIdx.x) * matrices;
    const Strides a_stride = {stride_ab, stride_ai, stride_aj}, b_stride = {stride_bb, stride_bi, stride_bj};
    fetch_floats<T, PACKED>(a_tiles, a_ptr, first, B, N, side, matrices, a_stride);
    fetch_floats<T, PACKED>(b_tiles, b_ptr, first, B, N, side, matrices, b_stride);
    __syncthreads();

    const int own = threadIdx.x / (down * across);
    const int i = threadIdx.x / across % down, j = threadIdx.x % across * 4;
    const index_t matrix = first + own;
    if (matrix >= B) return;
    const float* a_rows = a_tiles + (own * side + i) * pitch;
    const float* b_columns = b_tiles + own * side * pitch + j;
    float sum[ROWS][4] = {};
    for (int k = 0; k < side; k += 4) {
        Pack<float, 4> a[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; ++r) a[r] = load<float, 4>(a_rows + r * down * pitch + k);
#pragma unroll
        for (int step = 0; step < 4; ++step) {
            const Pack<float, 4> b = load<float, 4>(b_columns + (k + step) * pitch);
#pragma unroll
            for (int r = 0; r < ROWS; ++r) {
#pragma unroll
                for (int s = 0; s < 4; ++s) sum[r][s] += get(a[r], step) * get(b, s);
            }
        }
    }
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        const int row = i + r * down;
        T* c_row = c_ptr + (matrix * N + row) * N + j;
        if constexpr (PACKED) {
            if (row < N && j < N) store_four(c_row, sum[r]);
        } else {
#pragma unroll
            for (int s = 0; s < 4; ++s) {
                if (row < N && j + s < N) c_row[s] = from_float<T>(sum[r][s]);
            }
        }
    }
}

// ---- tensor_core -------------------------------------------------------------------------------------
// Grid: a block MATRICES matrices, a warp 16 rows of one. T is a 16-bit type. Tiles lie below each other in
// shared memory, so that rows of all of a block's matrices are numbered through: warp w has rows 16 * w on.

template <int BLOCK_N>
struct HalfTile {
    static_assert(BLOCK_N % 16 == 0, "tensor cores multiply 16 rows at a time");
    static constexpr int ELEMENTS = BLOCK_N * BLOCK_N;
    static constexpr int PACKS = BLOCK_N / 8;  // of a row

    // Where a row's pack begins, in elements. ldmatrix reads a pack of each of 8 rows at a time, and 8 packs
    // are what all banks hold: packs meet in a bank if their places are the same modulo 8. Rows begin
    // PACKS places apart, so of 8 rows TWOS, the greatest common divisor of PACKS and 8, begin in the same
    // one, 8 / TWOS rows apart. These are numbered, and an exclusive or with its number sends a row's packs
    // to others of its own places, for no two such rows alike. After 8 rows the pattern repeats.
    static constexpr int TWOS = PACKS % 8 == 0 ? 8 : PACKS % 4 == 0 ? 4 : 2;
    static __device__ __forceinline__ int place(int row, int pack) {
        return (row * PACKS + (pack ^ (row / (8 / TWOS) % TWOS))) * 8;
    }
};

template <bool BY_ROWS>
__device__ __forceinline__ Strides as_it_lies(index_t matrix, index_t row, index_t column) {
    return BY_ROWS ? Strides{matrix, row, column} : Strides{matrix, column, row};
}

// What a thread brings of an operand: of the tile of matrix `own`, this pack of this row and of every 16th
// row from there on. Neighbours' addresses follow each other if the rows do.
template <int BLOCK_N>
struct Share {
    static constexpr int THREADS = 2 * BLOCK_N;  // of a matrix
    const int own = threadIdx.x / THREADS;
    const int row = threadIdx.x % THREADS / HalfTile<BLOCK_N>::PACKS;
    const int pack = threadIdx.x % HalfTile<BLOCK_N>::PACKS;

    template <typename T>
    __device__ __forceinline__ T* in(T* tiles) const {
        return tiles + HalfTile<BLOCK_N>::place(own * BLOCK_N + row, pack);
    }
};

// Starts the copies of the matrices from `first` on, zeros where there is nothing: all packs are on their way
// at once, and none passes through a register. Matrices that lie by columns come as they lie: their strides
// say that columns are rows, and so they are in the tiles.
template <typename T, int BLOCK_N>
__device__ __forceinline__ void fetch_packs(T* tiles, const T* ptr, index_t first, index_t B, int N,
                                            const Strides& stride) {
    const Share<BLOCK_N> share;
    const bool inside = first + share.own < B && share.pack * 8 < N;
    T* to = share.in(tiles);
    const T* from = ptr + (first + share.own) * stride.matrix + share.row * stride.row + share.pack * 8;
#pragma unroll
    for (int i = 0; i < BLOCK_N; i += 16) {
        const bool there = inside && share.row + i < N;
        cp_async_16(to + i * BLOCK_N, there ? from + i * stride.row : ptr, there ? 16 : 0);
    }
}

// Elements between a 16-byte boundary and `ptr`.
template <typename T>
__device__ __forceinline__ int skew(const T* ptr) {
    return static_cast<int>(reinterpret_cast<unsigned long long>(ptr) / sizeof(T) % 8);
}

// Matrices without gaps, by rows or by columns, are a run of elements, and packs hold it wherever it begins.
// Starts the copies of those that hold `matrices` from `first` on, into the place of their tiles, which have
// ROOM for so many elements; returns where the first matrix then is. That is where it was, if there is no run
// or no room for it, or if it shares a pack with what is not the operand's.
template <int ROOM, typename T>
__device__ __forceinline__ const T* fetch_run(T* tiles, const T* ptr, index_t first, int matrices, index_t B,
                                              int N, const Strides& stride) {
    const T* run = ptr + first * stride.matrix;
    const int before = skew(run), end = (before + matrices * N * N + 7) / 8 * 8;
    const T* packs = run - before;
    const bool by_rows = stride.row == N && stride.column == 1;
    const bool by_columns = stride.row == 1 && stride.column == N;
    const bool dense = stride.matrix == N * N && (by_rows || by_columns);
    const bool whole = ptr <= packs && packs + end <= ptr + B * N * N;
    if (!dense || !whole || end > ROOM) return run;
    for (int e = threadIdx.x * 8; e < end; e += blockDim.x * 8) cp_async_16(tiles + e, packs + e, 16);
    return tiles + before;
}

// Makes tiles of matrices that lie any way, the first at `ptr` in either memory. A thread's packs come
// element by element into registers, so that many are on their way before the first is waited for; and before
// tiles take the place of a run, all threads have read it.
template <int BLOCK_N, typename T>
__device__ __forceinline__ void make_tiles(T* tiles, const T* ptr, int matrices, int N,
                                           const Strides& stride) {
    const Share<BLOCK_N> share;
    const T* from = ptr + share.own * stride.matrix + share.row * stride.row + share.pack * 8 * stride.column;
    Pack<T, 8> packs[BLOCK_N / 16];
#pragma unroll
    for (int i = 0; i < BLOCK_N / 16; ++i) {
        T* element = reinterpret_cast<T*>(packs[i].word);
        const bool inside = share.own < matrices && share.row + i * 16 < N;
        const T* next = from;
#pragma unroll
        for (int v = 0; v < 8; ++v) {
            element[v] = inside && share.pack * 8 + v < N ? *next : from_float<T>(0.0f);
            next += stride.column;
        }
        from += 16 * stride.row;
    }
    __syncthreads();
    T* to = share.in(tiles);
#pragma unroll
    for (int i = 0; i < BLOCK_N / 16; ++i) *reinterpret_cast<Pack<T, 8>*>(to + i * 16 * BLOCK_N) = packs[i];
}

// 16 x 16 elements of an operand from (row, column) on, as four 8 x 8 matrices: the upper left one, the one
// below it, and the two to their right. In the tile of an operand that lies by columns, `below` is to the
// right. TRANS: the two elements that a lane gets of each are neighbours down the tile and not along it.
template <bool BY_ROWS, bool TRANS, int BLOCK_N, typename T>
__device__ __forceinline__ void read_square(unsigned (&square)[4], const T* tile, int row, int column) {
    using Tile = HalfTile<BLOCK_N>;
    const int lane = threadIdx.x % WARP, in_matrix = lane % 8, below = lane / 8 % 2, right = lane / 16;
    const T* line = BY_ROWS ? tile + row * BLOCK_N + Tile::place(below * 8 + in_matrix, column / 8 + right)
                            : tile + column * BLOCK_N + Tile::place(right * 8 + in_matrix, row / 8 + below);
    if constexpr (TRANS) {
        ldmatrix_x4_trans(square, line);
    } else {
        ldmatrix_x4(square, line);
    }
}

// A warp's copy of a run that lies in shared memory as far behind a 16-byte boundary as it will: whole packs,
// and what is before and behind these, up to 7 elements each, a lane each.
template <typename T>
__device__ __forceinline__ void store_run(T* ptr, const T* run, int count) {
    const int lane = threadIdx.x % WARP, before = (8 - skew(ptr)) % 8;
    const int begin = before < count ? before : count, end = begin + (count - begin) / 8 * 8;
    const int loose = lane < begin ? lane : lane - begin + end;
    if (loose < count) ptr[loose] = run[loose];
    for (int e = begin + lane * 8; e < end; e += WARP * 8) store(ptr + e, load<T, 8>(run + e));
}

// A warp's 16 rows of c: its rows of a times all of b. A lane's sums are pairs, scattered over 8 rows; so
// that they leave in packs they go by way of shared memory, into the place of the same rows of a's tile.
// Where a lies by rows no other warp reads these. Where it lies by columns they hold a little of every warp's
// rows, and all have to be done with them. Rows of c that are no whole packs lie there as they will in c: a
// run.
template <bool A_BY_ROWS, bool B_BY_ROWS, int BLOCK_N, bool PACKED, typename T>
__device__ __forceinline__ void multiply_rows(T* a_tiles, const T* b_tiles, T* c_ptr, index_t first,
                                              index_t B, int N) {
    using Tile = HalfTile<BLOCK_N>;
    constexpr int WARPS = BLOCK_N / 16;  // of a matrix
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const int own = warp / WARPS, begin = warp % WARPS * 16;
    T* a_tile = a_tiles + own * Tile::ELEMENTS;
    const T* b_tile = b_tiles + own * Tile::ELEMENTS;

    float sum[BLOCK_N / 8][4] = {};
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

    T* rows = a_tile + begin * BLOCK_N;
    if constexpr (A_BY_ROWS) {
        __syncwarp();
    } else {
        __syncthreads();
    }
    const index_t matrix = first + own;
    T* c_rows = c_ptr + (matrix * N + begin) * N;
#pragma unroll
    for (int j = 0; j < BLOCK_N / 8; ++j) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int row = half * 8 + lane / 4, column = lane % 4 * 2;
            T* pair = rows + (PACKED ? Tile::place(row, j) : skew(c_rows) + row * N + j * 8) + column;
            T two[2] = {from_float<T>(sum[j][half * 2]), from_float<T>(sum[j][half * 2 + 1])};
            if constexpr (PACKED) {
                *reinterpret_cast<unsigned*>(pair) = *reinterpret_cast<const unsigned*>(two);
            } else {
                if (j * 8 + column < N) pair[0] = two[0];
                if (j * 8 + column + 1 < N) pair[1] = two[1];
            }
        }
    }
    __syncwarp();

    if (matrix >= B) return;
    if constexpr (PACKED) {
#pragma unroll
        for (int p = lane; p < 16 * Tile::PACKS; p += WARP) {
            const int row = p / Tile::PACKS, pack = p % Tile::PACKS;
            if (begin + row < N && pack * 8 < N) {
                store(c_rows + row * N + pack * 8, load<T, 8>(rows + Tile::place(row, pack)));
            }
        }
    } else {
        store_run(c_rows, rows + skew(c_rows), (N - begin < 16 ? N - begin : 16) * N);
    }
}

template <typename T, bool A_BY_ROWS, bool B_BY_ROWS, int BLOCK_N, int MATRICES, bool PACKED>
__global__ __launch_bounds__(MATRICES * BLOCK_N * 2) void batched_matmul_tensor_core_kernel(
    const T* a_ptr, const T* b_ptr, T* c_ptr, index_t B, int N, index_t stride_ab, index_t stride_ai,
    index_t stride_aj, index_t stride_bb, index_t stride_bi, index_t stride_bj) {
    constexpr int OPERAND = MATRICES * HalfTile<BLOCK_N>::ELEMENTS;
    DYNAMIC_SHARED(T, tiles);
    T* a_tiles = tiles;
    T* b_tiles = tiles + OPERAND;
    const index_t first = index_t(blockIdx.x) * MATRICES;
    const Strides a_stride = as_it_lies<A_BY_ROWS>(stride_ab, stride_ai, stride_aj);
    const Strides b_stride = as_it_lies<B_BY_ROWS>(stride_bb, stride_bi, stride_bj);
    if constexpr (PACKED) {
        fetch_packs<T, BLOCK_N>(a_tiles, a_ptr, first, B, N, a_stride);
        fetch_packs<T, BLOCK_N>(b_tiles, b_ptr, first, B, N, b_stride);
        cp_async_commit();
        cp_async_wait<0>();
    } else {
        const int matrices = B - first < MATRICES ? int(B - first) : MATRICES;
        const T* a_from = fetch_run<OPERAND>(a_tiles, a_ptr, first, matrices, B, N, a_stride);
        const T* b_from = fetch_run<OPERAND>(b_tiles, b_ptr, first, matrices, B, N, b_stride);
        cp_async_commit();
        cp_async_wait<0>();
        __syncthreads();
        make_tiles<BLOCK_N>(a_tiles, a_from, matrices, N, a_stride);
        make_tiles<BLOCK_N>(b_tiles, b_from, matrices, N, b_stride);
    }
    __syncthreads();  // other blocks of the multiprocessor multiply meanwhile
    multiply_rows<A_BY_ROWS, B_BY_ROWS, BLOCK_N, PACKED>(a_tiles, b_tiles, c_ptr, first, B, N);
}

// ---- pipelined ---------------------------------------------------------------------------------------
// Grid: as many blocks as run at a time, BLOCKS a multiprocessor; each takes every gridDim-th group of
// MATRICES matrices. STAGES groups have a place in shared memory: one is multiplied, the others are on their
// way, so that the memory is never idle while tensor cores are at work. Only packs are copied past the
// registers: operands that are none are tensor_core's.

template <typename T, bool A_BY_ROWS, bool B_BY_ROWS, int BLOCK_N, int MATRICES, int STAGES, int BLOCKS>
__global__ __launch_bounds__(MATRICES * BLOCK_N * 2, BLOCKS) void batched_matmul_pipelined_kernel(
    const T* a_ptr, const T* b_ptr, T* c_ptr, index_t B, int N, index_t stride_ab, index_t stride_ai,
    index_t stride_aj, index_t stride_bb, index_t stride_bi, index_t stride_bj) {
    constexpr int OPERAND = MATRICES * HalfTile<BLOCK_N>::ELEMENTS;
    DYNAMIC_SHARED(T, tiles);
    const Strides a_stride = as_it_lies<A_BY_ROWS>(stride_ab, stride_ai, stride_aj);
    const Strides b_stride = as_it_lies<B_BY_ROWS>(stride_bb, stride_bi, stride_bj);
    const index_t step = index_t(gridDim.x) * MATRICES;
    const auto fetch = [&](int stage, index_t first) {
        T* a_tiles = tiles + stage * 2 * OPERAND;
        if (first < B) {
            fetch_packs<T, BLOCK_N>(a_tiles, a_ptr, first, B, N, a_stride);
            fetch_packs<T, BLOCK_N>(a_tiles + OPERAND, b_ptr, first, B, N, b_stride);
        }
        cp_async_commit();  // of nothing too: groups are waited for by their number
    };
    index_t first = index_t(blockIdx.x) * MATRICES;
#pragma unroll
    for (int stage = 0; stage < STAGES - 1; ++stage) fetch(stage, first + stage * step);
    int stage = 0, free = STAGES - 1;
    for (; first < B; first += step) {
        cp_async_wait<STAGES - 2>();
        __syncthreads();  // this group is there, and all are done with the one before, whose place is free
        fetch(free, first + (STAGES - 1) * step);
        T* a_tiles = tiles + stage * 2 * OPERAND;
        multiply_rows<A_BY_ROWS, B_BY_ROWS, BLOCK_N, true>(a_tiles, a_tiles + OPERAND, c_ptr, first, B, N);
        free = stage;
        stage = stage + 1 == STAGES ? 0 : stage + 1;
    }
}
