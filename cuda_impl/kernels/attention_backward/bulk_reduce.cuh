// PTX that attention_backward's wgmma level needs beyond attention/hopper_ptx.cuh. Source: PTX ISA,
// "cp.reduce.async.bulk".
#pragma once

#include "attention/hopper_ptx.cuh"

#if HAS_WGMMA

// Adds fp32 elements of shared memory to global memory: one thread issues it, TMA executes it. Addresses and
// size are multiples of 16 bytes. The caller commits it to a bulk group.
__device__ __forceinline__ void bulk_add_to_global(float* to, const float* from, unsigned bytes) {
    asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(to),
                 "r"(shared_address(from)), "r"(bytes)
                 : "memory");
}

#elif defined(HOST_BUILD)

inline void bulk_add_to_global(float* to, const float* from, unsigned bytes) {
    for (unsigned i = 0; i < bytes / sizeof(float); ++i) to[i] += from[i];
}

#endif
