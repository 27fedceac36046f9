// matmul, level 15, skinny. Change: for few rows of a the kernel is a copy of b that multiplies on the way:
// its speed is that of the loads in flight. A tile of c has the 16 rows of mma.m16n8k16, where wgmma
// takes 64. Warps share no tile of a and b: each has stages of its own, filled by cp.async, multiplies terms
// of its own, and waits for no other warp. With 8 warps, 2 stages and 64 x 64 elements of b in each, 128 KB
// are in flight on a multiprocessor. 16-bit elements, sm_75; bf16 from sm_80.
//
// Steps of 64 terms of a tile go to 4 warps with 2 stages:
//
//   a[m:, :] |  0  |  1  |  2  |  3  |  4  |  5  |  6  |  7  | ...
//   warp        0     1     2     3     0     1     2     3
//   stage       0     0     0     0     1     1     1     1
//
// The blocks of a cluster divide them too, where c has few tiles (SPLIT). All sums are added in a fixed
// order.
#pragma once

#include "common.cuh"
#include "matmul/08_tensor_core.cuh"
#include "matmul/14_split_k.cuh"
#include "tensor_core.cuh"

// A warp's cp.async of LINES lines of 64 elements. A lane copies 16 bytes of each fourth line, of which
// `bytes` exist, to the swizzled tile; lines from `lines` on become 0.
template <int LINES, typename T>
__device__ __forceinline__ void fetch_lines(T* tile, const T* from, index_t ld, int lines, int bytes) {
    const int lane = threadIdx.x % WARP;
#pragma unroll
    for (int line = lane / 8; line < LINES; line += 4, from += 4 * ld) {
        cp_async_16(tile + swizzle<64>(line, lane % 8), from, line < lines ? bytes : 0);
    }
}

// Bytes of this lane's 8 elements of a line of which `left` elements are left.
__device__ __forceinline__ int bytes_of_lane(index_t left) {
    return max(at_most(left - threadIdx.x % 8 * 8, 8), 0) * 2;
}

