// decode_attention, level 1, naive. A block per query head. Keys and values go to registers, a token at a
// time: a warp's lanes share its D elements, and the block's warps take the tokens in turn.
#pragma once

#include "common.cuh"
#include "decode_attention/pages.cuh"

// Grid: block b * Hq + h for query head h of sequence b, which uses key head h / G.
template <typename T, int D>
__global__ __launch_bounds__(THREADS) void decode_attention_naive_kernel(
    const T* q_ptr, const T* k_ptr, const T* v_ptr, const int* table_ptr, const int* lengths_ptr, T* o_ptr,
    int Hq, int G, int pages, int page_size, float scale_log2, index_t stride_qb, index_t stride_qh,
    index_t stride_kp, index_t stride_kn, index_t stride_kh, index_t stride_vp, index_t stride_vn,
    index_t stride_vh) {
    constexpr int EACH = D / WARP;  // elements per lane: every 32nd
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const index_t b = blockIdx.x / Hq, h = blockIdx.x % Hq;
    k_ptr += h / G * stride_kh;
    v_ptr += h / G * stride_vh;
    table_ptr += b * pages;
    const Sequence<T> sequence = {k_ptr,     v_ptr,     stride_kp, stride_kn,
                                  stride_vp, stride_vn, table_ptr, page_size};
    float q[EACH], o[EACH] = {};
#pragma unroll
    for (int i = 0; i < EACH; ++i) q[i] = float(q_ptr[b * stride_qb + h * stride_qh + i * WARP + lane]);

    float max = negative_infinity(), sum = 0.0f;
    const int length = lengths_ptr[b];
    for (int n = warp; n < length; n += WARPS) {
        const index_t page = sequence.page_of(n);
        const T *key = sequence.key(page, n) + lane, *value = sequence.value(page, n) + lane;
        float dot = 0.0f;
#pragma unroll
        for (int i = 0; i < EACH; ++i) dot += q[i] * float(key[i * WARP]);
        const float score = warp_reduce<Sum>(dot) * scale_log2;
        const float new_max = fmaxf(max, score), shift = finite_shift(new_max);
        const float rescale = exp2f(max - shift), p = exp2f(score - shift);
        max = new_max;
        sum = sum * rescale + p;
#pragma unroll
        for (int i = 0; i < EACH; ++i) o[i] = o[i] * rescale + p * float(value[i * WARP]);
    }

    __shared__ float max_of[WARPS], sum_of[WARPS], o_of[WARPS][D];
    max_of[warp] = max;
    sum_of[warp] = sum;
#pragma unroll
    for (int i = 0; i < EACH; ++i) o_of[warp][i * WARP + lane] = o[i];
    __syncthreads();
    if (threadIdx.x >= D) return;
    for (int w = 0; w < WARPS; ++w) max = fmaxf(max, max_of[w]);
    float total = 0.0f, value = 0.0f;
    for (int w = 0; w < WARPS; ++w) {
        const float weight = exp2f(max_of[w] - finite_shift(max));
        total += weight * sum_of[w];
        value += weight * o_of[w][threadIdx.x];
    }
    o_ptr[index_t(blockIdx.x) * D + threadIdx.x] = T(total == 0.0f ? 0.0f : value / total);
}
