// attention_backward, level 1, naive: a warp computes a row of dq, another a row of dk and of dv. Each lane
// has D / 32 elements of the row; every score is a warp's reduction. Both kernels compute all scores.
#pragma once

#include "attention_backward/rows.cuh"

template <typename T, int COUNT>
__device__ __forceinline__ void load_row(float (&x)[COUNT], const T* row) {
#pragma unroll
    for (int c = 0; c < COUNT; ++c) x[c] = float(row[threadIdx.x % WARP + c * WARP]);
}
template <int COUNT>
__device__ __forceinline__ float dot(const float (&x)[COUNT], const float (&y)[COUNT]) {
    float sum = 0;
#pragma unroll
    for (int c = 0; c < COUNT; ++c) sum += x[c] * y[c];
    return warp_reduce<Sum>(sum);
}
template <int COUNT>
__device__ __forceinline__ void add_scaled(float (&sum)[COUNT], float factor, const float (&x)[COUNT]) {
#pragma unroll
    for (int c = 0; c < COUNT; ++c) sum[c] += factor * x[c];
}
template <typename T, int COUNT>
__device__ __forceinline__ void store_row(T* row, float factor, const float (&x)[COUNT]) {
#pragma unroll
    for (int c = 0; c < COUNT; ++c) row[threadIdx.x % WARP + c * WARP] = T(factor * x[c]);
}

// Grid: a warp per query row of every head.
template <typename T, int D, int THREADS>
__global__ __launch_bounds__(THREADS) void attention_backward_naive_dq_kernel(
    const T* q_ptr, const T* k_ptr, const T* v_ptr, const T* do_ptr, const float* lse2_ptr,
    const float* delta_ptr, T* dq_ptr, index_t rows, Problem p) {
    const index_t row = (index_t(blockIdx.x) * THREADS + threadIdx.x) / WARP;  // of dq: batch, query, head
    if (row >= rows) return;
    const int head = row % p.Hq, i = row / p.Hq % p.Sq, batch = row / p.Hq / p.Sq;
    const int kv_head = head / (p.Hq / p.Hk);
    const T* k_row = head_of(k_ptr, p.k, batch, kv_head);
    const T* v_row = head_of(v_ptr, p.v, batch, kv_head);
    float q[D / WARP], d_o[D / WARP], dq[D / WARP] = {}, k[D / WARP], v[D / WARP];
    load_row(q, head_of(q_ptr, p.q, batch, head) + i * p.q.s);
    load_row(d_o, head_of(do_ptr, p.d_o, batch, head) + i * p.d_o.s);
    const index_t of_row = (index_t(batch) * p.Hq + head) * p.pitch + i;
    const float lse2 = lse2_ptr[of_row], delta = delta_ptr[of_row];
    const int keys = min(p.Skv, i + p.diagonal + 1);
    for (int j = 0; j < keys; ++j, k_row += p.k.s, v_row += p.v.s) {
        load_row(k, k_row);
        load_row(v, v_row);
        const float prob = exp2f(dot(q, k) * (p.scale * LOG2_E) - lse2);
        add_scaled(dq, prob * (dot(d_o, v) - delta), k);
    }
    store_row(dq_ptr + row * D, p.scale, dq);
}

// Grid: a warp per key row of every key head. It adds up the query heads that share the key head.
template <typename T, int D, int THREADS>
__global__ __launch_bounds__(THREADS) void attention_backward_naive_dkdv_kernel(
    const T* q_ptr, const T* k_ptr, const T* v_ptr, const T* do_ptr, const float* lse2_ptr,
    const float* delta_ptr, T* dk_ptr, T* dv_ptr, index_t rows, Problem p) {
    const index_t row = (index_t(blockIdx.x) * THREADS + threadIdx.x) / WARP;  // of dk: batch, key, head
    if (row >= rows) return;
    const int kv_head = row % p.Hk, j = row / p.Hk % p.Skv, batch = row / p.Hk / p.Skv, group = p.Hq / p.Hk;
    float k[D / WARP], v[D / WARP], dk[D / WARP] = {}, dv[D / WARP] = {}, q[D / WARP], d_o[D / WARP];
    load_row(k, head_of(k_ptr, p.k, batch, kv_head) + j * p.k.s);
    load_row(v, head_of(v_ptr, p.v, batch, kv_head) + j * p.v.s);
    for (int head = kv_head * group; head < (kv_head + 1) * group; ++head) {
        const T* q_head = head_of(q_ptr, p.q, batch, head);
        const T* do_head = head_of(do_ptr, p.d_o, batch, head);
        const index_t of_head = (index_t(batch) * p.Hq + head) * p.pitch;
        for (int i = max(j - p.diagonal, 0); i < p.Sq; ++i) {
            load_row(q, q_head + i * p.q.s);
            load_row(d_o, do_head + i * p.d_o.s);
            const float prob = exp2f(dot(q, k) * (p.scale * LOG2_E) - lse2_ptr[of_head + i]);
            add_scaled(dv, prob, d_o);
            add_scaled(dk, prob * (dot(d_o, v) - delta_ptr[of_head + i]), q);
        }
    }
    store_row(dk_ptr + row * D, p.scale, dk);
    store_row(dv_ptr + row * D, 1.0f, dv);
}
