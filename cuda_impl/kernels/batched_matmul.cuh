// batched_matmul: a[B,N,N] @ b[B,N,N] -> c[B,N,N],  products of small matrices, accumulated in fp32
//
// Variants, slow to fast:
//   naive        one thread per element of c, straight from global memory: every element is loaded N times
//   tiled        a block holds whole matrices, loaded once; ROWS x 4 elements per thread, no tensor cores
//   tensor_core  a block holds whole matrices, a warp 16 rows of one; on tensor cores
//   pipelined    as tensor_core, persistent: loads of the next groups overlap with multiplication
//
// A 16-bit matrix needs N / 3 operations per byte, so from tensor_core on the kernels are memory-bound: bytes
// in flight decide. A tile has BLOCK_N rows: N rounded up to a multiple of 16, the height of a tensor core's
// matrix. Triton's tiles are powers of two: 64 for N = 48.
//
// PACKED operands have rows of whole, aligned 16-byte vectors and use vectorized accesses. All others, of any
// strides, are accessed element by element. Tensor cores also take column-major operands (A_BY_ROWS,
// B_BY_ROWS). Two unaligned cases are vectorized all the same: contiguous matrices whose N is no multiple of
// 16, and c.
#pragma once

#include "tensor_core.cuh"

// Strides in elements, from one matrix, row and column of an operand to the next.
struct Strides {
    index_t matrix, row, column;
};

// ---- naive -------------------------------------------------------------------------------------------
// Grid: one block per THREADS elements of c; neighbouring threads have neighbouring elements.

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
// Grid: one block per `matrices` matrices. Register tiling: a thread computes ROWS x 4 elements of c. For
// every 4 terms, ROWS + 4 16-byte loads from shared memory, which holds a and b in fp32, serve 16 * ROWS
// multiplications. A tile has `side` rows and columns: N rounded up to a multiple of ROWS. Rows are padded by
// 16 bytes. A thread's rows are far apart and its neighbours' rows lie between them: mostly no bank
// conflicts.

