// w4a16_matmul, level 2, tensor_core. Change: the tensor cores multiply, a warp's mma.m16n8k16 at a time. A
// lane dequantizes eight weights by four LOP3 and four subtractions of two, straight into mma operands.
// cp.async keeps the next STAGES - 1 groups in flight. sm_80.
#pragma once

#include "w4a16_matmul/group.cuh"

// a[M,K], packed[N,K/8] -> y[M,N]. Grid: one block per tile of BLOCK_M x BLOCK_N, along M first: neighbours
// read the same weights. A warp has BLOCK_N / WARPS columns, all rows. A lane copies the words that it
// multiplies: 16 bytes of eight rows each. Rows of a and packed are 16-byte aligned.
template <typename T, int BLOCK_M, int BLOCK_N, int WARPS, int STAGES>
__global__ __launch_bounds__(WARPS* WARP) void w4a16_matmul_tensor_core_kernel(
    const T* a_ptr, const unsigned* packed_ptr, const T* scales_ptr, const unsigned char* zeros_ptr, T* y_ptr,
    index_t M, index_t N, index_t K, index_t lda, index_t ldp, index_t stride_sn, index_t stride_sk,
    index_t stride_zn, index_t stride_zk) {
    constexpr int WARP_N = BLOCK_N / WARPS, MATRICES_N = WARP_N / 8;
    constexpr int A_TILE = BLOCK_M * GROUP, W_TILE = BLOCK_N / 8 * WARP;
    DYNAMIC_SHARED(T, a_tiles);
    uint4* const w_tiles = reinterpret_cast<uint4*>(a_tiles + STAGES * A_TILE);

    const index_t tiles_m = (M + BLOCK_M - 1) / BLOCK_M;
    const index_t begin_m = blockIdx.x % tiles_m * BLOCK_M, begin_n = blockIdx.x / tiles_m * BLOCK_N;
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const index_t warp_n = begin_n + warp * WARP_N;
    const int own = warp * MATRICES_N * WARP + lane;  // of a tile of weights
    const int groups = static_cast<int>((K + GROUP - 1) / GROUP);
    const index_t words = (K + NIBBLES - 1) / NIBBLES;

    const auto fetch = [&](int group) {
        if (group < groups) {
            const int stage = group % STAGES;
            fetch_a<BLOCK_M, WARPS * WARP>(
                a_tiles + stage * A_TILE, a_ptr, lda, begin_m, M, static_cast<index_t>(group) * GROUP, K);
            const index_t word = static_cast<index_t>(group) * (GROUP / NIBBLES) + lane % 4 * 4;
            const index_t left = words - word < 4 ? words - word : 4;
#pragma unroll
            for (int j = 0; j < MATRICES_N; ++j) {
                const index_t n = warp_n + j * 8 + lane / 4;
                const bool inside = n < N && left > 0;
                cp_async_16(
                    w_tiles + stage * W_TILE + own + j * WARP,
                    inside ? packed_ptr + n * ldp + word : packed_ptr,
                    inside ? static_cast<int>(left) * 4 : 0);
            }
        }
        cp_async_commit();
    };
    // Of the next group: loaded one group ahead, for columns past the end those of the last.
    Quantized<MATRICES_N> next;
    const T *left_ptr[MATRICES_N], *right_ptr[MATRICES_N];
    const unsigned char* zero_ptr[MATRICES_N];
#pragma unroll
    for (int j = 0; j < MATRICES_N; ++j) {
        const index_t n = warp_n + j * 8, row = n + lane / 4, left = n + lane % 4 * 2;
        zero_ptr[j] = zeros_ptr + (row < N ? row : N - 1) * stride_zn;
        left_ptr[j] = scales_ptr + (left < N ? left : N - 1) * stride_sn;
        right_ptr[j] = left_ptr[j] + (left + 1 < N ? stride_sn : 0);
    }
    const auto load_scales = [&]() {
#pragma unroll
        for (int j = 0; j < MATRICES_N; ++j) {
            next.bias[j] = bias_of<T>(*zero_ptr[j]);
            next.scale[j] = make_float2(float(*left_ptr[j]), float(*right_ptr[j]));
            zero_ptr[j] += stride_zk, left_ptr[j] += stride_sk, right_ptr[j] += stride_sk;
        }
    };

    float total[BLOCK_M / 16][MATRICES_N][4] = {};
    for (int group = 0; group < STAGES - 1; ++group) fetch(group);
    load_scales();
    for (int group = 0; group < groups; ++group) {
        cp_async_wait<STAGES - 2>();
        __syncthreads();  // this group has landed, and all have read the one before
        fetch(group + STAGES - 1);
        Quantized<MATRICES_N> w = next;
        if (group + 1 < groups) load_scales();
#pragma unroll
        for (int j = 0; j < MATRICES_N; ++j) w.words[j] = w_tiles[group % STAGES * W_TILE + own + j * WARP];
        multiply_group<false>(total, a_tiles + group % STAGES * A_TILE, w);
    }
    store_tile(y_ptr, total, begin_m, warp_n, M, N);
}
