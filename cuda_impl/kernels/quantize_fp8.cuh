// quantize_fp8 over groups of columns: x[M,K] -> values[M,K] in e4m3, scales[M,K/group],
//   scale = max(|x|) / 448 of a group, values = x / scale
//
// Variants; triton_impl/quantize_fp8.py has the first under the same name, and `packed` where CUDA has the
// last.
//   onepass     a group stays in registers between its maximum and its values, so it is read once
//   vectorized  unlike onepass: 16-byte loads that stay packed, 8 codes a store, a reciprocal per group
//
// Groups are counted through all rows, row_groups a row: group g is the (g % row_groups)-th of row
// g / row_groups. BLOCK_M of them share a block, THREADS / BLOCK_M threads each, VECTORS elements or vectors
// per thread. Rows of x are stride_xm elements apart, values and scales are contiguous.
#pragma once

#include <cuda_fp8.h>

#include "common.cuh"

// ---- scales and codes ------------------------------------------------------------------------------------

// The bits of a float without its sign: as integers they have the order of the magnitudes, NaN above all.
__device__ __forceinline__ unsigned magnitude(float x) {
    return __float_as_uint(x) & 0x7fffffffu;
}

struct LargerBits {
    __device__ __forceinline__ unsigned operator()(unsigned a, unsigned b) const { return a > b ? a : b; }
};

// The largest of a group, in each of its threads: the block, or a part of a warp.
template <int THREADS, int BLOCK_M>
__device__ __forceinline__ float group_largest(unsigned bits) {
    if constexpr (BLOCK_M == 1) {
        return __uint_as_float(block_reduce<LargerBits, THREADS>(bits));
    } else {
        static_assert(THREADS / BLOCK_M <= WARP, "several groups a block: each within a warp");
        return __uint_as_float(warp_reduce<LargerBits, THREADS / BLOCK_M>(bits));
    }
}

// NaN stays: no comparison with it is true.
__device__ __forceinline__ float scale_of(float largest) {
    return (largest < 1e-12f ? 1e-12f : largest) / 448.0f;
}

// Saturates, to nearest even. One instruction from sm_89 on; integer arithmetic before.
__device__ __forceinline__ unsigned char to_e4m3(float x) {
    return __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3);
}
__device__ __forceinline__ unsigned short to_e4m3_pair(float low, float high) {
    return __nv_cvt_float2_to_fp8x2(make_float2(low, high), __NV_SATFINITE, __NV_E4M3);
}

// A thread's group: of which columns, and how many. Beyond the last group there are none.
struct Group {
    index_t x_offset, values_offset;
    int columns;
};
__device__ __forceinline__ Group
group_of(unsigned g, unsigned count, index_t K, index_t stride_xm, int columns, unsigned row_groups) {
    const index_t m = g / row_groups, k = static_cast<index_t>(g % row_groups) * columns;
    const int inside = g >= count ? 0 : K - k < columns ? static_cast<int>(K - k) : columns;
    return {m * stride_xm + k, m * K + k, inside};
}

// ---- onepass --------------------------------------------------------------------------------------------

template <typename T, int VECTORS, int THREADS, int BLOCK_M>
__global__ __launch_bounds__(THREADS) void quantize_fp8_onepass_kernel(
    const T* x_ptr, unsigned char* values_ptr, float* scales_ptr, unsigned count, index_t K,
    index_t stride_xm, int columns, unsigned row_groups) {
    constexpr int GROUP_THREADS = THREADS / BLOCK_M;
    const int thread = threadIdx.x % GROUP_THREADS;
    const unsigned g = blockIdx.x * BLOCK_M + threadIdx.x / GROUP_THREADS;
    const Group group = group_of(g, count, K, stride_xm, columns, row_groups);
    float x[VECTORS];

    unsigned bits = 0;
#pragma unroll
    for (int p = 0; p < VECTORS; ++p) {
        const int n = p * GROUP_THREADS + thread;
        x[p] = n < group.columns ? float(x_ptr[group.x_offset + n]) : 0.0f;
    }
#pragma unroll
    for (int p = 0; p < VECTORS; ++p) bits = LargerBits()(bits, magnitude(x[p]));
    const float scale = scale_of(group_largest<THREADS, BLOCK_M>(bits));
    if (thread == 0 && g < count) scales_ptr[g] = scale;

#pragma unroll
    for (int p = 0; p < VECTORS; ++p) {
        const int n = p * GROUP_THREADS + thread;
        if (n < group.columns) values_ptr[group.values_offset + n] = to_e4m3(x[p] / scale);
    }
}