// Grid: a cluster of SPLIT blocks per tile of c, 16 rows by 64 columns; down c first, as these tiles share b.
template <typename T, bool B_BY_ROWS, int WARPS, int STAGES, int SPLIT>
__global__ __launch_bounds__(WARPS* WARP, 1) CLUSTER_OF(SPLIT) void matmul_skinny_kernel(
    const T* a_ptr, const T* b_ptr, T* c_ptr, index_t M, index_t N, index_t K, index_t lda, index_t ldb) {
    constexpr int ROWS = 16, BLOCK_N = 64, BLOCK_K = 64, A_TILE = ROWS * BLOCK_K, B_TILE = BLOCK_K * BLOCK_N;
    constexpr int QUADS = BLOCK_N / 4, PITCH = QUADS + 2;  // of a row; padded: conflict-free
    constexpr int WARP_ELEMENTS = STAGES * (A_TILE + B_TILE), STRIDE = SPLIT * WARPS * BLOCK_K;
    DYNAMIC_SHARED(T, tiles);
    [[maybe_unused]] __shared__ float4 of_blocks[SPLIT][(ROWS * QUADS + SPLIT - 1) / SPLIT];
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const int rank = static_cast<int>(blockIdx.x % SPLIT);
    const index_t tile = blockIdx.x / SPLIT, tiles_m = (M + ROWS - 1) / ROWS;
    const index_t m = tile % tiles_m * ROWS, n = tile / tiles_m * BLOCK_N;
    const int rows = at_most(M - m, ROWS);
    c_ptr += m * N;
    T* const own = tiles + warp * WARP_ELEMENTS;
    index_t k = (rank * WARPS + warp) * BLOCK_K;
    const int steps = static_cast<int>((K - k + STRIDE - 1) / STRIDE);  // of this warp
    const T* a = a_ptr + (m + lane / 8) * lda + k + lane % 8 * 8;
    const T* b = b_ptr + (B_BY_ROWS ? (k + lane / 8) * ldb + n : (n + lane / 8) * ldb + k) + lane % 8 * 8;
    const int first = lane / 8 % 2 * 8, second = lane / 16 * 8;  // as in tensor_core
    const MatrixRows<T, true, BLOCK_K, 4> a_rows(first, second);
    const MatrixRows<T, !B_BY_ROWS, 64, 4> b_rows(second, first);
#if HAS_WGMMA_LEVELS
    if constexpr (SPLIT > 1) cluster_arrive_relaxed();
    next_grid_may_start();
    previous_grid_wait();
#endif

    float sum[8][4] = {};
    int stage = 0;
#pragma unroll 1
    for (int step = -STAGES; step < steps; ++step) {  // the first STAGES only fetch
        T* const a_tile = own + stage * (A_TILE + B_TILE);
        T* const b_tile = a_tile + A_TILE;
        if (step >= 0) {
            cp_async_wait<STAGES - 1>();
            __syncwarp();
#pragma unroll
            for (int i = 0; i < BLOCK_K / 16; ++i) {
                unsigned terms[4], two[4];
                a_rows.load(terms, a_tile, 0, i);
#pragma unroll
                for (int j = 0; j < 8; j += 2) {
                    b_rows.load(two, b_tile, j / 2, i);
                    mma_m16n8k16<T>(sum[j], terms, two[0], two[1]);
                    mma_m16n8k16<T>(sum[j + 1], terms, two[2], two[3]);
                }
            }
            __syncwarp();  // all lanes have read the stage that is filled next
        }
        if (step + STAGES < steps) {
            const int along_k = bytes_of_lane(K - k);
            fetch_lines<ROWS>(a_tile, a, lda, rows, along_k);
            fetch_lines<64>(
                b_tile, b, ldb, at_most(B_BY_ROWS ? K - k : N - n, 64),
                B_BY_ROWS ? bytes_of_lane(N - n) : along_k);
            a += STRIDE;
            b += B_BY_ROWS ? STRIDE * ldb : STRIDE;
            k += STRIDE;
        }
        cp_async_commit();
        stage = stage + 1 == STAGES ? 0 : stage + 1;
    }

    // A warp's sums replace its stages. Lane 4g + t has columns 2t and 2t + 1 of each 8, of rows g and g + 8.
    cp_async_wait<0>();
    __syncwarp();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int row = lane / 4 + half * 8;
        float2* const of_row = reinterpret_cast<float2*>(reinterpret_cast<float4*>(own) + row * PITCH);
#pragma unroll
        for (int j = 0; j < 8; ++j) {
            if (row < rows) of_row[j * 4 + lane % 4] = make_float2(sum[j][half * 2], sum[j][half * 2 + 1]);
        }
    }
    __syncthreads();
#if HAS_WGMMA_LEVELS
    if constexpr (SPLIT > 1) cluster_wait();  // the other blocks run: their shared memory can be written
#endif
    const auto store = [&](int q, const float4& total) {
        const index_t row = q / QUADS, column = n + q % QUADS * 4;
        const float of_columns[] = {total.x, total.y, total.z, total.w};
#pragma unroll
        for (int v = 0; v < 4; ++v) {
            if (column + v < N) c_ptr[row * N + column + v] = T(of_columns[v]);
        }
    };
    for (int q = threadIdx.x; q < rows * QUADS; q += WARPS * WARP) {
        float4 total = make_float4(0, 0, 0, 0);
#pragma unroll
        for (int other = 0; other < WARPS; ++other) {
            const float4* const sums = reinterpret_cast<const float4*>(tiles + other * WARP_ELEMENTS);
            add_quad(total, sums[q / QUADS * PITCH + q % QUADS]);
        }
        if constexpr (SPLIT == 1) store(q, total);
#if HAS_WGMMA_LEVELS
        if constexpr (SPLIT > 1) store_to_block(&of_blocks[rank][q / SPLIT], q % SPLIT, total);
#endif
    }
#if HAS_WGMMA_LEVELS
    if constexpr (SPLIT > 1) {
        cluster_sync();
        for (int q = threadIdx.x; q * SPLIT + rank < rows * QUADS; q += WARPS * WARP) {
            float4 total = of_blocks[0][q];
#pragma unroll
            for (int block = 1; block < SPLIT; ++block) add_quad(total, of_blocks[block][q]);
            store(q * SPLIT + rank, total);
        }
    }
#endif
}
