// PTX that attention_backward's wgmma level needs beyond attention/hopper_ptx.cuh. Source: PTX ISA,
// "cp.reduce.async.bulk".
#pragma once

#include "attention/hopper_ptx.cuh"

#if HAS_WGMMA

// Adds fp32 elements of shared memory to global memory: one thread issues it, TMA executes it. Addresses and
// size are multiples of 16 bytes. The caller commits it to a bulk group. Predicated, not branched over.
__device__ __forceinline__ void bulk_add_to_global_if(bool condition, float* to, const float* from,
                                                      unsigned bytes) {
    asm volatile(
        "{\n"
        ".reg .pred issues;\n"
        "setp.ne.b32 issues, %3, 0;\n"
        "@issues cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;\n"
        "}\n" ::"l"(to),
        "r"(shared_address(from)), "r"(bytes), "r"(int(condition))
        : "memory");
}

#elif defined(HOST_BUILD)

inline void bulk_add_to_global_if(bool condition, float* to, const float* from, unsigned bytes) {
    if (!condition) return;
    for (unsigned i = 0; i < bytes / sizeof(float); ++i) to[i] += from[i];
}

#endif