// Loads the matrices from `first` on into tiles, one after another; zeros outside. A thread has the same
// columns of many rows and keeps AHEAD loads in flight.
template <typename T, bool PACKED>
__device__ __forceinline__ void fetch_floats(float* tiles, const T* ptr, index_t first, index_t B, int N,
                                             int side, int matrices, const Strides& stride) {
    constexpr int VEC = PACKED ? 16 / sizeof(T) : 1, WIDE = PACKED ? 4 : 1, AHEAD = 4;
    const int packs = side / VEC;  // per row; N is a whole number of them
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

// Four neighbours of c, each rounded once, stored by one instruction.
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

// Threads of a block: side / ROWS * side / 4 per matrix.
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
// Grid: one block per MATRICES matrices, one warp per 16 rows of one. T is a 16-bit type. The tiles are
// contiguous in shared memory, so that a block's rows are numbered across its matrices: warp w starts at row
// 16 * w.

template <int BLOCK_N>
struct HalfTile {
    static_assert(BLOCK_N % 16 == 0, "tensor cores multiply 16 rows at a time");
    static constexpr int ELEMENTS = BLOCK_N * BLOCK_N;
    static constexpr int PACKS = BLOCK_N / 8;  // 16-byte vectors per row

    // XOR swizzle: the offset of a row's 16-byte vector, in elements, so that ldmatrix is conflict-free.
    // ldmatrix reads one vector from each of 8 rows, and 8 vectors cover all 32 banks: two conflict if their
    // positions are equal modulo 8. Rows start PACKS positions apart. So TWOS = gcd(PACKS, 8) of 8 rows start
    // in the same banks; they are 8 / TWOS rows apart. The XOR with the row's index among those sends equal
    // columns to different banks. The pattern repeats every 8 rows.
    static constexpr int TWOS = PACKS % 8 == 0 ? 8 : PACKS % 4 == 0 ? 4 : 2;
    static __device__ __forceinline__ int place(int row, int pack) {
        return (row * PACKS + (pack ^ (row / (8 / TWOS) % TWOS))) * 8;
    }
};

template <bool BY_ROWS>
__device__ __forceinline__ Strides as_it_lies(index_t matrix, index_t row, index_t column) {
    return BY_ROWS ? Strides{matrix, row, column} : Strides{matrix, column, row};
}

// A thread's share of an operand: in the tile of matrix `own`, one 16-byte vector of `row` and of every 16th
// row after it. Loads are coalesced if rows are contiguous.
template <int BLOCK_N>
struct Share {
    static constexpr int THREADS = 2 * BLOCK_N;  // per matrix
    const int own = threadIdx.x / THREADS;
    const int row = threadIdx.x % THREADS / HalfTile<BLOCK_N>::PACKS;
    const int pack = threadIdx.x % HalfTile<BLOCK_N>::PACKS;

    template <typename T>
    __device__ __forceinline__ T* in(T* tiles) const {
        return tiles + HalfTile<BLOCK_N>::place(own * BLOCK_N + row, pack);
    }
};

// cp.async of the matrices from `first` on, zeros outside: all copies are in flight at once, and bypass
// registers. A column-major matrix is copied as it is: its strides swap rows and columns, and so do the rows
// and columns of its tile.
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

// Elements between the preceding 16-byte boundary and `ptr`.
template <typename T>
__device__ __forceinline__ int skew(const T* ptr) {
    return static_cast<int>(reinterpret_cast<unsigned long long>(ptr) / sizeof(T) % 8);
}

// Contiguous matrices, row- or column-major, form one run of elements, which 16-byte vectors cover at any
// alignment. Starts cp.async of the vectors that cover `matrices` matrices from `first` on, into the space of
// their tiles, of ROOM elements. Returns the first matrix's new address. Returns the old one if the matrices
// are not contiguous, do not fit, or share a vector with memory outside the operand.
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

// Builds the tiles of matrices of any layout; `ptr` is the first, in global or shared memory. A thread loads
// its vectors element by element into registers, so that many loads are in flight. The barrier lets all
// threads read a run before tiles overwrite it.
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

// Loads 16 x 16 elements of an operand at (row, column) as four 8 x 8 matrices: upper left, lower left, and
// the two to their right. In the tile of a column-major operand, `below` is to the right. TRANS: a lane's two
// elements of each matrix are neighbours down the tile and not along it.
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

// A warp copies a run from shared to global memory. Both have the same offset from a 16-byte boundary: whole
// vectors, and up to 7 elements before and 7 after these, one per lane.
template <typename T>
__device__ __forceinline__ void store_run(T* ptr, const T* run, int count) {
    const int lane = threadIdx.x % WARP, before = (8 - skew(ptr)) % 8;
    const int begin = before < count ? before : count, end = begin + (count - begin) / 8 * 8;
    const int loose = lane < begin ? lane : lane - begin + end;
    if (loose < count) ptr[loose] = run[loose];
    for (int e = begin + lane * 8; e < end; e += WARP * 8) store(ptr + e, load<T, 8>(run + e));
}

// A warp's 16 rows of c: its rows of a times all of b. A lane's sums are pairs, spread over 8 rows, so c
// passes through shared memory to be stored with 16-byte accesses. It reuses the space of the same rows of
// a's tile. If a is row-major, no other warp reads these rows. If a is column-major, they hold parts of every
// warp's rows, and a block barrier is needed first. Rows of c that are not whole vectors are laid out as in
// c: as a run.
template <bool A_BY_ROWS, bool B_BY_ROWS, int BLOCK_N, bool PACKED, typename T>
__device__ __forceinline__ void multiply_rows(T* a_tiles, const T* b_tiles, T* c_ptr, index_t first,
                                              index_t B, int N) {
    using Tile = HalfTile<BLOCK_N>;
    constexpr int WARPS = BLOCK_N / 16;  // per matrix
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
// Grid: persistent, BLOCKS blocks per multiprocessor; groups of MATRICES matrices are assigned round-robin. A
// pipeline of STAGES stages in shared memory: one group is multiplied while the others are in flight, so that
// loads overlap with the tensor cores. cp.async needs PACKED operands; others use tensor_core.

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
        cp_async_commit();  // an empty group is committed too: wait_group counts groups
    };
    index_t first = index_t(blockIdx.x) * MATRICES;
#pragma unroll
    for (int stage = 0; stage < STAGES - 1; ++stage) fetch(stage, first + stage * step);
    int stage = 0, free = STAGES - 1;
    for (; first < B; first += step) {
        cp_async_wait<STAGES - 2>();
        __syncthreads();  // this group has landed, and all have read the last one, whose stage is free
        fetch(free, first + (STAGES - 1) * step);
        T* a_tiles = tiles + stage * 2 * OPERAND;
        multiply_rows<A_BY_ROWS, B_BY_ROWS, BLOCK_N, true>(a_tiles, a_tiles + OPERAND, c_ptr, first, B, N);
        free = stage;
        stage = stage + 1 == STAGES ? 0 : stage + 1;
    }
}
