// w4a16_matmul, level 4, transposed. Changes: (1) y.T = w @ a.T by wgmma: dequantized weights are its operand
// in registers, 64 columns of y per warpgroup, and the tensor cores read a from shared memory themselves. A
// weight is dequantized once for up to 128 rows of a. (2) A producer warp fetches by TMA: the weights, scales
// and zero points of a group and 64 columns are one piece of 4352 bytes, and a ring of mbarriers replaces
// __syncthreads. (3) A warp waits for the partial sums of all other blocks at once, and for no other warp.
// sm_90a.
#pragma once

#include "w4a16_matmul/pieces.cuh"

// packed[N,K/8], scales[N,K/128], zeros[N,K/128] -> pieces[N/64,K/128] of PIECE_BYTES: weights in the order
// of pieces.cuh, and the columns' scales with zero points above. Sizes are rounded up; what is added is 0.
// Grid: a thread per 16 bytes of weights.
template <int THREADS>
__global__ __launch_bounds__(THREADS) void w4a16_matmul_repack_pieces_kernel(
    const unsigned* packed_ptr, const unsigned short* scales_ptr, const unsigned char* zeros_ptr,
    unsigned char* pieces_ptr, index_t N, index_t K, index_t stride_pn, index_t stride_pk, index_t stride_sn,
    index_t stride_sk, index_t stride_zn, index_t stride_zk) {
    const index_t groups = (K + GROUP - 1) / GROUP, words = (K + NIBBLES - 1) / NIBBLES;
    const index_t index = static_cast<index_t>(blockIdx.x) * THREADS + threadIdx.x;
    const index_t piece = index / PIECE_VECTORS, group = piece % groups, begin_n = piece / groups * PIECE_N;
    if (begin_n >= N) return;
    const int vector = static_cast<int>(index % PIECE_VECTORS), row_half = vector / (PIECE_VECTORS / 2);
    const int thread = vector % (PIECE_VECTORS / 2), lane = thread % WARP;
    const index_t n = begin_n + thread / WARP * 16 + lane / 4 * 2 + row_half;
    unsigned paired[4] = {};
    for (int i = 0; i < 16; ++i) {  // number 4 * word + 2 * step + k_half: a pair of each 8 of K
        const index_t word = group * (GROUP / NIBBLES) + i;
        const unsigned in_order = n < N && word < words ? packed_ptr[n * stride_pn + word * stride_pk] : 0;
        const unsigned two = in_order >> lane % 4 * 8;
        paired[i / 4] |= (two & 15) << i % 4 * 4 | (two >> 4 & 15) << (i % 4 * 4 + 16);
    }
    unsigned char* const to = pieces_ptr + piece * PIECE_BYTES;
    reinterpret_cast<uint4*>(to)[vector] = make_uint4(paired[0], paired[1], paired[2], paired[3]);
    if (lane % 4 == 0) {
        unsigned scale_word = 0;
        if (n < N) {
            scale_word = scales_ptr[n * stride_sn + group * stride_sk] |
                         static_cast<unsigned>(zeros_ptr[n * stride_zn + group * stride_zk]) << 16;
        }
        reinterpret_cast<unsigned*>(to + PIECE_VECTORS * 16)[n - begin_n] = scale_word;
    }
}

// a[M,K], pieces[N/64,K/128] -> y[M,N]. Grid: BLOCKS per multiprocessor, at most one per group of the
// sequence. A tile of y has BLOCK_M rows and 64 columns per consumer warpgroup. One thread of the last
// warpgroup issues the loads of the block's share, as far ahead as the ring of STAGES allows. The block that
// has the last group of a tile adds the partial sums of the others, parts[blocks,tile] in fp32. Each of its
// warps adds those of the same warp, whose ready[blocks,warps] is 0 before and after. a's map: boxes of 64 of
// K and BLOCK_M rows; elements past M and K are 0. evict_first: no other block reads a block's weights.
template <typename T, int BLOCK_M, int WARPGROUPS, int STAGES, int BLOCKS>
__global__ __launch_bounds__((WARPGROUPS + 1) * WARPGROUP, BLOCKS) void w4a16_matmul_transposed_kernel(
    const __grid_constant__ TensorMap a_map, const unsigned char* pieces_ptr, T* y_ptr, float* parts_ptr,
    unsigned* ready_ptr, index_t M, index_t N, index_t K, int evict_first) {
#if HAS_WGMMA_LEVELS
    constexpr int CONSUMERS = WARPGROUPS * WARPGROUP, BLOCK_N = WARPGROUPS * PIECE_N, WARPS = WARPGROUPS * 4;
    constexpr int A_HALF = BLOCK_M * 128, A_BYTES = 2 * A_HALF, W_BYTES = WARPGROUPS * PIECE_BYTES;
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
            const int piece = tile / tiles_m * WARPGROUPS, count = min(WARPGROUPS, pieces_n - piece);
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
    setmaxnreg_inc<CONSUMER_REGISTERS<WARPGROUPS, BLOCKS>>();

    constexpr int COUNT = BLOCK_M / 2;
    static_assert(2 * COUNT + 64 <= CONSUMER_REGISTERS<WARPGROUPS, BLOCKS>, "sums and operands in registers");
    float* const part = parts_ptr + threadIdx.x * 4;
    constexpr index_t PART = BLOCK_M * BLOCK_N;
    const int warpgroup = warp / 4, lane = threadIdx.x % WARP;
    const matrix_t a_first = matrix_descriptor(a_tiles, 0);
    Quantized64 w;
    const auto load = [&]() {
        mbarrier_wait(&full[ring.stage], ring.parity);
        w.load(w_tiles + ring.stage * W_BYTES + warpgroup * PIECE_BYTES);
    };
    for (Share share(first, last, groups); share.more(); share.next_tile()) {
        float total[COUNT] = {}, sum[COUNT];
        const int tile = share.tile;
        load();
        for (int left = share.stop - share.group; left > 0; --left) {
            unsigned operand[GROUP / 16][4];
            dequantize_piece<T>(operand, w);
            const float scale[2] = {scale_in<T>(w.scale_words[0]), scale_in<T>(w.scale_words[1])};
            const unsigned a = lower_half(a_first, ring.stage, A_BYTES);
            wgmma_fence();
#pragma unroll
            for (int k = 0; k < GROUP / 16; ++k) {
                wgmma_rows<T>(sum, operand[k], descriptor_at(a_first, a, k / 4 * A_HALF + k % 4 * 32), k > 0);
            }
            wgmma_commit_group();
            const int read = ring.stage;
            ring.advance();
            if (left > 1) load();  // while the tensor cores multiply
            wgmma_wait_group<0>(sum);
            if (lane == 0) mbarrier_arrive(&empty[read]);
#pragma unroll
            for (int i = 0; i < COUNT; ++i) total[i] += sum[i] * scale[i / 2 % 2];
        }
        if (!share.has_last()) {  // a later block has the last group
            store_part(part + block * PART, total, CONSUMERS);
            set_flag(ready_ptr + block * WARPS + warp);
        } else {
            const int others = blocks_before(units, block, tile * groups);
            wait_for_flags(ready_ptr + block * WARPS + warp, others, WARPS);
            for (int other = block - others; other < block; ++other) {
                add_part(total, part + other * PART, CONSUMERS);
            }
            store_transposed(
                y_ptr, total, static_cast<index_t>(tile % tiles_m) * BLOCK_M,
                static_cast<index_t>(tile / tiles_m) * BLOCK_N + warpgroup * PIECE_N, M, N);
        }
    }
#endif
}
