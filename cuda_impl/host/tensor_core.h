// Tensor cores on the host: the functions of kernels/tensor_core.cuh in plain C++, with the layouts of the
// PTX ISA. A warp's lanes synchronise, read each other's parts, and synchronise again before any of them
// continues.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "device.h"

namespace host {

// ---- exchange between lanes: each passes the address of its own part -------------------------------------

template <typename Part, typename Work>
void with_parts(const Part* own, const char* call, Work work) {
    constexpr unsigned EVERY_LANE = ~0u;
    const Meeting meeting = meet(EVERY_LANE, reinterpret_cast<std::uint64_t>(own), call);
    const Part* part[LANES];
    for (unsigned lane = 0; lane < LANES; ++lane) {
        part[lane] = reinterpret_cast<const Part*>(meeting.values[lane]);
    }
    work(part);
    meet(EVERY_LANE, 0, call);
}

inline void ldmatrix(unsigned (&matrix)[4], const void* row, bool transposed, const char* call) {
    with_parts(static_cast<const std::uint16_t*>(row), call, [&](const std::uint16_t* const* row_of) {
        const unsigned group = lane() / 4, pair = lane() % 4 * 2;
        for (unsigned i = 0; i < 4; ++i) {
            const std::uint16_t* const* rows = row_of + 8 * i;
            const unsigned low = transposed ? rows[pair][group] : rows[group][pair];
            const unsigned high = transposed ? rows[pair + 1][group] : rows[group][pair + 1];
            matrix[i] = low | high << 16;
        }
    });
}

template <typename T>
float element(unsigned word, unsigned half) {
    T value;
    const std::uint16_t bits = std::uint16_t(word >> 16 * half);
    std::memcpy(static_cast<void*>(&value), &bits, sizeof(value));
    return float(value);
}

struct MmaPart {
    unsigned a[4], b[2];
};

}  // namespace host

inline void cp_async_16(void* to, const void* from, int bytes) {
    host::start_copy(to, from, std::size_t(bytes), 16);
}
inline void cp_async_4(void* to, const void* from, int bytes) {
    host::start_copy(to, from, std::size_t(bytes), 4);
}
inline void cp_async_commit() {
    host::commit_copies();
}
template <int PENDING>
void cp_async_wait() {
    host::wait_for_copies(PENDING);
}

inline void ldmatrix_x4(unsigned (&matrix)[4], const void* row) {
    host::ldmatrix(matrix, row, false, "ldmatrix");
}
inline void ldmatrix_x4_trans(unsigned (&matrix)[4], const void* row) {
    host::ldmatrix(matrix, row, true, "ldmatrix.trans");
}

template <typename T>
void mma_m16n8k16(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    const host::MmaPart own = {{a[0], a[1], a[2], a[3]}, {b0, b1}};
    host::with_parts(&own, "mma.m16n8k16", [&](const host::MmaPart* const* part) {
        const unsigned group = host::lane() / 4, pair = host::lane() % 4 * 2;
        for (unsigned i = 0; i < 4; ++i) {
            const unsigned lower = i / 2, column = pair + i % 2;  // of c: the half of the rows, the column
            for (unsigned k = 0; k < 16; ++k) {
                const unsigned word = k / 8, t = k % 8 / 2;
                c[i] += host::element<T>(part[4 * group + t]->a[2 * word + lower], k % 2) *
                        host::element<T>(part[4 * column + t]->b[word], k % 2);
            }
        }
    });
}