// ---- vectorized -----------------------------------------------------------------------------------------
// 16-byte loads; the elements stay packed, 16-bit ones two to a register, so that more blocks are resident:
// some read while others write. Groups and rows are 16-byte aligned.

// x / scale, rounded as a division: two fused multiply-adds correct the product with the reciprocal, where
// the compiler's division takes more than twice the instructions, and a branch. Source: Markstein,
// "Computation of elementary functions on the IBM RISC System/6000 processor" (1990).
struct Divisor {
    float inverse, finite;

    // The remainder of an infinite scale would be NaN; with a finite one the quotient stays 0.
    __device__ __forceinline__ explicit Divisor(float scale)
        : inverse(1.0f / scale), finite(fminf(scale, 3.4028235e38f)) {}

    __device__ __forceinline__ float quotient(float x) const {
        const float q = x * inverse;
        return __fmaf_rn(__fmaf_rn(-q, finite, x), inverse, q);
    }
};

// The codes of a vector in one store, of 4 or 8 bytes.
template <int VEC>
__device__ __forceinline__ void store_codes(unsigned char* ptr, const unsigned short (&pairs)[VEC / 2]) {
    if constexpr (VEC == 4) {
        *reinterpret_cast<unsigned*>(ptr) = pairs[0] | static_cast<unsigned>(pairs[1]) << 16;
    } else {
        *reinterpret_cast<uint2*>(ptr) = make_uint2(
            pairs[0] | static_cast<unsigned>(pairs[1]) << 16, pairs[2] | static_cast<unsigned>(pairs[3])
                                                                             << 16);
    }
}

template <typename T, int VECTORS, int THREADS, int BLOCK_M>
__global__ __launch_bounds__(THREADS, MOST_THREADS / THREADS) void quantize_fp8_vectorized_kernel(
    const T* x_ptr, unsigned char* values_ptr, float* scales_ptr, unsigned count, index_t K,
    index_t stride_xm, int columns, unsigned row_groups) {
    constexpr int VEC = 16 / sizeof(T), GROUP_THREADS = THREADS / BLOCK_M;
    const int thread = threadIdx.x % GROUP_THREADS;
    const unsigned g = blockIdx.x * BLOCK_M + threadIdx.x / GROUP_THREADS;
    const Group group = group_of(g, count, K, stride_xm, columns, row_groups);
    Packed<T, VEC> x[VECTORS];

    unsigned bits = 0;
#pragma unroll
    for (int p = 0; p < VECTORS; ++p) {
        const int n = (p * GROUP_THREADS + thread) * VEC;
        x[p] = n < group.columns ? load_packed<VEC>(x_ptr + group.x_offset + n) : Packed<T, VEC>{};
    }
#pragma unroll
    for (int p = 0; p < VECTORS; ++p) {
        const Vec<T, VEC> elements = x[p].unpack();
#pragma unroll
        for (int v = 0; v < VEC; ++v) bits = LargerBits()(bits, magnitude(to_float(elements, v)));
    }
    const float scale = scale_of(group_largest<THREADS, BLOCK_M>(bits));
    if (thread == 0 && g < count) scales_ptr[g] = scale;

    const Divisor divisor(scale);
#pragma unroll
    for (int p = 0; p < VECTORS; ++p) {
        const int n = (p * GROUP_THREADS + thread) * VEC;
        const Vec<T, VEC> elements = x[p].unpack();
        unsigned short pairs[VEC / 2];
#pragma unroll
        for (int v = 0; v < VEC; v += 2) {
            pairs[v / 2] = to_e4m3_pair(
                divisor.quotient(to_float(elements, v)), divisor.quotient(to_float(elements, v + 1)));
        }
        if (n < group.columns) store_codes<VEC>(values_ptr + group.values_offset + n, pairs);
    }
}
