// matmul: a[M,K], b[K,N] -> c[M,N],  c[m,n] = sum_k a[m,k] * b[k,n], accumulated in fp32
//
// Variants, slow to fast; each changes one thing:
//   naive        one thread per element of c; a warp's threads on consecutive rows: uncoalesced loads of a
//   coalesced    the same; a warp's threads on consecutive columns: coalesced loads of b and stores of c
//   shared       one block per tile of c; tiles of a and b in shared memory, loaded once per block
//   register     register tiling: per 128 products a thread loads 8 + 16 elements from shared memory, 16
//                bytes at a time and one step ahead (double buffering); cp.async prefetches the next tiles
//   tensor_core  one tile of c per warp, multiplied on tensor cores; sm_75, bf16 from sm_80
// from here on with Hopper's own units, sm_90a:
//   wgmma        one tile of c per warpgroup, operands read from shared memory, filled by TMA
//   specialized  warp specialization: one producer warp fetches, eight consumer warps multiply
//   persistent   one block per multiprocessor, round-robin tiles: prefetch while c is written
//   multicast    TMA multicast: two blocks that need the same tile of b load half of it each, into both
//   tma_store    TMA stores c while the next tile is multiplied; smaller tiles for a small c
//
// The first three take any strides. The others take row- or column-major operands (A_BY_ROWS, B_BY_ROWS)
// whose rows, or columns, are 16-byte aligned and ld elements apart. c is contiguous. Any size is supported:
// out-of-bounds elements of a and b count as 0, and those of c are not written.
#pragma once

#include "common.cuh"
#include "tensor_core.cuh"
#include "wgmma.cuh"

// ---- naive and coalesced: one thread per element -----------------------------------------------------

template <typename T>
__device__ __forceinline__ void compute_element(const T* a_ptr, const T* b_ptr, T* c_ptr, index_t m,
                                                index_t n, index_t M, index_t N, index_t K, index_t stride_am,
                                                index_t stride_ak, index_t stride_bk, index_t stride_bn) {
    if (m >= M || n >= N) return;
    const T* a = a_ptr + m * stride_am;
    const T* b = b_ptr + n * stride_bn;
    float sum = 0.0f;
    for (index_t k = 0; k < K; ++k) {
        sum += to_float(*a) * to_float(*b);
        a += stride_ak;
        b += stride_bk;
    }
    c_ptr[m * N + n] = from_float<T>(sum);
}

// Grid: one block per tile of c, row by row. Consecutive threads map to consecutive rows: uncoalesced.
template <typename T, int THREADS>
__global__ __launch_bounds__(THREADS) void matmul_naive_kernel(const T* a_ptr, const T* b_ptr, T* c_ptr,
                                                               index_t M, index_t N, index_t K,
                                                               index_t stride_am, index_t stride_ak,
                                                               index_t stride_bk, index_t stride_bn) {
    constexpr int BLOCK_M = WARP, BLOCK_N = THREADS / WARP;
    const index_t tiles_n = (N + BLOCK_N - 1) / BLOCK_N;
    const index_t m = blockIdx.x / tiles_n * BLOCK_M + threadIdx.x % WARP;
    const index_t n = blockIdx.x % tiles_n * BLOCK_N + threadIdx.x / WARP;
    compute_element(a_ptr, b_ptr, c_ptr, m, n, M, N, K, stride_am, stride_ak, stride_bk, stride_bn);
}

// Grid: one block per tile of c, row by row. Consecutive threads map to consecutive columns: coalesced.
template <typename T, int THREADS>
__global__ __launch_bounds__(THREADS) void matmul_coalesced_kernel(const T* a_ptr, const T* b_ptr, T* c_ptr,
                                                                   index_t M, index_t N, index_t K,
                                                                   index_t stride_am, index_t stride_ak,
                                                                   index_t stride_bk, index_t stride_bn) {
    constexpr int BLOCK_M = THREADS / WARP, BLOCK_N = WARP;
    const index_t tiles_n = (N + BLOCK_N - 1) / BLOCK_N;
    const index_t m = blockIdx.x / tiles_n * BLOCK_M + threadIdx.x / WARP;
    const index_t n = blockIdx.x % tiles_n * BLOCK_N + threadIdx.x % WARP;
    compute_element(a_ptr, b_ptr, c_ptr, m, n, M, N, K, stride_am, stride_ak, stride_bk, stride_bn);
}

// ---- shared ------------------------------------------------------------------------------------------
// Grid: one block of BLOCK x BLOCK threads per tile of c of that size, row by row. Each thread loads one
// element of a and one of b into shared memory, then adds BLOCK products from the block's tiles.

template <typename T, int BLOCK>
__global__ __launch_bounds__(BLOCK* BLOCK) void matmul_shared_kernel(const T* a_ptr, const T* b_ptr, T* c_ptr,
                                                                     index_t M, index_t N, index_t K,
                                                                     index_t stride_am, index_t stride_ak,
                                                                     index_t stride_bk, index_t stride_bn) {
    __shared__ float a_tile[BLOCK][BLOCK], b_tile[BLOCK][BLOCK];
    const int row = threadIdx.x / BLOCK, column = threadIdx.x % BLOCK;
    const index_t tiles_n = (N + BLOCK - 1) / BLOCK;
    const index_t m = blockIdx.x / tiles_n * BLOCK + row, n = blockIdx.x % tiles_n * BLOCK + column;
    const T* a = a_ptr + m * stride_am + column * stride_ak;
    const T* b = b_ptr + n * stride_bn + row * stride_bk;

    float sum = 0.0f;
    for (index_t begin = 0; begin < K; begin += BLOCK) {
        a_tile[row][column] = m < M && begin + column < K ? to_float(*a) : 0.0f;
        b_tile[row][column] = n < N && begin + row < K ? to_float(*b) : 0.0f;
        a += BLOCK * stride_ak;
        b += BLOCK * stride_bk;
        __syncthreads();
#pragma unroll
        for (int k = 0; k < BLOCK; ++k) sum += a_tile[row][k] * b_tile[k][column];
        __syncthreads();
    }
    if (m < M && n < N) c_ptr[m * N + n] = from_float<T>(sum);
}

// ---- tile order --------------------------------------------------------------------------------------

struct TilePlace {
    int m, n;
};

// Grouped order: down GROUP_M tiles, then one to the right, and so on. The blocks that run at a time then
// cover a part of c about as high as wide. That needs the fewest rows of a and columns of b, which stay in
// the L2.
template <int GROUP_M>
__device__ __forceinline__ TilePlace grouped_tile(unsigned tile, int tiles_m, int tiles_n) {
    const unsigned of_group = static_cast<unsigned>(GROUP_M) * tiles_n;
    const int first_m = tile / of_group * GROUP_M;
    const int height = min(tiles_m - first_m, GROUP_M);
    const int within = tile % of_group;
    return {first_m + within % height, within / height};
}

// ---- tiles in shared memory --------------------------------------------------------------------------
// A tile has the same layout as in global memory unless stated otherwise: LINES lines of LENGTH contiguous
// elements. Lines run along K if a is row-major or b is column-major, else along M or N. BLOCK is the tile's
// size along M or N.

template <typename T, bool ALONG_K, int BLOCK, int BLOCK_K>
struct TileShape {
    static constexpr int VEC = 16 / sizeof(T);
    static constexpr int LINES = ALONG_K ? BLOCK : BLOCK_K;
    static constexpr int LENGTH = ALONG_K ? BLOCK_K : BLOCK;
    static constexpr int PACKS = LENGTH / VEC;  // 16-byte vectors per line
    static_assert(LENGTH % VEC == 0, "lines are whole packs");
};

__device__ __forceinline__ int at_most(index_t count, int limit) {
    return static_cast<int>(count < limit ? count : limit);
}

