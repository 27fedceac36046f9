// The product of int8 of kernels/tensor_core_8bit.cuh on the host, as tensor_core.h has the 16-bit ones.
#pragma once

#include "tensor_core.h"

inline void mma_m16n8k32_s8(int (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    const host::MmaPart own = {{a[0], a[1], a[2], a[3]}, {b0, b1}};
    host::with_parts(&own, "mma.m16n8k32", [&](const host::MmaPart* const* part) {
        const unsigned group = host::lane() / 4, pair = host::lane() % 4 * 2;
        const auto byte = [](unsigned word, unsigned i) {
            return int(static_cast<signed char>(word >> 8 * i));
        };
        for (unsigned i = 0; i < 4; ++i) {
            const unsigned lower = i / 2, column = pair + i % 2;  // of c: the half of the rows, the column
            for (unsigned k = 0; k < 32; ++k) {
                const unsigned word = k / 16, t = k % 16 / 4;
                c[i] += byte(part[4 * group + t]->a[2 * word + lower], k % 4) *
                        byte(part[4 * column + t]->b[word], k % 4);
            }
        }
    });
}

inline int __dp4a(int a, int b, int sum) {
    for (int i = 0; i < 32; i += 8)
        sum += static_cast<signed char>(a >> i) * static_cast<signed char>(b >> i);
    return sum;
}
