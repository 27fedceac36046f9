// w4a16_matmul, level 3, streamk. Changes: (1) Weights are repacked offline: the 128-bit loads of a warp are
// 512 contiguous bytes instead of eight pieces of 64, scales and zero points of neighbouring columns lie
// together, and nibbles are in the order of mma operands. (2) Stream-K: the groups of all tiles are one
// sequence, divided evenly, so that every multiprocessor reads as many bytes, however few the tiles. Source:
// Frantar et al., "MARLIN: Mixed-Precision Auto-Regressive Parallel Inference on Large Language Models"
// (2024); Osama et al., "Stream-K: Work-centric Parallel Decomposition for Dense Matrix-Matrix Multiplication
// on the GPU" (2023).
#pragma once

#include "w4a16_matmul/group.cuh"
#include "w4a16_matmul/share.cuh"

// packed[N,K/8], scales[N,K/128], zeros[N,K/128] -> weights[N/8,K/128,32] of 16 bytes: those of a lane;
// scale_words [K/128,8*(N/8)]: a scale's 16 bits, with the zero point above. Sizes are rounded up; what is
// added is 0. Grid: a thread per 16 bytes of weights.
template <int THREADS>
__global__ __launch_bounds__(THREADS) void w4a16_matmul_repack_kernel(
    const unsigned* packed_ptr, const unsigned short* scales_ptr, const unsigned char* zeros_ptr,
    uint4* weights_ptr, unsigned* scale_words_ptr, index_t N, index_t K, index_t stride_pn, index_t stride_pk,
    index_t stride_sn, index_t stride_sk, index_t stride_zn, index_t stride_zk) {
    const index_t groups = (K + GROUP - 1) / GROUP, rows = (N + 7) / 8 * 8,
                  words = (K + NIBBLES - 1) / NIBBLES;
    const index_t index = static_cast<index_t>(blockIdx.x) * THREADS + threadIdx.x;
    const int lane = threadIdx.x % WARP;
    const index_t group = index / WARP % groups, n = index / WARP / groups * 8 + lane / 4;
    if (n >= rows) return;
    unsigned paired[4] = {};
    for (int i = 0; i < 4; ++i) {
        const index_t word = group * (GROUP / NIBBLES) + lane % 4 * 4 + i;
        const unsigned in_order = n < N && word < words ? packed_ptr[n * stride_pn + word * stride_pk] : 0;
        for (int k = 0; k < NIBBLES; ++k) {  // the even ones below, the odd ones 16 bits above them
            paired[i] |= (in_order >> 4 * k & 15) << (k / 2 * 4 + k % 2 * 16);
        }
    }
    weights_ptr[index] = make_uint4(paired[0], paired[1], paired[2], paired[3]);
    if (lane % 4 == 0) {
        unsigned scale_word = 0;
        if (n < N) {
            scale_word = scales_ptr[n * stride_sn + group * stride_sk] |
                         static_cast<unsigned>(zeros_ptr[n * stride_zn + group * stride_zk]) << 16;
        }
        scale_words_ptr[group * rows + n] = scale_word;
    }
}