// cp.async of a block's tiles, one after another along K; a thread copies the same vectors of every tile.
// `Place::at(line, pack)` is the offset of a 16-byte vector in the shared tile, in elements.
template <typename T, bool ALONG_K, int BLOCK, int BLOCK_K, int THREADS, typename Place>
struct TileFetch {
    using Shape = TileShape<T, ALONG_K, BLOCK, BLOCK_K>;
    static constexpr int COPIES = Shape::LINES * Shape::PACKS / THREADS;
    static constexpr int STEP = THREADS / Shape::PACKS;  // lines between a thread's vectors
    static_assert(COPIES * THREADS == Shape::LINES * Shape::PACKS && STEP * Shape::PACKS == THREADS,
                  "threads share a tile evenly");
    static_assert(COPIES == 1 || STEP % Place::PERIOD == 0, "packs below each other lie below each other");

    const T* from;
    index_t ld;
    int place;
    int along;   // along K: elements left in the thread's line; across K: lines left below it
    int across;  // along K: lines from the thread's to the last; across K: elements left in the thread's line

    // The tile starts at `begin` along M or N, and `size` is that dimension.
    __device__ __forceinline__ TileFetch(const T* ptr, index_t ld, index_t begin, index_t size, index_t K)
        : ld(ld) {
        const int line = threadIdx.x / Shape::PACKS, pack = threadIdx.x % Shape::PACKS;
        const int column = pack * Shape::VEC;
        place = Place::at(line, pack);
        from = ALONG_K ? ptr + (begin + line) * ld + column : ptr + line * ld + begin + column;
        along = at_most(K, 0x7fffffff) - (ALONG_K ? column : line);
        across = at_most(size - begin, BLOCK) - (ALONG_K ? line + 1 : column);
    }

    // Starts the copies of the next tile. If the tile is not `whole`, elements past the end of K become 0,
    // and a tile past all of K becomes all 0. Missing lines along K repeat the last line: they contribute to
    // no valid element of c.
    __device__ __forceinline__ void next(T* tile, bool whole) {
        if (whole) {
            const T* line = from;
#pragma unroll
            for (int i = 0; i < COPIES; ++i, line += STEP * ld) {
                cp_async_16(tile + place + Place::at(i * STEP, 0), line, 16);
            }
        } else {
            const int elements =
                max(min(ALONG_K ? along : across, Shape::VEC), 0);  // valid elements of a vector
#pragma unroll
            for (int i = 0; i < COPIES; ++i) {
                const int here = ALONG_K || along > i * STEP ? elements : 0;
                const index_t offset = (ALONG_K ? min(i * STEP, across) : i * STEP) * ld;
                const int bytes = here * static_cast<int>(sizeof(T));
                cp_async_16(tile + place + Place::at(i * STEP, 0), from + offset, bytes);
            }
        }
        from += ALONG_K ? BLOCK_K : BLOCK_K * ld;
        along -= BLOCK_K;
    }
};

// ---- register ----------------------------------------------------------------------------------------
// Grid: one block per tile of c of BLOCK_M x BLOCK_N, grouped order. Register tiling: a thread has THREAD_M x
// THREAD_N elements; a warp is 4 threads high and 8 wide. Its elements are interleaved with other threads',
// so that reads of shared memory are bank-conflict-free. Pipeline of STAGES stages: one tile of a and b is
// used, the others are in flight.

// Lines along K are padded by 16 bytes: vectors at one position of 8 consecutive lines are in different
// banks.
template <typename T, bool ALONG_K, int BLOCK, int BLOCK_K>
struct PaddedTile : TileShape<T, ALONG_K, BLOCK, BLOCK_K> {
    using Shape = TileShape<T, ALONG_K, BLOCK, BLOCK_K>;
    static constexpr bool LIES_ALONG_K = ALONG_K;
    static constexpr int PITCH = Shape::LENGTH + (ALONG_K ? Shape::VEC : 0);
    static constexpr int PERIOD = 1;  // the layout repeats after this many lines
    static constexpr int ELEMENTS = Shape::LINES * PITCH;

    static __device__ __forceinline__ int at(int line, int pack) { return line * PITCH + pack * Shape::VEC; }
};

// fp32 can be copied by 4-byte cp.async, which transposes: lines run across K whatever the source's order. A
// thread then reads only the current step's elements, which leaves registers for the next step's. Lines are
// padded by 4 elements: a warp's copies, of 8 lines and 4 neighbours, go to 32 different banks.
template <int BLOCK, int BLOCK_K>
struct PaddedTile<float, true, BLOCK, BLOCK_K> : TileShape<float, false, BLOCK, BLOCK_K> {
    static constexpr bool LIES_ALONG_K = false;
    static constexpr int PITCH = BLOCK + 4;
    static constexpr int ELEMENTS = BLOCK_K * PITCH;

    static __device__ __forceinline__ int at(int line, int pack) { return line * PITCH + pack * 4; }
};

template <int BLOCK, int BLOCK_K, int THREADS>
struct TileFetch<float, true, BLOCK, BLOCK_K, THREADS, PaddedTile<float, true, BLOCK, BLOCK_K>> {
    using Tile = PaddedTile<float, true, BLOCK, BLOCK_K>;
    static constexpr int STEP = THREADS / 8;  // rows (of b: columns) between a thread's elements
    static_assert(BLOCK % STEP == 0 && BLOCK_K % 8 == 0, "threads share a tile evenly");

    const float* from;
    index_t ld;
    int place, along, across;  // as in the general TileFetch

    __device__ __forceinline__ TileFetch(const float* ptr, index_t ld, index_t begin, index_t size, index_t K)
        : ld(ld) {
        const int row = threadIdx.x / 8, k = threadIdx.x % 8;
        place = k * Tile::PITCH + row;
        from = ptr + (begin + row) * ld + k;
        along = at_most(K, 0x7fffffff) - k;
        across = at_most(size - begin, BLOCK) - (row + 1);
    }

    __device__ __forceinline__ void next(float* tile, bool whole) {
        const float* row = from;
#pragma unroll
        for (int i = 0; i < BLOCK; i += STEP, row += STEP * ld) {
            if (!whole) row = from + min(i, across) * ld;
#pragma unroll
            for (int k = 0; k < BLOCK_K; k += 8) {
                cp_async_4(tile + place + k * Tile::PITCH + i, row + k, whole || along > k ? 4 : 0);
            }
        }
        from += BLOCK_K;
        along -= BLOCK_K;
    }
};

// One of THREADS threads' share of a tile of a (b): elements of COUNT rows (columns). A vector along K serves
// VEC steps, a vector across K serves one.
template <typename T, typename Tile, int THREADS, int COUNT>
struct Fragment {
    static constexpr bool ALONG_K = Tile::LIES_ALONG_K;
    static constexpr int VEC = Tile::VEC, PACKS = ALONG_K ? COUNT : COUNT / VEC;
    Pack<T, VEC> pack[PACKS];

    // The tile's row (column) that is the thread's i-th.
    static __device__ __forceinline__ int index_of(int i, int thread) {
        return ALONG_K ? i * THREADS + thread : (i / VEC * THREADS + thread) * VEC + i % VEC;
    }

    // Called for k = 0, 1, 2 ...; `before` is the fragment of k - 1.
    __device__ __forceinline__ void load_from(const T* tile, int k, int thread, const Fragment& before) {
        if (ALONG_K && k % VEC != 0) {
            *this = before;
            return;
        }
#pragma unroll
        for (int p = 0; p < PACKS; ++p) {
            const int line = ALONG_K ? p * THREADS + thread : k;
            const int at = ALONG_K ? k / VEC : p * THREADS + thread;
            pack[p] = load<T, VEC>(tile + Tile::at(line, at));
        }
    }

    // The element of the thread's i-th row at the k last loaded.
    __device__ __forceinline__ float value(int i, int k) const {
        return ALONG_K ? get(pack[i], k % VEC) : get(pack[i / VEC], i % VEC);
    }
};

