// What every kernel file uses: element types, 16-byte packs, and reductions over a warp and a block.
//
// Device code only, and no standard headers: the same text is compiled by NVRTC, by nvcc and, with
// HOST_BUILD defined, by g++ for machines without a GPU.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#ifndef HOST_BUILD
// Shared memory whose size the launch decides. One declaration serves all types of a template.
#define DYNAMIC_SHARED(type, name)                                \
    extern __shared__ __align__(16) unsigned char name##_bytes[]; \
    type* name = reinterpret_cast<type*>(name##_bytes)
// In the body of a loop that polls memory until another block has written it.
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

// ---- packs: VEC neighbours that move in one instruction ---------------------------------------------
// VEC is either 16 bytes' worth (the widest access a thread has) or 1, for rows that are not aligned.

template <typename T, int VEC>
struct alignas(sizeof(T) * VEC) Pack {
    T element[VEC];
};

template <typename T, int VEC>
__device__ __forceinline__ Pack<T, VEC> load(const T* ptr) {
    Pack<T, VEC> pack;
    if constexpr (sizeof(pack) == sizeof(uint4)) {
        *reinterpret_cast<uint4*>(&pack) = *reinterpret_cast<const uint4*>(ptr);
    } else {
        pack = *reinterpret_cast<const Pack<T, VEC>*>(ptr);
    }
    return pack;
}

// Data that is not touched again: "streaming", first to leave the cache.
template <typename T, int VEC>
__device__ __forceinline__ Pack<T, VEC> load_streaming(const T* ptr) {
    Pack<T, VEC> pack;
    if constexpr (sizeof(pack) == sizeof(uint4)) {
        *reinterpret_cast<uint4*>(&pack) = __ldcs(reinterpret_cast<const uint4*>(ptr));
    } else {
        pack = *reinterpret_cast<const Pack<T, VEC>*>(ptr);
    }
    return pack;
}

template <typename T, int VEC>
__device__ __forceinline__ void store_streaming(T* ptr, const Pack<T, VEC>& pack) {
    if constexpr (sizeof(pack) == sizeof(uint4)) {
        __stcs(reinterpret_cast<uint4*>(ptr), *reinterpret_cast<const uint4*>(&pack));
    } else {
        *reinterpret_cast<Pack<T, VEC>*>(ptr) = pack;
    }
}
