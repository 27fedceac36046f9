// w4a16_matmul, level 1, naive. One thread per element of y. Each weight is extracted by a shift and a mask,
// and converted to fp32.
#pragma once

#include "w4a16_matmul/int4.cuh"

// a[M,K], packed[N,K/8] -> y[M,N]. Grid: one block per 8 x 32 elements of y. A warp's threads have
// consecutive columns: they read the same elements of a, and words of packed that are a row apart
// (uncoalesced).
template <typename T, int THREADS>
__global__ __launch_bounds__(THREADS) void w4a16_matmul_naive_kernel(
    const T* a_ptr, const unsigned* packed_ptr, const T* scales_ptr, const unsigned char* zeros_ptr, T* y_ptr,
    index_t M, index_t N, index_t K, index_t stride_am, index_t stride_ak, index_t stride_pn,
    index_t stride_pk, index_t stride_sn, index_t stride_sk, index_t stride_zn, index_t stride_zk) {
    const index_t tiles_n = (N + WARP - 1) / WARP;
    const index_t m = blockIdx.x / tiles_n * (THREADS / WARP) + threadIdx.x / WARP;
    const index_t n = blockIdx.x % tiles_n * WARP + threadIdx.x % WARP;
    if (m >= M || n >= N) return;
    const T* const a = a_ptr + m * stride_am;
    float total = 0.0f;
    for (index_t begin = 0; begin < K; begin += GROUP) {
        const index_t end = begin + GROUP < K ? begin + GROUP : K, group = begin / GROUP;
        const int zero = zeros_ptr[n * stride_zn + group * stride_zk];
        float sum = 0.0f;
        for (index_t k = begin; k < end; k += NIBBLES) {
            unsigned word = packed_ptr[n * stride_pn + k / NIBBLES * stride_pk];
            for (index_t i = k; i < end && i < k + NIBBLES; ++i, word >>= 4) {
                sum += float(a[i * stride_ak]) * static_cast<float>(static_cast<int>(word & 15) - zero);
            }
        }
        total += sum * float(scales_ptr[n * stride_sn + group * stride_sk]);
    }
    y_ptr[m * N + n] = T(total);
}
