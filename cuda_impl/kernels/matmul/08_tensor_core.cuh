// matmul, level 8, tensor_core. Change: the tensor cores multiply. A thread's 128 multiply-adds per step
// become a warp's mma.m16n8k16, 2048 per instruction; ldmatrix distributes fragments to lanes, row- or
// column-major, so that no operand is transposed on the way. An XOR swizzle replaces the padding. 16-bit
// elements, sm_75; bf16 from sm_80.
#pragma once

#include "common.cuh"
#include "matmul/tiles.cuh"
#include "tensor_core.cuh"

// XOR swizzle, so that ldmatrix is conflict-free: a 16-byte vector's position in its line is its index XOR
// the line's number. The eight vectors that ldmatrix reads at a time, of eight lines, are then in different
// banks, and no memory is spent on padding. Returns an offset in elements.
template <int LENGTH>
__device__ __forceinline__ int swizzle(int line, int vector) {
    constexpr int VECTORS = LENGTH / 8;
    static_assert(VECTORS == 4 || VECTORS % 8 == 0, "lines of 64 bytes, or of 128 and multiples");
    return line * LENGTH + (vector ^ (VECTORS == 4 ? line >> 1 & 3 : line & 7)) * 8;
}

// cp.async of a block's tiles of a (b), one after another along K, each with the lines that memory has. A
// thread copies the same vectors of every tile.
template <typename T, bool ALONG_K, int BLOCK, int BLOCK_K, int THREADS>
struct SwizzledCopy {
    static constexpr int LINES = ALONG_K ? BLOCK : BLOCK_K, LENGTH = ALONG_K ? BLOCK_K : BLOCK;
    static constexpr int STEP = THREADS / (LENGTH / 8);  // lines between a thread's copies
    static_assert(LINES % STEP == 0 && STEP % 8 == 0, "threads share a tile evenly, whole swizzles apart");

    const T* from;
    index_t ld;
    int offset;  // in the tile
    int along;   // along K: elements left in the thread's line; across K: lines left below it
    int across;  // along K: lines from the thread's to the last; across K: elements left in the thread's line

    // The tiles start at `begin` along M (N), which is `size` long.
    __device__ __forceinline__ SwizzledCopy(const T* ptr, index_t ld, index_t begin, index_t size, index_t K)
        : ld(ld) {
        const int line = threadIdx.x / (LENGTH / 8), vector = threadIdx.x % (LENGTH / 8), column = vector * 8;
        offset = swizzle<LENGTH>(line, vector);
        from = ALONG_K ? ptr + (begin + line) * ld + column : ptr + line * ld + begin + column;
        along = at_most(K, 0x7fffffff) - (ALONG_K ? column : line);
        across = at_most(size - begin, BLOCK) - (ALONG_K ? line + 1 : column);
    }

    // Starts the copies of the next tile. If the tile is not `whole`, elements past the end of K become 0.
    // Missing lines along K repeat the last line: they contribute to no valid element of c.
    __device__ __forceinline__ void next(T* tile, bool whole) {
        const int elements = max(min(ALONG_K ? along : across, 8), 0);
        const T* line = from;
#pragma unroll
        for (int i = 0; i < LINES; i += STEP, line += STEP * ld) {
            if (ALONG_K && !whole) line = from + min(i, across) * ld;
            const int bytes = whole ? 16 : ALONG_K || along > i ? elements * 2 : 0;
            cp_async_16(tile + offset + i * LENGTH, line, bytes);
        }
        from += ALONG_K ? BLOCK_K : BLOCK_K * ld;
        along -= BLOCK_K;
    }
};

// ldmatrix of a warp's share of a tile, 16 along M (N) by 16 along K at a time. This lane gives the address
// of the row `across` along M (N) and k. The swizzle repeats every 16 lines: offsets along a line are kept.
template <typename T, bool ALONG_K, int LENGTH, int COUNT>
struct MatrixRows {
    int offset[COUNT];

