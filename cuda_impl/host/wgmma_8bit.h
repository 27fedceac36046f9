// Hopper's units that products of 8-bit matrices use, on the host, beside wgmma.h: the wgmma of
// kernels/wgmma_8bit.cuh. Products are executed when they are waited for.
#pragma once

#include <cuda_fp8.h>

#include <cmath>

#include "wgmma.h"

// ---- wgmma -----------------------------------------------------------------------------------------------

namespace host {

// Element (line, k) of a swizzled matrix of bytes: lines of 128, 128 bytes apart.
template <typename T>
T swizzled_byte(matrix_t matrix, unsigned line, unsigned k) {
    static_assert(sizeof(T) == 1);
    const unsigned plain = unsigned(matrix & 0x3fff) * 16 + line * 128 + k;
    T value;
    std::memcpy(static_cast<void*>(&value), shared_pointer(swizzled(plain, 128)), 1);
    return value;
}

// c + the sum of a[k] * b[k]. Hopper's tensor cores align terms of floating point to the largest of them, and
// cut off what lies 13 bits below its leading bit.
inline float sum_of_products(const float (&a)[32], const float (&b)[32], float c) {
    float product[32], largest = std::fabs(c);
    for (unsigned k = 0; k < 32; ++k) {
        product[k] = a[k] * b[k];
        largest = std::max(largest, std::fabs(product[k]));
    }
    // NaN is in no comparison the larger one, but in the sum.
    const float unit =
        largest > 0.0f && largest < INFINITY ? std::ldexp(1.0f, std::ilogb(largest) - 13) : 1.0f;
    const float per_unit = 1.0f / unit;
    float sum = std::trunc(c * per_unit);
    for (unsigned k = 0; k < 32; ++k) sum += std::trunc(product[k] * per_unit);
    return sum * unit;
}
inline int sum_of_products(const int (&a)[32], const int (&b)[32], int c) {
    for (unsigned k = 0; k < 32; ++k) c += a[k] * b[k];
    return c;
}

// d[64, N] (+)= a[64, 32] @ b[N, 32].T of elements T, in sums of type Sum.
template <typename T, typename Sum, int N>
void execute_bytes(const std::vector<const Product*>& part, unsigned warp) {
    Sum a[16][32], b[N][32];
    for (unsigned k = 0; k < 32; ++k) {
        for (unsigned row = 0; row < 16; ++row)
            a[row][k] = Sum(swizzled_byte<T>(part[0]->a, 16 * warp + row, k));
        for (unsigned n = 0; n < N; ++n) b[n][k] = Sum(swizzled_byte<T>(part[0]->b, n, k));
    }
    for (unsigned row = 0; row < 16; ++row) {
        for (unsigned n = 0; n < N; ++n) {
            const Product& own = *part[row % 8 * 4 + n % 8 / 2];
            Sum& d = reinterpret_cast<Sum*>(own.d)[n / 8 * 4 + row / 8 * 2 + n % 2];
            d = sum_of_products(a[row], b[n], own.add ? d : Sum(0));
        }
    }
}

}  // namespace host

template <int COUNT>
void wgmma_e4m3(float (&d)[COUNT], matrix_t a, matrix_t b, bool add) {
    host::products().started.push_back(
        {d, nullptr, a, b, add, host::execute_bytes<__nv_fp8_e4m3, float, 2 * COUNT>});
}
template <int COUNT>
void wgmma_s8(int (&d)[COUNT], matrix_t a, matrix_t b, bool add) {
    host::products().started.push_back(
        {reinterpret_cast<float*>(d), nullptr, a, b, add, host::execute_bytes<signed char, int, 2 * COUNT>});
}
template <int PENDING, int COUNT>
void wgmma_wait_group(int (&d)[COUNT]) {
    wgmma_wait_group<PENDING>(reinterpret_cast<float (&)[COUNT]>(d));
}

// ---- TMA with a cache policy, which has no effect --------------------------------------------------------

using cache_policy_t = unsigned long long;
constexpr cache_policy_t NO_POLICY = 0;
inline cache_policy_t evict_first_policy() {
    return NO_POLICY;
}
inline cache_policy_t evict_last_policy() {
    return NO_POLICY;
}
inline void tensor_copy_to_shared(
    void* to, const TensorMap* from, int column, int row, mbarrier_t* ptr, cache_policy_t) {
    tensor_copy_to_shared(to, from, column, row, ptr);
}
inline void tensor_copy_to_blocks(
    void* to, const TensorMap* from, int column, int row, mbarrier_t* ptr, unsigned short blocks,
    cache_policy_t) {
    tensor_copy_to_blocks(to, from, column, row, ptr, blocks);
}
