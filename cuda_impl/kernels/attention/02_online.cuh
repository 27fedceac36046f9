// attention, level 2, online. Change: one kernel, and no score is written to memory. A block visits the keys
// once, tile by tile, with the maximum and the sum of the scores so far of each row (online softmax): when
// the maximum grows, the sum and o are rescaled.
#pragma once

#include "attention/problem.cuh"

// Loads ROWS rows of a head from row `begin` on into shared memory, as fp32; rows from `end` on are 0.
template <int D, int PITCH, int ROWS, int THREADS, typename T>
__device__ __forceinline__ void load_rows(float* tile, const T* head, index_t stride_s, int begin, int end) {
    for (int i = threadIdx.x; i < ROWS * D; i += THREADS) {
        const int row = i / D, d = i % D;
        tile[row * PITCH + d] = begin + row < end ? float(head[(begin + row) * stride_s + d]) : 0.0f;
    }
}

// Grid: one block per BLOCK_M rows of q of a head. Four threads share a row: each has every fourth key of a
// tile, and every fourth 16-byte vector of o.
template <typename T, int D, int BLOCK_M, int BLOCK_N>
__global__ __launch_bounds__(BLOCK_M * 4, 1) void attention_online_kernel(
    const T* q_ptr, const T* k_ptr, const T* v_ptr, T* o_ptr, float* lse_ptr, Problem p) {
    constexpr int THREADS = BLOCK_M * 4, PITCH = D + 4, KEYS = BLOCK_N / 4;  // padding: conflict-free vectors
    using Float4 = Vec<float, 4>;
    DYNAMIC_SHARED(float, q_tile);
    float* const tile = q_tile + BLOCK_M * PITCH;  // of k, then of v
    const Tile at = longest_first(p, BLOCK_M);
    const int kv_head = at.head / (p.Hq / p.Hk), lane = threadIdx.x % 4, m = at.m + threadIdx.x / 4;
    const T* const k_head = row_of(k_ptr, p.k, at.batch, 0, kv_head);
    const T* const v_head = row_of(v_ptr, p.v, at.batch, 0, kv_head);
    const T* const q_head = row_of(q_ptr, p.q, at.batch, 0, at.head);
    load_rows<D, PITCH, BLOCK_M, THREADS>(q_tile, q_head, p.q.s, at.m, p.Sq);
    const float* const q = q_tile + threadIdx.x / 4 * PITCH;

    float o[D / 16][4] = {}, max = negative_infinity(), sum = 0.0f;
    const int keys = at.keys_of(m), end = at.keys_of(at.m + BLOCK_M - 1);
    for (int begin = 0; begin < end; begin += BLOCK_N) {
        __syncthreads();  // all have read the tile of v
        load_rows<D, PITCH, BLOCK_N, THREADS>(tile, k_head, p.k.s, begin, p.Skv);
        __syncthreads();
        float s[KEYS] = {};
#pragma unroll 4
        for (int d = 0; d < D; d += 4) {
            const Float4 q_four = *reinterpret_cast<const Float4*>(q + d);
#pragma unroll
            for (int j = 0; j < KEYS; ++j) {
                const Float4 k_four = *reinterpret_cast<const Float4*>(tile + (j * 4 + lane) * PITCH + d);
#pragma unroll
                for (int i = 0; i < 4; ++i) s[j] += q_four[i] * k_four[i];
            }
        }
        const float before = max;
#pragma unroll
        for (int j = 0; j < KEYS; ++j) {
            s[j] = begin + j * 4 + lane < keys ? s[j] * SCALE<D> : negative_infinity();
            max = fmaxf(max, s[j]);
        }
        max = warp_reduce<Max, 4>(max);
        const float subtract = max == negative_infinity() ? 0.0f : max;  // no key yet: no NaN
        const float factor = __expf(before - subtract);
        sum *= factor;
#pragma unroll
        for (int j = 0; j < KEYS; ++j) sum += s[j] = __expf(s[j] - subtract);
#pragma unroll
        for (int c = 0; c < D / 16; ++c) {
#pragma unroll
            for (int i = 0; i < 4; ++i) o[c][i] *= factor;
        }

        __syncthreads();  // all have read the tile of k
        load_rows<D, PITCH, BLOCK_N, THREADS>(tile, v_head, p.v.s, begin, p.Skv);
        __syncthreads();
#pragma unroll
        for (int n = 0; n < BLOCK_N; ++n) {
            const float weight = __shfl_sync(FULL_WARP, s[n / 4], n % 4, 4);
#pragma unroll
            for (int c = 0; c < D / 16; ++c) {
                const Float4 v_four = *reinterpret_cast<const Float4*>(tile + n * PITCH + (c * 4 + lane) * 4);
#pragma unroll
                for (int i = 0; i < 4; ++i) o[c][i] += weight * v_four[i];
            }
        }
    }

    sum = warp_reduce<Sum, 4>(sum);
    if (m >= p.Sq) return;
    const float inverse = sum == 0.0f ? 0.0f : 1.0f / sum;  // a row that sees no key
    T* const to = o_ptr + ((static_cast<index_t>(at.batch) * p.Sq + m) * p.Hq + at.head) * D;
#pragma unroll
    for (int c = 0; c < D / 16; ++c) {
#pragma unroll
        for (int i = 0; i < 4; ++i) to[(c * 4 + lane) * 4 + i] = T(o[c][i] * inverse);
    }
    if (lane == 0) {
        lse_ptr[(static_cast<index_t>(at.batch) * p.Hq + at.head) * p.Sq + m] = max + logf(sum);
    }
}
