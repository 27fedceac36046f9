// wgmma with 16-bit operands, a in registers and b along K (sm_90a), bulk copies with a cache policy, and
// flags in global memory. Source: PTX ISA, "wgmma.mma_async", "cp.async.bulk", "createpolicy", "st", "ld".
//
// With HOST_BUILD, host/hopper_units.h has the same functions.
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

// d[64, N] (+)= a[64, 16] @ b[N, 16].T. A thread's part of a is that of mma.m16n8k16 (tensor_core.cuh), of
// its warp's 16 rows. The registers of a must not change before the wait. The number of registers of d
// determines N. With `add` false, d is overwritten.
#define TEN(t) "%" t "0, %" t "1, %" t "2, %" t "3, %" t "4, %" t "5, %" t "6, %" t "7, %" t "8, %" t "9, "
#define EIGHT_OF(d, i)                                                                          \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
        "+f"(d[i + 6]), "+f"(d[i + 7])
#define THIRTY_TWO_OF(d, i) EIGHT_OF(d, i), EIGHT_OF(d, i + 8), EIGHT_OF(d, i + 16), EIGHT_OF(d, i + 24)
#define WGMMA(n, type, registers, a_, b_, add_, ...)                                                     \
    asm volatile(                                                                                        \
        "{\n"                                                                                            \
        ".reg .pred adds;\n"                                                                             \
        "setp.ne.b32 adds, " add_                                                                        \
        ", 0;\n"                                                                                         \
        "wgmma.mma_async.sync.aligned.m64n" n "k16.f32." type "." type " {" registers "}, {" a_ "}, " b_ \
        ", adds, 1, 1, 0;\n"                                                                             \
        "}\n"                                                                                            \
        : __VA_ARGS__                                                                                    \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(add)))
#define WGMMA_N8(type)                                                                                 \
    WGMMA(                                                                                             \
        "8", type, "%0, %1, %2, %3", "%4, %5, %6, %7", "%8", "%9", "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), \
        "+f"(d[3]))
#define WGMMA_N16(type) \
    WGMMA("16", type, "%0, %1, %2, %3, %4, %5, %6, %7", "%8, %9, %10, %11", "%12", "%13", EIGHT_OF(d, 0))
#define WGMMA_N32(type)                                                                         \
    WGMMA(                                                                                      \
        "32", type, TEN("") "%10, %11, %12, %13, %14, %15", "%16, %17, %18, %19", "%20", "%21", \
        EIGHT_OF(d, 0), EIGHT_OF(d, 8))
#define WGMMA_N64(type)                                                                       \
    WGMMA(                                                                                    \
        "64", type, TEN("") TEN("1") TEN("2") "%30, %31", "%32, %33, %34, %35", "%36", "%37", \
        THIRTY_TWO_OF(d, 0))
#define WGMMA_N128(type)                                                                        \
    WGMMA(                                                                                      \
        "128", type, TEN("") TEN("1") TEN("2") TEN("3") TEN("4") TEN("5") "%60, %61, %62, %63", \
        "%64, %65, %66, %67", "%68", "%69", THIRTY_TWO_OF(d, 0), THIRTY_TWO_OF(d, 32))

template <typename T, int COUNT>
__device__ __forceinline__ void wgmma_rows(float (&d)[COUNT], const unsigned* a, matrix_t b, bool add) {
    static_assert(COUNT == 4 || COUNT == 8 || COUNT == 16 || COUNT == 32 || COUNT == 64);
#define OF_TYPE(instruction)    \
    if constexpr (IS_BF16<T>) { \
        instruction("bf16");    \
    } else {                    \
        instruction("f16");     \
    }
    if constexpr (COUNT == 4) {
        OF_TYPE(WGMMA_N8)
    } else if constexpr (COUNT == 8) {
        OF_TYPE(WGMMA_N16)
    } else if constexpr (COUNT == 16) {
        OF_TYPE(WGMMA_N32)
    } else if constexpr (COUNT == 32) {
        OF_TYPE(WGMMA_N64)
    } else {
        OF_TYPE(WGMMA_N128)
    }
#undef OF_TYPE
}

#undef WGMMA_N128
#undef WGMMA_N64
#undef WGMMA_N32
#undef WGMMA_N16
#undef WGMMA_N8
#undef WGMMA
#undef THIRTY_TWO_OF
#undef EIGHT_OF
#undef TEN

#endif  // HAS_WGMMA
