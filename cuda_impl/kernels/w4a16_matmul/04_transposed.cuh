// w4a16_matmul, level 4, transposed. Changes: (1) y.T = w @ a.T by wgmma: dequantized weights are its operand
// in registers, 64 columns of y per warpgroup, and the tensor cores read a from shared memory themselves. A
// weight is dequantized once for up to 128 rows of a. (2) A producer warp fetches by TMA: the weights, scales
// and zero points of a group and 64 columns are one piece of 4352 bytes, and a ring of mbarriers replaces
// __syncthreads. (3) A warp waits for the partial sums of all other blocks at once, and for no other warp.
// sm_90a.
#pragma once

#include "w4a16_matmul/hopper_ptx.cuh"
#include "w4a16_matmul/int4.cuh"
#include "w4a16_matmul/share.cuh"

constexpr int PIECE_N = 64;                                      // columns of y of a warpgroup
constexpr int PIECE_VECTORS = PIECE_N * GROUP / NIBBLES / 4;     // of 16 bytes, of weights
constexpr int PIECE_BYTES = PIECE_VECTORS * 16 + PIECE_N * 4;    // and a scale word per column

// Registers of a thread of the producer warpgroup and of WARPGROUPS consumers: of 65536 for all that reside.
constexpr int PRODUCER_REGISTERS = 24;
constexpr int consumer_registers(int warpgroups, int blocks) {
    const int at_launch = 65536 / WARPGROUP / ((warpgroups + 1) * blocks) / 8 * 8 * (warpgroups + 1);
    const int each = (at_launch - PRODUCER_REGISTERS) / warpgroups / 8 * 8;
    return each < 240 ? each : 240;
}

// packed[N,K/8], scales[N,K/128], zeros[N,K/128] -> pieces[N/64,K/128] of PIECE_BYTES: the 16 bytes of each
// thread of a warpgroup for its even column, those for its odd column, and the columns' scales with zero
// points above. Thread 32 * w + 4 * g + t has columns 16 * w + 2 * g and the next, and of each 16 of K those
// of mma's operand: 2 * t, the next, and 8 further. Sizes are rounded up; what is added is 0. Grid: a thread
// per 16 bytes of weights.
template <int THREADS>
__global__ __launch_bounds__(THREADS) void w4a16_matmul_repack_pieces_kernel(
    const unsigned* packed_ptr, const unsigned short* scales_ptr, const unsigned char* zeros_ptr,
    unsigned char* pieces_ptr, index_t N, index_t K, index_t stride_pn, index_t stride_pk, index_t stride_sn,
    index_t stride_sk, index_t stride_zn, index_t stride_zk) {
    const index_t groups = (K + GROUP - 1) / GROUP, words = (K + NIBBLES - 1) / NIBBLES;
    const index_t index = static_cast<index_t>(blockIdx.x) * THREADS + threadIdx.x;
    const index_t piece = index / PIECE_VECTORS, group = piece % groups, begin_n = piece / groups * PIECE_N;
    if (begin_n >= N) return;
    const int vector = static_cast<int>(index % PIECE_VECTORS), odd = vector / (PIECE_VECTORS / 2);
    const int thread = vector % (PIECE_VECTORS / 2), lane = thread % WARP;
    const index_t n = begin_n + thread / WARP * 16 + lane / 4 * 2 + odd;
    unsigned paired[4] = {};
    for (int i = 0; i < 16; ++i) {  // the thread's pair of each 8 of K
        const index_t word = group * (GROUP / NIBBLES) + i;
        const unsigned in_order = n < N && word < words ? packed_ptr[n * stride_pn + word * stride_pk] : 0;
        const unsigned two = in_order >> lane % 4 * 8;
        paired[i / 4] |= (two & 15) << i % 4 * 4 | (two >> 4 & 15) << (i % 4 * 4 + 16);
    }
    unsigned char* const to = pieces_ptr + piece * PIECE_BYTES;
    reinterpret_cast<uint4*>(to)[vector] = make_uint4(paired[0], paired[1], paired[2], paired[3]);
    if (lane % 4 == 0) {
        unsigned both = 0;
        if (n < N) {
            both = scales_ptr[n * stride_sn + group * stride_sk] |
                   static_cast<unsigned>(zeros_ptr[n * stride_zn + group * stride_zk]) << 16;
        }
        reinterpret_cast<unsigned*>(to + PIECE_VECTORS * 16)[n - begin_n] = both;
    }
}

