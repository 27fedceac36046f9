// PTX that attention's Hopper levels need beyond hopper.cuh and wgmma.cuh. Each function is one instruction,
// named after it. Source: PTX ISA, "cp.async.bulk.tensor", "wgmma.mma_async".
//
// With HOST_BUILD, host/wgmma.h has the same functions, and those of the other two headers.
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

// ---- wgmma: d[64, N] += a[64, 16] @ b[16, N] with a in registers ------------------------------------------
// The rows of b run along N.

#define WGMMA_N64(type) \
    WGMMA_REGISTERS("64", type, WGMMA_D64, "{%32, %33, %34, %35}, %36", "%37", "1", "n"(1), WGMMA_32("+f", 0))
#define WGMMA_N128(type) \
    WGMMA_REGISTERS(     \
        "128", type, WGMMA_D128, "{%64, %65, %66, %67}, %68", "%69", "1", "n"(1), WGMMA_64("+f", 0))

template <typename T, int COUNT>
__device__ __forceinline__ void wgmma_from_registers(float (&d)[COUNT], const unsigned* a, matrix_t b) {
    static_assert(COUNT == 32 || COUNT == 64);
    if constexpr (COUNT == 32) {
        WGMMA_OF_TYPE(WGMMA_N64)
    } else {
        WGMMA_OF_TYPE(WGMMA_N128)
    }
}

#undef WGMMA_N128
#undef WGMMA_N64

#endif  // HAS_WGMMA
