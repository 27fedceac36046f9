// Lines of memory, and where in shared memory a slice of an unaligned row lies between them.
#pragma once

#include "hopper.cuh"

constexpr int LINE_BYTES = 128;  // the longest that TMA swizzles

#if HAS_HOPPER_LEVELS

// `shared` moved on by less than a line, to where it is as far from a line as `global`: copies between both
// by TMA then move whole sectors of 32 bytes. Both are aligned to 16 bytes.
template <typename T>
__device__ __forceinline__ T* as_far_from_line(T* shared, const T* global) {
    const unsigned address = static_cast<unsigned>(reinterpret_cast<word_t>(global));
    return shared + (address - shared_address(shared)) % LINE_BYTES / sizeof(T);
}

#endif  // HAS_HOPPER_LEVELS
