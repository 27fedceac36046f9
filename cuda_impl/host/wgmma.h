// Hopper's warpgroups on the host, beside hopper_units.h: those functions of kernels/wgmma.cuh and the
// `hopper_ptx.cuh` of attention and w4a16_matmul that levels of the host build use. Products are executed in
// wgmma_wait_group.
//
// Limit: the four warps of a warpgroup wait for products together.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>

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

// Where TMA puts the 16 bytes at a shared address: their number in the line is permuted by XOR.
inline unsigned swizzled(unsigned address, std::int64_t line_bytes) {
    return address ^ (address >> 7 & unsigned(line_bytes / 16 - 1)) << 4;
}

// A box of a matrix at (column, row), whose lines have 128 or 64 bytes, and a swizzle of as many.
struct Box {
    Map map;
    std::int64_t column, row;
    char* shared;      // in any block of the cluster
    unsigned address;  // of it in that block

    Box(const Map& of, int first_column, int first_row, void* own)
        : map(of),
          column(first_column),
          row(first_row),
          shared(static_cast<char*>(own)),
          address(shared_address(own)) {
        if (const std::int64_t bytes = 8 * line_bytes(); address % bytes != 0) {
            fail("TMA with swizzle: shared memory is not " + std::to_string(bytes) + "-byte aligned");
        }
    }
    std::int64_t line_bytes() const { return map.box[0] * map.item_bytes; }
    int bytes() const { return int(line_bytes() * map.box[1]); }

    // Calls work(vector in shared memory, in the matrix, how many of its 16 bytes are inside) for each.
    template <typename Work>
    void for_each_vector(Work work) const {
        for (std::int64_t line = 0; line < map.box[1]; ++line) {
            for (std::int64_t i = 0; i < line_bytes(); i += 16) {
                const std::int64_t begin = column * map.item_bytes + i;
                const std::int64_t left = map.sizes[0] * map.item_bytes - begin;
                const bool exists = row + line >= 0 && row + line < map.sizes[1] && begin >= 0;
                const unsigned offset = unsigned(line * line_bytes() + i);
                work(
                    shared + (swizzled(address + offset, line_bytes()) - address),
                    map.address + (row + line) * map.strides[0] + begin,
                    std::size_t(exists ? std::min(std::max(left, std::int64_t(0)), std::int64_t(16)) : 0));
            }
        }
    }
    void load() const {
        for_each_vector([](char* vector, const char* global, std::size_t inside) {
            std::memset(vector, 0, 16);
            if (inside > 0) std::memcpy(vector, global, inside);
        });
    }
};

// Starts the load of a box into the running block.
inline void load_box(const Map& map, int column, int row, void* to, mbarrier_t* ptr) {
    const Box box(map, column, row, to);
    start_load(ptr, cluster_rank(), box.bytes(), [=] { box.load(); });
}

}  // namespace host

// Rows of one head: D / 64 boxes of 64 columns.
inline void head_copy_to_shared(
    void* to, const TensorMap* from, int row, int head, int batch, mbarrier_t* ptr) {
    host::Map map = host::map_of(from);
    map.address += head * map.strides[2] + batch * map.strides[3];
    for (int piece = 0; piece < map.box[2]; ++piece, map.address += map.strides[1]) {
        host::load_box(map, 0, row, static_cast<char*>(to) + piece * map.box[1] * 128, ptr);
    }
}

inline void tensor_copy_to_shared(void* to, const TensorMap* from, int column, int row, mbarrier_t* ptr) {
    host::load_box(host::map_of(from), column, row, to, ptr);
}
inline void tensor_copy_to_blocks(
    void* to, const TensorMap* from, int column, int row, mbarrier_t* ptr, unsigned short blocks) {
    host::Box box(host::map_of(from), column, row, to);
    for (int rank = 0; rank < 16; ++rank) {
        if ((blocks >> rank & 1) == 0) continue;
        box.shared = static_cast<char*>(in_block(to, rank));
        host::start_load(in_block(ptr, rank), unsigned(rank), box.bytes(), [=] { box.load(); });
    }
}
inline void tensor_copy_to_global(const TensorMap* to, int column, int row, const void* from) {
    const host::Box box(host::map_of(to), column, row, const_cast<void*>(from));
    host::start_store([=] {
        box.for_each_vector([](char* vector, char* global, std::size_t inside) {
            if (inside > 0) std::memcpy(global, vector, inside);
        });
    });
}
inline void mbarrier_arrive_in_block(mbarrier_t* barrier, int rank) {
    host::arrive(in_block(barrier, rank), 0);
}

// A grid starts when the one before it has ended.
inline void next_grid_may_start() {}
inline void previous_grid_wait() {}

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

inline void stmatrix_x4_trans(void* row, unsigned m0, unsigned m1, unsigned m2, unsigned m3) {
    const unsigned words[] = {m0, m1, m2, m3}, lane = host::lane();
    host::with_parts(static_cast<char*>(row), "stmatrix.trans", [&](const char* const* rows) {
        for (unsigned i = 0; i < 4; ++i) {
            for (unsigned half = 0; half < 2; ++half) {
                const std::uint16_t element = std::uint16_t(words[i] >> 16 * half);
                char* to = const_cast<char*>(rows[8 * i + lane % 4 * 2 + half]) + lane / 4 * 2;
                std::memcpy(to, &element, sizeof(element));
            }
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

template <int LINE = 64>
matrix_t matrix_descriptor(const void* start, unsigned next_line) {
    return matrix_t(shared_address(start) >> 4) | matrix_t(next_line >> 4) << 16 | matrix_t(LINE) << 32;
}

namespace host {

// Element (line, i) of a swizzled matrix: lines of LINE elements; the next LINE are `next_line` bytes on.
template <typename T>
float element_at(matrix_t matrix, unsigned line, unsigned i) {
    const unsigned LINE = unsigned(matrix >> 32), next_line = unsigned(matrix >> 16 & 0x3fff) * 16;
    const unsigned plain =
        unsigned(matrix & 0x3fff) * 16 + next_line * (i / LINE) + (line * LINE + i % LINE) * 2;
    T value;
    std::memcpy(static_cast<void*>(&value), shared_pointer(swizzled(plain, LINE * 2)), sizeof(T));
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
                a[row][k] = A_TRANSPOSED ? element_at<T>(part[0]->a, k, 16 * warp + row)
                                         : element_at<T>(part[0]->a, 16 * warp + row, k);
            }
        }
    }
    for (unsigned k = 0; k < 16; ++k) {
        for (unsigned n = 0; n < N; ++n) {
            b[k][n] = B_TRANSPOSED ? element_at<T>(part[0]->b, k, n) : element_at<T>(part[0]->b, n, k);
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
    return kept<Groups<Product>>(state_of_thread(PRODUCTS));
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