template <typename T, bool A_BY_ROWS, bool B_BY_ROWS, int BLOCK_M, int BLOCK_N, int BLOCK_K, int THREAD_M,
          int THREAD_N, int STAGES>
__global__ __launch_bounds__(BLOCK_M* BLOCK_N / (THREAD_M * THREAD_N)) void matmul_register_kernel(
    const T* a_ptr, const T* b_ptr, T* c_ptr, index_t M, index_t N, index_t K, index_t lda, index_t ldb) {
    constexpr int VEC = 16 / sizeof(T), GROUP_M = 8;
    constexpr int THREADS_M = BLOCK_M / THREAD_M, THREADS_N = BLOCK_N / THREAD_N;
    constexpr int THREADS = THREADS_M * THREADS_N;
    using ATile = PaddedTile<T, A_BY_ROWS, BLOCK_M, BLOCK_K>;
    using BTile = PaddedTile<T, !B_BY_ROWS, BLOCK_N, BLOCK_K>;
    using AFragment = Fragment<T, ATile, THREADS_M, THREAD_M>;
    using BFragment = Fragment<T, BTile, THREADS_N, THREAD_N>;
    static_assert(THREADS_M % 4 == 0 && THREADS_N % 8 == 0, "a warp is 4 threads high and 8 wide");
    static_assert(BLOCK_K % 2 == 0, "two fragments take turns");
    DYNAMIC_SHARED(T, tiles);
    T* a_tiles = tiles;
    T* b_tiles = tiles + STAGES * ATile::ELEMENTS;

    const int tiles_m = static_cast<int>((M + BLOCK_M - 1) / BLOCK_M);
    const int tiles_n = static_cast<int>((N + BLOCK_N - 1) / BLOCK_N);
    const TilePlace place = grouped_tile<GROUP_M>(blockIdx.x, tiles_m, tiles_n);
    const index_t begin_m = static_cast<index_t>(place.m) * BLOCK_M;
    const index_t begin_n = static_cast<index_t>(place.n) * BLOCK_N;
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    // An 8-lane phase of 16-byte reads covers 2 rows and 4 columns: fewer distinct vectors than 1 row and 8.
    const int thread_m = warp / (THREADS_N / 8) * 4 + lane / 16 * 2 + lane % 2;
    const int thread_n = warp % (THREADS_N / 8) * 8 + lane / 2 % 8;

    TileFetch<T, A_BY_ROWS, BLOCK_M, BLOCK_K, THREADS, ATile> a_fetch(a_ptr, lda, begin_m, M, K);
    TileFetch<T, !B_BY_ROWS, BLOCK_N, BLOCK_K, THREADS, BTile> b_fetch(b_ptr, ldb, begin_n, N, K);
    const bool inside = begin_m + BLOCK_M <= M && begin_n + BLOCK_N <= N;
    int whole = inside ? at_most(K / BLOCK_K, 0x7fffffff) : 0;  // complete tiles not yet fetched
    const auto fetch = [&](int stage) {
        T* a_tile = a_tiles + stage * ATile::ELEMENTS;
        T* b_tile = b_tiles + stage * BTile::ELEMENTS;
        if (--whole >= 0) {
            a_fetch.next(a_tile, true);
            b_fetch.next(b_tile, true);
        } else {
            a_fetch.next(a_tile, false);
            b_fetch.next(b_tile, false);
        }
        cp_async_commit();
    };
#pragma unroll
    for (int stage = 0; stage < STAGES - 1; ++stage) fetch(stage);

    float sum[THREAD_M][THREAD_N] = {};
    AFragment a[2] = {};  // double buffering: this step's fragment and the next one's
    BFragment b[2] = {};
    const auto load_step = [&](int stage, int k) {
        a[k % 2].load_from(a_tiles + stage * ATile::ELEMENTS, k, thread_m, a[(k + 1) % 2]);
        b[k % 2].load_from(b_tiles + stage * BTile::ELEMENTS, k, thread_n, b[(k + 1) % 2]);
    };
    const auto multiply_step = [&](int k) {
#pragma unroll
        for (int i = 0; i < THREAD_M; ++i) {
#pragma unroll
            for (int step = 0; step < THREAD_N; ++step) {
                const int j = i % 2 == 0 ? step : THREAD_N - 1 - step;  // serpentine order: operand reuse
                sum[i][j] += a[k % 2].value(i, k) * b[k % 2].value(j, k);
            }
        }
    };
    cp_async_wait<STAGES - 2>();
    __syncthreads();
    load_step(0, 0);
    int stage = 0, free_stage = STAGES - 1;
    const int tiles_k = at_most((K + BLOCK_K - 1) / BLOCK_K, 0x7fffffff);
    for (int tile = 0; tile < tiles_k; ++tile) {
        multiply_step(BLOCK_K - 1);  // previous tile's last step (at first zeros) during the loads
#pragma unroll
        for (int k = 1; k < BLOCK_K; ++k) {
            load_step(stage, k);
            if (k == 1) fetch(free_stage);
            multiply_step(k - 1);
        }
        free_stage = stage;
        stage = stage + 1 == STAGES ? 0 : stage + 1;
        cp_async_wait<STAGES - 2>();
        __syncthreads();  // the next tile has landed, and all have read this one
        load_step(stage, 0);
    }
    multiply_step(BLOCK_K - 1);

#pragma unroll
    for (int i = 0; i < THREAD_M; ++i) {
        const index_t m = begin_m + AFragment::index_of(i, thread_m);
        if (m >= M) continue;
        T* c_row = c_ptr + m * N;
#pragma unroll
        for (int j = 0; j < THREAD_N; j += VEC) {
            const index_t n = begin_n + BFragment::index_of(j, thread_n);
            if (!BTile::LIES_ALONG_K && N % VEC == 0) {  // the thread's columns are neighbours
                float values[VEC];
#pragma unroll
                for (int v = 0; v < VEC; ++v) values[v] = sum[i][j + v];
                Pack<T, VEC> pack;
                set(pack, values);
                if (n < N) store(c_row + n, pack);
            } else {
#pragma unroll
                for (int v = 0; v < VEC; ++v) {
                    const index_t at = begin_n + BFragment::index_of(j + v, thread_n);
                    if (at < N) c_row[at] = from_float<T>(sum[i][j + v]);
                }
            }
        }
    }
}

// ---- epilogue: applied to sums before they are rounded and written; here the identity ------------------
// Another op may pass its own epilogue: `of(n, N)` loads what it needs for columns n (even) and n + 1, and
// `apply` maps two sums in these columns to the outputs.

struct AsTheyAre {
    struct Nothing {};
    template <typename Index>
    __device__ __forceinline__ Nothing of(Index, Index) const {
        return {};
    }
    __device__ __forceinline__ float2 apply(Nothing, float x, float y) const { return make_float2(x, y); }
};

// ---- tensor_core -------------------------------------------------------------------------------------
// Grid: one block of WARPS_M x WARPS_N warps per tile of c of BLOCK_M x BLOCK_N, grouped order. A warp
// computes an equal share as 16 x 8 matrices. T is a 16-bit type. STAGES as in register.

// XOR swizzle, so that ldmatrix is conflict-free: a vector's position is its index XOR the line's number. The
// eight rows that ldmatrix reads at a time are in different banks, and no memory is spent on padding.
template <typename T, bool ALONG_K, int BLOCK, int BLOCK_K>
struct SwizzledTile : TileShape<T, ALONG_K, BLOCK, BLOCK_K> {
    using Shape = TileShape<T, ALONG_K, BLOCK, BLOCK_K>;
    static constexpr int ELEMENTS = Shape::LINES * Shape::LENGTH;
    static constexpr int PERIOD = 8;
    static_assert(Shape::PACKS == 4 || Shape::PACKS % 8 == 0, "lines of 64 bytes, or of 128 and multiples");

    static __device__ __forceinline__ int at(int line, int pack) {
        const int swizzled = pack ^ (Shape::PACKS == 4 ? line >> 1 & 3 : line & 7);
        return line * Shape::LENGTH + swizzled * Shape::VEC;
    }
};