// a[M,K], weights[N/8,K/128,32], scale_words[K/128,8*(N/8)] -> y[M,N]. Grid: at most one block per
// multiprocessor, and per group of the sequence. A warp has BLOCK_N / WARPS columns, all rows. The block that
// has the last group of a tile adds the partial sums of the others, parts[blocks,BLOCK_M*BLOCK_N] in fp32,
// and writes y. ready[blocks] is 0 before and after; share.cuh says what the wait relies on. Rows of a are
// 16-byte aligned.
template <typename T, int BLOCK_M, int BLOCK_N, int WARPS, int STAGES>
__global__ __launch_bounds__(WARPS* WARP) void w4a16_matmul_streamk_kernel(
    const T* a_ptr, const uint4* weights_ptr, const unsigned* scale_words_ptr, T* y_ptr, float* parts_ptr,
    unsigned* ready_ptr, index_t M, index_t N, index_t K, index_t lda) {
    constexpr int THREADS = WARPS * WARP, WARP_N = BLOCK_N / WARPS, MATRICES_N = WARP_N / 8;
    constexpr int MATRICES_M = BLOCK_M / 16, A_TILE = BLOCK_M * GROUP, W_TILE = BLOCK_N / 8 * WARP;
    DYNAMIC_SHARED(T, a_tiles);
    uint4* const w_tiles = reinterpret_cast<uint4*>(a_tiles + STAGES * A_TILE);
    unsigned* const s_tiles = reinterpret_cast<unsigned*>(w_tiles + STAGES * W_TILE);

    const int tiles_m = static_cast<int>((M + BLOCK_M - 1) / BLOCK_M);
    const int tiles_n = static_cast<int>((N + BLOCK_N - 1) / BLOCK_N);
    const int groups = static_cast<int>((K + GROUP - 1) / GROUP), units = tiles_m * tiles_n * groups;
    const index_t rows = (N + 7) / 8 * 8;
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const int own = warp * MATRICES_N * WARP + lane;  // of a tile of weights
    const int block = blockIdx.x, first = share_begin(units, block), last = share_begin(units, block + 1);

    Share fetched(first, last, groups);
    int stage_to_fill = 0;
    const auto fetch = [&]() {
        if (fetched.more()) {
            const int tile = fetched.tile, group = fetched.group, stage = stage_to_fill;
            const index_t begin_n = static_cast<index_t>(tile / tiles_m) * BLOCK_N;
            fetch_a<BLOCK_M, THREADS>(
                a_tiles + stage * A_TILE, a_ptr, lda, static_cast<index_t>(tile % tiles_m) * BLOCK_M, M,
                static_cast<index_t>(group) * GROUP, K);
            const index_t matrix = begin_n / 8 + warp * MATRICES_N;
#pragma unroll
            for (int j = 0; j < MATRICES_N; ++j) {
                const bool inside = (matrix + j) * 8 < N;
                const index_t from = ((matrix + j) * groups + group) * WARP + lane;
                cp_async_16(
                    w_tiles + stage * W_TILE + own + j * WARP, weights_ptr + (inside ? from : 0),
                    inside ? 16 : 0);
            }
            if (threadIdx.x < BLOCK_N / 4) {
                const index_t n = begin_n + threadIdx.x * 4;
                const bool inside = n < rows;
                cp_async_16(
                    s_tiles + stage * BLOCK_N + threadIdx.x * 4,
                    scale_words_ptr + (inside ? group * rows + n : 0), inside ? 16 : 0);
            }
            fetched.next();
            stage_to_fill = stage + 1 < STAGES ? stage + 1 : 0;
        }
        cp_async_commit();
    };

    float total[MATRICES_M][MATRICES_N][4] = {};
    float* const part = reinterpret_cast<float*>(parts_ptr) + threadIdx.x * 4;
    constexpr index_t PART = BLOCK_M * BLOCK_N;
    for (int i = 0; i < STAGES - 1; ++i) fetch();
    int stage = 0;
    for (Share share(first, last, groups); share.more(); share.next()) {
        cp_async_wait<STAGES - 2>();
        __syncthreads();  // this group has landed, and all have read the one before
        fetch();
        Quantized<MATRICES_N> w;
        const unsigned* const scales = s_tiles + stage * BLOCK_N + warp * WARP_N;
#pragma unroll
        for (int j = 0; j < MATRICES_N; ++j) {
            w.words[j] = w_tiles[stage * W_TILE + own + j * WARP];
            w.bias[j] = bias_of<T>(scales[j * 8 + lane / 4] >> 16);
            const uint2 two = *reinterpret_cast<const uint2*>(scales + j * 8 + lane % 4 * 2);
            w.scale[j] = make_float2(scale_in<T>(two.x), scale_in<T>(two.y));
        }
        multiply_group<true>(total, a_tiles + stage * A_TILE, w);
        stage = stage + 1 < STAGES ? stage + 1 : 0;
        if (!share.ends_here()) continue;

        const int tile = share.tile, tile_begin = tile * groups;
        if (!share.has_last()) {  // a later block has the last group
#pragma unroll
            for (int i = 0; i < MATRICES_M * MATRICES_N; ++i) {
                const float* const four = total[i / MATRICES_N][i % MATRICES_N];
                *reinterpret_cast<float4*>(part + block * PART + i * THREADS * 4) =
                    make_float4(four[0], four[1], four[2], four[3]);
            }
            __threadfence();  // release: whoever sees the flag sees the part
            __syncthreads();
            if (threadIdx.x == 0) atomicExch(ready_ptr + block, 1u);
        } else {
            for (int other = block - 1; other >= 0 && share_begin(units, other + 1) > tile_begin; --other) {
                if (threadIdx.x == 0) {
                    while (atomicCAS(ready_ptr + other, 1u, 0u) == 0) __nanosleep(32);
                    __threadfence();  // acquire: after the barrier the block sees what this thread has seen
                }
                __syncthreads();
#pragma unroll
                for (int i = 0; i < MATRICES_M * MATRICES_N; ++i) {
                    const float4 four =
                        __ldcg(reinterpret_cast<const float4*>(part + other * PART + i * THREADS * 4));
                    float* const mine = total[i / MATRICES_N][i % MATRICES_N];
                    mine[0] += four.x, mine[1] += four.y, mine[2] += four.z, mine[3] += four.w;
                }
            }
            store_tile(
                y_ptr, total, static_cast<index_t>(tile % tiles_m) * BLOCK_M,
                static_cast<index_t>(tile / tiles_m) * BLOCK_N + warp * WARP_N, M, N);
        }
#pragma unroll
        for (int i = 0; i < MATRICES_M * MATRICES_N * 4; ++i) {
            total[i / 4 / MATRICES_N][i / 4 % MATRICES_N][i % 4] = 0.0f;
        }
    }
}
