// attention_backward, level 3, fused. Change: the block of keys adds its share of dq as well, so that scores
// and ds are computed once: five products instead of seven. Blocks of all keys add to the same rows of dq, in
// fp32 and by atomics, in no certain order: not deterministic. 16-bit elements, sm_80.
#pragma once

#include "attention_backward/02_split.cuh"

// Adds to two neighbouring elements: one 8-byte atomic on sm_90, two of 4 bytes before.
__device__ __forceinline__ void add_pair(float* ptr, float first, float second) {
#if __CUDA_ARCH__ >= 900
    atomicAdd(reinterpret_cast<float2*>(ptr), make_float2(first, second));
#else
    atomicAdd(ptr, first);
    atomicAdd(ptr + 1, second);
#endif
}

// Grid: a block per BLOCK_N keys of a key head. The rows of dq are queries: ds^T goes through shared memory,
// and a warp multiplies 16 queries by a part of D.
template <typename T, int D, int BLOCK_M, int BLOCK_N>
__global__ __launch_bounds__(BLOCK_N * 2) void attention_backward_fused_kernel(
    const T* q_ptr, const T* k_ptr, const T* v_ptr, const T* do_ptr, const float* lse2_ptr,
    const float* delta_ptr, float* dq_ptr, T* dk_ptr, T* dv_ptr, Problem p) {
    constexpr int WARPS_M = BLOCK_M / 16, PART = D * WARPS_M / (BLOCK_N / 16);
    static_assert(PART % 16 == 0, "a warp has whole matrices of dq");
    DYNAMIC_SHARED(T, ds_tile);  // a row a key
    T* k_tile = ds_tile + BLOCK_N * BLOCK_M;
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, pair = lane % 4 * 2;
    const int batch = blockIdx.x / ((p.Skv + BLOCK_N - 1) / BLOCK_N) / p.Hk;
    const int rows = warp % WARPS_M * 16, part = warp / WARPS_M * PART;

    const auto add_dq = [&](const unsigned (&ds)[BLOCK_M / 16][4], int head, int first_query) {
#pragma unroll
        for (int n = 0; n < BLOCK_M / 8; ++n) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                T* to = ds_tile + swizzle<BLOCK_M>(warp * 16 + lane / 4 + half * 8, n) + pair;
                *reinterpret_cast<unsigned*>(to) = ds[n / 2][n % 2 * 2 + half];
            }
        }
        __syncthreads();  // all keys' rows have been written; the loop's barrier frees them
        float dq[PART / 8][4] = {};
#pragma unroll
        for (int k = 0; k < BLOCK_N / 16; ++k) {
            unsigned a[4], b[4];
            const int key = k * 16 + lane / 16 * 8 + lane % 8;
            ldmatrix_x4_trans(a, ds_tile + swizzle<BLOCK_M>(key, rows / 8 + lane / 8 % 2));
#pragma unroll
            for (int n = 0; n < PART / 16; ++n) {
                ldmatrix_x4_trans(b, k_tile + swizzle<D>(k * 16 + lane % 16, part / 8 + 2 * n + lane / 16));
                mma_m16n8k16<T>(dq[2 * n], a, b[0], b[1]);
                mma_m16n8k16<T>(dq[2 * n + 1], a, b[2], b[3]);
            }
        }
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int query = first_query + rows + lane / 4 + half * 8;
            if (query >= p.Sq) continue;
            float* dq_row = dq_ptr + ((index_t(batch) * p.Sq + query) * p.Hq + head) * D + part + pair;
#pragma unroll
            for (int n = 0; n < PART / 8; ++n) add_pair(dq_row + n * 8, dq[n][2 * half], dq[n][2 * half + 1]);
        }
    };
    loop_over_queries<T, D, BLOCK_M, BLOCK_N>(
        q_ptr, k_ptr, v_ptr, do_ptr, lse2_ptr, delta_ptr, dk_ptr, dv_ptr, p, k_tile, add_dq);
}

// dq = scale * sum, rounded once. Grid: a thread per 4 elements.
template <typename T, int THREADS>
__global__ __launch_bounds__(THREADS) void attention_backward_round_kernel(
    const float* sum_ptr, T* dq_ptr, index_t elements, float scale) {
    const index_t i = (index_t(blockIdx.x) * THREADS + threadIdx.x) * 4;
    if (i >= elements) return;
    const Vec<float, 4> sum = load_vec<4>(sum_ptr + i);
    Vec<T, 4> dq;
#pragma unroll
    for (int e = 0; e < 4; ++e) dq[e] = T(scale * sum[e]);
    *reinterpret_cast<Vec<T, 4>*>(dq_ptr + i) = dq;
}
