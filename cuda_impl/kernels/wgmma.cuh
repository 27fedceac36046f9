// Hopper's matrix multiplication (sm_90a; no later GPU has all of it): TMA tensor copies, setmaxnreg to move
// registers between warpgroups, and wgmma, which reads operands from shared memory. Each function is one or
// two PTX instructions, named after them. Source: PTX ISA, "cp.async.bulk.tensor", "griddepcontrol",
// "setmaxnreg", "bar", "stmatrix", "wgmma".
#pragma once

#include "bulk.cuh"
#include "common.cuh"
#include "hopper.cuh"
#include "wgmma_ptx.cuh"
#include "x2.cuh"

#if HAS_HOPPER_UNITS && (!defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL))
#define HAS_WGMMA 1
#else
#define HAS_WGMMA 0
#endif

// With HOST_BUILD, host/wgmma.h has the same functions for some ops: what these levels need.
#ifdef HOST_BUILD
#define HAS_WGMMA_LEVELS 1
#else
#define HAS_WGMMA_LEVELS HAS_WGMMA
#endif

// Four warps, whose registers together hold the sums.
constexpr int WARPGROUP = 4 * WARP;
constexpr int REGISTERS_PER_BLOCK = 65536;

// CUtensorMap of <cuda.h>, which NVRTC cannot include: a matrix's layout in memory and the box that a copy
// moves. The host encodes it; a kernel takes it as `const __grid_constant__`.
struct alignas(64) TensorMap {
    unsigned char bytes[128];
};

#ifdef HOST_BUILD
#include "wgmma.h"
#endif

#if HAS_WGMMA

// ---- TMA tensor copy: a box of a matrix at (column, row) -------------------------------------------------
// Elements outside the matrix are read as zeros, which count as bytes, and are not written.

__device__ __forceinline__ void prefetch_tensor_map(const TensorMap* map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

__device__ __forceinline__ void tensor_copy_to_shared(
    void* to, const TensorMap* from, int column, int row, mbarrier_t* barrier) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%2, %3}], [%4];" ::"r"(shared_address(to)),
        "l"(from), "r"(column), "r"(row), "r"(shared_address(barrier))
        : "memory");
}

// Multicast: to the same address in every block whose bit is set; completes on that block's mbarrier.
__device__ __forceinline__ void tensor_copy_to_blocks(
    void* to, const TensorMap* from, int column, int row, mbarrier_t* barrier, unsigned short blocks) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
        "[%0], [%1, {%2, %3}], [%4], %5;" ::"r"(shared_address(to)),
        "l"(from), "r"(column), "r"(row), "r"(shared_address(barrier)), "h"(blocks)
        : "memory");
}

__device__ __forceinline__ void tensor_copy_to_global(
    const TensorMap* to, int column, int row, const void* from) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" ::"l"(to),
                 "r"(column), "r"(row), "r"(shared_address(from))
                 : "memory");
}

// ---- mbarriers of a cluster's blocks ---------------------------------------------------------------------

__device__ __forceinline__ void mbarrier_arrive(mbarrier_t* barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}

// Arrives at the same mbarrier of another block of the cluster (or of this one): the caller has finished
// reading. It publishes none of the caller's writes: ".release.cluster" would first wait on a GPU-wide fence
// of hundreds of cycles.
__device__ __forceinline__ void mbarrier_arrive_in_block(mbarrier_t* barrier, int rank) {
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(address_in_block(barrier, rank))
                 : "memory");
}

// ---- programmatic dependent launch: overlapping grids ----------------------------------------------------
// If the launch allows it, a grid may start while the previous one in its stream still runs.

// Once all blocks have called it, or ended, the next grid may start.
__device__ __forceinline__ void next_grid_may_start() {
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
// Returns when the previous grid has ended and its writes are visible.
__device__ __forceinline__ void previous_grid_wait() {
    asm volatile("griddepcontrol.wait;" ::: "memory");
}

// ---- registers of a warpgroup ---------------------------------------------------------------

// All warps of the warpgroup release registers, or wait until that many are available for each of their
// threads. The kernel must have __launch_bounds__.
template <int REGISTERS>
__device__ __forceinline__ void setmaxnreg_dec() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}
template <int REGISTERS>
__device__ __forceinline__ void setmaxnreg_inc() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
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

// ---- registers to shared memory --------------------------------------------------------------------------

