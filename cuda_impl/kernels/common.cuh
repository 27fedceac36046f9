// What every kernel file uses: element types, vectorized access, and reductions over a warp or a block.
//
// Device code only, and no standard headers: the same text is compiled by NVRTC, by nvcc and, with
// HOST_BUILD defined, by g++ for machines without a GPU.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#ifndef HOST_BUILD
// Shared memory whose size the launch sets. One declaration serves all types of a template.
#define DYNAMIC_SHARED(type, name)                                \
    extern __shared__ __align__(16) unsigned char name##_bytes[]; \
    type* name = reinterpret_cast<type*>(name##_bytes)
// For the body of a loop that polls memory written by another block.
#define SPIN_WAIT() __nanosleep(32)
#endif

using index_t = long long;  // offsets: tensors may hold more than 2^31 elements

constexpr int WARP = 32;
constexpr unsigned FULL_WARP = 0xffffffffu;

// ---- element types: memory holds T, arithmetic is in fp32 ------------------------------------------

__device__ __forceinline__ float to_float(float value) {
    return value;
}
__device__ __forceinline__ float to_float(__half value) {
    return __half2float(value);
}
__device__ __forceinline__ float to_float(__nv_bfloat16 value) {
    return __bfloat162float(value);
}

template <typename T>
__device__ __forceinline__ T from_float(float value);
template <>
__device__ __forceinline__ float from_float<float>(float value) {
    return value;
}
template <>
__device__ __forceinline__ __half from_float<__half>(float value) {
    return __float2half_rn(value);
}
template <>
__device__ __forceinline__ __nv_bfloat16 from_float<__nv_bfloat16>(float value) {
    return __float2bfloat16_rn(value);
}

__device__ __forceinline__ float negative_infinity() {
    return __int_as_float(0xff800000);
}

// ---- Vec: N neighbouring elements in one vectorized access, of 16 bytes or of one element
// ------------------ Read `float(x[i])`, write `y[i] = T(value)`, which rounds once.

template <typename T, int N>
struct alignas(N * sizeof(T)) Vec {
    T element[N];

    __device__ __forceinline__ T& operator[](int i) { return element[i]; }
    __device__ __forceinline__ const T& operator[](int i) const { return element[i]; }
};

// A vector as four 32-bit words, for one that stays in registers: its 16-bit elements would take a register
// each.
template <typename T, int N>
struct Packed {
    static_assert(N * sizeof(T) == 16, "a vector is 16 bytes or one element");
    uint4 words;

    // The empty asm statement hides that an earlier pass unpacked the same words: the compiler would keep
    // that pass's fp32 elements, in twice the registers.
    __device__ __forceinline__ Vec<T, N> unpack() const {
        uint4 opaque = words;
        asm volatile("" : "+r"(opaque.x), "+r"(opaque.y), "+r"(opaque.z), "+r"(opaque.w));
        return reinterpret_cast<const Vec<T, N>&>(opaque);
    }
};
template <typename T>
struct Packed<T, 1> {
    Vec<T, 1> element;

    __device__ __forceinline__ Vec<T, 1> unpack() const { return element; }
};

template <int N, typename T>
__device__ __forceinline__ Packed<T, N> load_packed(const T* ptr) {
    return *reinterpret_cast<const Packed<T, N>*>(ptr);
}
template <int N, typename T>
__device__ __forceinline__ Vec<T, N> load_vec(const T* ptr) {
    const Packed<T, N> loaded = load_packed<N>(ptr);
    return reinterpret_cast<const Vec<T, N>&>(loaded);
}
template <typename T, int N>
__device__ __forceinline__ void store_vec(T* ptr, const Vec<T, N>& x) {
    if constexpr (N == 1) {
        *ptr = x[0];
    } else {
        // One 16-byte store; an assignment may compile to a store per element.
        __stwb(reinterpret_cast<uint4*>(ptr), reinterpret_cast<const uint4&>(x));
    }
}

// ---- reductions: warp shuffles, then one value per warp through shared memory ---------------------------

struct Sum {
    template <typename T>
    __device__ __forceinline__ T operator()(T a, T b) const {
        return a + b;
    }
};
struct Max {
    __device__ __forceinline__ float operator()(float a, float b) const { return fmaxf(a, b); }
};

// Every lane of each group of WIDTH neighbouring lanes gets the group's reduction.
template <typename Op, int WIDTH = WARP, typename T>
__device__ __forceinline__ T warp_reduce(T value) {
#pragma unroll
    for (int offset = WIDTH / 2; offset > 0; offset /= 2) {
        value = Op()(value, __shfl_xor_sync(FULL_WARP, value, offset));
    }
    return value;
}

// Every thread of the block gets the reduction over all THREADS. Each CALL has its own shared memory; the
// same CALL again needs a barrier in between.
template <typename Op, int THREADS, int CALL = 0, typename T>
__device__ __forceinline__ T block_reduce(T value) {
    constexpr int WARPS = THREADS / WARP;
    __shared__ T of_warp[WARPS];
    value = warp_reduce<Op>(value);
    if (threadIdx.x % WARP == 0) of_warp[threadIdx.x / WARP] = value;
    __syncthreads();
    return warp_reduce<Op, WARPS>(of_warp[threadIdx.x % WARPS]);
}

// Every thread gets the reduction over the THREADS / BLOCK_M threads that share its row: the block, or a part
// of a warp if a block has several rows.
template <typename Op, int THREADS, int BLOCK_M, int CALL = 0>
__device__ __forceinline__ float row_reduce(float value) {
    if constexpr (BLOCK_M == 1) {
        return block_reduce<Op, THREADS, CALL>(value);
    } else {
        static_assert(THREADS / BLOCK_M <= WARP, "several rows a block: each within a warp");
        return warp_reduce<Op, THREADS / BLOCK_M>(value);
    }
}

// ---- Pack: VEC neighbouring elements in one vectorized access -------------------------------------------
// VEC is 16 bytes' worth, the widest access of a thread, or 1 for unaligned rows. The 16 bytes are kept as
// four 32-bit words, as registers hold them: extracting 16-bit halves early would cost an instruction each.

template <typename T, int VEC>
struct alignas(16) Pack {
    static_assert(VEC * sizeof(T) == 16, "a pack is 16 bytes or one element");
    unsigned word[4];
};
template <typename T>
struct Pack<T, 1> {
    T element;
};

template <typename T, int VEC>
__device__ __forceinline__ Pack<T, VEC> load(const T* ptr) {
    return *reinterpret_cast<const Pack<T, VEC>*>(ptr);
}

template <typename T>
__device__ __forceinline__ void store(T* ptr, const Pack<T, 1>& pack) {
    *ptr = pack.element;
}
template <typename T, int VEC>
__device__ __forceinline__ void store(T* ptr, const Pack<T, VEC>& pack) {
    // An assignment may compile to four 4-byte stores; this is one 16-byte store of the same cache policy.
    __stwb(reinterpret_cast<uint4*>(ptr), make_uint4(pack.word[0], pack.word[1], pack.word[2], pack.word[3]));
}

// Element v, in fp32.
template <typename T>
__device__ __forceinline__ float get(const Pack<T, 1>& pack, int) {
    return to_float(pack.element);
}
__device__ __forceinline__ float get(const Pack<float, 4>& pack, int v) {
    return __uint_as_float(pack.word[v]);
}
__device__ __forceinline__ float get(const Pack<__half, 8>& pack, int v) {
    const float2 two = __half22float2(reinterpret_cast<const __half2*>(pack.word)[v / 2]);
    return v % 2 == 0 ? two.x : two.y;
}
__device__ __forceinline__ float get(const Pack<__nv_bfloat16, 8>& pack, int v) {
    const unsigned two = pack.word[v / 2];  // bf16 is the upper half of fp32
    return __uint_as_float(v % 2 == 0 ? two << 16 : two & 0xffff0000u);
}

// Rounds VEC fp32 values once each.
template <typename T>
__device__ __forceinline__ void set(Pack<T, 1>& pack, const float (&value)[1]) {
    pack.element = from_float<T>(value[0]);
}
__device__ __forceinline__ void set(Pack<float, 4>& pack, const float (&value)[4]) {
#pragma unroll
    for (int v = 0; v < 4; ++v) pack.word[v] = __float_as_uint(value[v]);
}
__device__ __forceinline__ void set(Pack<__half, 8>& pack, const float (&value)[8]) {
#pragma unroll
    for (int v = 0; v < 8; v += 2) {
        reinterpret_cast<__half2*>(pack.word)[v / 2] = __floats2half2_rn(value[v], value[v + 1]);
    }
}
__device__ __forceinline__ void set(Pack<__nv_bfloat16, 8>& pack, const float (&value)[8]) {
#pragma unroll
    for (int v = 0; v < 8; v += 2) {
        reinterpret_cast<__nv_bfloat162*>(pack.word)[v / 2] = __floats2bfloat162_rn(value[v], value[v + 1]);
    }
}
