// What the host code of int8_matmul and fp8_matmul shares: checked arguments, operands, and the levels on
// Hopper.
#pragma once

#include <algorithm>
#include <string>

#include "matrix_map.h"
#include "quantized.h"
#include "scaled_matmul/01_wgmma.cuh"
#include "scaled_matmul/02_specialized.cuh"
#include "scaled_matmul/03_persistent.cuh"
#include "scaled_matmul/04_multicast.cuh"

struct ScaledProduct {
    Tensor a, b, scale_a, scale_b, c;
    std::int64_t M, N, K;
    bool empty() const { return M == 0 || N == 0; }
    bool c_aligned() const { return N % 8 == 0; }  // rows of c are 16-byte aligned
};

[[noreturn]] inline void not_taken(const std::string& why) {
    PyErr_SetString(PyExc_NotImplementedError, why.c_str());
    throw py::error_already_set();
}

inline bool is_strided(const py::object& object) {
    const Torch& torch = Torch::get();
    return py::isinstance(object, torch.tensor) && get(object, torch.layout).is(torch.strided);
}

// The arguments, scales contiguous, and an uninitialised c. a and b are of that dtype. Raises
// compare.arguments' TypeError or ValueError for others.
inline ScaledProduct checked(const char* op, const py::object& dtype, std::int64_t most_columns,
                             const py::object& a, const py::object& b, const py::object& scale_a,
                             const py::object& scale_b) {
    ScaledProduct p;
    if (is_strided(a) && is_strided(b) && is_strided(scale_a) && is_strided(scale_b) &&
        read_bytes(a, dtype, p.a) && read_bytes(b, dtype, p.b)) {
        p.scale_a = Tensor(scale_a), p.scale_b = Tensor(scale_b);
        p.M = p.a.shape[0], p.N = p.b.shape[0], p.K = p.a.shape[1];
        bool good = p.a.ndim == 2 && p.b.ndim == 2 && p.b.shape[1] == p.K && p.K <= most_columns &&
                    p.scale_a.shape[0] == p.M && p.scale_b.shape[0] == p.N;
        for (const Tensor* x : {&p.scale_a, &p.scale_b}) {
            good = good && x->ndim == 1 && x->element == Element::FP32;
        }
        for (const Tensor* x : {&p.b, &p.scale_a, &p.scale_b}) {
            good = good && x->device == p.a.device && get(x->object, Torch::get().is_here).ptr() == Py_True;
        }
        if (good) {
            p.scale_a = p.scale_a.contiguous(), p.scale_b = p.scale_b.contiguous();
            p.c = new_empty_bf16(p.a, {p.M, p.N});
            return p;
        }
    }
    py::module_::import("compare.arguments").attr("check_scaled_product")(op, dtype, a, b, scale_a, scale_b);
    throw std::runtime_error(std::string(op) + ": these arguments are not taken");
}

// x if its rows are contiguous, 16-byte aligned and of whole pairs, else such a copy, with zeros behind an
// odd K.
inline Tensor operand(const Tensor& x) {
    const std::int64_t rows = x.shape[0], K = x.shape[1];
    if (K % 2 == 0 && has_aligned_rows(x)) return x;
    const py::object padded = x.object.attr("new_empty")(py::make_tuple(rows, ceil_div(K, 16) * 16));
    if (K % 2 == 1) padded.attr("narrow")(1, K, 1).attr("zero_")();
    padded.attr("narrow")(1, 0, K).attr("copy_")(x.object);
    Tensor copied(padded);
    copied.shape[1] = K + K % 2;
    return copied;
}

// ---- levels on Hopper ------------------------------------------------------------------------------------

// Whether there is nothing to multiply; c is zeros then. Raises NotImplementedError for sizes that TMA's
// 32-bit coordinates do not cover.
inline bool is_done(const ScaledProduct& p) {
    constexpr std::int64_t MOST = (std::int64_t(1) << 31) - 512;
    if (std::max(p.M, p.N) > MOST) {
        not_taken("M=" + std::to_string(p.M) + ", N=" + std::to_string(p.N) + ": at most " +
                  std::to_string(MOST) + " of each");
    }
    if (!p.empty() && p.K > 0) return false;
    p.c.object.attr("zero_")();
    return true;
}

// Lines of a tile of a that are fetched, as in scaled_matmul/tiles.cuh.
inline int fetched_lines(int BLOCK_M, std::int64_t M) {
    return int(std::min<std::int64_t>(BLOCK_M, ceil_div(M, 16) * 16));
}

constexpr int ring_bytes(int BLOCK_M, int BLOCK_N, int STAGES) {
    constexpr int PERMUTED_BYTES = 1024;  // alignment of swizzled tiles; dynamic shared memory may lack it
    return STAGES * (BLOCK_M + BLOCK_N) * BLOCK_K + PERMUTED_BYTES;
}

// One tile per warpgroup, fetched by TMA.
template <typename Sum>
py::object launch_wgmma(const ScaledProduct& p) {
    if (is_done(p)) return p.c.object;
    constexpr int BLOCK_M = 128, BLOCK_N = 128, STAGES = 3;
    const Tensor a = operand(p.a), b = operand(p.b);
    launch(p.a,
           {ceil_div(p.M, BLOCK_M) * ceil_div(p.N, BLOCK_N), WARPGROUP, ring_bytes(BLOCK_M, BLOCK_N, STAGES)},
           scaled_matmul_wgmma_kernel<Sum, STAGES>, matrix_map(a, fetched_lines(BLOCK_M, p.M)),
           matrix_map(b, BLOCK_N), p.scale_a.data<float>(), p.scale_b.data<float>(),
           p.c.data<__nv_bfloat16>(), int(p.M), int(p.N), int(p.K));
    return p.c.object;
}

