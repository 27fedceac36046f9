// Bulk copies from shared to global memory by TMA (sm_90 and later), the opposite direction of hopper.cuh's.
// Each function is one PTX instruction, named after it. Source: PTX ISA, "cp.async.bulk",
// "cp.async.bulk.commit_group", "cp.async.bulk.wait_group".
#pragma once

#include "hopper.cuh"

#if HAS_HOPPER_UNITS

// Both addresses and the size are multiples of 16 bytes.
__device__ __forceinline__ void bulk_copy_to_global(void* to, const void* from, unsigned bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to),
                 "r"(shared_address(from)), "r"(bytes)
                 : "memory");
}

// Commits all copies to global memory that this thread has started since the last commit as one group.
__device__ __forceinline__ void bulk_commit_group() {
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

// Returns when all but the latest PENDING groups of this thread have read their shared memory, which may then
// be overwritten. Their writes to global memory are complete when the grid ends.
template <int PENDING>
__device__ __forceinline__ void bulk_wait_group_read() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(PENDING) : "memory");
}

#endif  // HAS_HOPPER_UNITS
