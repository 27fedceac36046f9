// Hopper's product of 8-bit matrices (sm_90a), beside the 16-bit ones of wgmma.cuh. Source: PTX ISA,
// "wgmma.mma_async".
//
// A line of 128 bytes in shared memory, the widest that TMA swizzles, has 128 elements of K; both operands
// run along K: the instruction takes no other layout. With HOST_BUILD, host/wgmma_8bit.h has the same
// functions.
#pragma once

#include "wgmma.cuh"

#ifdef HOST_BUILD
#include "wgmma_8bit.h"
#endif

#if HAS_WGMMA

// ---- TMA with a cache hint: how long the L2 keeps what it loads ------------------------------------------

using cache_policy_t = unsigned long long;
constexpr cache_policy_t NO_POLICY = 0;

__device__ __forceinline__ cache_policy_t evict_first_policy() {
    cache_policy_t policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}
__device__ __forceinline__ cache_policy_t evict_last_policy() {
    cache_policy_t policy;
    asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

__device__ __forceinline__ void tensor_copy_to_shared(
    void* to, const TensorMap* from, int column, int row, mbarrier_t* barrier, cache_policy_t policy) {
    if (policy == NO_POLICY) return tensor_copy_to_shared(to, from, column, row, barrier);
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
        "[%0], [%1, {%2, %3}], [%4], %5;" ::"r"(shared_address(to)),
        "l"(from), "r"(column), "r"(row), "r"(shared_address(barrier)), "l"(policy)
        : "memory");
}
__device__ __forceinline__ void tensor_copy_to_blocks(
    void* to, const TensorMap* from, int column, int row, mbarrier_t* barrier, unsigned short blocks,
    cache_policy_t policy) {
    if (policy == NO_POLICY) return tensor_copy_to_blocks(to, from, column, row, barrier, blocks);
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
        ".L2::cache_hint [%0], [%1, {%2, %3}], [%4], %5, %6;" ::"r"(shared_address(to)),
        "l"(from), "r"(column), "r"(row), "r"(shared_address(barrier)), "h"(blocks), "l"(policy)
        : "memory");
}

// ---- wgmma: d[64, N] (+)= a[64, 32] @ b[N, 32].T, of e4m3 or of s8 ----------------------------------------
// Descriptors and a thread's part of d as in wgmma.cuh. With `add` false, d is overwritten. Sums of s8 are
// exact. Those of e4m3 have fewer digits than fp32: products and the old d are aligned to the largest, and
// cut off 13 bits below it.

// `types`: of d, a and b. `factors`: of a and b, which only floating-point types have.
#define WGMMA_8BIT(n, types, factors, registers, operands, adds, ...)                              \
    WGMMA(                                                                                         \
        "m64n" n "k32." types, registers, operands, adds, factors, : __VA_ARGS__ : "l"(a), "l"(b), \
        "r"(static_cast<int>(add)))
#define WGMMA_N64(types, factors, in) \
    WGMMA_8BIT("64", types, factors, WGMMA_D64, "%32, %33", "%34", WGMMA_32(in, 0))
#define WGMMA_N128(types, factors, in) \
    WGMMA_8BIT("128", types, factors, WGMMA_D128, "%64, %65", "%66", WGMMA_64(in, 0))
#define WGMMA_N256(types, factors, in) \
    WGMMA_8BIT("256", types, factors, WGMMA_D256, "%128, %129", "%130", WGMMA_128(in, 0))
#define WGMMA_E4M3(of_n) of_n("f32.e4m3.e4m3", ", 1, 1", "+f")
#define WGMMA_S8(of_n) of_n("s32.s8.s8", "", "+r")

__device__ __forceinline__ void wgmma_e4m3(float (&d)[32], matrix_t a, matrix_t b, bool add) {
    WGMMA_E4M3(WGMMA_N64);
}
__device__ __forceinline__ void wgmma_e4m3(float (&d)[64], matrix_t a, matrix_t b, bool add) {
    WGMMA_E4M3(WGMMA_N128);
}
__device__ __forceinline__ void wgmma_e4m3(float (&d)[128], matrix_t a, matrix_t b, bool add) {
    WGMMA_E4M3(WGMMA_N256);
}
__device__ __forceinline__ void wgmma_s8(int (&d)[32], matrix_t a, matrix_t b, bool add) {
    WGMMA_S8(WGMMA_N64);
}
__device__ __forceinline__ void wgmma_s8(int (&d)[64], matrix_t a, matrix_t b, bool add) {
    WGMMA_S8(WGMMA_N128);
}
__device__ __forceinline__ void wgmma_s8(int (&d)[128], matrix_t a, matrix_t b, bool add) {
    WGMMA_S8(WGMMA_N256);
}

#undef WGMMA_S8
#undef WGMMA_E4M3
#undef WGMMA_N256
#undef WGMMA_N128
#undef WGMMA_N64
#undef WGMMA_8BIT

// As wgmma.cuh's, of int32 sums.
template <int PENDING, int COUNT>
__device__ __forceinline__ void wgmma_wait_group(int (&d)[COUNT]) {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
#pragma unroll
    for (int i = 0; i < COUNT; ++i) asm volatile("" : "+r"(d[i])::"memory");
}

#endif  // HAS_WGMMA
