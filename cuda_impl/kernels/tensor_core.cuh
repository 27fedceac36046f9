// Tensor cores of sm_75 and later, and the copies that feed them. Each function is one PTX instruction, named
// after it. All 32 lanes of a warp call it together, each with its part of the matrices. An older GPU that
// lacks an instruction uses smaller ones to the same effect. Source: PTX ISA, "mma.m16n8k16", "ldmatrix",
// "cp.async".
#pragma once

#include "common.cuh"

// With HOST_BUILD, host/tensor_core.h has the same functions.
#ifndef HOST_BUILD

// ---- cp.async: 16 or 4 bytes from global to shared memory, bypassing registers ----------------------------

// Copies the first `bytes` of 16 and fills the rest with 0; with 0 bytes nothing is read.
__device__ __forceinline__ void cp_async_16(void* to, const void* from, int bytes) {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from),
                 "r"(bytes)
                 : "memory");
#else
    uint4 pack = make_uint4(0, 0, 0, 0);
    if (bytes == 16) {
        pack = *static_cast<const uint4*>(from);
    } else {
        unsigned* words = &pack.x;
        for (int i = 0; i < bytes; i += 2) {
            words[i / 4] |= static_cast<unsigned>(static_cast<const unsigned short*>(from)[i / 2])
                            << i % 4 * 8;
        }
    }
    *static_cast<uint4*>(to) = pack;
#endif
}

// Copies 4 bytes, or writes 0 if `bytes` is 0.
__device__ __forceinline__ void cp_async_4(void* to, const void* from, int bytes) {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared_address(to)), "l"(from),
                 "r"(bytes)
                 : "memory");
#else
    *static_cast<unsigned*>(to) = bytes == 4 ? *static_cast<const unsigned*>(from) : 0;
#endif
}

// Commits all copies that this thread has started since the last commit as one group.
__device__ __forceinline__ void cp_async_commit() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Waits for all but the latest PENDING groups of this thread.
template <int PENDING>
__device__ __forceinline__ void cp_async_wait() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
#endif
}

// ---- ldmatrix: four 8x8 matrices of 16-bit elements from shared memory -----------------------------------
// Lanes 8*i to 8*i+7 give the addresses of the rows of matrix i, 16 bytes each. Of every matrix, lane l gets
// elements 2*(l%4) and 2*(l%4)+1 of row l/4; of column l/4, with "trans".

__device__ __forceinline__ void ldmatrix_x4(unsigned (&matrix)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(matrix[0]), "=r"(matrix[1]), "=r"(matrix[2]), "=r"(matrix[3])
                 : "r"(shared_address(row))
                 : "memory");
}

__device__ __forceinline__ void ldmatrix_x4_trans(unsigned (&matrix)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(matrix[0]), "=r"(matrix[1]), "=r"(matrix[2]), "=r"(matrix[3])
                 : "r"(shared_address(row))
                 : "memory");
}

// ---- mma: c[16,8] += a[16,16] * b[16,8] ------------------------------------------------------------------
// With g = lane / 4 and t = lane % 4, a lane holds
//   of a  in words 0..3 the elements 2t and 2t+1 of: row g; row g+8; row g, k 8 further; row g+8, k 8 further
//   of b  in words 0, 1 the elements k = 2t and 2t+1 of: column g; column g, k 8 further
//   of c  columns 2t and 2t+1 of row g, then of row g+8

template <typename T>
__device__ __forceinline__ void mma_m16n8k16(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1);

template <>
__device__ __forceinline__ void mma_m16n8k16<__half>(
    float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
#if __CUDA_ARCH__ >= 800
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
    asm volatile(
        "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(b0));
    asm volatile(
        "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[2]), "r"(a[3]), "r"(b1));
#endif
}

template <>
__device__ __forceinline__ void mma_m16n8k16<__nv_bfloat16>(
    float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
#if __CUDA_ARCH__ >= 800
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
    __trap();  // sm_75 tensor cores do not support bf16; the host refuses it
#endif
}

#endif  // HOST_BUILD
