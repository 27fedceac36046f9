// Shared by the kernels that reduce: detection of the last block.
#pragma once

#include "common.cuh"

// Increments `arrived`, which starts as 0, and returns to all threads whether this block is the last of
// `blocks`. Then everything that the other blocks' first threads wrote before is visible to reads that bypass
// the L1. No block waits for another. To be called once: no barrier follows the reads of is_last.
__device__ __forceinline__ bool arrives_last(unsigned long long* arrived, unsigned blocks) {
    __shared__ unsigned long long is_last;  // 8 bytes: nvcc and NVRTC pad smaller types differently
    if (threadIdx.x == 0) {
        __threadfence();  // release: whoever sees the count sees the writes before it
        is_last = atomicAdd(arrived, 1ull) == blocks - 1;
        __threadfence();  // acquire: after the barrier the block sees what this thread has seen
    }
    __syncthreads();
    return is_last;
}
