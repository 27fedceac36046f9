// wgmma with 16-bit operands, a in registers and b along K (sm_90a), bulk copies with a cache policy, and
// flags in global memory. Source: PTX ISA, "wgmma.mma_async", "cp.async.bulk", "createpolicy", "st", "ld".
//
// With HOST_BUILD, host/wgmma.h has the same functions.
#pragma once

#include "ring.cuh"
#include "wgmma_8bit.cuh"

#if HAS_WGMMA

// As bulk_copy_to_shared, of bytes that no other block reads: the L2 evicts them first, before lines that may
// be read again, or that it has to write back.
__device__ __forceinline__ void bulk_copy_to_shared_once(
    void* to, const void* from, unsigned bytes, mbarrier_t* barrier) {
    asm volatile(
        "{\n"
        ".reg .b64 policy;\n"
        "createpolicy.fractional.L2::evict_first.b64 policy, 1.0;\n"
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, "
        "[%3], "
        "policy;\n"
        "}\n" ::"r"(shared_address(to)),
        "l"(from), "r"(bytes), "r"(shared_address(barrier))
        : "memory");
}

// All that the thread has seen or written is visible to another that acquires the value. Cheaper than
// __threadfence, a sequentially consistent fence.
__device__ __forceinline__ void store_release(unsigned* ptr, unsigned value) {
    asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(ptr), "r"(value) : "memory");
}
__device__ __forceinline__ unsigned load_acquire(const unsigned* ptr) {
    unsigned value;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(ptr) : "memory");
    return value;
}

// d[64, N] (+)= a[64, 16] @ b[N, 16].T. The number of registers of d determines N. With `add` false, d is
// overwritten.
#define WGMMA_ROWS(n, registers, operands, adds, type, ...) \
    WGMMA_REGISTERS(n, type, registers, operands, adds, "0", "r"(static_cast<int>(add)), __VA_ARGS__)
#define WGMMA_N8(type) WGMMA_ROWS("8", WGMMA_D8, "{%4, %5, %6, %7}, %8", "%9", type, WGMMA_4("+f", 0))
#define WGMMA_N16(type) WGMMA_ROWS("16", WGMMA_D16, "{%8, %9, %10, %11}, %12", "%13", type, WGMMA_8("+f", 0))
#define WGMMA_N32(type) \
    WGMMA_ROWS("32", WGMMA_D32, "{%16, %17, %18, %19}, %20", "%21", type, WGMMA_16("+f", 0))
#define WGMMA_N64(type) \
    WGMMA_ROWS("64", WGMMA_D64, "{%32, %33, %34, %35}, %36", "%37", type, WGMMA_32("+f", 0))
#define WGMMA_N128(type) \
    WGMMA_ROWS("128", WGMMA_D128, "{%64, %65, %66, %67}, %68", "%69", type, WGMMA_64("+f", 0))

template <typename T, int COUNT>
__device__ __forceinline__ void wgmma_rows(float (&d)[COUNT], const unsigned* a, matrix_t b, bool add) {
    static_assert(COUNT == 4 || COUNT == 8 || COUNT == 16 || COUNT == 32 || COUNT == 64);
    if constexpr (COUNT == 4) {
        WGMMA_OF_TYPE(WGMMA_N8)
    } else if constexpr (COUNT == 8) {
        WGMMA_OF_TYPE(WGMMA_N16)
    } else if constexpr (COUNT == 16) {
        WGMMA_OF_TYPE(WGMMA_N32)
    } else if constexpr (COUNT == 32) {
        WGMMA_OF_TYPE(WGMMA_N64)
    } else {
        WGMMA_OF_TYPE(WGMMA_N128)
    }
}

#undef WGMMA_N128
#undef WGMMA_N64
#undef WGMMA_N32
#undef WGMMA_N16
#undef WGMMA_N8
#undef WGMMA_ROWS

#endif  // HAS_WGMMA
