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
          int WARPS_N, int STAGES, int BLOCKS, int GROUP_M>
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
    int whole = inside ? static_cast<int>(K / BLOCK_K) : 0;  // tiles to come that are
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
    for (int tile = 0; tile < tiles_k; ++tile) {
        // The last step of the tile before (at first, zeros): what to do while this tile's first step arrives.
        multiply_step(STEPS - 1);
#pragma unroll
        for (int step = 1; step < STEPS; ++step) {
            load_step(stage, step);
            if (step == 1) fetch(free_stage);
            multiply_step(step - 1);
        }
        free_stage = stage;
        stage = stage + 1 == STAGES ? 0 : stage + 1;
        cp_async_wait<STAGES - 2>();
        __syncthreads();  // the next tile is there, and all have read this one
        load_step(stage, 0);
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

// LANES: 0 as matmul_register_kernel's, 1 so that of 4 neighbouring lanes two share a row and two a column
template <bool A_BY_ROWS, bool B_BY_ROWS, int BLOCK_M, int BLOCK_N, int BLOCK_K, int THREAD_M, int THREAD_N,
          int STAGES, int BLOCKS, int LANES>
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
    int whole = inside ? static_cast<int>(K / BLOCK_K) : 0;
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
    for (int tile = 0; tile < tiles_k; ++tile) {
        multiply_step(BLOCK_K - 1);
#pragma unroll
        for (int k = 1; k < BLOCK_K; ++k) {
            load_step(stage, k);
            if (k == 1) fetch(free_stage);
            multiply_step(k - 1);
        }
        free_stage = stage;
        stage = stage + 1 == STAGES ? 0 : stage + 1;
        cp_async_wait<STAGES - 2>();
        __syncthreads();
        load_step(stage, 0);
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
