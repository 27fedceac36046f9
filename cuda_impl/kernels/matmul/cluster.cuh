// What matmul's levels from 14 on share: sums in the shared memory of a cluster's blocks, sm_90.
#pragma once

#include "hopper.cuh"

#if HAS_HOPPER_UNITS

// Orders earlier writes to shared memory before reads by the cluster's other blocks.
__device__ __forceinline__ void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
    cluster_wait();
}

__device__ __forceinline__ float load_from_block(const float* ptr, int rank) {
    float value;
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(address_in_block(ptr, rank)) : "memory");
    return value;
}
__device__ __forceinline__ float4 load_from_block(const float4* ptr, int rank) {
    float4 value;
    asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
                 : "r"(address_in_block(ptr, rank))
                 : "memory");
    return value;
}

#endif  // HAS_HOPPER_UNITS
