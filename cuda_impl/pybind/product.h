// What the host code of matmul and linear_gelu shares: their operands, and launches of kernels on tiles.
#pragma once

#include "matmul.cuh"

#include <algorithm>
#include <string>
#include <type_traits>

#include "hopper.h"
#include "tensor.h"

struct Product {
    Tensor a, b, c;
    std::int64_t M, N, K;
    bool empty() const { return M == 0 || N == 0; }
};

// A new contiguous matrix of the dtype and on the device of `like`.
inline Tensor empty(std::int64_t rows, std::int64_t columns, const Tensor& like) {
    const Torch& torch = Torch::get();
    static const py::object& torch_empty = *new py::object(torch.torch.attr("empty"));
    const py::object& dtype = like.element == Element::FP32   ? torch.fp32
                              : like.element == Element::FP16 ? torch.fp16
                                                              : torch.bf16;
    const py::tuple shape = py::make_tuple(rows, columns);
    const py::object on = get(like.object, torch.device);
    PyObject* arguments[] = {shape.ptr(), dtype.ptr(), on.ptr()};
    Tensor fresh = like;  // copies dtype and device
    fresh.object = made(PyObject_Vectorcall(torch_empty.ptr(), arguments, 1, torch.of_zeros.ptr()));
    fresh.address = call(fresh.object, torch.data_ptr).cast<std::uintptr_t>();
    fresh.shape[0] = rows, fresh.shape[1] = columns;
    fresh.strides[0] = std::max<std::int64_t>(columns, 1), fresh.strides[1] = 1;
    return fresh;
}

inline bool is_matrix(const py::object& object) {
    const Torch& torch = Torch::get();
    return py::isinstance(object, torch.tensor) && get(object, torch.layout).is(torch.strided);
}

inline bool is_taken(const Tensor& x) {
    return x.element != Element::OTHER && x.ndim == 2;
}

[[noreturn]] inline void not_taken(const std::string& why) {
    PyErr_SetString(PyExc_NotImplementedError, why.c_str());
    throw py::error_already_set();
}

// ---- operands: 16-byte vectorized access -----------------------------------------------------------------

struct Operand {
    Tensor tensor;
    bool by_rows;
    std::int64_t ld;  // elements between rows (columns)
};

// The tensor if its rows (or columns) are contiguous and 16-byte aligned, else such a copy.
inline Operand aligned(const Tensor& x) {
    const int pack = 16 / x.element_size;
    const bool by_rows = x.strides[1] == 1 || x.strides[0] != 1;
    const int line = by_rows ? 0 : 1;  // the outer dimension
    const std::int64_t ld = x.strides[line], length = x.shape[1 - line];
    if (x.strides[1 - line] == 1 && ld >= length && ld % pack == 0 && x.address % 16 == 0) {
        return {x, by_rows, ld};
    }
    const std::int64_t pitch = ceil_div(length, pack) * pack;
    Tensor padded = empty(x.shape[line], pitch, x);
    const py::object lines = by_rows ? x.object : x.object.attr("t")();
    padded.object.attr("narrow")(1, 0, length).attr("copy_")(lines);
    padded.shape = x.shape;
    return {padded, by_rows, pitch};
}

// Calls `function` with both operands' row-major flags as constants.
template <typename Function>
void dispatch_layouts(const Operand& a, const Operand& b, Function function) {
    const auto with_b = [&](auto A_BY_ROWS) {
        if (b.by_rows) {
            function(A_BY_ROWS, std::true_type());
        } else {
            function(A_BY_ROWS, std::false_type());
        }
    };
    if (a.by_rows) {
        with_b(std::true_type());
    } else {
        with_b(std::false_type());
    }
}