    __device__ __forceinline__ MatrixRows(int across, int k) {
        const int line = (ALONG_K ? across : k) + threadIdx.x % 8, vector = (ALONG_K ? k : across) / 8;
#pragma unroll
        for (int i = 0; i < COUNT; ++i) offset[i] = swizzle<LENGTH>(line, vector + i * 2);
    }

    __device__ __forceinline__ void load(unsigned (&matrix)[4], const T* tile, int i, int step) const {
        if constexpr (ALONG_K) {
            ldmatrix_x4(matrix, tile + offset[step] + i * 16 * LENGTH);
        } else {
            ldmatrix_x4_trans(matrix, tile + offset[i] + step * 16 * LENGTH);
        }
    }
};

// The tile of a[M,K] @ b[K,N] -> c[M,N] that begins at (begin_m, begin_n), for WARPS_M x WARPS_N warps. A
// warp computes an equal share as 16 x 8 matrices. One tile of a and b is used, STAGES - 1 are in flight.
template <
    typename T, bool A_BY_ROWS, bool B_BY_ROWS, int BLOCK_M, int BLOCK_N, int BLOCK_K, int WARPS_M,
    int WARPS_N, int STAGES, typename Epilogue>
__device__ __forceinline__ void multiply_tile(
    const T* a_ptr, const T* b_ptr, T* c_ptr, index_t M, index_t N, index_t K, index_t lda, index_t ldb,
    index_t begin_m, index_t begin_n, const Epilogue& epilogue) {
    constexpr int THREADS = WARPS_M * WARPS_N * WARP, STEPS = BLOCK_K / 16;
    constexpr int WARP_M = BLOCK_M / WARPS_M, WARP_N = BLOCK_N / WARPS_N;  // a warp's share
    constexpr int MATRICES_M = WARP_M / 16, MATRICES_N = WARP_N / 8;
    using ACopy = SwizzledCopy<T, A_BY_ROWS, BLOCK_M, BLOCK_K, THREADS>;
    using BCopy = SwizzledCopy<T, !B_BY_ROWS, BLOCK_N, BLOCK_K, THREADS>;
    static_assert(
        MATRICES_M * 16 == WARP_M && MATRICES_N * 8 == WARP_N && MATRICES_N % 2 == 0,
        "a warp's share is whole matrices");
    static_assert(BLOCK_K % 32 == 0, "two steps at least");
    DYNAMIC_SHARED(T, a_tiles);
    T* b_tiles = a_tiles + STAGES * BLOCK_M * BLOCK_K;
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const int warp_m = warp / WARPS_N * WARP_M, warp_n = warp % WARPS_N * WARP_N;

    ACopy a_copy(a_ptr, lda, begin_m, M, K);
    BCopy b_copy(b_ptr, ldb, begin_n, N, K);
    const bool inside = begin_m + BLOCK_M <= M && begin_n + BLOCK_N <= N;
    int whole = inside ? at_most(K / BLOCK_K, 0x7fffffff) : 0;  // complete tiles not yet fetched
    const auto fetch = [&](int stage) {
        T* a_tile = a_tiles + stage * BLOCK_M * BLOCK_K;
        T* b_tile = b_tiles + stage * BLOCK_N * BLOCK_K;
        if (--whole >= 0) {
            a_copy.next(a_tile, true);
            b_copy.next(b_tile, true);
        } else {
            a_copy.next(a_tile, false);
            b_copy.next(b_tile, false);
        }
        cp_async_commit();
    };
#pragma unroll
    for (int stage = 0; stage < STAGES - 1; ++stage) fetch(stage);

    float sum[MATRICES_M][MATRICES_N][4] = {};
    unsigned a[2][MATRICES_M][4] = {}, b[2][MATRICES_N / 2][4] = {};  // this step's, and the next one's
    // Of the four 8 x 8 matrices of an ldmatrix, lanes 8 to 15 address the one 8 rows of a down, or 8 along K
    // in b; lanes 16 to 23 the one 8 along K in a, or 8 columns of b on; lanes 24 to 31 the one with both
    // steps.
    const int first = lane / 8 % 2 * 8, second = lane / 16 * 8;
    const MatrixRows<T, A_BY_ROWS, ACopy::LENGTH, A_BY_ROWS ? STEPS : MATRICES_M> a_rows(
        warp_m + first, second);
    const MatrixRows<T, !B_BY_ROWS, BCopy::LENGTH, B_BY_ROWS ? MATRICES_N / 2 : STEPS> b_rows(
        warp_n + second, first);
    const auto load_step = [&](int stage, int step) {
        const T* a_tile = a_tiles + stage * BLOCK_M * BLOCK_K;
        const T* b_tile = b_tiles + stage * BLOCK_N * BLOCK_K;
#pragma unroll
        for (int i = 0; i < MATRICES_M; ++i) a_rows.load(a[step % 2][i], a_tile, i, step);
#pragma unroll
        for (int j = 0; j < MATRICES_N / 2; ++j) b_rows.load(b[step % 2][j], b_tile, j, step);
    };
    const auto multiply_step = [&](int step) {
#pragma unroll
        for (int i = 0; i < MATRICES_M; ++i) {
#pragma unroll
            for (int next = 0; next < MATRICES_N; ++next) {
                const int j = i % 2 == 0 ? next : MATRICES_N - 1 - next;  // serpentine order: operand reuse
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
                const T two[2] = {T(sums.x), T(sums.y)};
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

// a[M,K] @ b[K,N] -> c[M,N]. Grid: one block per tile of c of BLOCK_M x BLOCK_N, grouped order.
template <
    typename T, bool A_BY_ROWS, bool B_BY_ROWS, int BLOCK_M, int BLOCK_N, int BLOCK_K, int WARPS_M,
    int WARPS_N, int STAGES, typename Epilogue>
__device__ __forceinline__ void multiply_by_tensor_cores(
    const T* a_ptr, const T* b_ptr, T* c_ptr, index_t M, index_t N, index_t K, index_t lda, index_t ldb,
    const Epilogue& epilogue) {
    constexpr int GROUP_M = 8;
    const int tiles_m = static_cast<int>((M + BLOCK_M - 1) / BLOCK_M);
    const int tiles_n = static_cast<int>((N + BLOCK_N - 1) / BLOCK_N);
    const TileCoordinates at = grouped_tile<GROUP_M>(blockIdx.x, tiles_m, tiles_n);
    const index_t begin_m = static_cast<index_t>(at.m) * BLOCK_M;
    const index_t begin_n = static_cast<index_t>(at.n) * BLOCK_N;
    multiply_tile<T, A_BY_ROWS, B_BY_ROWS, BLOCK_M, BLOCK_N, BLOCK_K, WARPS_M, WARPS_N, STAGES>(
        a_ptr, b_ptr, c_ptr, M, N, K, lda, ldb, begin_m, begin_n, epilogue);
}

template <
    typename T, bool A_BY_ROWS, bool B_BY_ROWS, int BLOCK_M, int BLOCK_N, int BLOCK_K, int WARPS_M,
    int WARPS_N, int STAGES, int BLOCKS>
__global__ __launch_bounds__(WARPS_M * WARPS_N * WARP, BLOCKS) void matmul_tensor_core_kernel(
    const T* a_ptr, const T* b_ptr, T* c_ptr, index_t M, index_t N, index_t K, index_t lda, index_t ldb) {
    multiply_by_tensor_cores<T, A_BY_ROWS, B_BY_ROWS, BLOCK_M, BLOCK_N, BLOCK_K, WARPS_M, WARPS_N, STAGES>(
        a_ptr, b_ptr, c_ptr, M, N, K, lda, ldb, Identity());
}