// A lane's ldmatrix row offsets, for every 16 of K and every 16 rows (columns) of a warp's share, which
// starts at `begin`. The swizzle repeats every 16 lines: offsets along lines are stored, those across lines
// are added.
template <typename T, typename Tile, bool ALONG_K, int COUNT, int STEPS>
struct MatrixReads {
    static constexpr int LINES_16 = 16 * Tile::LENGTH;
    int offset[ALONG_K ? STEPS : COUNT];

    // Lanes 8 to 15 address the matrix `across1` and k1 away from the first, lanes 16 to 23 the one `across2`
    // and k2 away, lanes 24 to 31 the one at the sum of both distances.
    __device__ __forceinline__ MatrixReads(int begin, int across1, int k1, int across2, int k2) {
        const int lane = threadIdx.x % WARP, row = lane % 8;
        const bool first = lane / 8 % 2, second = lane / 16;
        const int across = begin + (first ? across1 : 0) + (second ? across2 : 0);
        const int k = (first ? k1 : 0) + (second ? k2 : 0);
        if constexpr (ALONG_K) {
#pragma unroll
            for (int step = 0; step < STEPS; ++step)
                offset[step] = Tile::at(across + row, (k + step * 16) / 8);
        } else {
#pragma unroll
            for (int i = 0; i < COUNT; ++i) offset[i] = Tile::at(k + row, (across + i * 16) / 8);
        }
    }

    __device__ __forceinline__ void load(unsigned (&matrix)[4], const T* tile, int i, int step) const {
        if constexpr (ALONG_K) {
            ldmatrix_x4(matrix, tile + offset[step] + i * LINES_16);
        } else {
            ldmatrix_x4_trans(matrix, tile + offset[i] + step * LINES_16);
        }
    }
};

template <typename T, bool A_BY_ROWS, bool B_BY_ROWS, int BLOCK_M, int BLOCK_N, int BLOCK_K, int WARPS_M,
          int WARPS_N, int STAGES, typename Epilogue>
__device__ __forceinline__ void multiply_by_tensor_cores(const T* a_ptr, const T* b_ptr, T* c_ptr, index_t M,
                                                         index_t N, index_t K, index_t lda, index_t ldb,
                                                         const Epilogue& epilogue) {
    constexpr int THREADS = WARPS_M * WARPS_N * WARP, GROUP_M = 8, STEPS = BLOCK_K / 16;
    constexpr int WARP_M = BLOCK_M / WARPS_M, WARP_N = BLOCK_N / WARPS_N;  // a warp's share
    constexpr int MATRICES_M = WARP_M / 16, MATRICES_N = WARP_N / 8;
    using ATile = SwizzledTile<T, A_BY_ROWS, BLOCK_M, BLOCK_K>;
    using BTile = SwizzledTile<T, !B_BY_ROWS, BLOCK_N, BLOCK_K>;
    static_assert(MATRICES_M * 16 == WARP_M && MATRICES_N * 8 == WARP_N && MATRICES_N % 2 == 0,
                  "a warp's share is whole matrices");
    static_assert(BLOCK_K % 32 == 0, "two fragments take turns");
    DYNAMIC_SHARED(T, tiles);
    T* a_tiles = tiles;
    T* b_tiles = tiles + STAGES * ATile::ELEMENTS;

    const int tiles_m = static_cast<int>((M + BLOCK_M - 1) / BLOCK_M);
    const int tiles_n = static_cast<int>((N + BLOCK_N - 1) / BLOCK_N);
    const TilePlace place = grouped_tile<GROUP_M>(blockIdx.x, tiles_m, tiles_n);
    const index_t begin_m = static_cast<index_t>(place.m) * BLOCK_M;
    const index_t begin_n = static_cast<index_t>(place.n) * BLOCK_N;
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const int warp_m = warp / WARPS_N * WARP_M, warp_n = warp % WARPS_N * WARP_N;

    TileFetch<T, A_BY_ROWS, BLOCK_M, BLOCK_K, THREADS, ATile> a_fetch(a_ptr, lda, begin_m, M, K);
    TileFetch<T, !B_BY_ROWS, BLOCK_N, BLOCK_K, THREADS, BTile> b_fetch(b_ptr, ldb, begin_n, N, K);
    const bool inside = begin_m + BLOCK_M <= M && begin_n + BLOCK_N <= N;
    int whole = inside ? at_most(K / BLOCK_K, 0x7fffffff) : 0;  // complete tiles not yet fetched
    const auto fetch = [&](int stage) {
        T* a_tile = a_tiles + stage * ATile::ELEMENTS;
        T* b_tile = b_tiles + stage * BTile::ELEMENTS;
        if (--whole >= 0) {
            a_fetch.next(a_tile, true);
            b_fetch.next(b_tile, true);
        } else {
            a_fetch.next(a_tile, false);
            b_fetch.next(b_tile, false);
        }
        cp_async_commit();
    };
#pragma unroll
    for (int stage = 0; stage < STAGES - 1; ++stage) fetch(stage);

    float sum[MATRICES_M][MATRICES_N][4] = {};
    unsigned a[2][MATRICES_M][4] = {}, b[2][MATRICES_N / 2][4] = {};  // double buffering
    const MatrixReads<T, ATile, A_BY_ROWS, MATRICES_M, STEPS> a_reads(warp_m, 8, 0, 0, 8);
    const MatrixReads<T, BTile, !B_BY_ROWS, MATRICES_N / 2, STEPS> b_reads(warp_n, 0, 8, 8, 0);
    const auto load_step = [&](int stage, int step) {
        const T* a_tile = a_tiles + stage * ATile::ELEMENTS;
        const T* b_tile = b_tiles + stage * BTile::ELEMENTS;
#pragma unroll
        for (int i = 0; i < MATRICES_M; ++i) a_reads.load(a[step % 2][i], a_tile, i, step);
#pragma unroll
        for (int j = 0; j < MATRICES_N / 2; ++j) b_reads.load(b[step % 2][j], b_tile, j, step);
    };
    const auto multiply_step = [&](int step) {
#pragma unroll
        for (int i = 0; i < MATRICES_M; ++i) {
#pragma unroll
            for (int turn = 0; turn < MATRICES_N; ++turn) {
                const int j = i % 2 == 0 ? turn : MATRICES_N - 1 - turn;  // serpentine order: operand reuse
                const unsigned (&b_two)[4] = b[step % 2][j / 2];
                mma_m16n8k16<T>(sum[i][j], a[step % 2][i], b_two[j % 2 * 2], b_two[j % 2 * 2 + 1]);
            }
        }
    };
    cp_async_wait<STAGES - 2>();
    __syncthreads();
    load_step(0, 0);
    int stage = 0, free_stage = STAGES - 1;
    const int tiles_k = at_most((K + BLOCK_K - 1) / BLOCK_K, 0x7fffffff);
    for (int tile = 0; tile < tiles_k; ++tile) {
        multiply_step(STEPS - 1);  // previous tile's last step (at first zeros) during the loads
#pragma unroll
        for (int step = 1; step < STEPS; ++step) {
            load_step(stage, step);
            if (step == 1) fetch(free_stage);
            multiply_step(step - 1);
        }
        free_stage = stage;
        stage = stage + 1 == STAGES ? 0 : stage + 1;
        cp_async_wait<STAGES - 2>();
        __syncthreads();  // the next tile has landed, and all have read this one
        load_step(stage, 0);
    }
    decltype(epilogue.of(N, N)) of_columns[MATRICES_N];  // loads overlap with the last step
    const index_t lane_n = begin_n + warp_n + lane % 4 * 2;
#pragma unroll
    for (int j = 0; j < MATRICES_N; ++j) of_columns[j] = epilogue.of(lane_n + j * 8, N);
    multiply_step(STEPS - 1);

    const bool in_pairs = N % 2 == 0;  // every row of c is 4-byte aligned
#pragma unroll
    for (int i = 0; i < MATRICES_M; ++i) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const index_t m = begin_m + warp_m + i * 16 + half * 8 + lane / 4;
            if (m >= M) continue;
#pragma unroll
            for (int j = 0; j < MATRICES_N; ++j) {
                const index_t n = lane_n + j * 8;
                const float2 sums =
                    epilogue.apply(of_columns[j], sum[i][j][half * 2], sum[i][j][half * 2 + 1]);
                const T two[2] = {from_float<T>(sums.x), from_float<T>(sums.y)};
                T* c = c_ptr + m * N + n;
                if (in_pairs) {
                    if (n < N) *reinterpret_cast<unsigned*>(c) = *reinterpret_cast<const unsigned*>(two);
                } else {
                    if (n < N) c[0] = two[0];
                    if (n + 1 < N) c[1] = two[1];
                }
            }
        }
    }
}

