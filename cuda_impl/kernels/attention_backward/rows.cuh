// What all levels of attention_backward share: the problem's sizes, and delta of every row.
#pragma once

#include "attention/heads.cuh"

struct Problem {
    Strides q, k, v, o, d_o;
    int Sq, Skv, Hq, Hk;
    int diagonal;  // query i sees keys up to i + diagonal: Skv - Sq if causal, else Skv
    int pitch;     // rows of lse2 and delta per head: Sq rounded up to whole tiles
    float scale;
};

constexpr float LOG2_E = 1.44269504f;

template <typename T>
__device__ __forceinline__ const T* head_of(const T* ptr, const Strides& stride, int batch, int head) {
    return ptr + batch * stride.b + head * stride.h;
}

// delta = rowsum(do * o), and lse to base 2. A row without keys has lse2 = +infinity, and so have the rows
// from Sq to pitch: then p = exp2(s - lse2) = 0 without a branch. Grid: a warp per row.
template <typename T, int D, int THREADS>
__global__ __launch_bounds__(THREADS) void attention_backward_delta_kernel(
    const T* o_ptr, const T* do_ptr, const float* lse_ptr, float* delta_ptr, float* lse2_ptr, index_t rows,
    Problem p) {
    const index_t row = (index_t(blockIdx.x) * THREADS + threadIdx.x) / WARP;
    if (row >= rows) return;
    const int lane = threadIdx.x % WARP, i = row % p.pitch;
    const index_t head = row / p.pitch;
    float sum = 0, lse = negative_infinity();
    if (i < p.Sq) {
        const int batch = head / p.Hq, h = head % p.Hq;
        const T* o_row = head_of(o_ptr, p.o, batch, h) + i * p.o.s;
        const T* do_row = head_of(do_ptr, p.d_o, batch, h) + i * p.d_o.s;
#pragma unroll
        for (int d = lane; d < D; d += WARP) sum += float(do_row[d]) * float(o_row[d]);
        sum = warp_reduce<Sum>(sum);
        lse = lse_ptr[head * p.Sq + i];
    }
    if (lane > 0) return;
    delta_ptr[row] = sum;
    lse2_ptr[row] = lse == negative_infinity() ? -lse : lse * LOG2_E;
}
