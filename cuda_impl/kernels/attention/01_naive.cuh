// attention, level 1, naive: three kernels. Scores are written to memory, each row becomes probabilities, and
// these are multiplied by v. A thread per score, and per element of o.
#pragma once

#include "attention/problem.cuh"

// scale * q @ k.T -> s[B,Hq,Sq,Skv]; -inf where a row does not see a key. Grid: one block per 16 x 16 scores.
template <typename T, int D>
__global__ __launch_bounds__(256) void attention_scores_kernel(
    const T* q_ptr, const T* k_ptr, float* s_ptr, Problem p) {
    const int tiles_m = (p.Sq + 15) / 16, tiles_n = (p.Skv + 15) / 16,
              tile = blockIdx.x % (tiles_m * tiles_n);
    const int head = blockIdx.x / (tiles_m * tiles_n);  // of B * Hq
    const Tile at = {head % p.Hq, head / p.Hq, tile / tiles_n * 16, p.Sq, p.Skv, p.causal != 0};
    const int m = at.m + threadIdx.x / 16, n = tile % tiles_n * 16 + threadIdx.x % 16;
    if (m >= p.Sq || n >= p.Skv) return;
    const T* q = row_of(q_ptr, p.q, at.batch, m, at.head);
    const T* k = row_of(k_ptr, p.k, at.batch, n, at.head / (p.Hq / p.Hk));
    float sum = 0.0f;
    for (int d = 0; d < D; ++d) sum += float(q[d]) * float(k[d]);
    s_ptr[(static_cast<index_t>(head) * p.Sq + m) * p.Skv + n] =
        n < at.keys_of(m) ? sum * SCALE<D> : negative_infinity();
}

// Replaces rows of scores by probabilities. Grid: one warp per row of B * Hq * Sq.
template <int THREADS>
__global__ __launch_bounds__(THREADS) void attention_softmax_kernel(
    float* s_ptr, float* lse_ptr, index_t rows, int Skv) {
    const index_t row = (static_cast<index_t>(blockIdx.x) * THREADS + threadIdx.x) / WARP;
    const int lane = threadIdx.x % WARP;
    if (row >= rows) return;
    float* s = s_ptr + row * Skv;
    float max = negative_infinity(), sum = 0.0f;
    for (int n = lane; n < Skv; n += WARP) max = fmaxf(max, s[n]);
    max = warp_reduce<Max>(max);
    if (max == negative_infinity()) max = 0.0f;  // a row that sees no key: no NaN
    for (int n = lane; n < Skv; n += WARP) sum += __expf(s[n] - max);
    sum = warp_reduce<Sum>(sum);
    const float inverse = sum == 0.0f ? 0.0f : 1.0f / sum;
    for (int n = lane; n < Skv; n += WARP) s[n] = __expf(s[n] - max) * inverse;
    if (lane == 0) lse_ptr[row] = max + logf(sum);
}

// p @ v -> o[B,Sq,Hq,D]. Grid: one block per THREADS / D rows of B * Hq * Sq.
template <typename T, int D, int THREADS>
__global__ __launch_bounds__(THREADS) void attention_values_kernel(
    const float* p_ptr, const T* v_ptr, T* o_ptr, index_t rows, Problem p) {
    const index_t row = static_cast<index_t>(blockIdx.x) * (THREADS / D) + threadIdx.x / D;
    const int d = threadIdx.x % D;
    if (row >= rows) return;
    const int m = row % p.Sq, head = row / p.Sq % p.Hq, batch = row / p.Sq / p.Hq;
    const T* v = row_of(v_ptr, p.v, batch, 0, head / (p.Hq / p.Hk)) + d;
    float sum = 0.0f;
    for (int n = 0; n < p.Skv; ++n) sum += p_ptr[row * p.Skv + n] * float(v[n * p.v.s]);
    o_ptr[((static_cast<index_t>(batch) * p.Sq + m) * p.Hq + head) * D + d] = T(sum);
}
