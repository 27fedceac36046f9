// batched_matmul from C++: checks and launches the kernels of kernels/batched_matmul.cuh.
#include "batched_matmul.cuh"

#include <string>
#include <type_traits>

#include "product.h"
#include "tensor.h"

struct Batch {
    Tensor a, b, c;
    std::int64_t B, N;
    bool empty() const { return B == 0 || N == 0; }
};

// a, b and an empty c; a TypeError or ValueError, which compare.arguments words, if they are no such batches.
static Batch checked(const py::object& a, const py::object& b) {
    const auto tensors = check_same("batched_matmul", 3, {{"a", a}, {"b", b}});
    if (tensors[0].shape[1] != tensors[0].shape[2]) {
        py::module_::import("compare.arguments").attr("check_batched_squares")("batched_matmul", a, b);
    }
    return {tensors[0], tensors[1], tensors[0].empty_like(), tensors[0].shape[0], tensors[0].shape[1]};
}

// A thread an element.
static py::object naive(py::object a_object, py::object b_object) {
    const Batch p = checked(a_object, b_object);
    if (p.empty()) return p.c.object;
    dispatch(p.a, [&](auto zero) {
        using T = decltype(zero);
        constexpr int THREADS = 256;
        launch(p.a, {ceil_div(p.c.numel(), THREADS), THREADS}, batched_matmul_naive_kernel<T, THREADS>,
               p.a.data<T>(), p.b.data<T>(), p.c.data<T>(), p.B, p.N, p.a.strides[0], p.a.strides[1],
               p.a.strides[2], p.b.strides[0], p.b.strides[1], p.b.strides[2]);
    });
    return p.c.object;
}

constexpr int LARGEST = 128;  // rows of a matrix that a block holds whole

// Whether both move in packs of 16 bytes: dense, aligned, and rows as long as a tile's.
static bool is_dense(const Batch& p) {
    const auto dense = [](const Tensor& x) { return x.strides == x.dense_strides() && x.address % 16 == 0; };
    return p.N % 16 == 0 && dense(p.a) && dense(p.b);
}

// Calls `function` with BLOCK_N, the next multiple of 16, and with DENSE as constants.
template <int BLOCK_N = 16, typename Function>
static void dispatch_tiles(const Batch& p, Function function) {
    if (p.N > BLOCK_N) {
        if constexpr (BLOCK_N < LARGEST) return dispatch_tiles<BLOCK_N + 16>(p, function);
        not_taken("N=" + std::to_string(p.N) + ": a block holds whole matrices of up to " +
                  std::to_string(LARGEST) + " rows");
    }
    constexpr std::integral_constant<int, BLOCK_N> block;
    if (is_dense(p)) {
        function(block, std::true_type());
    } else {
        function(block, std::false_type());
    }
}

template <typename T>
static void launch_group(const Batch& p, const LaunchShape& shape,
                         void (*kernel)(const T*, const T*, T*, index_t, int, index_t, index_t, index_t,
                                        index_t, index_t, index_t)) {
    launch(p.a, shape, kernel, p.a.data<T>(), p.b.data<T>(), p.c.data<T>(), p.B, int(p.N), p.a.strides[0],
           p.a.strides[1], p.a.strides[2], p.b.strides[0], p.b.strides[1], p.b.strides[2]);
}

// Whole matrices in shared memory, 4 x 4 elements a thread.
static py::object tiled(py::object a_object, py::object b_object) {
    const Batch p = checked(a_object, b_object);
    if (p.empty()) return p.c.object;
    dispatch_tiles(p, [&](auto BLOCK_N, auto DENSE) {
        dispatch(p.a, [&](auto zero) {
            constexpr int MATRICES = BLOCK_N == 16 ? 8 : BLOCK_N == 32 ? 2 : 1;  // 128 threads at least
            constexpr int threads = MATRICES * BLOCK_N * BLOCK_N / 16;
            constexpr int shared_bytes = 2 * MATRICES * FloatTile<BLOCK_N>::ELEMENTS * sizeof(float);
            launch_group(p, {ceil_div(p.B, MATRICES), threads, shared_bytes},
                         batched_matmul_tiled_kernel<decltype(zero), BLOCK_N, MATRICES, DENSE>);
        });
    });
    return p.c.object;
}

// MATRICES of a block: so many that it has 5 to 8 warps, each 16 rows.
constexpr int matrices_of(int BLOCK_N) {
    return std::max(8 / (BLOCK_N / 16), 1);
}

// Of a group's tiles of a and b, whose rows are a pack further apart.
constexpr int group_bytes(int BLOCK_N) {
    return 2 * matrices_of(BLOCK_N) * BLOCK_N * (BLOCK_N + 8) * 2;
}

// Whole matrices in shared memory, 16 rows a warp.
static py::object tensor_core(py::object a_object, py::object b_object) {
    const Batch p = checked(a_object, b_object);
    check_tensor_cores(p.a);
    if (p.empty()) return p.c.object;
    dispatch_tiles(p, [&](auto BLOCK_N, auto DENSE) {
        dispatch(p.a, [&](auto zero) {
            using T = decltype(zero);
            if constexpr (sizeof(T) == 2) {
                constexpr int MATRICES = matrices_of(BLOCK_N);
                launch_group(p, {ceil_div(p.B, MATRICES), MATRICES * BLOCK_N * 2, group_bytes(BLOCK_N)},
                             batched_matmul_tensor_core_kernel<T, BLOCK_N, MATRICES, DENSE>);
            }
        });
    });
    return p.c.object;
}

// BLOCKS of a multiprocessor: what 227 KB and 1536 threads' registers have room for.
constexpr int blocks_of(int BLOCK_N) {
    return std::min((227 << 10) / (2 * group_bytes(BLOCK_N) + 1024),
                    1536 / (matrices_of(BLOCK_N) * BLOCK_N * 2));
}

// Group after group, the next on its way meanwhile.
static py::object pipelined(py::object a_object, py::object b_object) {
    const Batch p = checked(a_object, b_object);
    check_tensor_cores(p.a);
    if (p.empty()) return p.c.object;
    dispatch_tiles(p, [&](auto BLOCK_N, auto DENSE) {
        dispatch(p.a, [&](auto zero) {
            using T = decltype(zero);
            if constexpr (sizeof(T) == 2) {
                constexpr int MATRICES = matrices_of(BLOCK_N), BLOCKS = blocks_of(BLOCK_N);
                const std::int64_t blocks =
                    std::min<std::int64_t>(ceil_div(p.B, MATRICES), BLOCKS * multiprocessors(p.a));
                launch_group(p, {blocks, MATRICES * BLOCK_N * 2, 2 * group_bytes(BLOCK_N)},
                             batched_matmul_pipelined_kernel<T, BLOCK_N, MATRICES, BLOCKS, DENSE>);
            }
        });
    });
    return p.c.object;
}

PYBIND11_MODULE(batched_matmul, m) {
    m.def("naive", &naive);
    m.def("tiled", &tiled);
    m.def("tensor_core", &tensor_core);
    m.def("pipelined", &pipelined);
}