#if HAS_WGMMA_LEVELS

// A thread's part of a piece: 32 weights of each of two columns.
struct Quantized64 {
    uint4 words[2];
    unsigned scale_words[2];

    __device__ __forceinline__ void load(const unsigned char* piece) {
        const int thread = threadIdx.x % WARPGROUP;
        const uint4* const vectors = reinterpret_cast<const uint4*>(piece);
        words[0] = vectors[thread], words[1] = vectors[WARPGROUP + thread];
        const uint2 two = reinterpret_cast<const uint2*>(piece + PIECE_VECTORS * 16)[thread / 4];
        scale_words[0] = two.x, scale_words[1] = two.y;
    }
};

// wgmma's operands of a group, eight steps of 16 of K: q - zero, exact.
template <typename T>
__device__ __forceinline__ void dequantize_piece(unsigned (&operand)[GROUP / 16][4], const Quantized64& w) {
#pragma unroll
    for (int odd = 0; odd < 2; ++odd) {
        const unsigned bias = bias_of<T>(w.scale_words[odd] >> 16);
        const unsigned words[4] = {w.words[odd].x, w.words[odd].y, w.words[odd].z, w.words[odd].w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            unsigned pair[4];
            dequantize<T>(pair, words[i], bias);
            operand[2 * i][odd] = pair[0], operand[2 * i][2 + odd] = pair[1];
            operand[2 * i + 1][odd] = pair[2], operand[2 * i + 1][2 + odd] = pair[3];
        }
    }
}

// Writes a warpgroup's elements of y that exist. A thread has columns n and n + 1, of rows 8 * j + 2 * t and
// the next: eight lanes write 32 contiguous bytes.
template <typename T, int COUNT>
__device__ __forceinline__ void store_transposed(T* y_ptr, const float (&total)[COUNT], index_t begin_m,
                                                 index_t begin_n, index_t M, index_t N) {
    const int thread = threadIdx.x % WARPGROUP;
    const index_t n = begin_n + thread / 4 * 2;
#pragma unroll
    for (int i = 0; i < COUNT / 2; ++i) {
        const index_t m = begin_m + i / 2 * 8 + thread % 4 * 2 + i % 2;
        const float* const four = total + i / 2 * 4;
        if (m >= M) continue;
        const T left = T(four[i % 2]), right = T(four[i % 2 + 2]);
        T* const y = y_ptr + m * N + n;
        if (n + 1 < N && N % 2 == 0) {
            const T both[2] = {left, right};
            *reinterpret_cast<unsigned*>(y) = reinterpret_cast<const unsigned&>(both);
        } else {
            if (n < N) y[0] = left;
            if (n + 1 < N) y[1] = right;
        }
    }
}

#endif  // HAS_WGMMA_LEVELS

