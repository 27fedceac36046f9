// What only Hopper (sm_90) and later have: bulk asynchronous copies that complete on an mbarrier, and
// thread-block clusters with distributed shared memory. Each function is one or two PTX instructions, named
// after them. Source: PTX ISA, "mbarrier", "cp.async.bulk", "membar/fence", "mapa",
// "barrier.cluster".
#pragma once

#include "common.cuh"

#if !defined(HOST_BUILD) && (!defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900)
#define HAS_HOPPER_UNITS 1
#define CLUSTER_OF(blocks) __cluster_dims__(blocks, 1, 1)
#else
#define HAS_HOPPER_UNITS 0
#define CLUSTER_OF(blocks)  // earlier targets reject the attribute
#endif

// With HOST_BUILD, host/hopper_units.h has the same functions, and those of bulk.cuh.
#ifdef HOST_BUILD
#include "hopper_units.h"
#define HAS_HOPPER_LEVELS 1
#else
#define HAS_HOPPER_LEVELS HAS_HOPPER_UNITS
#endif

#if HAS_HOPPER_UNITS

using mbarrier_t = unsigned long long;

// ---- mbarrier: counts pending arrivals and pending bytes of asynchronous copies ------------------------

__device__ __forceinline__ void mbarrier_init(mbarrier_t* barrier, unsigned arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals));
}

// Makes the initialisation visible to TMA and to the cluster's other blocks.
__device__ __forceinline__ void mbarrier_init_fence() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void mbarrier_arrive_expect_bytes(mbarrier_t* barrier, unsigned bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
                 "r"(bytes)
                 : "memory");
}

// Returns when the phase of that parity (0 for the first, then 1, 0 ...) is complete.
__device__ __forceinline__ void mbarrier_wait(mbarrier_t* barrier, unsigned parity) {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "retry:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra retry;\n"
        "}\n" ::"r"(shared_address(barrier)),
        "r"(parity)
        : "memory");
}

// ---- bulk copy: one thread issues it, TMA executes it ---------------------------------------------------
// Both addresses and the size are multiples of 16 bytes.

__device__ __forceinline__ void bulk_copy_to_shared(
    void* to, const void* from, unsigned bytes, mbarrier_t* barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
            shared_address(to)),
        "l"(from), "r"(bytes), "r"(shared_address(barrier))
        : "memory");
}

// Makes this thread's writes to shared memory visible to TMA and the tensor cores (the async proxy).
__device__ __forceinline__ void fence_proxy_async() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// ---- clusters -----------------------------------------------------------------------------------------

__device__ __forceinline__ int cluster_block_rank() {
    int rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

// Barrier over all threads of all blocks of the cluster. "relaxed" orders no earlier writes except mbarrier
// initialisations behind their fence, and so does not wait for writes.
__device__ __forceinline__ void cluster_arrive_relaxed() {
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() {
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// The address of the same variable in another block of the cluster (distributed shared memory).
__device__ __forceinline__ unsigned address_in_block(const void* ptr, int rank) {
    unsigned remote;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(shared_address(ptr)), "r"(rank));
    return remote;
}

// Writes 8 bytes to the same variable in another block of the cluster, and completes 8 bytes on its mbarrier.
__device__ __forceinline__ void store_async_to_block(
    unsigned long long* ptr, int rank, unsigned long long value, mbarrier_t* barrier) {
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.u64 [%0], %1, [%2];" ::"r"(
                     address_in_block(ptr, rank)),
                 "l"(value), "r"(address_in_block(barrier, rank))
                 : "memory");
}

// Barrier that orders earlier writes to shared memory before reads by the cluster's other blocks.
__device__ __forceinline__ void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
    cluster_wait();
}

// Writes to the same variable in another block of the cluster.
__device__ __forceinline__ void store_to_block(float4* ptr, int rank, const float4& value) {
    asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(address_in_block(ptr, rank)),
                 "f"(value.x), "f"(value.y), "f"(value.z), "f"(value.w)
                 : "memory");
}

#endif  // HAS_HOPPER_UNITS
