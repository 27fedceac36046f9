// A ring of stages in shared memory, which TMA fills with 128-byte swizzle (sm_90a).
#pragma once

#include "line.cuh"
#include "wgmma.cuh"

#if HAS_WGMMA_LEVELS

// The swizzle repeats every 1024 bytes and needs that alignment; dynamic shared memory may lack it.
__device__ __forceinline__ unsigned char* align_1024(unsigned char* shared) {
    return shared + (-shared_address(shared) & 1023);
}

// The current stage of a ring of STAGES, and the phase parity of its mbarriers.
template <int STAGES>
struct Ring {
    int stage = 0;
    unsigned parity = 0;

    __device__ __forceinline__ void advance() {
        if (++stage == STAGES) {
            stage = 0;
            parity ^= 1;
        }
    }
};

#endif  // HAS_WGMMA_LEVELS
