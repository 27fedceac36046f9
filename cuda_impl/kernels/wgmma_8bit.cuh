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

#define TEN(t) "%" t "0, %" t "1, %" t "2, %" t "3, %" t "4, %" t "5, %" t "6, %" t "7, %" t "8, %" t "9, "
#define EIGHT_OF(in, d, i) \
    in(d[i]), in(d[i + 1]), in(d[i + 2]), in(d[i + 3]), in(d[i + 4]), in(d[i + 5]), in(d[i + 6]), in(d[i + 7])
#define THIRTY_TWO_OF(in, d, i) \
    EIGHT_OF(in, d, i), EIGHT_OF(in, d, i + 8), EIGHT_OF(in, d, i + 16), EIGHT_OF(in, d, i + 24)
#define SIXTY_FOUR_OF(in, d, i) THIRTY_TWO_OF(in, d, i), THIRTY_TWO_OF(in, d, i + 32)
// `types`: of d, a and b. `factors`: of a and b, which only floating-point types have.
#define WGMMA_8BIT(n, types, factors, registers, a_, b_, add_, ...)                                         \
    asm volatile(                                                                                           \
        "{\n"                                                                                               \
        ".reg .pred adds;\n"                                                                                \
        "setp.ne.b32 adds, " add_                                                                           \
        ", 0;\n"                                                                                            \
        "wgmma.mma_async.sync.aligned.m64n" n "k32." types " {" registers "}, " a_ ", " b_ ", adds" factors \
        ";\n"                                                                                               \
        "}\n"                                                                                               \
        : __VA_ARGS__                                                                                       \
        : "l"(a), "l"(b), "r"(static_cast<int>(add)))
#define WGMMA_N64(types, factors, in)                                                    \
    WGMMA_8BIT(                                                                          \
        "64", types, factors, TEN("") TEN("1") TEN("2") "%30, %31", "%32", "%33", "%34", \
        THIRTY_TWO_OF(in, d, 0))
#define WGMMA_N128(types, factors, in)                                                                    \
    WGMMA_8BIT(                                                                                           \
        "128", types, factors, TEN("") TEN("1") TEN("2") TEN("3") TEN("4") TEN("5") "%60, %61, %62, %63", \
        "%64", "%65", "%66", SIXTY_FOUR_OF(in, d, 0))
#define WGMMA_N256(types, factors, in)                                                                     \
    WGMMA_8BIT(                                                                                            \
        "256", types, factors,                                                                             \
        TEN("") TEN("1") TEN("2") TEN("3") TEN("4") TEN("5") TEN("6") TEN("7") TEN("8") TEN("9") TEN("10") \
            TEN("11") "%120, %121, %122, %123, %124, %125, %126, %127",                                    \
        "%128", "%129", "%130", SIXTY_FOUR_OF(in, d, 0), SIXTY_FOUR_OF(in, d, 64))
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
#undef SIXTY_FOUR_OF
#undef THIRTY_TWO_OF
#undef EIGHT_OF
#undef TEN

// As wgmma.cuh's, of int32 sums.
template <int PENDING, int COUNT>
__device__ __forceinline__ void wgmma_wait_group(int (&d)[COUNT]) {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
#pragma unroll
    for (int i = 0; i < COUNT; ++i) asm volatile("" : "+r"(d[i])::"memory");
}

#endif  // HAS_WGMMA