// Stores four 8 x 8 matrices of 16-bit elements: of each, lane l has elements 2 * (l % 4) and the next of row
// l / 4. Row l % 8 of matrix l / 8 goes to the 16 bytes at lane l's `row`.
__device__ __forceinline__ void stmatrix_x4(void* row, unsigned m0, unsigned m1, unsigned m2, unsigned m3) {
    asm volatile(
        "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared_address(row)),
        "r"(m0), "r"(m1), "r"(m2), "r"(m3)
        : "memory");
}

// stmatrix_x4 of transposed matrices: of each, lane l has rows 2 * (l % 4) and the next of column l / 4.
__device__ __forceinline__ void stmatrix_x4_trans(
    void* row, unsigned m0, unsigned m1, unsigned m2, unsigned m3) {
    asm volatile(
        "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared_address(row)),
        "r"(m0), "r"(m1), "r"(m2), "r"(m3)
        : "memory");
}

// ---- wgmma: d[64, N] (+)= a[64, 16] @ b[16, N], by the 128 threads of a warpgroup -------------------------
// Descriptors locate a and b in shared memory. A thread's part of d: d[4 * j + 2 * h + i] is row
// 16 * warp + 8 * h + lane / 4, column 8 * j + 2 * (lane % 4) + i.

using matrix_t = unsigned long long;

// A matrix of 16-bit elements in the layout of a TMA tensor copy with 128-byte swizzle: blocks of 1024 bytes,
// 8 rows of 128 bytes. The 16-byte pieces of a row are permuted by XOR with the row's number.
//   rows run along K:      8 rows of M (or N), 64 of K; the next 8 rows are 1024 bytes on
//   rows run along M or N: 8 rows of K, 64 of M (or N); the next 8 rows are 1024 bytes on, and the next 64 of
//                          M or N `next_line` bytes
// LINE = 32 elements: of a copy with 64-byte swizzle; half of each of these sizes.
// `start` may be some pieces into a row, or some blocks on.
template <int LINE = 64>
__device__ __forceinline__ matrix_t matrix_descriptor(const void* start, unsigned next_line) {
    const auto encode = [](unsigned bytes) { return static_cast<matrix_t>((bytes & 0x3ffff) >> 4); };
    constexpr matrix_t SWIZZLE = LINE == 64 ? 1 : 2;
    return encode(shared_address(start)) | encode(next_line) << 16 | encode(16 * LINE) << 32 | SWIZZLE << 62;
}

