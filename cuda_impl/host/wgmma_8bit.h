// Hopper's units that products of 8-bit matrices use, on the host, beside wgmma.h: the wgmma of
// kernels/wgmma_8bit.cuh, and of kernels/wgmma.cuh TMA copies of boxes of a matrix, both ways.
// Products and copies are executed when they are waited for.
#pragma once

#include <cuda_fp8.h>

#include <algorithm>
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
    std::memcpy(static_cast<void*>(&value), shared_pointer(plain ^ (plain >> 7 & 7) << 4), 1);
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

// ---- TMA: boxes of a matrix, 128 bytes wide --------------------------------------------------------------

namespace host {

// Calls work(vector in shared memory, in the matrix, how many of its 16 bytes are inside) for each 16 bytes
// of the box at (column, row).
template <typename Work>
void for_each_vector(const Map& map, char* shared, std::int64_t column, std::int64_t row, Work work) {
    if (shared_address(shared) % 1024 != 0) {
        fail("TMA with 128-byte swizzle: shared memory is not 1024-byte aligned");
    }
    for (std::int64_t line = row; line < row + map.box[1]; ++line, shared += 128) {
        for (std::int64_t i = 0; i < 8; ++i) {
            const std::int64_t begin = column * map.item_bytes + i * 16;
            const std::int64_t left = map.sizes[0] * map.item_bytes - begin;
            const std::int64_t inside =
                line < map.sizes[1] ? std::min(std::max(left, std::int64_t(0)), std::int64_t(16)) : 0;
            work(
                shared + (i ^ shared_address(shared) / 128 % 8) * 16,
                map.address + line * map.strides[0] + begin, std::size_t(inside));
        }
    }
}

}  // namespace host

inline void tensor_copy_to_shared(void* to, const TensorMap* from, int column, int row, mbarrier_t* ptr) {
    const host::Map map = host::map_of(from);
    host::start_load(ptr, host::cluster_rank(), int(map.box[1] * 128), [=] {
        host::for_each_vector(
            map, static_cast<char*>(to), column, row,
            [](char* vector, const char* global, std::size_t inside) {
                std::memset(vector, 0, 16);
                if (inside > 0) std::memcpy(vector, global, inside);
            });
    });
}

inline void tensor_copy_to_global(const TensorMap* to, int column, int row, const void* from) {
    const host::Map map = host::map_of(to);
    host::start_store([=] {
        host::for_each_vector(
            map, const_cast<char*>(static_cast<const char*>(from)), column, row,
            [](char* vector, char* global, std::size_t inside) {
                if (inside > 0) std::memcpy(global, vector, inside);
            });
    });
}
