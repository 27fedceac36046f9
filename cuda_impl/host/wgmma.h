// Hopper's warpgroups on the host, beside hopper_units.h: those functions of kernels/wgmma.cuh and the
// `hopper_ptx.cuh` of attention and w4a16_matmul that levels of the host build use. Products are executed in
// wgmma_wait_group.
//
// Limit: the four warps of a warpgroup wait for products together.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "hopper_units.h"
#include "tensor_core.h"

// ---- TMA -------------------------------------------------------------------------------------------------

namespace host {

// What cuda_impl/tensor_maps.py writes into the 128 bytes of a TensorMap for the host.
struct Map {
    char* address;
    std::int64_t item_bytes, sizes[5], strides[4], box[5];  // strides in bytes, from the second dimension on
};
static_assert(sizeof(Map) == sizeof(TensorMap));

inline Map map_of(const TensorMap* from) {
    Map map;
    std::memcpy(&map, from, sizeof(map));
    return map;
}

// Rows of one head: a box is 64, lines, pieces, 1, 1.
inline void load_box(char* to, const Map& map, int row, int head, int batch) {
    for (int piece = 0; piece < map.box[2]; ++piece) {
        for (int line = 0; line < map.box[1]; ++line, to += 128) {
            const bool inside = row + line >= 0 && row + line < map.sizes[1] && piece < map.sizes[2];
            const char* const from = map.address + (row + line) * map.strides[0] + piece * map.strides[1] +
                                     head * map.strides[2] + batch * map.strides[3];
            for (int i = 0; i < 8; ++i) {  // 128-byte swizzle
                char* const vector = to + (i ^ int(shared_address(to) / 128 % 8)) * 16;
                if (inside) {
                    std::memcpy(vector, from + i * 16, 16);
                } else {
                    std::memset(vector, 0, 16);
                }
            }
        }
    }
}

}  // namespace host

inline void head_copy_to_shared(
    void* to, const TensorMap* from, int row, int head, int batch, mbarrier_t* ptr) {
    if (shared_address(to) % 1024 != 0)
        host::fail("TMA with 128-byte swizzle: shared memory is not 1024-byte aligned");
    const host::Map map = host::map_of(from);
    host::start_load(ptr, host::cluster_rank(), int(map.box[1] * map.box[2] * 128), [=] {
        host::load_box(static_cast<char*>(to), map, row, head, batch);
    });
}

inline void prefetch_tensor_map(const TensorMap*) {}

inline void stmatrix_x4(void* row, unsigned m0, unsigned m1, unsigned m2, unsigned m3) {
    const unsigned own[] = {m0, m1, m2, m3};
    host::with_parts(own, "stmatrix", [&](const unsigned* const* part) {
        const unsigned matrix = host::lane() / 8, line = host::lane() % 8;
        for (unsigned i = 0; i < 4; ++i) {
            std::memcpy(static_cast<char*>(row) + 4 * i, &part[4 * line + i][matrix], 4);
        }
    });
}

// ---- flags in global memory ------------------------------------------------------------------------------

inline void store_release(unsigned* ptr, unsigned value) {
    *ptr = value;
}
inline unsigned load_acquire(const unsigned* ptr) {
    return *static_cast<const volatile unsigned*>(ptr);
}

// ---- named barriers, registers ---------------------------------------------------------------------------

template <int THREADS>
void named_barrier_sync(int id) {
    host::named_barrier(unsigned(id), THREADS, true, "bar.sync");
}
template <int THREADS>
void named_barrier_arrive(int id) {
    host::named_barrier(unsigned(id), THREADS, false, "bar.arrive");
}
template <int>
void setmaxnreg_dec() {}
template <int>
void setmaxnreg_inc() {}

// ---- wgmma -----------------------------------------------------------------------------------------------

using matrix_t = unsigned long long;

inline matrix_t matrix_descriptor(const void* start, unsigned next_64) {
    return matrix_t(shared_address(start) >> 4) | matrix_t(next_64 >> 4) << 16;
}

