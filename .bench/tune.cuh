// Candidates, to be timed against matmul.cuh's kernels; what wins goes there.
#include "matmul.cuh"

#ifdef HOST_BUILD
__device__ __forceinline__ void cp_async_4(void* to, const void* from, int bytes) {
    *static_cast<unsigned*>(to) = bytes == 4 ? *static_cast<const unsigned*>(from) : 0u;
}
#else
__device__ __forceinline__ void cp_async_4(void* to, const void* from, int bytes) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(in_shared(to)), "l"(from), "r"(bytes)
                 : "memory");
}
#endif

// As TileFetch, but that a tile which is whole costs a copy and an addition a pack, and few registers.
template <typename T, bool ALONG_K, int BLOCK, int BLOCK_K, int THREADS, typename Place>
struct WholeFetch {
    using Shape = TileShape<T, ALONG_K, BLOCK, BLOCK_K>;
    static constexpr int COPIES = Shape::LINES * Shape::PACKS / THREADS, STEP = THREADS / Shape::PACKS;
    static_assert(COPIES * THREADS == Shape::LINES * Shape::PACKS && STEP * Shape::PACKS == THREADS,
                  "threads share a tile evenly");
    static_assert(COPIES == 1 || STEP % Place::PERIOD == 0, "packs below each other lie below each other");
    const T* from;
    index_t ld;
    int place, along, left;  // left: elements of the line, or lines below, that are there

    __device__ __forceinline__ WholeFetch(const T* ptr, index_t ld_, index_t begin, index_t size, index_t K) : ld(ld_) {
        const int line = threadIdx.x / Shape::PACKS, pack = threadIdx.x % Shape::PACKS, column = pack * Shape::VEC;
        place = Place::at(line, pack);
        from = ALONG_K ? ptr + (begin + line) * ld + column : ptr + line * ld + begin + column;
        along = static_cast<int>(K < 0x7fffffff ? K : 0x7fffffff) - (ALONG_K ? column : line);
        left = static_cast<int>(size - begin < BLOCK ? size - begin : BLOCK) - (ALONG_K ? line + 1 : column);
    }
    __device__ __forceinline__ void advance() {
        from += ALONG_K ? BLOCK_K : BLOCK_K * ld;
        along -= BLOCK_K;
    }
    __device__ __forceinline__ void next_whole(T* tile) {
        const T* at = from;
#pragma unroll
        for (int i = 0; i < COPIES; ++i, at += STEP * ld) cp_async_16(tile + place + Place::at(i * STEP, 0), at, 16);
        advance();
    }
    __device__ __forceinline__ void next(T* tile) {
        const int elements = max(min(ALONG_K ? along : left, Shape::VEC), 0);
#pragma unroll
        for (int i = 0; i < COPIES; ++i) {
            const int here = ALONG_K || along > i * STEP ? elements : 0;
            const index_t offset = (ALONG_K ? min(i * STEP, left) : i * STEP) * ld;
            cp_async_16(tile + place + Place::at(i * STEP, 0), from + offset, here * static_cast<int>(sizeof(T)));
        }
        advance();
    }
};

// ---- tensor_core, its fragments a step ahead, across the barrier -----------------------------------------

// Where a lane's rows of a warp's 16-wide matrices lie in a swizzled tile: computed once.
template <typename T, bool ALONG_K, int BLOCK, int BLOCK_K, int COUNT>
struct MatrixReads {
    using Tile = SwizzledTile<T, ALONG_K, BLOCK, BLOCK_K>;
    static constexpr int OFFSETS = ALONG_K ? BLOCK_K / 16 : COUNT;
    int offset[OFFSETS];

    __device__ __forceinline__ MatrixReads(int begin, int across1, int k1, int across2, int k2) {
        const int lane = threadIdx.x % WARP, row = lane % 8;
        const bool first = lane / 8 % 2, second = lane / 16;
        const int across = begin + (first ? across1 : 0) + (second ? across2 : 0);
        const int k = (first ? k1 : 0) + (second ? k2 : 0);
#pragma unroll
        for (int i = 0; i < OFFSETS; ++i) {
            offset[i] = ALONG_K ? Tile::at(across + row, (k + i * 16) / 8) : Tile::at(k + row, (across + i * 16) / 8);
        }
    }
    __device__ __forceinline__ void load(unsigned (&matrix)[4], const T* tile, int i, int step) const {
        if constexpr (ALONG_K) {
            ldmatrix_x4(matrix, tile + offset[step] + i * 16 * Tile::LENGTH);
        } else {
            ldmatrix_x4_trans(matrix, tile + offset[i] + step * 16 * Tile::LENGTH);
        }
    }
};

