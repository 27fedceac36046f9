// What all levels of int8_matmul and fp8_matmul share: the scales of a row of c and of a column, and the
// rounding to bf16.
#pragma once

#include "common.cuh"

// x * y, also where one is subnormal: the compiler's own multiplication flushes it to 0 (-ftz=true).
__device__ __forceinline__ float times(float x, float y) {
#ifdef HOST_BUILD
    return x * y;
#else
    float product;
    asm("mul.rn.f32 %0, %1, %2;" : "=f"(product) : "f"(x), "f"(y));
    return product;
#endif
}

template <typename Sum>
constexpr bool IS_INT = false;
template <>
constexpr bool IS_INT<int> = true;

// The element of c with this sum.
template <typename Sum>
__device__ __forceinline__ float scaled(Sum sum, float scale_a, float scale_b) {
    return times(times(static_cast<float>(sum), scale_a), scale_b);
}

// Stores x and y in columns n and n + 1 of a row of c. N even: rows are 4-byte aligned.
__device__ __forceinline__ void store_two(__nv_bfloat16* c_row, index_t n, index_t N, float x, float y) {
    const __nv_bfloat162 two = __floats2bfloat162_rn(x, y);
    if (N % 2 == 0) {
        if (n < N) *reinterpret_cast<__nv_bfloat162*>(c_row + n) = two;
    } else {
        if (n < N) c_row[n] = two.x;
        if (n + 1 < N) c_row[n + 1] = two.y;
    }
}
