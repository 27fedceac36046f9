// PTX that attention_backward's Hopper levels need beyond attention/hopper_ptx.cuh. Each function is one
// instruction. With HOST_BUILD the same in plain C++. Source: PTX ISA, "cp.reduce.async.bulk",
// "stmatrix", "wgmma".
#pragma once

#include "attention/hopper_ptx.cuh"

#if HAS_WGMMA

// As matrix_descriptor, from an address in shared memory: 32-bit arithmetic, in NVRTC and in nvcc.
__device__ __forceinline__ matrix_t descriptor_at(unsigned address, unsigned next_64) {
    constexpr unsigned BLOCK_BYTES = 1024, SWIZZLE_128 = 1u << 30;
    const unsigned low = (address & 0x3ffff) >> 4 | next_64 >> 4 << 16;
    const unsigned high = BLOCK_BYTES >> 4 | SWIZZLE_128;
    return static_cast<matrix_t>(high) << 32 | low;
}

// Adds fp32 elements of shared memory to global memory: one thread issues it, TMA executes it. Addresses and
// size are multiples of 16 bytes. The caller commits it to a bulk group. Predicated, not branched over.
__device__ __forceinline__ void bulk_add_to_global_if(
    bool condition, float* to, const float* from, unsigned bytes) {
    asm volatile(
        "{\n"
        ".reg .pred issues;\n"
        "setp.ne.b32 issues, %3, 0;\n"
        "@issues cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;\n"
        "}\n" ::"l"(to),
        "r"(shared_address(from)), "r"(bytes), "r"(int(condition))
        : "memory");
}

// d[64, N] (+)= a[64, 16] @ b[16, N]: the rows of both run across K.
template <typename T, int COUNT>
__device__ __forceinline__ void wgmma_across_k(float (&d)[COUNT], matrix_t a, matrix_t b, bool add) {
    wgmma<T, true, true>(d, a, b, add);
}

#elif defined(HOST_BUILD)

inline matrix_t descriptor_at(unsigned address, unsigned next_64) {
    return matrix_descriptor(host::shared_pointer(address), next_64);
}

// Executed when they are waited for and not before, so that a missing wait shows.
inline void bulk_add_to_global_if(bool condition, float* to, const float* from, unsigned bytes) {
    if (!condition) return;
    host::stores().started.push_back([=] {
        for (unsigned i = 0; i < bytes / sizeof(float); ++i) to[i] += from[i];
    });
}

template <typename T, int COUNT>
void wgmma_across_k(float (&d)[COUNT], matrix_t a, matrix_t b, bool add) {
    wgmma<T, true, true>(d, a, b, add);
}

#endif