template <typename T, bool A_BY_ROWS, bool B_BY_ROWS, int BLOCK_M, int BLOCK_N, int BLOCK_K, int WARPS_M,
          int WARPS_N, int STAGES, int BLOCKS, int GROUP_M, int TWO_LOOPS>
__global__ __launch_bounds__(WARPS_M * WARPS_N * WARP,
                             BLOCKS) void tune_tensor_core_kernel(const T* a_ptr, const T* b_ptr, T* c_ptr,
                                                                  index_t M, index_t N, index_t K, index_t lda,
                                                                  index_t ldb) {
    constexpr int THREADS = WARPS_M * WARPS_N * WARP, STEPS = BLOCK_K / 16;
    constexpr int WARP_M = BLOCK_M / WARPS_M, WARP_N = BLOCK_N / WARPS_N;
    constexpr int MATRICES_M = WARP_M / 16, MATRICES_N = WARP_N / 8;
    using ATile = SwizzledTile<T, A_BY_ROWS, BLOCK_M, BLOCK_K>;
    using BTile = SwizzledTile<T, !B_BY_ROWS, BLOCK_N, BLOCK_K>;
    static_assert(STEPS % 2 == 0, "fragments change places every step");
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

    WholeFetch<T, A_BY_ROWS, BLOCK_M, BLOCK_K, THREADS, ATile> a_fetch(a_ptr, lda, begin_m, M, K);
    WholeFetch<T, !B_BY_ROWS, BLOCK_N, BLOCK_K, THREADS, BTile> b_fetch(b_ptr, ldb, begin_n, N, K);
    const bool inside = begin_m + BLOCK_M <= M && begin_n + BLOCK_N <= N;
    const int whole_tiles = inside ? static_cast<int>(K / BLOCK_K) : 0;
    int whole = whole_tiles;  // tiles to come that are
    const auto fetch = [&](int stage) {
        if (--whole >= 0) {
            a_fetch.next_whole(a_tiles + stage * ATile::ELEMENTS);
            b_fetch.next_whole(b_tiles + stage * BTile::ELEMENTS);
        } else {
            a_fetch.next(a_tiles + stage * ATile::ELEMENTS);
            b_fetch.next(b_tiles + stage * BTile::ELEMENTS);
        }
        cp_async_commit();
    };
    const auto fetch_whole = [&](int stage) {
        a_fetch.next_whole(a_tiles + stage * ATile::ELEMENTS);
        b_fetch.next_whole(b_tiles + stage * BTile::ELEMENTS);
        cp_async_commit();
    };
    const auto fetch_rest = [&](int stage) {
        a_fetch.next(a_tiles + stage * ATile::ELEMENTS);
        b_fetch.next(b_tiles + stage * BTile::ELEMENTS);
        cp_async_commit();
    };
#pragma unroll
    for (int stage = 0; stage < STAGES - 1; ++stage) fetch(stage);

    const MatrixReads<T, A_BY_ROWS, BLOCK_M, BLOCK_K, MATRICES_M> a_reads(warp_m, 8, 0, 0, 8);
    const MatrixReads<T, !B_BY_ROWS, BLOCK_N, BLOCK_K, MATRICES_N / 2> b_reads(warp_n, 0, 8, 8, 0);
    unsigned a[2][MATRICES_M][4], b[2][MATRICES_N / 2][4];
    const auto load_step = [&](int stage, int step) {
        const T* a_tile = a_tiles + stage * ATile::ELEMENTS;
        const T* b_tile = b_tiles + stage * BTile::ELEMENTS;
#pragma unroll
        for (int i = 0; i < MATRICES_M; ++i) a_reads.load(a[step % 2][i], a_tile, i, step);
#pragma unroll
        for (int j = 0; j < MATRICES_N / 2; ++j) b_reads.load(b[step % 2][j], b_tile, j, step);
    };

    float sum[MATRICES_M][MATRICES_N][4] = {};
    const auto multiply_step = [&](int step) {
#pragma unroll
        for (int i = 0; i < MATRICES_M; ++i) {
#pragma unroll
            for (int jj = 0; jj < MATRICES_N; ++jj) {
                const int j = i % 2 ? MATRICES_N - 1 - jj : jj;  // there and back: one of both stays
                mma_m16n8k16<T>(sum[i][j], a[step % 2][i], b[step % 2][j / 2][j % 2 * 2],
                                b[step % 2][j / 2][j % 2 * 2 + 1]);
            }
        }
    };
    const int tiles_k = static_cast<int>((K + BLOCK_K - 1) / BLOCK_K);
    int stage = 0, free_stage = STAGES - 1;
#pragma unroll
    for (int i = 0; i < MATRICES_M; ++i) a[1][i][0] = a[1][i][1] = a[1][i][2] = a[1][i][3] = 0;
#pragma unroll
    for (int j = 0; j < MATRICES_N / 2; ++j) b[1][j][0] = b[1][j][1] = b[1][j][2] = b[1][j][3] = 0;
    cp_async_wait<STAGES - 2>();
    __syncthreads();
    load_step(0, 0);
    const auto turn = [&](const auto& fetch_next) {
        // The last step of the tile before (at first, zeros): what to do while this tile's first step arrives.
        multiply_step(STEPS - 1);
#pragma unroll
        for (int step = 1; step < STEPS; ++step) {
            load_step(stage, step);
            if (step == 1) fetch_next(free_stage);
            multiply_step(step - 1);
        }
        free_stage = stage;
        stage = stage + 1 == STAGES ? 0 : stage + 1;
        cp_async_wait<STAGES - 2>();
        __syncthreads();  // the next tile is there, and all have read this one
        load_step(stage, 0);
    };
    if constexpr (TWO_LOOPS) {
        int tile = 0;
        for (; tile + STAGES - 1 < whole_tiles; ++tile) turn(fetch_whole);
        for (; tile < tiles_k; ++tile) turn(fetch_rest);
    } else {
        for (int tile = 0; tile < tiles_k; ++tile) turn(fetch);
    }
    multiply_step(STEPS - 1);

    const bool in_pairs = N % 2 == 0;
#pragma unroll
    for (int i = 0; i < MATRICES_M; ++i) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const index_t m = begin_m + warp_m + i * 16 + half * 8 + lane / 4;
            if (m >= M) continue;
#pragma unroll
            for (int j = 0; j < MATRICES_N; ++j) {
                const index_t n = begin_n + warp_n + j * 8 + lane % 4 * 2;
                const T two[2] = {from_float<T>(sum[i][j][half * 2]), from_float<T>(sum[i][j][half * 2 + 1])};
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

// ---- register: fp32; fragments a step ahead, a tile of lines along K transposed on its way ---------------

// Lies across K, whatever way it came: BLOCK_K lines of BLOCK, 4 more apart, so that what a warp writes of 8
// lines and 4 columns lies in 32 banks.
template <bool ALONG_K, int BLOCK, int BLOCK_K, int THREADS>
struct AcrossTile {
    static constexpr int PITCH = BLOCK + (ALONG_K ? 4 : 0);
    static constexpr int PERIOD = 1;
    static constexpr int ELEMENTS = BLOCK_K * PITCH;
    static __device__ __forceinline__ int at(int line, int pack) { return line * PITCH + pack * 4; }
};

template <bool ALONG_K, int BLOCK, int BLOCK_K, int THREADS>
struct AcrossFetch : WholeFetch<float, false, BLOCK, BLOCK_K, THREADS, AcrossTile<false, BLOCK, BLOCK_K, THREADS>> {
    using Base = WholeFetch<float, false, BLOCK, BLOCK_K, THREADS, AcrossTile<false, BLOCK, BLOCK_K, THREADS>>;
    using Base::Base;
};
template <int BLOCK, int BLOCK_K, int THREADS>
struct AcrossFetch<true, BLOCK, BLOCK_K, THREADS> {
    using Tile = AcrossTile<true, BLOCK, BLOCK_K, THREADS>;
    static constexpr int STEP = THREADS / 8, ROWS = BLOCK / STEP, EIGHTS = BLOCK_K / 8;
    static_assert(ROWS * STEP == BLOCK && EIGHTS * 8 == BLOCK_K, "threads share a tile evenly");
    const float* from;
    index_t ld;
    int place, along, left;
    __device__ __forceinline__ AcrossFetch(const float* ptr, index_t ld_, index_t begin, index_t size, index_t K)
        : ld(ld_) {
        const int k = threadIdx.x % 8, row = threadIdx.x / 8;
        from = ptr + (begin + row) * ld + k;
        place = k * Tile::PITCH + row;
        along = static_cast<int>(K < 0x7fffffff ? K : 0x7fffffff) - k;
        left = static_cast<int>(size - begin < BLOCK ? size - begin : BLOCK) - row - 1;
    }
    template <bool WHOLE>
    __device__ __forceinline__ void copy(float* tile) {
        const float* at = from;
#pragma unroll
        for (int i = 0; i < ROWS; ++i, at += STEP * ld) {
            if (!WHOLE) at = from + min(i * STEP, left) * ld;
#pragma unroll
            for (int e = 0; e < EIGHTS; ++e) {
                cp_async_4(tile + place + e * 8 * Tile::PITCH + i * STEP, at + e * 8, WHOLE || along > e * 8 ? 4 : 0);
            }
        }
        from += BLOCK_K;
        along -= BLOCK_K;
    }
    __device__ __forceinline__ void next_whole(float* tile) { copy<true>(tile); }
    __device__ __forceinline__ void next(float* tile) { copy<false>(tile); }
};

// TWO_LOOPS: whether tiles that are whole have a loop of their own.
// LANES: 0 as matmul_register_kernel's, 1 so that of 4 neighbouring lanes two share a row and two a column
template <bool A_BY_ROWS, bool B_BY_ROWS, int BLOCK_M, int BLOCK_N, int BLOCK_K, int THREAD_M, int THREAD_N,
          int STAGES, int BLOCKS, int LANES, int TWO_LOOPS>
__global__ __launch_bounds__(BLOCK_M* BLOCK_N / (THREAD_M * THREAD_N),
                             BLOCKS) void tune_register_kernel(const float* a_ptr, const float* b_ptr,
                                                               float* c_ptr, index_t M, index_t N, index_t K,
                                                               index_t lda, index_t ldb) {
    constexpr int GROUP_M = 8, THREADS_M = BLOCK_M / THREAD_M, THREADS_N = BLOCK_N / THREAD_N;
    constexpr int THREADS = THREADS_M * THREADS_N;
    using ATile = AcrossTile<A_BY_ROWS, BLOCK_M, BLOCK_K, THREADS>;
    using BTile = AcrossTile<!B_BY_ROWS, BLOCK_N, BLOCK_K, THREADS>;
    static_assert(THREADS_M % 4 == 0 && THREADS_N % 8 == 0 && BLOCK_K % 2 == 0, "a warp is 4 threads high and 8 wide");
    DYNAMIC_SHARED(float, tiles);
    float* a_tiles = tiles;
    float* b_tiles = tiles + STAGES * ATile::ELEMENTS;

    const int tiles_m = static_cast<int>((M + BLOCK_M - 1) / BLOCK_M);
    const int tiles_n = static_cast<int>((N + BLOCK_N - 1) / BLOCK_N);
    const TilePlace place = grouped_tile<GROUP_M>(blockIdx.x, tiles_m, tiles_n);
    const index_t begin_m = static_cast<index_t>(place.m) * BLOCK_M;
    const index_t begin_n = static_cast<index_t>(place.n) * BLOCK_N;
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const int lane_m = LANES ? lane % 2 + lane / 16 * 2 : lane / 8, lane_n = LANES ? lane / 2 % 8 : lane % 8;
    const int thread_m = warp / (THREADS_N / 8) * 4 + lane_m;
    const int thread_n = warp % (THREADS_N / 8) * 8 + lane_n;

    AcrossFetch<A_BY_ROWS, BLOCK_M, BLOCK_K, THREADS> a_fetch(a_ptr, lda, begin_m, M, K);
    AcrossFetch<!B_BY_ROWS, BLOCK_N, BLOCK_K, THREADS> b_fetch(b_ptr, ldb, begin_n, N, K);
    const bool inside = begin_m + BLOCK_M <= M && begin_n + BLOCK_N <= N;
    const int whole_tiles = inside ? static_cast<int>(K / BLOCK_K) : 0;
    int whole = whole_tiles;  // tiles to come that are
    const auto fetch = [&](int stage) {
        if (--whole >= 0) {
            a_fetch.next_whole(a_tiles + stage * ATile::ELEMENTS);
            b_fetch.next_whole(b_tiles + stage * BTile::ELEMENTS);
        } else {
            a_fetch.next(a_tiles + stage * ATile::ELEMENTS);
            b_fetch.next(b_tiles + stage * BTile::ELEMENTS);
        }
        cp_async_commit();
    };
    const auto fetch_whole = [&](int stage) {
        a_fetch.next_whole(a_tiles + stage * ATile::ELEMENTS);
        b_fetch.next_whole(b_tiles + stage * BTile::ELEMENTS);
        cp_async_commit();
    };
    const auto fetch_rest = [&](int stage) {
        a_fetch.next(a_tiles + stage * ATile::ELEMENTS);
        b_fetch.next(b_tiles + stage * BTile::ELEMENTS);
        cp_async_commit();
    };
#pragma unroll
    for (int stage = 0; stage < STAGES - 1; ++stage) fetch(stage);

    Pack<float, 4> a[2][THREAD_M / 4], b[2][THREAD_N / 4];
    const auto load_step = [&](int stage, int k) {
        const float* a_line = a_tiles + stage * ATile::ELEMENTS + thread_m * 4;
        const float* b_line = b_tiles + stage * BTile::ELEMENTS + thread_n * 4;
#pragma unroll
        for (int p = 0; p < THREAD_M / 4; ++p) a[k % 2][p] = load<float, 4>(a_line + ATile::at(k, p * THREADS_M));
#pragma unroll
        for (int p = 0; p < THREAD_N / 4; ++p) b[k % 2][p] = load<float, 4>(b_line + BTile::at(k, p * THREADS_N));
    };

    float sum[THREAD_M][THREAD_N] = {};
    const auto multiply_step = [&](int k) {
#pragma unroll
        for (int i = 0; i < THREAD_M; ++i) {
#pragma unroll
            for (int jj = 0; jj < THREAD_N; ++jj) {
                const int j = i % 2 ? THREAD_N - 1 - jj : jj;
                sum[i][j] += get(a[k % 2][i / 4], i % 4) * get(b[k % 2][j / 4], j % 4);
            }
        }
    };
    const int tiles_k = static_cast<int>((K + BLOCK_K - 1) / BLOCK_K);
    int stage = 0, free_stage = STAGES - 1;
    const float zeros[4] = {};
#pragma unroll
    for (int p = 0; p < THREAD_M / 4; ++p) set(a[1][p], zeros);
#pragma unroll
    for (int p = 0; p < THREAD_N / 4; ++p) set(b[1][p], zeros);
    cp_async_wait<STAGES - 2>();
    __syncthreads();
    load_step(0, 0);
    const auto turn = [&](const auto& fetch_next) {
        multiply_step(BLOCK_K - 1);
#pragma unroll
        for (int k = 1; k < BLOCK_K; ++k) {
            load_step(stage, k);
            if (k == 1) fetch_next(free_stage);
            multiply_step(k - 1);
        }
        free_stage = stage;
        stage = stage + 1 == STAGES ? 0 : stage + 1;
        cp_async_wait<STAGES - 2>();
        __syncthreads();
        load_step(stage, 0);
    };
    if constexpr (TWO_LOOPS) {
        int tile = 0;
        for (; tile + STAGES - 1 < whole_tiles; ++tile) turn(fetch_whole);
        for (; tile < tiles_k; ++tile) turn(fetch_rest);
    } else {
        for (int tile = 0; tile < tiles_k; ++tile) turn(fetch);
    }
    multiply_step(BLOCK_K - 1);

#pragma unroll
    for (int i = 0; i < THREAD_M; ++i) {
        const index_t m = begin_m + (i / 4 * THREADS_M + thread_m) * 4 + i % 4;
        if (m >= M) continue;
        float* c_row = c_ptr + m * N;
#pragma unroll
        for (int j = 0; j < THREAD_N; j += 4) {
            const index_t n = begin_n + (j / 4 * THREADS_N + thread_n) * 4;
            if (N % 4 == 0) {
                float values[4] = {sum[i][j], sum[i][j + 1], sum[i][j + 2], sum[i][j + 3]};
                Pack<float, 4> pack;
                set(pack, values);
                if (n < N) store(c_row + n, pack);
            } else {
#pragma unroll
                for (int v = 0; v < 4; ++v) {
                    if (n + v < N) c_row[n + v] = sum[i][j + v];
                }
            }
        }
    }
}

#if HAS_WGMMA

// ---- tma_store, its choices as parameters ----------------------------------------------------------------

// d[64, 192] (+)= a @ b
#define EIGHT_OF(d, i)                                                                          \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
        "+f"(d[i + 6]), "+f"(d[i + 7])
#define THIRTY_TWO_OF(d, i) EIGHT_OF(d, i), EIGHT_OF(d, i + 8), EIGHT_OF(d, i + 16), EIGHT_OF(d, i + 24)
#define TEN(t) "%" t "0, %" t "1, %" t "2, %" t "3, %" t "4, %" t "5, %" t "6, %" t "7, %" t "8, %" t "9, "
#define WGMMA_N192(type)                                                                                      \
    asm volatile(                                                                                             \
        "{\n"                                                                                                 \
        ".reg .pred adds;\n"                                                                                  \
        "setp.ne.b32 adds, %98, 0;\n"                                                                         \
        "wgmma.mma_async.sync.aligned.m64n192k16.f32." type "." type " {" TEN("") TEN("1") TEN("2") TEN("3")  \
            TEN("4") TEN("5") TEN("6") TEN("7") TEN("8") "%90, %91, %92, %93, %94, %95}, %96, %97, adds, 1, 1, " \
                                                         "%99, %100;\n"                                       \
        "}\n"                                                                                                 \
        : THIRTY_TWO_OF(d, 0), THIRTY_TWO_OF(d, 32), THIRTY_TWO_OF(d, 64)                                     \
        : "l"(a), "l"(b), "r"(static_cast<int>(add)), "n"(int(A_TRANSPOSED)), "n"(int(B_TRANSPOSED)))
template <typename T, bool A_TRANSPOSED, bool B_TRANSPOSED>
__device__ __forceinline__ void wgmma(float (&d)[96], matrix_t a, matrix_t b, bool add) {
    if constexpr (IS_BF16<T>) {
        WGMMA_N192("bf16");
    } else {
        WGMMA_N192("f16");
    }
}

// As matmul.cuh's multiply, which is declared before the wgmma above.
template <typename T, bool A_BY_ROWS, bool B_BY_ROWS, int COUNT>
__device__ __forceinline__ void tune_multiply(float (&sum)[COUNT], const unsigned char* a, const unsigned char* b,
                                              bool add) {
    constexpr int ALONG_K = 16 * 2, ACROSS_K = 16 * 128;
    const matrix_t a_first = matrix_descriptor(a, PIECE_BYTES), b_first = matrix_descriptor(b, PIECE_BYTES);
#pragma unroll
    for (int k = 0; k < PIECE / 16; ++k) {
        const matrix_t a_k = a_first + k * ((A_BY_ROWS ? ALONG_K : ACROSS_K) >> 4);
        const matrix_t b_k = b_first + k * ((B_BY_ROWS ? ACROSS_K : ALONG_K) >> 4);
        wgmma<T, !A_BY_ROWS, B_BY_ROWS>(sum, a_k, b_k, add || k > 0);
    }
}

// c is not read again here: it should not drive a and b out of the L2.
__device__ __forceinline__ void tensor_copy_to_global_first_out(const TensorMap* to, int column, int row,
                                                                const void* from) {
    asm volatile(
        "{\n"
        ".reg .b64 policy;\n"
        "createpolicy.fractional.L2::evict_first.b64 policy, 1.0;\n"
        "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group.L2::cache_hint [%0, {%1, %2}], [%3], policy;\n"
        "}\n" ::"l"(to),
        "r"(column), "r"(row), "r"(shared_address(from))
        : "memory");
}

#endif

// CLUSTER 1 or 2. SKEW: k tiles that the second consumer begins later than the first, so that one multiplies
// while the other writes c. PLACES: of a warp's pieces of c. HINT: c leaves the L2 first. DIRECT: c from
// registers. PREFETCH_C: its map is fetched at the start. LIGHT: registers do not change hands.
template <typename T, bool A_BY_ROWS, bool B_BY_ROWS, int BLOCK_N, int STAGES, int CLUSTER, int SKEW, int GROUP_M,
          int PLACES, bool HINT, bool DIRECT, bool PREFETCH_C, bool LIGHT>
__global__ __launch_bounds__((1 + CONSUMERS) * WARPGROUP, 1)
    CLUSTER_OF(CLUSTER) void tune_tma_store_kernel(const __grid_constant__ TensorMap a_map,
                                                   const __grid_constant__ TensorMap b_map,
                                                   const __grid_constant__ TensorMap c_map, T* c_ptr, int M, int N,
                                                   int K) {
#if HAS_WGMMA
    constexpr int BLOCK_M = CONSUMERS * PIECE, BLOCK_K = PIECE;
    constexpr int A_BYTES = BLOCK_M * BLOCK_K * 2, BYTES = A_BYTES + BLOCK_N * BLOCK_K * 2;
    constexpr bool SHARE_B = BLOCK_N % 128 == 0;
    constexpr int CLUSTER_M = SHARE_B ? CLUSTER : 1, CLUSTER_N = SHARE_B ? 1 : CLUSTER;
    constexpr int A_LINES = BLOCK_M / CLUSTER_N, B_LINES = BLOCK_N / CLUSTER_M;
    constexpr int PIECES_N = BLOCK_N / PIECE, WARP_BYTES = 16 * PIECE * 2;
    DYNAMIC_SHARED(unsigned char, shared);
    unsigned char* const tiles = align_1024(shared);
    __shared__ mbarrier_t full[STAGES], empty[STAGES];
    const int rank = CLUSTER > 1 ? cluster_block_rank() : 0;
    const int rank_m = SHARE_B ? rank : 0, rank_n = SHARE_B ? 0 : rank;
    const int tiles_m = (M + CLUSTER_M * BLOCK_M - 1) / (CLUSTER_M * BLOCK_M);
    const int tiles_n = (N + CLUSTER_N * BLOCK_N - 1) / (CLUSTER_N * BLOCK_N);
    const int tiles_c = tiles_m * tiles_n, tiles_k = (K + BLOCK_K - 1) / BLOCK_K;
    const int cluster = blockIdx.x / CLUSTER, clusters = gridDim.x / CLUSTER;
    const int warpgroup = __shfl_sync(FULL_WARP, threadIdx.x / WARPGROUP, 0);

    if (threadIdx.x == 0) {
        prefetch_tensor_map(&a_map);
        prefetch_tensor_map(&b_map);
        if (PREFETCH_C) prefetch_tensor_map(&c_map);
        for (int stage = 0; stage < STAGES; ++stage) {
            mbarrier_init(&full[stage], 1);
            mbarrier_init(&empty[stage], CONSUMERS * CLUSTER);
        }
        mbarrier_init_fence();
    }
    if (CLUSTER > 1) {
        __syncwarp();
        cluster_arrive_relaxed();
        cluster_wait();
    } else {
        __syncthreads();
    }
    next_grid_may_start();

    Ring<STAGES> ring;
    if (warpgroup == 0) {
        if (!LIGHT) setmaxnreg_dec<PRODUCER_REGISTERS>();
        if (threadIdx.x > 0) return;
        previous_grid_wait();
        for (int tile = cluster; tile < tiles_c; tile += clusters) {
            const TilePlace place = grouped_tile<GROUP_M>(tile, tiles_m, tiles_n);
            const int m = (place.m * CLUSTER_M + rank_m) * BLOCK_M + (SHARE_B ? 0 : rank * A_LINES);
            const int n = (place.n * CLUSTER_N + rank_n) * BLOCK_N + (SHARE_B ? rank * B_LINES : 0);
            for (int k = 0; k < tiles_k * BLOCK_K; k += BLOCK_K, ring.advance()) {
                unsigned char* const a = tiles + ring.stage * BYTES + (SHARE_B ? 0 : rank * A_LINES * BLOCK_K * 2);
                unsigned char* const b =
                    tiles + ring.stage * BYTES + A_BYTES + (SHARE_B ? rank * B_LINES * BLOCK_K * 2 : 0);
                mbarrier_t* const landed = &full[ring.stage];
                mbarrier_wait(&empty[ring.stage], ring.parity ^ 1);
                mbarrier_arrive_expect_bytes(landed, BYTES);
                fetch_tile<A_BY_ROWS, A_LINES>(a, m, k, [&](unsigned char* to, int column, int row) {
                    if constexpr (CLUSTER > 1 && !SHARE_B) {
                        tensor_copy_to_blocks(to, &a_map, column, row, landed, 0b11);
                    } else {
                        tensor_copy_to_shared(to, &a_map, column, row, landed);
                    }
                });
                fetch_tile<!B_BY_ROWS, B_LINES>(b, n, k, [&](unsigned char* to, int column, int row) {
                    if constexpr (CLUSTER > 1 && SHARE_B) {
                        tensor_copy_to_blocks(to, &b_map, column, row, landed, 0b11);
                    } else {
                        tensor_copy_to_shared(to, &b_map, column, row, landed);
                    }
                });
            }
        }
        for (int stage = 0; CLUSTER > 1 && stage < STAGES; ++stage, ring.advance()) {
            mbarrier_wait(&empty[ring.stage], ring.parity ^ 1);
        }
    } else {
        if (!LIGHT) setmaxnreg_inc<CONSUMER_REGISTERS>();
        const int consumer = warpgroup - 1;
        const int warp = threadIdx.x % WARPGROUP / WARP, lane = threadIdx.x % WARP;
        const auto release = [&](int stage) {
            const int r = threadIdx.x % WARPGROUP;
            if constexpr (CLUSTER > 1) {
                if (r < CLUSTER) mbarrier_arrive_in_block(&empty[stage], r);
            } else {
                if (r == 0) mbarrier_arrive(&empty[stage]);
            }
        };
        unsigned char* const c_warp = tiles + STAGES * BYTES + (consumer * 4 + warp) * PLACES * WARP_BYTES;
        if (SKEW > 0 && consumer == 1 && tiles_k > SKEW) mbarrier_wait(&full[SKEW], 0);
        float sum[BLOCK_N / 2];
        for (int tile = cluster; tile < tiles_c; tile += clusters) {
            const TilePlace place = grouped_tile<GROUP_M>(tile, tiles_m, tiles_n);
            int before = 0;
            for (int k = 0; k < tiles_k; ++k, ring.advance()) {
                const unsigned char* const a = tiles + ring.stage * BYTES;
                mbarrier_wait(&full[ring.stage], ring.parity);
                wgmma_fence();
                tune_multiply<T, A_BY_ROWS, B_BY_ROWS>(sum, a + consumer * PIECE_BYTES, a + A_BYTES, k > 0);
                wgmma_commit_group();
                wgmma_wait_group<1>(sum);
                if (k > 0) release(before);
                before = ring.stage;
            }
            wgmma_wait_group<0>(sum);
            release(before);

            const int m = (place.m * CLUSTER_M + rank_m) * BLOCK_M + consumer * PIECE;
            const int n = (place.n * CLUSTER_N + rank_n) * BLOCK_N;
            if (DIRECT) {
                store_sums(c_ptr, sum, m, n, M, N);
                continue;
            }
            const int row = lane % 16, first = lane / 16;
#pragma unroll
            for (int piece = 0; piece < PIECES_N; ++piece) {
                unsigned char* const c = c_warp + piece % PLACES * WARP_BYTES;
                if (lane == 0) bulk_wait_group_read<PLACES - 1>();
                __syncwarp();
#pragma unroll
                for (int j = 0; j < PIECE / 8; j += 2) {
                    const float* const own = sum + piece * (PIECE / 2) + j * 4;
                    stmatrix_x4(c + row * 128 + ((j + first) ^ row % 8) * 16, two_of<T>(own[0], own[1]),
                                two_of<T>(own[2], own[3]), two_of<T>(own[4], own[5]),
                                two_of<T>(own[6], own[7]));
                }
                fence_proxy_async();
                __syncwarp();
                if (lane == 0) {
                    if (HINT) {
                        tensor_copy_to_global_first_out(&c_map, n + piece * PIECE, m + warp * 16, c);
                    } else {
                        tensor_copy_to_global(&c_map, n + piece * PIECE, m + warp * 16, c);
                    }
                    bulk_commit_group();
                }
            }
        }
        if (!DIRECT && lane == 0) bulk_wait_group_read<0>();
    }
#endif
}