template <typename T, bool A_BY_ROWS, bool B_BY_ROWS, int BLOCK_M, int BLOCK_N, int BLOCK_K, int WARPS_M,
          int WARPS_N, int STAGES, int BLOCKS>
__global__ __launch_bounds__(WARPS_M * WARPS_N * WARP,
                             BLOCKS) void matmul_tensor_core_kernel(const T* a_ptr, const T* b_ptr, T* c_ptr,
                                                                    index_t M, index_t N, index_t K,
                                                                    index_t lda, index_t ldb) {
    multiply_by_tensor_cores<T, A_BY_ROWS, B_BY_ROWS, BLOCK_M, BLOCK_N, BLOCK_K, WARPS_M, WARPS_N, STAGES>(
        a_ptr, b_ptr, c_ptr, M, N, K, lda, ldb, AsTheyAre());
}

// ---- tiles for TMA and wgmma -----------------------------------------------------------------------------
// A tile is a sequence of pieces of 64 x 64 16-bit elements. A row of a piece is 128 bytes, the widest that
// TMA swizzles (128-byte swizzle): a column of 16-byte vectors in eight rows is in different banks.

constexpr int PIECE = 64;
constexpr int PIECE_BYTES = PIECE * PIECE * 2;

#if HAS_WGMMA

// The 128-byte swizzle repeats every 1024 bytes and needs that alignment; dynamic shared memory may lack it.
__device__ __forceinline__ unsigned char* align_1024(unsigned char* shared) {
    return shared + (-shared_address(shared) & 1023);
}

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
__device__ __forceinline__ void fetch_tiles(unsigned char* tiles, const TensorMap* a_map,
                                            const TensorMap* b_map, int m, int n, int k, mbarrier_t* landed) {
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
// K and across K.
template <typename T, bool A_BY_ROWS, bool B_BY_ROWS, int COUNT>
__device__ __forceinline__ void multiply(float (&sum)[COUNT], const unsigned char* a, const unsigned char* b,
                                         bool add) {
    constexpr int ALONG_K = 16 * 2, ACROSS_K = 16 * 128;  // bytes to the next 16 of K
    const matrix_t a_first = matrix_descriptor(a, PIECE_BYTES), b_first = matrix_descriptor(b, PIECE_BYTES);
#pragma unroll
    for (int k = 0; k < PIECE / 16; ++k) {
        const matrix_t a_k = a_first + k * ((A_BY_ROWS ? ALONG_K : ACROSS_K) >> 4);
        const matrix_t b_k = b_first + k * ((B_BY_ROWS ? ACROSS_K : ALONG_K) >> 4);
        wgmma<T, !A_BY_ROWS, B_BY_ROWS>(sum, a_k, b_k, add || k > 0);
    }
}

// The current stage of a ring of STAGES, and its mbarriers' phase parity.
template <int STAGES>
struct Ring {
    int stage = 0;
    unsigned parity = 0;

    __device__ __forceinline__ void advance() {
        if (++stage == STAGES) {
            stage = 0;
            parity ^= 1;
        }
    }
};

// Two neighbours of c, rounded by one instruction.
template <typename T>
__device__ __forceinline__ unsigned two_of(float x, float y) {
    if constexpr (IS_BF16<T>) {
        const __nv_bfloat162 two = __floats2bfloat162_rn(x, y);
        return *reinterpret_cast<const unsigned*>(&two);
    } else {
        const __half2 two = __floats2half2_rn(x, y);
        return *reinterpret_cast<const unsigned*>(&two);
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
                const unsigned two = two_of<T>(sum[j * 4 + half * 2], sum[j * 4 + half * 2 + 1]);
                if (column < N) *reinterpret_cast<unsigned*>(c_row + column) = two;
            }
        } else {
#pragma unroll
            for (int j = 0; j < COUNT / 4; ++j) {
                const int column = n_thread + j * 8;
                if (column < N) c_row[column] = from_float<T>(sum[j * 4 + half * 2]);
                if (column + 1 < N) c_row[column + 1] = from_float<T>(sum[j * 4 + half * 2 + 1]);
            }
        }
    }
}

#endif  // HAS_WGMMA

// ---- wgmma -----------------------------------------------------------------------------------------------
// Grid: one block of one warpgroup per tile of c of 128 x 128, row by row. One thread issues the TMA loads of
// a pipeline of STAGES stages. A stage is refilled when all warps have read it.

template <typename T, bool A_BY_ROWS, bool B_BY_ROWS, int STAGES>
__global__ __launch_bounds__(WARPGROUP) void matmul_wgmma_kernel(const __grid_constant__ TensorMap a_map,
                                                                 const __grid_constant__ TensorMap b_map,
                                                                 T* c_ptr, int M, int N, int K) {
#if HAS_WGMMA
    constexpr int BLOCK_M = 128, BLOCK_N = 128, BLOCK_K = PIECE;
    constexpr int A_BYTES = BLOCK_M * BLOCK_K * 2, BYTES = A_BYTES + BLOCK_N * BLOCK_K * 2;
    DYNAMIC_SHARED(unsigned char, shared);
    unsigned char* const tiles = align_1024(shared);
    __shared__ mbarrier_t landed[STAGES];
    const int tiles_n = (N + BLOCK_N - 1) / BLOCK_N, tiles_k = (K + BLOCK_K - 1) / BLOCK_K;
    const int m = blockIdx.x / tiles_n * BLOCK_M, n = blockIdx.x % tiles_n * BLOCK_N;
    const auto fetch = [&](int stage, int k) {
        fetch_tiles<A_BY_ROWS, B_BY_ROWS, BLOCK_M, BLOCK_N>(tiles + stage * BYTES, &a_map, &b_map, m, n, k,
                                                            &landed[stage]);
    };

    if (threadIdx.x == 0) {
        for (int stage = 0; stage < STAGES; ++stage) mbarrier_init(&landed[stage], 1);
        mbarrier_init_fence();
        for (int stage = 0; stage < STAGES && stage < tiles_k; ++stage) fetch(stage, stage * BLOCK_K);
    }
    __syncthreads();

    float top[BLOCK_N / 2], bottom[BLOCK_N / 2];  // rows 0 to 63 and 64 to 127
    Ring<STAGES> ring;
    for (int tile = 0; tile < tiles_k; ++tile, ring.advance()) {
        const unsigned char* const a = tiles + ring.stage * BYTES;
        mbarrier_wait(&landed[ring.stage], ring.parity);
        wgmma_fence();
        multiply<T, A_BY_ROWS, B_BY_ROWS>(top, a, a + A_BYTES, tile > 0);
        multiply<T, A_BY_ROWS, B_BY_ROWS>(bottom, a + PIECE_BYTES, a + A_BYTES, tile > 0);
        wgmma_commit_group();
        wgmma_wait_group<0>(top);
        wgmma_wait_group<0>(bottom);
        __syncthreads();  // all warps have read this stage
        if (threadIdx.x == 0 && tile + STAGES < tiles_k) fetch(ring.stage, (tile + STAGES) * BLOCK_K);
    }
    store_sums(c_ptr, top, m, n, M, N);
    store_sums(c_ptr, bottom, m + PIECE, n, M, N);
#endif
}

