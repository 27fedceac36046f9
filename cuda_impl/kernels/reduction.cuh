// What several kernels that reduce have in common: the sum over a warp's lanes, and which block is the last.
#pragma once

#include "common.cuh"

// Every lane of each group of WIDTH neighbouring lanes gets the sum of the group.
template <int WIDTH>
__device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
    for (int offset = WIDTH / 2; offset > 0; offset /= 2) {
        value += __shfl_xor_sync(FULL_WARP, value, offset);
    }
    return value;
}

// Counts the block in `arrived`, which starts as 0, and tells all its threads whether it is the last of
// `blocks`: then what the others' first threads have written before is there, to be read past the L1. No
// block waits for another. To be called once: who reads is_last meets nobody after that.
__device__ __forceinline__ bool arrives_last(unsigned long long* arrived, unsigned blocks) {
    __shared__ unsigned long long is_last;  // less than 8 bytes nvcc and NVRTC fill up in different ways
    if (threadIdx.x == 0) {
        __threadfence();  // whoever sees the count sees what was written before
        is_last = atomicAdd(arrived, 1ull) == blocks - 1;
        __threadfence();  // and the block, behind its barrier, what this thread has seen
    }
    __syncthreads();
    return is_last;
}
