// PTX that attention's Hopper levels need beyond hopper.cuh and wgmma.cuh. Each function is one instruction,
// named after it. Source: PTX ISA, "cp.async.bulk.tensor", "bar", "wgmma.mma_async".
//
// With HOST_BUILD, host/hopper_units.h has the same functions, and those of the other two headers.
#pragma once

#include "wgmma.cuh"

#if HAS_WGMMA

// TMA load of rows of one head of x[B,S,H,D], from `row` on. The map has five dimensions, D % 64, S, D / 64,
// H and B, and a box of 64, rows, D / 64, 1 and 1: one copy fills D / 64 pieces of `rows` rows of 128 bytes.
// Rows outside the tensor are read as zeros, which count as bytes.
__device__ __forceinline__ void head_copy_to_shared(
    void* to, const TensorMap* from, int row, int head, int batch, mbarrier_t* barrier) {
    asm volatile(
        "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%2, %3, %2, %4, %5}], [%6];" ::"r"(shared_address(to)),
        "l"(from), "r"(0), "r"(row), "r"(head), "r"(batch), "r"(shared_address(barrier))
        : "memory");
}

// ---- named barriers: THREADS threads take part, those that sync and those that only arrive ---------------

template <int THREADS>
__device__ __forceinline__ void named_barrier_sync(int id) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "n"(THREADS) : "memory");
}
template <int THREADS>
__device__ __forceinline__ void named_barrier_arrive(int id) {
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "n"(THREADS) : "memory");
}

// ---- wgmma: d[64, N] += a[64, 16] @ b[16, N] with a in registers ------------------------------------------
// A thread's part of a is that of mma.m16n8k16 (tensor_core.cuh), of its warp's 16 rows. The rows of b run
// along N. The registers of a must not change before the wait.

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
        ", adds, 1, 1, 1;\n"                                                                             \
        "}\n"                                                                                            \
        : __VA_ARGS__                                                                                    \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(1))
#define WGMMA_N64(type)                                                                       \
    WGMMA(                                                                                    \
        "64", type, TEN("") TEN("1") TEN("2") "%30, %31", "%32, %33, %34, %35", "%36", "%37", \
        THIRTY_TWO_OF(d, 0))
#define WGMMA_N128(type)                                                                        \
    WGMMA(                                                                                      \
        "128", type, TEN("") TEN("1") TEN("2") TEN("3") TEN("4") TEN("5") "%60, %61, %62, %63", \
        "%64, %65, %66, %67", "%68", "%69", THIRTY_TWO_OF(d, 0), THIRTY_TWO_OF(d, 32))

template <typename T>
__device__ __forceinline__ void wgmma_from_registers(float (&d)[32], const unsigned* a, matrix_t b) {
    if constexpr (IS_BF16<T>) {
        WGMMA_N64("bf16");
    } else {
        WGMMA_N64("f16");
    }
}
template <typename T>
__device__ __forceinline__ void wgmma_from_registers(float (&d)[64], const unsigned* a, matrix_t b) {
    if constexpr (IS_BF16<T>) {
        WGMMA_N128("bf16");
    } else {
        WGMMA_N128("f16");
    }
}

#undef WGMMA_N128
#undef WGMMA_N64
#undef WGMMA
#undef THIRTY_TWO_OF
#undef EIGHT_OF
#undef TEN

#endif  // HAS_WGMMA