// Raises NotImplementedError for a dtype that this GPU's tensor cores do not support.
inline void check_tensor_cores(const Tensor& x) {
    if (x.element == Element::FP32) not_taken("fp32: tensor cores would multiply it as TF32");
    if (x.element != Element::BF16 || x.device < 0) return;
    int major = 0, minor = 0;
    check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, x.device));
    check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, x.device));
    if (major < 8) {
        not_taken("bf16: tensor cores multiply it from sm_80 on, this is sm_" +
                  std::to_string(10 * major + minor));
    }
}

// ---- Hopper's own units ----------------------------------------------------------------------------------

constexpr int PERMUTED_BYTES = 1024;  // alignment of swizzled tiles; dynamic shared memory may lack it
constexpr std::int64_t MOST = (std::int64_t(1) << 31) - 512;  // TMA coordinates are 32-bit

inline void check_copy_engine(const Product& p) {
    if (std::max({p.M, p.N, p.K}) <= MOST) return;
    not_taken("M=" + std::to_string(p.M) + ", N=" + std::to_string(p.N) + ", K=" + std::to_string(p.K) +
              ": at most " + std::to_string(MOST) + " of each");
}

// The tensor map of an operand with tiles of BLOCK along M or N by 64 along K.
inline TensorMap operand_map(const Operand& x, bool along_k, int BLOCK) {
    return tensor_map(x.tensor, x.by_rows, x.ld, along_k ? BLOCK : PIECE);
}

constexpr int tile_ring_bytes(int BLOCK_M, int BLOCK_N, int STAGES) {
    return STAGES * (BLOCK_M + BLOCK_N) * PIECE * 2 + PERMUTED_BYTES;
}

// Calls `function` with a value of the operands' 16-bit type, and both row-major flags as constants.
template <typename Function>
void dispatch_operands(const Operand& a, const Operand& b, Function function) {
    dispatch(a.tensor, [&](auto zero) {
        if constexpr (sizeof(zero) == 2) {
            dispatch_layouts(a, b,
                             [&](auto A_BY_ROWS, auto B_BY_ROWS) { function(zero, A_BY_ROWS, B_BY_ROWS); });
        }
    });
}

// One producer and two consumer warpgroups per block; `kernel_of` returns the kernel. PERSISTENT: one block
// per multiprocessor, else one per tile. CLUSTER: blocks in one column of tiles, which share a tile of b.
template <bool PERSISTENT, int CLUSTER, typename KernelOf>
void launch_specialized(const Product& p, const Operand& a, const Operand& b, KernelOf kernel_of) {
    constexpr int BLOCK_M = 128, BLOCK_N = 256, STAGES = 4, THREADS = (1 + CONSUMERS) * WARPGROUP;
    const TensorMap a_map = operand_map(a, a.by_rows, BLOCK_M);
    const TensorMap b_map = operand_map(b, !b.by_rows, BLOCK_N / CLUSTER);
    std::int64_t blocks = CLUSTER * ceil_div(p.M, CLUSTER * BLOCK_M) * ceil_div(p.N, BLOCK_N);
    if (PERSISTENT) blocks = std::min<std::int64_t>(blocks, multiprocessors(p.a) / CLUSTER * CLUSTER);
    dispatch_operands(a, b, [&](auto zero, auto A_BY_ROWS, auto B_BY_ROWS) {
        using T = decltype(zero);
        const auto kernel = kernel_of(zero, A_BY_ROWS, B_BY_ROWS, std::integral_constant<int, BLOCK_N>(),
                                      std::integral_constant<int, STAGES>());
        launch(p.a, {blocks, THREADS, tile_ring_bytes(BLOCK_M, BLOCK_N, STAGES)}, kernel, a_map, b_map,
               p.c.data<T>(), int(p.M), int(p.N), int(p.K));
    });
}