template <int BLOCK_N_, int STAGES_>
struct Tile {
    static constexpr int BLOCK_M = CONSUMERS * WARPGROUP_M, BLOCK_N = BLOCK_N_, STAGES = STAGES_;
    // A tile costs its width plus about 96 columns for prologue and epilogue, times the number of tiles that
    // a block processes in sequence.
    static std::int64_t columns(const ScaledProduct& p, int blocks) {
        return ceil_div(ceil_div(p.M, BLOCK_M) * ceil_div(p.N, BLOCK_N), blocks) * (BLOCK_N + 96);
    }
};

// Calls `function` with the tile with which the last of so many resident blocks finishes first.
template <typename Function>
void with_tile(const ScaledProduct& p, int blocks, Function function) {
    using Wide = Tile<256, 4>;
    using Middle = Tile<128, 6>;
    using Narrow = Tile<64, 8>;
    const std::int64_t wide = Wide::columns(p, blocks), middle = Middle::columns(p, blocks);
    const std::int64_t narrow = Narrow::columns(p, blocks);
    if (wide <= std::min(middle, narrow)) {
        function(Wide());
    } else if (middle <= narrow) {
        function(Middle());
    } else {
        function(Narrow());
    }
}

// One producer warp, eight consumer warps.
template <typename Sum>
py::object launch_specialized(const ScaledProduct& p) {
    if (is_done(p)) return p.c.object;
    const Tensor a = operand(p.a), b = operand(p.b);
    with_tile(p, multiprocessors(p.a), [&](auto tile) {
        using Of = decltype(tile);
        launch(p.a,
               {ceil_div(p.M, Of::BLOCK_M) * ceil_div(p.N, Of::BLOCK_N), (1 + CONSUMERS) * WARPGROUP,
                ring_bytes(Of::BLOCK_M, Of::BLOCK_N, Of::STAGES)},
               scaled_matmul_specialized_kernel<Sum, Of::BLOCK_N, Of::STAGES>,
               matrix_map(a, fetched_lines(Of::BLOCK_M, p.M)), matrix_map(b, Of::BLOCK_N),
               p.scale_a.data<float>(), p.scale_b.data<float>(), p.c.data<__nv_bfloat16>(), int(p.M),
               int(p.N), int(p.K));
    });
    return p.c.object;
}

// Launches a kernel that stores c by TMA, if its rows are aligned. `parts`: copies per tile of a and of b.
template <int BLOCK_M, int BLOCK_N, int STAGES, typename Kernel>
void launch_storing(const ScaledProduct& p, std::int64_t blocks, int parts_a, int parts_b, Kernel kernel) {
    constexpr int places_bytes = 4 * CONSUMERS * C_PLACES<BLOCK_N> * PIECE_BYTES;
    const Tensor a = operand(p.a), b = operand(p.b);
    launch(p.a, {blocks, (1 + CONSUMERS) * WARPGROUP, ring_bytes(BLOCK_M, BLOCK_N, STAGES) + places_bytes},
           kernel, matrix_map(a, fetched_lines(BLOCK_M, p.M) / parts_a), matrix_map(b, BLOCK_N / parts_b),
           p.c_aligned() ? matrix_map(p.c, 16) : TensorMap{}, p.scale_a.data<float>(),
           p.scale_b.data<float>(), p.c.data<__nv_bfloat16>(), int(p.M), int(p.N), int(p.K));
}

// One block per multiprocessor, round-robin tile scheduling; TMA stores c.
template <typename Sum>
py::object launch_persistent(const ScaledProduct& p) {
    if (is_done(p)) return p.c.object;
    const int processors = multiprocessors(p.a);
    with_tile(p, processors, [&](auto tile) {
        using Of = decltype(tile);
        const std::int64_t tiles = ceil_div(p.M, Of::BLOCK_M) * ceil_div(p.N, Of::BLOCK_N);
        const auto kernel = p.c_aligned()
                                ? scaled_matmul_persistent_kernel<Sum, Of::BLOCK_N, Of::STAGES, true>
                                : scaled_matmul_persistent_kernel<Sum, Of::BLOCK_N, Of::STAGES, false>;
        launch_storing<Of::BLOCK_M, Of::BLOCK_N, Of::STAGES>(p, std::min<std::int64_t>(processors, tiles), 1,
                                                             1, kernel);
    });
    return p.c.object;
}

// TMA multicast: the two blocks of a cluster share their loads of b, or of a if tiles are narrow.
template <typename Sum>
py::object launch_multicast(const ScaledProduct& p) {
    if (is_done(p)) return p.c.object;
    constexpr int CLUSTER = 2;
    const int processors = multiprocessors(p.a) / CLUSTER * CLUSTER;
    with_tile(p, processors, [&](auto tile) {
        using Of = decltype(tile);
        constexpr int CLUSTER_M = SHARES_B<Of::BLOCK_N> ? CLUSTER : 1, CLUSTER_N = CLUSTER / CLUSTER_M;
        const std::int64_t tiles =
            CLUSTER * ceil_div(p.M, CLUSTER_M * Of::BLOCK_M) * ceil_div(p.N, CLUSTER_N * Of::BLOCK_N);
        const auto kernel = p.c_aligned()
                                ? scaled_matmul_multicast_kernel<Sum, Of::BLOCK_N, Of::STAGES, true>
                                : scaled_matmul_multicast_kernel<Sum, Of::BLOCK_N, Of::STAGES, false>;
        launch_storing<Of::BLOCK_M, Of::BLOCK_N, Of::STAGES>(p, std::min<std::int64_t>(processors, tiles),
                                                             CLUSTER_N, CLUSTER_M, kernel);
    });
    return p.c.object;
}