// ---- specialized -----------------------------------------------------------------------------------------
// Grid: one block of three warpgroups per tile of c of 128 x BLOCK_N, row by row. One thread of the first,
// the producer, issues TMA loads. A stage of the ring belongs to the producer while `empty` and to the
// consumers while `full`. Each of the two consumer warpgroups has 64 rows of c. The producer gives its
// registers to them (setmaxnreg), which a larger tile's sums need. One wgmma is in flight while the previous
// stage is released.

constexpr int CONSUMERS = 2;
constexpr int PRODUCER_REGISTERS = 40, CONSUMER_REGISTERS = 232;  // of 65536, for 128 + 256 threads

template <typename T, bool A_BY_ROWS, bool B_BY_ROWS, int BLOCK_N, int STAGES>
__global__ __launch_bounds__((1 + CONSUMERS) * WARPGROUP,
                             1) void matmul_specialized_kernel(const __grid_constant__ TensorMap a_map,
                                                               const __grid_constant__ TensorMap b_map,
                                                               T* c_ptr, int M, int N, int K) {
#if HAS_WGMMA
    constexpr int BLOCK_M = CONSUMERS * PIECE, BLOCK_K = PIECE;
    constexpr int A_BYTES = BLOCK_M * BLOCK_K * 2, BYTES = A_BYTES + BLOCK_N * BLOCK_K * 2;
    DYNAMIC_SHARED(unsigned char, shared);
    unsigned char* const tiles = align_1024(shared);
    __shared__ mbarrier_t full[STAGES], empty[STAGES];
    const int tiles_n = (N + BLOCK_N - 1) / BLOCK_N, tiles_k = (K + BLOCK_K - 1) / BLOCK_K;
    const int m = blockIdx.x / tiles_n * BLOCK_M, n = blockIdx.x % tiles_n * BLOCK_N;

    if (threadIdx.x == 0) {
        for (int stage = 0; stage < STAGES; ++stage) {
            mbarrier_init(&full[stage], 1);
            mbarrier_init(&empty[stage], CONSUMERS);
        }
        mbarrier_init_fence();
    }
    __syncthreads();

    Ring<STAGES> ring;
    if (threadIdx.x < WARPGROUP) {
        setmaxnreg_dec<PRODUCER_REGISTERS>();
        if (threadIdx.x > 0) return;
        for (int tile = 0; tile < tiles_k; ++tile, ring.advance()) {
            mbarrier_wait(&empty[ring.stage], ring.parity ^ 1);  // in the first round all stages are empty
            fetch_tiles<A_BY_ROWS, B_BY_ROWS, BLOCK_M, BLOCK_N>(tiles + ring.stage * BYTES, &a_map, &b_map, m,
                                                                n, tile * BLOCK_K, &full[ring.stage]);
        }
    } else {
        setmaxnreg_inc<CONSUMER_REGISTERS>();
        const int consumer = threadIdx.x / WARPGROUP - 1;
        float sum[BLOCK_N / 2];
        int before = 0;
        for (int tile = 0; tile < tiles_k; ++tile, ring.advance()) {
            const unsigned char* const a = tiles + ring.stage * BYTES;
            mbarrier_wait(&full[ring.stage], ring.parity);
            wgmma_fence();
            multiply<T, A_BY_ROWS, B_BY_ROWS>(sum, a + consumer * PIECE_BYTES, a + A_BYTES, tile > 0);
            wgmma_commit_group();
            wgmma_wait_group<1>(sum);  // this wgmma is in flight; the previous one has read its stage
            if (tile > 0 && threadIdx.x % WARPGROUP == 0) mbarrier_arrive(&empty[before]);
            before = ring.stage;
        }
        wgmma_wait_group<0>(sum);
        store_sums(c_ptr, sum, m + consumer * PIECE, n, M, N);
    }
#endif
}

// ---- persistent ------------------------------------------------------------------------------------------
// As specialized, and persistent: one block per multiprocessor, tiles assigned round-robin in grouped order.
// The ring continues across tiles: while the consumers write c, the producer prefetches the next tile.

template <typename T, bool A_BY_ROWS, bool B_BY_ROWS, int BLOCK_N, int STAGES>
__global__ __launch_bounds__((1 + CONSUMERS) * WARPGROUP,
                             1) void matmul_persistent_kernel(const __grid_constant__ TensorMap a_map,
                                                              const __grid_constant__ TensorMap b_map,
                                                              T* c_ptr, int M, int N, int K) {
#if HAS_WGMMA
    constexpr int BLOCK_M = CONSUMERS * PIECE, BLOCK_K = PIECE, GROUP_M = 16;
    constexpr int A_BYTES = BLOCK_M * BLOCK_K * 2, BYTES = A_BYTES + BLOCK_N * BLOCK_K * 2;
    DYNAMIC_SHARED(unsigned char, shared);
    unsigned char* const tiles = align_1024(shared);
    __shared__ mbarrier_t full[STAGES], empty[STAGES];
    const int tiles_m = (M + BLOCK_M - 1) / BLOCK_M, tiles_n = (N + BLOCK_N - 1) / BLOCK_N;
    const int tiles_c = tiles_m * tiles_n, tiles_k = (K + BLOCK_K - 1) / BLOCK_K;

    if (threadIdx.x == 0) {
        for (int stage = 0; stage < STAGES; ++stage) {
            mbarrier_init(&full[stage], 1);
            mbarrier_init(&empty[stage], CONSUMERS);
        }
        mbarrier_init_fence();
    }
    __syncthreads();

    Ring<STAGES> ring;
    if (threadIdx.x < WARPGROUP) {
        setmaxnreg_dec<PRODUCER_REGISTERS>();
        if (threadIdx.x > 0) return;
        for (int tile = blockIdx.x; tile < tiles_c; tile += gridDim.x) {
            const TilePlace place = grouped_tile<GROUP_M>(tile, tiles_m, tiles_n);
            const int m = place.m * BLOCK_M, n = place.n * BLOCK_N;
            for (int k = 0; k < tiles_k * BLOCK_K; k += BLOCK_K, ring.advance()) {
                mbarrier_wait(&empty[ring.stage], ring.parity ^ 1);
                fetch_tiles<A_BY_ROWS, B_BY_ROWS, BLOCK_M, BLOCK_N>(tiles + ring.stage * BYTES, &a_map,
                                                                    &b_map, m, n, k, &full[ring.stage]);
            }
        }
    } else {
        setmaxnreg_inc<CONSUMER_REGISTERS>();
        const int consumer = threadIdx.x / WARPGROUP - 1;
        const bool tells = threadIdx.x % WARPGROUP == 0;
        float sum[BLOCK_N / 2];
        for (int tile = blockIdx.x; tile < tiles_c; tile += gridDim.x) {
            const TilePlace place = grouped_tile<GROUP_M>(tile, tiles_m, tiles_n);
            int before = 0;
            for (int k = 0; k < tiles_k; ++k, ring.advance()) {
                const unsigned char* const a = tiles + ring.stage * BYTES;
                mbarrier_wait(&full[ring.stage], ring.parity);
                wgmma_fence();
                multiply<T, A_BY_ROWS, B_BY_ROWS>(sum, a + consumer * PIECE_BYTES, a + A_BYTES, k > 0);
                wgmma_commit_group();
                wgmma_wait_group<1>(sum);
                if (k > 0 && tells) mbarrier_arrive(&empty[before]);
                before = ring.stage;
            }
            wgmma_wait_group<0>(sum);
            if (tells) mbarrier_arrive(&empty[before]);
            store_sums(c_ptr, sum, place.m * BLOCK_M + consumer * PIECE, place.n * BLOCK_N, M, N);
        }
    }
#endif
}