// Launches a kernel that works as matmul's tma_store, with this tile: clusters of two blocks, persistent, TMA
// stores. `kernel_of` returns the kernel; after the maps it takes vectors of the operands' type, `more`.
template <int BLOCK_N, int STAGES, typename KernelOf, typename... More>
void launch_tma_store_tile(const Product& p, const Operand& a, const Operand& b, KernelOf kernel_of,
                           const More&... more) {
    constexpr int BLOCK_M = 128, CLUSTER = 2, THREADS = (1 + CONSUMERS) * WARPGROUP;
    constexpr int CLUSTER_M = SHARES_B<BLOCK_N> ? CLUSTER : 1, CLUSTER_N = CLUSTER / CLUSTER_M;
    constexpr int places_bytes = 4 * CONSUMERS * C_PLACES<BLOCK_N> * 16 * PIECE * 2;
    constexpr int shared_bytes = tile_ring_bytes(BLOCK_M, BLOCK_N, STAGES) + places_bytes;
    const TensorMap a_map = operand_map(a, a.by_rows, BLOCK_M / CLUSTER_N);
    const TensorMap b_map = operand_map(b, !b.by_rows, BLOCK_N / CLUSTER_M);
    const TensorMap c_map = tensor_map(p.c, true, p.N, 16);
    const std::int64_t tiles = ceil_div(p.M, CLUSTER_M * BLOCK_M) * ceil_div(p.N, CLUSTER_N * BLOCK_N);
    const std::int64_t clusters = std::max(multiprocessors(p.a) / CLUSTER, 1);
    dispatch_operands(a, b, [&](auto zero, auto A_BY_ROWS, auto B_BY_ROWS) {
        const auto kernel = kernel_of(zero, A_BY_ROWS, B_BY_ROWS, std::integral_constant<int, BLOCK_N>(),
                                      std::integral_constant<int, STAGES>());
        launch_overlapping(p.a, {CLUSTER * std::min(tiles, clusters), THREADS, shared_bytes}, kernel, a_map,
                           b_map, c_map, more.template data<decltype(zero)>()..., int(p.M), int(p.N),
                           int(p.K));
    });
}

// Chooses the tile with which the last multiprocessor finishes first. A tile costs its width plus about 96
// columns for prologue and epilogue, times the number of tiles that a cluster processes in sequence.
template <typename KernelOf, typename... More>
void launch_tma_store(const Product& p, const Operand& a, const Operand& b, KernelOf kernel_of,
                      const More&... more) {
    const std::int64_t clusters = std::max(multiprocessors(p.a) / 2, 1);
    const auto columns = [&](int CLUSTER_M, int CLUSTER_N, int BLOCK_N) {
        const std::int64_t tiles = ceil_div(p.M, CLUSTER_M * 128) * ceil_div(p.N, CLUSTER_N * BLOCK_N);
        return ceil_div(tiles, clusters) * (BLOCK_N + 96);
    };
    const std::int64_t of_256 = columns(2, 1, 256), of_192 = columns(1, 2, 192), of_64 = columns(1, 2, 64);
    if (of_256 <= std::min(of_192, of_64)) {
        launch_tma_store_tile<256, 4>(p, a, b, kernel_of, more...);
    } else if (of_192 <= of_64) {
        launch_tma_store_tile<192, 4>(p, a, b, kernel_of, more...);
    } else {
        launch_tma_store_tile<64, 8>(p, a, b, kernel_of, more...);
    }
}

inline void launch_matmul_tma_store(const Product& p, const Operand& a, const Operand& b) {
    launch_tma_store(p, a, b, [](auto zero, auto A, auto B, auto BLOCK_N, auto STAGES) {
        return matmul_tma_store_kernel<decltype(zero), A, B, BLOCK_N, STAGES>;
    });
}

inline void launch_matmul_multicast(const Product& p, const Operand& a, const Operand& b) {
    launch_specialized<true, 2>(p, a, b, [](auto zero, auto A, auto B, auto BLOCK_N, auto STAGES) {
        return matmul_multicast_kernel<decltype(zero), A, B, BLOCK_N, STAGES>;
    });
}