// Required before the first wgmma, and after any other access to registers of d.
__device__ __forceinline__ void wgmma_fence() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit_group() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Returns when all but the latest PENDING groups are done. d is an operand so that no use of it moves before
// the wait.
template <int PENDING, int COUNT>
__device__ __forceinline__ void wgmma_wait_group(float (&d)[COUNT]) {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
#pragma unroll
    for (int i = 0; i < COUNT; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

#define WGMMA_SHARED(n, type, registers, operands, adds, transposed, ...)                  \
    WGMMA(                                                                                 \
        "m64n" n "k16.f32." type "." type, registers, operands, adds,                      \
        ", 1, 1, " transposed, : __VA_ARGS__ : "l"(a), "l"(b), "r"(static_cast<int>(add)), \
        "n"(int(A_TRANSPOSED)), "n"(int(B_TRANSPOSED)))
#define WGMMA_N16(type) WGMMA_SHARED("16", type, WGMMA_D16, "%8, %9", "%10", "%11, %12", WGMMA_8("+f", 0))
#define WGMMA_N32(type) WGMMA_SHARED("32", type, WGMMA_D32, "%16, %17", "%18", "%19, %20", WGMMA_16("+f", 0))
#define WGMMA_N48(type) WGMMA_SHARED("48", type, WGMMA_D48, "%24, %25", "%26", "%27, %28", WGMMA_24("+f", 0))
#define WGMMA_N64(type) WGMMA_SHARED("64", type, WGMMA_D64, "%32, %33", "%34", "%35, %36", WGMMA_32("+f", 0))
#define WGMMA_N80(type) WGMMA_SHARED("80", type, WGMMA_D80, "%40, %41", "%42", "%43, %44", WGMMA_40("+f", 0))
#define WGMMA_N96(type) WGMMA_SHARED("96", type, WGMMA_D96, "%48, %49", "%50", "%51, %52", WGMMA_48("+f", 0))
#define WGMMA_N112(type) \
    WGMMA_SHARED("112", type, WGMMA_D112, "%56, %57", "%58", "%59, %60", WGMMA_56("+f", 0))
#define WGMMA_N128(type) \
    WGMMA_SHARED("128", type, WGMMA_D128, "%64, %65", "%66", "%67, %68", WGMMA_64("+f", 0))
#define WGMMA_N144(type) \
    WGMMA_SHARED("144", type, WGMMA_D144, "%72, %73", "%74", "%75, %76", WGMMA_72("+f", 0))
#define WGMMA_N160(type) \
    WGMMA_SHARED("160", type, WGMMA_D160, "%80, %81", "%82", "%83, %84", WGMMA_80("+f", 0))
#define WGMMA_N176(type) \
    WGMMA_SHARED("176", type, WGMMA_D176, "%88, %89", "%90", "%91, %92", WGMMA_88("+f", 0))
#define WGMMA_N192(type) \
    WGMMA_SHARED("192", type, WGMMA_D192, "%96, %97", "%98", "%99, %100", WGMMA_96("+f", 0))
#define WGMMA_N208(type) \
    WGMMA_SHARED("208", type, WGMMA_D208, "%104, %105", "%106", "%107, %108", WGMMA_104("+f", 0))
#define WGMMA_N224(type) \
    WGMMA_SHARED("224", type, WGMMA_D224, "%112, %113", "%114", "%115, %116", WGMMA_112("+f", 0))
#define WGMMA_N240(type) \
    WGMMA_SHARED("240", type, WGMMA_D240, "%120, %121", "%122", "%123, %124", WGMMA_120("+f", 0))
#define WGMMA_N256(type) \
    WGMMA_SHARED("256", type, WGMMA_D256, "%128, %129", "%130", "%131, %132", WGMMA_128("+f", 0))

// The number of registers of d determines N. With `add` false, d is overwritten.
template <typename T, bool A_TRANSPOSED, bool B_TRANSPOSED, int COUNT>
__device__ __forceinline__ void wgmma(float (&d)[COUNT], matrix_t a, matrix_t b, bool add) {
    if constexpr (COUNT == 8) {
        WGMMA_OF_TYPE(WGMMA_N16)
    } else if constexpr (COUNT == 16) {
        WGMMA_OF_TYPE(WGMMA_N32)
    } else if constexpr (COUNT == 24) {
        WGMMA_OF_TYPE(WGMMA_N48)
    } else if constexpr (COUNT == 32) {
        WGMMA_OF_TYPE(WGMMA_N64)
    } else if constexpr (COUNT == 40) {
        WGMMA_OF_TYPE(WGMMA_N80)
    } else if constexpr (COUNT == 48) {
        WGMMA_OF_TYPE(WGMMA_N96)
    } else if constexpr (COUNT == 56) {
        WGMMA_OF_TYPE(WGMMA_N112)
    } else if constexpr (COUNT == 64) {
        WGMMA_OF_TYPE(WGMMA_N128)
    } else if constexpr (COUNT == 72) {
        WGMMA_OF_TYPE(WGMMA_N144)
    } else if constexpr (COUNT == 80) {
        WGMMA_OF_TYPE(WGMMA_N160)
    } else if constexpr (COUNT == 88) {
        WGMMA_OF_TYPE(WGMMA_N176)
    } else if constexpr (COUNT == 96) {
        WGMMA_OF_TYPE(WGMMA_N192)
    } else if constexpr (COUNT == 104) {
        WGMMA_OF_TYPE(WGMMA_N208)
    } else if constexpr (COUNT == 112) {
        WGMMA_OF_TYPE(WGMMA_N224)
    } else if constexpr (COUNT == 120) {
        WGMMA_OF_TYPE(WGMMA_N240)
    } else if constexpr (COUNT == 128) {
        WGMMA_OF_TYPE(WGMMA_N256)
    }
    static_assert(COUNT % 8 == 0 && COUNT <= 128);
}

#undef WGMMA_N256
#undef WGMMA_N240
#undef WGMMA_N224
#undef WGMMA_N208
#undef WGMMA_N192
#undef WGMMA_N176
#undef WGMMA_N160
#undef WGMMA_N144
#undef WGMMA_N128
#undef WGMMA_N112
#undef WGMMA_N96
#undef WGMMA_N80
#undef WGMMA_N64
#undef WGMMA_N48
#undef WGMMA_N32
#undef WGMMA_N16
#undef WGMMA_SHARED

#endif  // HAS_WGMMA