// ---- multicast -------------------------------------------------------------------------------------------
// As persistent, and the two blocks of a cluster have tiles of c in one column, which need the same tile of
// b: each loads half of it, and TMA multicast writes that half into both. So a stage is empty when the
// consumers of both blocks have released it, and full when both producers' copies have landed.

template <typename T, bool A_BY_ROWS, bool B_BY_ROWS, int BLOCK_N, int STAGES>
__global__ __launch_bounds__((1 + CONSUMERS) * WARPGROUP, 1)
    CLUSTER_OF(2) void matmul_multicast_kernel(const __grid_constant__ TensorMap a_map,
                                               const __grid_constant__ TensorMap b_map, T* c_ptr, int M,
                                               int N, int K) {
#if HAS_WGMMA
    constexpr int BLOCK_M = CONSUMERS * PIECE, BLOCK_K = PIECE, GROUP_M = 8, CLUSTER = 2;
    constexpr int A_BYTES = BLOCK_M * BLOCK_K * 2, BYTES = A_BYTES + BLOCK_N * BLOCK_K * 2;
    constexpr int HALF_N = BLOCK_N / CLUSTER;
    DYNAMIC_SHARED(unsigned char, shared);
    unsigned char* const tiles = align_1024(shared);
    __shared__ mbarrier_t full[STAGES], empty[STAGES];
    const int rank = cluster_block_rank();
    const int tiles_m = (M + CLUSTER * BLOCK_M - 1) / (CLUSTER * BLOCK_M);  // of both blocks together
    const int tiles_n = (N + BLOCK_N - 1) / BLOCK_N;
    const int tiles_c = tiles_m * tiles_n, tiles_k = (K + BLOCK_K - 1) / BLOCK_K;
    const int cluster = blockIdx.x / CLUSTER, clusters = gridDim.x / CLUSTER;
    const int warpgroup = __shfl_sync(FULL_WARP, threadIdx.x / WARPGROUP, 0);  // now warp-uniform

    if (threadIdx.x == 0) {
        prefetch_tensor_map(&a_map);
        prefetch_tensor_map(&b_map);
        for (int stage = 0; stage < STAGES; ++stage) {
            mbarrier_init(&full[stage], 1);
            mbarrier_init(&empty[stage], CONSUMERS * CLUSTER);
        }
        mbarrier_init_fence();
    }
    __syncwarp();
    cluster_arrive_relaxed();
    cluster_wait();  // both blocks' mbarriers are initialised before any copy or arrival

    Ring<STAGES> ring;
    if (warpgroup == 0) {
        setmaxnreg_dec<PRODUCER_REGISTERS>();
        if (threadIdx.x > 0) return;
        for (int tile = cluster; tile < tiles_c; tile += clusters) {
            const TilePlace place = grouped_tile<GROUP_M>(tile, tiles_m, tiles_n);
            const int m = (place.m * CLUSTER + rank) * BLOCK_M, n = place.n * BLOCK_N + rank * HALF_N;
            for (int k = 0; k < tiles_k * BLOCK_K; k += BLOCK_K, ring.advance()) {
                unsigned char* const a = tiles + ring.stage * BYTES;
                unsigned char* const b = a + A_BYTES + rank * HALF_N * BLOCK_K * 2;
                mbarrier_t* const landed = &full[ring.stage];
                mbarrier_wait(&empty[ring.stage], ring.parity ^ 1);
                mbarrier_arrive_expect_bytes(landed, BYTES);  // own copies and the other block's half of b
                fetch_tile<A_BY_ROWS, BLOCK_M>(a, m, k, [&](unsigned char* to, int column, int row) {
                    tensor_copy_to_shared(to, &a_map, column, row, landed);
                });
                fetch_tile<!B_BY_ROWS, HALF_N>(b, n, k, [&](unsigned char* to, int column, int row) {
                    tensor_copy_to_blocks(to, &b_map, column, row, landed, 0b11);
                });
            }
        }
        // The other block still arrives on this block's mbarriers: do not exit until all stages are empty.
        for (int stage = 0; stage < STAGES; ++stage, ring.advance()) {
            mbarrier_wait(&empty[ring.stage], ring.parity ^ 1);
        }
    } else {
        setmaxnreg_inc<CONSUMER_REGISTERS>();
        const int consumer = warpgroup - 1;
        const auto release = [&](int stage) {  // thread r of a consumer arrives at block r's mbarrier
            const int r = threadIdx.x % WARPGROUP;
            if (r < CLUSTER) mbarrier_arrive_in_block(&empty[stage], r);
        };
        float sum[BLOCK_N / 2];
        for (int tile = cluster; tile < tiles_c; tile += clusters) {
            const TilePlace place = grouped_tile<GROUP_M>(tile, tiles_m, tiles_n);
            int before = 0;
            for (int k = 0; k < tiles_k; ++k, ring.advance()) {
                const unsigned char* const a = tiles + ring.stage * BYTES;
                mbarrier_wait(&full[ring.stage], ring.parity);
                wgmma_fence();
                multiply<T, A_BY_ROWS, B_BY_ROWS>(sum, a + consumer * PIECE_BYTES, a + A_BYTES, k > 0);
                wgmma_commit_group();
                wgmma_wait_group<1>(sum);
                if (k > 0) release(before);
                before = ring.stage;
            }
            wgmma_wait_group<0>(sum);
            release(before);
            const int m = (place.m * CLUSTER + rank) * BLOCK_M + consumer * PIECE;
            store_sums(c_ptr, sum, m, place.n * BLOCK_N, M, N);
        }
    }
#endif
}

// ---- tma_store -------------------------------------------------------------------------------------------
// As multicast, but c goes from registers to shared memory, 64 columns at a time, and TMA stores it from
// there in coalesced rows while the consumers continue. A warp has one to three such buffers (C_PLACES) of
// its own for its 16 rows, and waits for no other warp. Rows of c are 16-byte aligned.
//
// BLOCK_N is 256, 192 or 64, whichever makes the last multiprocessor finish first. If half a tile of b is not
// whole pieces, the blocks of a cluster are side by side and share a instead. If the launch allows it
// (programmatic dependent launch), everything before the first copy overlaps with the previous grid.

template <int BLOCK_N>
constexpr bool SHARES_B = BLOCK_N % (2 * PIECE) == 0;  // else a

// A warp's buffers for pieces of c, used round-robin; a tile starts with the first. For an even number of
// pieces two are enough.
template <int BLOCK_N>
constexpr int C_PLACES = BLOCK_N / PIECE % 2 == 0 ? 2 : BLOCK_N / PIECE;

#if HAS_WGMMA

