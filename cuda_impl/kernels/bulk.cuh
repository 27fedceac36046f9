// What goes the other way than hopper.cuh's bulk copies: from shared memory to global memory, by the copy
// engine (sm_90 and later). Each function is one PTX instruction, named after it. Source: PTX ISA,
// "cp.async.bulk", "cp.async.bulk.commit_group", "cp.async.bulk.wait_group", "membar/fence".
#pragma once

#include "hopper.cuh"

#if HAS_HOPPER_UNITS

// Both addresses and the size are multiples of 16 bytes.
__device__ __forceinline__ void bulk_copy_to_global(void* to, const void* from, unsigned bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to),
                 "r"(shared_address(from)), "r"(bytes)
                 : "memory");
}

// Makes a group of all copies to global memory that this thread has started since the last one.
__device__ __forceinline__ void bulk_copy_commit_group() {
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

// Returns once all of this thread's groups but the last PENDING have read their shared memory, which may then
// be written again. What they write to global memory is there when the grid has ended.
template <int PENDING>
__device__ __forceinline__ void bulk_copy_wait_group_read() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(PENDING) : "memory");
}

// What this thread has written to shared memory is there before what the copy engine does to it next.
__device__ __forceinline__ void fence_proxy_async() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

#endif  // HAS_HOPPER_UNITS
