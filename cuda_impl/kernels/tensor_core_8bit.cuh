// Tensor cores' product of int8, beside the 16-bit ones of tensor_core.cuh: sm_75 and later. ldmatrix loads
// its operands too: two bytes are one 16-bit element. Source: PTX ISA, "mma.m16n8k32", "mma.m8n8k16".
#pragma once

#include "tensor_core.cuh"

#ifdef HOST_BUILD
#include "tensor_core_8bit.h"
#else

// c[16,8] += a[16,32] * b[8,32].T, in int32. With g = lane / 4 and t = lane % 4, a lane holds
//   of a  in words 0..3 elements 4t to 4t+3 of: row g; row g+8; row g, k 16 further; row g+8, k 16 further
//   of b  in words 0, 1 elements k = 4t to 4t+3 of: row g; row g, k 16 further
//   of c  columns 2t and 2t+1 of row g, then of row g+8
__device__ __forceinline__ void mma_m16n8k32_s8(
    int (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
#if __CUDA_ARCH__ >= 800
    asm volatile(
        "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
    const auto eight_rows = [](int& left, int& right, unsigned a_rows, unsigned b) {
        asm volatile("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0, %1}, {%2}, {%3}, {%0, %1};"
                     : "+r"(left), "+r"(right)
                     : "r"(a_rows), "r"(b));
    };
    eight_rows(c[0], c[1], a[0], b0);
    eight_rows(c[2], c[3], a[1], b0);
    eight_rows(c[0], c[1], a[2], b1);
    eight_rows(c[2], c[3], a[3], b1);
#endif
}

#endif  // HOST_BUILD
