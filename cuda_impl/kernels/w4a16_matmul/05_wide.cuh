// w4a16_matmul, level 5, wide. For many rows of a, where the tensor cores are the limit. Changes: (1) A
// warpgroup multiplies two pieces, 128 columns of y, and so a tile of 256 columns needs a half as often from
// the L2. (2) Weights are scaled in registers, and rounded to a's dtype as a library's would be: wgmma then
// adds all groups in one set of sums, 128 registers. (3) One piece is dequantized while the tensor cores
// multiply the other. sm_90a.
#pragma once

#include "w4a16_matmul/pieces.cuh"

#if HAS_WGMMA_LEVELS

// Both halves of a word times the scale.
template <typename T>
__device__ __forceinline__ unsigned scaled(unsigned pair, unsigned scale) {
    using Pair = typename Int4<T>::Pair;
    const Pair two = __hmul2(reinterpret_cast<const Pair&>(pair), reinterpret_cast<const Pair&>(scale));
    return reinterpret_cast<const unsigned&>(two);
}

#endif  // HAS_WGMMA_LEVELS

// As transposed, with tiles of BLOCK_M rows and 128 columns per consumer warpgroup. parts[blocks,tile],
// ready[blocks,warps].
template <typename T, int BLOCK_M, int WARPGROUPS, int STAGES>
__global__ __launch_bounds__((WARPGROUPS + 1) * WARPGROUP, 1) void w4a16_matmul_wide_kernel(
    const __grid_constant__ TensorMap a_map, const unsigned char* pieces_ptr, T* y_ptr, float* parts_ptr,
    unsigned* ready_ptr, index_t M, index_t N, index_t K, int evict_first) {
#if HAS_WGMMA_LEVELS
    constexpr int PIECES = 2 * WARPGROUPS, BLOCK_N = PIECES * PIECE_N, WARPS = WARPGROUPS * 4;
    constexpr int CONSUMERS = WARPGROUPS * WARPGROUP;
    constexpr int A_HALF = BLOCK_M * 128, A_BYTES = 2 * A_HALF, W_BYTES = PIECES * PIECE_BYTES;
    DYNAMIC_SHARED(unsigned char, shared);
    unsigned char* const a_tiles = align_1024(shared);
    unsigned char* const w_tiles = a_tiles + STAGES * A_BYTES;
    __shared__ mbarrier_t full[STAGES], empty[STAGES];

    const int tiles_m = static_cast<int>((M + BLOCK_M - 1) / BLOCK_M);
    const int tiles_n = static_cast<int>((N + BLOCK_N - 1) / BLOCK_N);
    const int pieces_n = static_cast<int>((N + PIECE_N - 1) / PIECE_N);
    const int groups = static_cast<int>((K + GROUP - 1) / GROUP), units = tiles_m * tiles_n * groups;
    const int block = blockIdx.x, first = share_begin(units, block), last = share_begin(units, block + 1);
    const int warp = __shfl_sync(FULL_WARP, threadIdx.x / WARP, 0);  // now warp-uniform

    if (threadIdx.x == CONSUMERS) {
        prefetch_tensor_map(&a_map);
        for (int stage = 0; stage < STAGES; ++stage) {
            mbarrier_init(&full[stage], 1);
            mbarrier_init(&empty[stage], WARPS);
        }
        mbarrier_init_fence();
    }
    __syncthreads();

    Ring<STAGES> ring;
    if (warp >= WARPS) {
        setmaxnreg_dec<PRODUCER_REGISTERS>();
        if (threadIdx.x > CONSUMERS) return;
        for (Share share(first, last, groups); share.more(); share.next(), ring.advance()) {
            const int tile = share.tile, group = share.group, stage = ring.stage;
            const int piece = tile / tiles_m * PIECES, count = min(PIECES, pieces_n - piece);
            mbarrier_wait(&empty[stage], ring.parity ^ 1);  // in the first round all stages are empty
            mbarrier_arrive_expect_bytes(&full[stage], A_BYTES + count * PIECE_BYTES);
            for (int i = 0; i < count; ++i) {
                const index_t from = static_cast<index_t>(piece + i) * groups + group;
                fetch_piece(
                    w_tiles + stage * W_BYTES + i * PIECE_BYTES, pieces_ptr + from * PIECE_BYTES, evict_first,
                    &full[stage]);
            }
            for (int half = 0; half < 2; ++half) {
                tensor_copy_to_shared(
                    a_tiles + stage * A_BYTES + half * A_HALF, &a_map, group * GROUP + half * 64,
                    tile % tiles_m * BLOCK_M, &full[stage]);
            }
        }
        return;
    }
    setmaxnreg_inc<CONSUMER_REGISTERS<WARPGROUPS, 1>>();

    constexpr int COUNT = BLOCK_M / 2;
    float* const part = parts_ptr + threadIdx.x * 4;
    constexpr index_t PART = BLOCK_M * BLOCK_N;
    const int warpgroup = warp / 4, lane = threadIdx.x % WARP;
    const matrix_t a_first = matrix_descriptor(a_tiles, 0);
    Share share(first, last, groups);
    while (share.more()) {
        float total[2][COUNT] = {};
        unsigned operand[2][GROUP / 16][4];
        const int tile = share.tile, begin = share.group, stop = share.stop;
        const bool has_last = share.has_last();
        int before = 0;
        for (int group = begin; group < stop; ++group, ring.advance()) {
            const unsigned a = lower_half(a_first, ring.stage, A_BYTES);
            mbarrier_wait(&full[ring.stage], ring.parity);
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                // The other piece's is in flight; this one's is done, and its operands are free.
                wgmma_wait_group<1>(total[i]);
                if (i == 1 && group > begin && lane == 0) mbarrier_arrive(&empty[before]);
                Quantized64 w;
                w.load(w_tiles + ring.stage * W_BYTES + (warpgroup * 2 + i) * PIECE_BYTES);
                dequantize_piece<T>(operand[i], w);
#pragma unroll
                for (int j = 0; j < GROUP / 16 * 4; ++j) {
                    const unsigned scale = (w.scale_words[j % 2] & 0xffff) * 0x00010001u;
                    operand[i][j / 4][j % 4] = scaled<T>(operand[i][j / 4][j % 4], scale);
                }
                wgmma_fence();
#pragma unroll
                for (int k = 0; k < GROUP / 16; ++k) {
                    wgmma_rows<T>(
                        total[i], operand[i][k], descriptor_at(a_first, a, k / 4 * A_HALF + k % 4 * 32),
                        true);
                }
                wgmma_commit_group();
            }
            before = ring.stage;
        }
#pragma unroll
        for (int i = 0; i < 2; ++i) wgmma_wait_group<0>(total[i]);
        if (lane == 0) mbarrier_arrive(&empty[before]);
        share.next_tile();
        if (!has_last) {  // a later block has the last group
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                store_part(part + block * PART + i * (PART / 2), total[i], CONSUMERS);
            }
            set_flag(ready_ptr + block * WARPS + warp);
        } else {
            const int others = blocks_before(units, block, tile * groups);
            wait_for_flags(ready_ptr + block * WARPS + warp, others, WARPS);
            for (int other = block - others; other < block; ++other) {
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    add_part(total[i], part + other * PART + i * (PART / 2), CONSUMERS);
                }
            }
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                store_transposed(
                    y_ptr, total[i], static_cast<index_t>(tile % tiles_m) * BLOCK_M,
                    static_cast<index_t>(tile / tiles_m) * BLOCK_N + (warpgroup * 2 + i) * PIECE_N, M, N);
            }
        }
    }
#endif
}