namespace host {

// Element (line, i) of a swizzled matrix: lines of 64 elements, 128 bytes apart; the next 64 are `next_64`
// on.
template <typename T>
float swizzled(matrix_t matrix, unsigned line, unsigned i) {
    const unsigned plain = unsigned(matrix & 0x3fff) * 16 + unsigned(matrix >> 16 & 0x3fff) * 16 * (i / 64) +
                           line * 128 + i % 64 * 2;
    T value;
    std::memcpy(static_cast<void*>(&value), shared_pointer(plain ^ (plain >> 7 & 7) << 4), sizeof(T));
    return float(value);
}

// A thread's part of one wgmma. `execute` computes the 16 rows of a warp, given its lanes' parts.
struct Product {
    float* d;
    const unsigned* a_registers;  // null: a is in shared memory
    matrix_t a, b;
    bool add;
    void (*execute)(const std::vector<const Product*>& part, unsigned warp);
};

template <typename T, int N, bool A_TRANSPOSED, bool B_TRANSPOSED>
void execute(const std::vector<const Product*>& part, unsigned warp) {
    float a[16][16], b[16][N];
    for (unsigned row = 0; row < 16; ++row) {
        for (unsigned k = 0; k < 16; ++k) {
            const unsigned word = row / 8 + k / 8 * 2, lane = row % 8 * 4 + k % 8 / 2;
            if (part[lane]->a_registers != nullptr) {
                a[row][k] = element<T>(part[lane]->a_registers[word], k % 2);
            } else {
                a[row][k] = A_TRANSPOSED ? swizzled<T>(part[0]->a, k, 16 * warp + row)
                                         : swizzled<T>(part[0]->a, 16 * warp + row, k);
            }
        }
    }
    for (unsigned k = 0; k < 16; ++k) {
        for (unsigned n = 0; n < N; ++n) {
            b[k][n] = B_TRANSPOSED ? swizzled<T>(part[0]->b, k, n) : swizzled<T>(part[0]->b, n, k);
        }
    }
    for (unsigned row = 0; row < 16; ++row) {
        float sums[N] = {};
        for (unsigned k = 0; k < 16; ++k) {
            for (unsigned n = 0; n < N; ++n) sums[n] += a[row][k] * b[k][n];
        }
        for (unsigned n = 0; n < N; ++n) {
            const Product& own = *part[row % 8 * 4 + n % 8 / 2];
            float& d = own.d[n / 8 * 4 + row / 8 * 2 + n % 2];
            d = sums[n] + (own.add ? d : 0.0f);
        }
    }
}

inline Groups<Product>& products() {
    return kept<Groups<Product>>(state_of_thread(1));
}

}  // namespace host

template <typename T, bool A_TRANSPOSED, bool B_TRANSPOSED, int COUNT>
void wgmma(float (&d)[COUNT], matrix_t a, matrix_t b, bool add) {
    host::products().started.push_back(
        {d, nullptr, a, b, add, host::execute<T, 2 * COUNT, A_TRANSPOSED, B_TRANSPOSED>});
}
template <typename T, int COUNT>
void wgmma_from_registers(float (&d)[COUNT], const unsigned* a, matrix_t b) {
    host::products().started.push_back({d, a, 0, b, true, host::execute<T, 2 * COUNT, false, true>});
}
template <typename T, int COUNT>
void wgmma_rows(float (&d)[COUNT], const unsigned* a, matrix_t b, bool add) {
    host::products().started.push_back({d, a, 0, b, add, host::execute<T, 2 * COUNT, false, false>});
}
inline void wgmma_fence() {}
inline void wgmma_commit_group() {
    host::products().commit();
}
template <int PENDING, int COUNT>
void wgmma_wait_group(float (&)[COUNT]) {
    const unsigned warp = threadIdx.x / host::LANES % 4, barrier = 16 + threadIdx.x / 128;
    std::deque<std::vector<host::Product>>& groups = host::products().groups;
    host::named_barrier(barrier, 128, true, "wgmma_wait_group");  // all four warps have started them
    host::with_parts(&groups, "wgmma_wait_group", [&](const auto* const* groups_of) {
        if (host::lane() != 0) return;
        for (std::size_t g = 0; g + PENDING < groups.size(); ++g) {
            for (std::size_t i = 0; i < groups[g].size(); ++i) {
                std::vector<const host::Product*> part;
                for (unsigned lane = 0; lane < host::LANES; ++lane) part.push_back(&(*groups_of[lane])[g][i]);
                part[0]->execute(part, warp);
            }
        }
    });
    while (groups.size() > PENDING) groups.pop_front();
    host::named_barrier(barrier, 128, true, "wgmma_wait_group");  // and none has read its operands after it
}