template <typename T, bool A_BY_ROWS, bool B_BY_ROWS, int BLOCK_N, int STAGES, typename Epilogue>
__device__ __forceinline__ void multiply_and_tma_store(const TensorMap& a_map, const TensorMap& b_map,
                                                       const TensorMap& c_map, int M, int N, int K,
                                                       const Epilogue& epilogue) {
    constexpr int BLOCK_M = CONSUMERS * PIECE, BLOCK_K = PIECE, GROUP_M = 8, CLUSTER = 2;
    constexpr int A_BYTES = BLOCK_M * BLOCK_K * 2, BYTES = A_BYTES + BLOCK_N * BLOCK_K * 2;
    constexpr bool SHARE_B = SHARES_B<BLOCK_N>;
    constexpr int CLUSTER_M = SHARE_B ? CLUSTER : 1, CLUSTER_N = SHARE_B ? 1 : CLUSTER;
    constexpr int HALF = (SHARE_B ? BLOCK_N : BLOCK_M) / CLUSTER;
    constexpr int PIECES_N = BLOCK_N / PIECE, PLACES = C_PLACES<BLOCK_N>;
    constexpr bool MANY_SUMS = BLOCK_N > 64;    // more than an equal share of registers per thread holds
    constexpr int WARP_BYTES = 16 * PIECE * 2;  // a warp's 16 rows of a piece of c
    DYNAMIC_SHARED(unsigned char, shared);
    unsigned char* const tiles = align_1024(shared);
    __shared__ mbarrier_t full[STAGES], empty[STAGES];
    const int rank = cluster_block_rank();
    const int rank_m = SHARE_B ? rank : 0, rank_n = SHARE_B ? 0 : rank;
    const int tiles_m = (M + CLUSTER_M * BLOCK_M - 1) / (CLUSTER_M * BLOCK_M);
    const int tiles_n = (N + CLUSTER_N * BLOCK_N - 1) / (CLUSTER_N * BLOCK_N);
    const int tiles_c = tiles_m * tiles_n, tiles_k = (K + BLOCK_K - 1) / BLOCK_K;
    const int cluster = blockIdx.x / CLUSTER, clusters = gridDim.x / CLUSTER;
    const int warpgroup = __shfl_sync(FULL_WARP, threadIdx.x / WARPGROUP, 0);

    if (threadIdx.x == 0) {
        prefetch_tensor_map(&a_map);
        prefetch_tensor_map(&b_map);
        prefetch_tensor_map(&c_map);
        for (int stage = 0; stage < STAGES; ++stage) {
            mbarrier_init(&full[stage], 1);
            mbarrier_init(&empty[stage], CONSUMERS * CLUSTER);
        }
        mbarrier_init_fence();
    }
    __syncwarp();
    cluster_arrive_relaxed();
    cluster_wait();
    next_grid_may_start();

    Ring<STAGES> ring;
    if (warpgroup == 0) {
        if constexpr (MANY_SUMS) setmaxnreg_dec<PRODUCER_REGISTERS>();
        if (threadIdx.x > 0) return;
        previous_grid_wait();  // consumers need no wait: they write nothing before the first copy has landed
        for (int tile = cluster; tile < tiles_c; tile += clusters) {
            const TilePlace place = grouped_tile<GROUP_M>(tile, tiles_m, tiles_n);
            const int m = (place.m * CLUSTER_M + rank_m) * BLOCK_M + (SHARE_B ? 0 : rank * HALF);
            const int n = (place.n * CLUSTER_N + rank_n) * BLOCK_N + (SHARE_B ? rank * HALF : 0);
            for (int k = 0; k < tiles_k * BLOCK_K; k += BLOCK_K, ring.advance()) {
                unsigned char* const a = tiles + ring.stage * BYTES;
                unsigned char* const b = a + A_BYTES;
                mbarrier_t* const landed = &full[ring.stage];
                mbarrier_wait(&empty[ring.stage], ring.parity ^ 1);
                mbarrier_arrive_expect_bytes(landed, BYTES);
                const auto a_copy = [&](unsigned char* to, int column, int row) {
                    if constexpr (SHARE_B) {
                        tensor_copy_to_shared(to, &a_map, column, row, landed);
                    } else {
                        tensor_copy_to_blocks(to, &a_map, column, row, landed, 0b11);
                    }
                };
                const auto b_copy = [&](unsigned char* to, int column, int row) {
                    if constexpr (SHARE_B) {
                        tensor_copy_to_blocks(to, &b_map, column, row, landed, 0b11);
                    } else {
                        tensor_copy_to_shared(to, &b_map, column, row, landed);
                    }
                };
                constexpr int HALF_BYTES = HALF * BLOCK_K * 2;
                fetch_tile<A_BY_ROWS, (SHARE_B ? BLOCK_M : HALF)>(a + (SHARE_B ? 0 : rank * HALF_BYTES), m, k,
                                                                  a_copy);
                fetch_tile<!B_BY_ROWS, (SHARE_B ? HALF : BLOCK_N)>(b + (SHARE_B ? rank * HALF_BYTES : 0), n,
                                                                   k, b_copy);
            }
        }
        for (int stage = 0; stage < STAGES; ++stage, ring.advance()) {
            mbarrier_wait(&empty[ring.stage], ring.parity ^ 1);
        }
    } else {
        if constexpr (MANY_SUMS) setmaxnreg_inc<CONSUMER_REGISTERS>();
        const int consumer = warpgroup - 1;
        const int warp = threadIdx.x % WARPGROUP / WARP, lane = threadIdx.x % WARP;
        const auto release = [&](int stage) {
            const int r = threadIdx.x % WARPGROUP;
            if (r < CLUSTER) mbarrier_arrive_in_block(&empty[stage], r);
        };
        unsigned char* const c_warp = tiles + STAGES * BYTES + (consumer * 4 + warp) * PLACES * WARP_BYTES;
        float sum[BLOCK_N / 2];
        for (int tile = cluster; tile < tiles_c; tile += clusters) {
            const TilePlace place = grouped_tile<GROUP_M>(tile, tiles_m, tiles_n);
            int before = 0;
            for (int k = 0; k < tiles_k; ++k, ring.advance()) {
                const unsigned char* const a = tiles + ring.stage * BYTES;
                mbarrier_wait(&full[ring.stage], ring.parity);
                wgmma_fence();
                multiply<T, A_BY_ROWS, B_BY_ROWS>(sum, a + consumer * PIECE_BYTES, a + A_BYTES, k > 0);
                wgmma_commit_group();
                wgmma_wait_group<1>(sum);
                if (k > 0) release(before);
                before = ring.stage;
            }
            const int m = (place.m * CLUSTER_M + rank_m) * BLOCK_M + consumer * PIECE + warp * 16;
            const int n = (place.n * CLUSTER_N + rank_n) * BLOCK_N;
            decltype(epilogue.of(n, N)) of_columns[BLOCK_N / 8];  // loads overlap with the last wgmma
#pragma unroll
            for (int j = 0; j < BLOCK_N / 8; ++j) of_columns[j] = epilogue.of(n + j * 8 + lane % 4 * 2, N);
            wgmma_wait_group<0>(sum);
            release(before);

            // Lane l writes 16 bytes of row l % 16, in the column group of l / 16, swizzled as c_map expects.
            const int row = lane % 16, first = lane / 16;
#pragma unroll
            for (int piece = 0; piece < PIECES_N; ++piece) {
                unsigned char* const c = c_warp + piece % PLACES * WARP_BYTES;
                if (lane == 0) bulk_wait_group_read<PLACES - 1>();  // TMA has read this buffer
                __syncwarp();
#pragma unroll
                for (int j = 0; j < PIECE / 8; j += 2) {  // 8 columns, and the 8 next to them
                    const float* const own = sum + piece * (PIECE / 2) + j * 4;
                    const auto two = [&](int i) {
                        const auto& columns = of_columns[piece * (PIECE / 8) + j + i / 2];
                        const float2 sums = epilogue.apply(columns, own[i * 2], own[i * 2 + 1]);
                        return two_of<T>(sums.x, sums.y);
                    };
                    stmatrix_x4(c + row * 128 + ((j + first) ^ row % 8) * 16, two(0), two(1), two(2), two(3));
                }
                fence_proxy_async();
                __syncwarp();
                if (lane == 0) {
                    tensor_copy_to_global(&c_map, n + piece * PIECE, m, c);
                    bulk_commit_group();
                }
            }
        }
        if (lane == 0) bulk_wait_group_read<0>();
    }
}

#endif  // HAS_WGMMA

template <typename T, bool A_BY_ROWS, bool B_BY_ROWS, int BLOCK_N, int STAGES>
__global__ __launch_bounds__((1 + CONSUMERS) * WARPGROUP, 1)
    CLUSTER_OF(2) void matmul_tma_store_kernel(const __grid_constant__ TensorMap a_map,
                                               const __grid_constant__ TensorMap b_map,
                                               const __grid_constant__ TensorMap c_map, int M, int N, int K) {
#if HAS_WGMMA
    multiply_and_tma_store<T, A_BY_ROWS, B_BY_ROWS, BLOCK_N, STAGES>(a_map, b_map, c_map, M, N, K,
                                                                     AsTheyAre());
#endif
}