// a[M,K], pieces[N/64,K/128] -> y[M,N]. Grid: BLOCKS per multiprocessor, at most one per group of the
// sequence. A tile of y has BLOCK_M rows and 64 columns per consumer warpgroup. One thread of the last
// warpgroup issues the loads of the block's share, as far ahead as the ring of STAGES allows. The block that has the
// last group of a tile adds the partial sums of the others, parts[blocks,tile] in fp32. Each of its warps
// adds those of the same warp, whose ready[blocks,warps] is 0 before and after. a's map: boxes of 64 of K and
// BLOCK_M rows; elements past M and K are 0.
template <typename T, int BLOCK_M, int WARPGROUPS, int STAGES, int BLOCKS>
__global__ __launch_bounds__((WARPGROUPS + 1) * WARPGROUP, BLOCKS) void w4a16_matmul_transposed_kernel(
    const __grid_constant__ TensorMap a_map, const unsigned char* pieces_ptr, T* y_ptr, float* parts_ptr,
    unsigned* ready_ptr, index_t M, index_t N, index_t K) {
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
                bulk_copy_to_shared(w_tiles + stage * W_BYTES + i * PIECE_BYTES,
                                    pieces_ptr + from * PIECE_BYTES, PIECE_BYTES, &full[stage]);
            }
            for (int half = 0; half < 2; ++half) {
                tensor_copy_to_shared(a_tiles + stage * A_BYTES + half * A_HALF, &a_map, group * GROUP + half * 64,
                                      tile % tiles_m * BLOCK_M, &full[stage]);
            }
        }
        return;
    }
    setmaxnreg_inc<consumer_registers(WARPGROUPS, BLOCKS)>();

    constexpr int COUNT = BLOCK_M / 2;
    float total[COUNT] = {}, sum[COUNT];
    float* const part = parts_ptr + threadIdx.x * 4;
    constexpr index_t PART = BLOCK_M * BLOCK_N;
    const int warpgroup = warp / 4, lane = threadIdx.x % WARP;
    const matrix_t a_first = matrix_descriptor(a_tiles, 0);
    Share share(first, last, groups);
    Quantized64 w;
    const auto load = [&]() {
        mbarrier_wait(&full[ring.stage], ring.parity);
        w.load(w_tiles + ring.stage * W_BYTES + warpgroup * PIECE_BYTES);
    };
    load();
    while (share.more()) {
        unsigned operand[GROUP / 16][4];
        dequantize_piece<T>(operand, w);
        const float scale[2] = {scale_in<T>(w.scale_words[0]), scale_in<T>(w.scale_words[1])};
        const matrix_t a = a_first + ring.stage * (A_BYTES >> 4);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < GROUP / 16; ++k) {
            wgmma_rows<T>(sum, operand[k], a + k / 4 * (A_HALF >> 4) + k % 4 * (32 >> 4), k > 0);
        }
        wgmma_commit_group();
        const int read = ring.stage, tile = share.tile;
        const bool ends = share.ends_here(), has_last = share.has_last();
        share.next(), ring.advance();
        if (share.more()) load();  // while the tensor cores multiply
        wgmma_wait_group<0>(sum);
        if (lane == 0) mbarrier_arrive(&empty[read]);
#pragma unroll
        for (int i = 0; i < COUNT; ++i) total[i] += sum[i] * scale[i / 2 % 2];
        if (!ends) continue;

        const int tile_begin = tile * groups;
        if (!has_last) {  // a later block has the last group
#pragma unroll
            for (int i = 0; i < COUNT; i += 4) {
                *reinterpret_cast<float4*>(part + block * PART + i * CONSUMERS) =
                    make_float4(total[i], total[i + 1], total[i + 2], total[i + 3]);
            }
            __threadfence();  // release: whoever sees the flag sees the part
            __syncwarp();
            if (lane == 0) atomicExch(ready_ptr + block * WARPS + warp, 1u);
        } else {
            int others = 0;
            while (block - others > 0 && share_begin(units, block - others) > tile_begin) ++others;
            for (int i = lane; i < others; i += WARP) {
                while (atomicCAS(ready_ptr + (block - 1 - i) * WARPS + warp, 1u, 0u) == 0) __nanosleep(32);
            }
            __threadfence();  // acquire: after the barrier the warp sees what its lanes have seen
            __syncwarp();
            for (int other = block - others; other < block; ++other) {
#pragma unroll
                for (int i = 0; i < COUNT; i += 4) {
                    const float4 four =
                        __ldcg(reinterpret_cast<const float4*>(part + other * PART + i * CONSUMERS));
                    total[i] += four.x, total[i + 1] += four.y;
                    total[i + 2] += four.z, total[i + 3] += four.w;
                }
            }
            store_transposed(y_ptr, total, static_cast<index_t>(tile % tiles_m) * BLOCK_M,
                             static_cast<index_t>(tile / tiles_m) * BLOCK_N + warpgroup * PIECE_N, M, N);
        }
#pragma unroll
        for (int i = 0; i < COUNT; ++i) total[i] = 0.0f;
    }
#endif
}
