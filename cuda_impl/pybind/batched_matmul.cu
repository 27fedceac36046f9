// batched_matmul from C++: checks and launches the kernels of kernels/batched_matmul.cuh.
#include "batched_matmul.cuh"

#include <map>
#include <string>
#include <type_traits>

#include "product.h"
#include "tensor.h"

struct Batch {
    Tensor a, b, c;
    std::int64_t B, N;
    bool empty() const { return B == 0 || N == 0; }
};

// a, b and an uninitialised c. Raises compare.arguments' TypeError or ValueError for other arguments.
static Batch checked(const py::object& a, const py::object& b) {
    const auto tensors = check_same("batched_matmul", 3, {{"a", a}, {"b", b}});
    if (tensors[0].shape[1] != tensors[0].shape[2]) {
        py::module_::import("compare.arguments").attr("check_batched_squares")("batched_matmul", a, b);
    }
    return {tensors[0], tensors[1], tensors[0].empty_like(), tensors[0].shape[0], tensors[0].shape[1]};
}

// One element per thread.
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

constexpr int LARGEST = 128;  // maximum N: a block holds whole matrices

static void check_size(const Batch& p) {
    if (p.N <= LARGEST) return;
    not_taken("N=" + std::to_string(p.N) + ": a block holds whole matrices of up to " +
              std::to_string(LARGEST) + " rows; torch.eager takes any");
}

// Raises NotImplementedError if a block needs more shared memory than this GPU allows.
static void check_shared(const Batch& p, int bytes) {
    if (p.a.device < 0) return;
    static std::map<int, int> known;
    int& most = known[p.a.device];
    if (most == 0) check(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, p.a.device));
    if (bytes <= most) return;
    not_taken("N=" + std::to_string(p.N) + ": " + std::to_string(bytes) +
              " bytes of shared memory a block, and this GPU has " + std::to_string(most) +
              "; fewer or smaller matrices a block take less, and torch.eager takes any");
}

// Whether rows (or columns) are whole 16-byte vectors, aligned.
static bool is_packed(const Tensor& x, bool by_rows = true) {
    const int VEC = 16 / x.element_size, along = by_rows ? 2 : 1;
    return x.strides[along] == 1 && x.shape[1] % VEC == 0 && x.strides[3 - along] % VEC == 0 &&
           x.strides[0] % VEC == 0 && x.address % 16 == 0;
}

// Calls `packed` with a's and b's row-major flags as constants, or `others` if not both are packed.
template <typename Packed, typename Others>
static void dispatch_lie(const Batch& p, Packed packed, Others others) {
    const bool a_by_rows = p.a.strides[2] == 1, b_by_rows = p.b.strides[2] == 1;
    if (!is_packed(p.a, a_by_rows) || !is_packed(p.b, b_by_rows)) return others();
    const auto with_b = [&](auto A_BY_ROWS) {
        if (b_by_rows) return packed(A_BY_ROWS, std::true_type());
        packed(A_BY_ROWS, std::false_type());
    };
    if (a_by_rows) return with_b(std::true_type());
    with_b(std::false_type());
}

template <typename T, typename Kernel, typename... Sizes>
static void launch_group(const Batch& p, const LaunchShape& shape, Kernel* kernel, Sizes... sizes) {
    check_shared(p, shape.shared_bytes);
    launch(p.a, shape, kernel, p.a.data<T>(), p.b.data<T>(), p.c.data<T>(), p.B, int(p.N), sizes...,
           p.a.strides[0], p.a.strides[1], p.a.strides[2], p.b.strides[0], p.b.strides[1], p.b.strides[2]);
}

constexpr int ROWS = 4;

// Whole matrices in shared memory, ROWS x 4 elements per thread.
static py::object tiled(py::object a_object, py::object b_object) {
    const Batch p = checked(a_object, b_object);
    if (p.empty()) return p.c.object;
    check_size(p);
    const int side = int(ceil_div(p.N, ROWS)) * ROWS;
    const int each = side / ROWS * side / 4;       // threads per matrix
    const int matrices = std::max(128 / each, 1);  // 128 threads, at least one matrix
    const int shared_bytes = 2 * matrices * side * (side + 4) * 4;
    const LaunchShape shape = {ceil_div(p.B, matrices), matrices * each, shared_bytes};
    dispatch(p.a, [&](auto zero) {
        using T = decltype(zero);
        const auto kernel = is_packed(p.a) && is_packed(p.b) ? &batched_matmul_tiled_kernel<T, true, ROWS>
                                                             : &batched_matmul_tiled_kernel<T, false, ROWS>;
        launch_group<T>(p, shape, kernel, matrices);
    });
    return p.c.object;
}

// Calls `function` with a value of the operands' 16-bit type, and BLOCK_N: N rounded up to a multiple of 16.
template <int BLOCK_N = 16, typename Function>
static void dispatch_tiles(const Batch& p, Function function) {
    if constexpr (BLOCK_N < LARGEST) {
        if (p.N > BLOCK_N) return dispatch_tiles<BLOCK_N + 16>(p, function);
    }
    dispatch(p.a, [&](auto zero) {
        if constexpr (sizeof(zero) == 2) function(zero, std::integral_constant<int, BLOCK_N>());
    });
}

// MATRICES per block: 4 to 8 warps, with 16 rows each.
constexpr int matrices_of(int BLOCK_N) {
    return (64 + BLOCK_N - 1) / BLOCK_N;
}

// Bytes of a group's tiles of a and b.
constexpr int group_bytes(int BLOCK_N) {
    return 2 * matrices_of(BLOCK_N) * BLOCK_N * BLOCK_N * 2;
}

// One block per group of matrices.
template <typename T, int BLOCK_N, typename Kernel>
static void launch_groups(const Batch& p, Kernel* kernel) {
    constexpr int MATRICES = matrices_of(BLOCK_N);
    static_assert(MATRICES * BLOCK_N * 2 <= 1024, "a block has no more");
    launch_group<T>(p, {ceil_div(p.B, MATRICES), MATRICES * BLOCK_N * 2, group_bytes(BLOCK_N)}, kernel);
}

// Operands of any layout.
template <typename T, int BLOCK_N>
static void launch_any_layout(const Batch& p) {
    launch_groups<T, BLOCK_N>(p, &batched_matmul_any_layout_kernel<T, BLOCK_N, matrices_of(BLOCK_N)>);
}

// Whole matrices in shared memory, 16 rows per warp.
static py::object tensor_core(py::object a_object, py::object b_object) {
    const Batch p = checked(a_object, b_object);
    check_tensor_cores(p.a);
    if (p.empty()) return p.c.object;
    check_size(p);
    dispatch_tiles(p, [&](auto zero, auto BLOCK_N) {
        using T = decltype(zero);
        dispatch_lie(
            p,
            [&](auto A, auto B) {
                constexpr int MATRICES = matrices_of(BLOCK_N);
                launch_groups<T, BLOCK_N>(p, &batched_matmul_tensor_core_kernel<T, A, B, BLOCK_N, MATRICES>);
            },
            [&] { launch_any_layout<T, BLOCK_N>(p); });
    });
    return p.c.object;
}

constexpr int STAGES = 3;

// BLOCKS per multiprocessor, limited by 227 KB of shared memory and by the registers of 1536 threads.
constexpr int blocks_of(int BLOCK_N) {
    return std::min((227 << 10) / (STAGES * group_bytes(BLOCK_N) + 1024),
                    1536 / (matrices_of(BLOCK_N) * BLOCK_N * 2));
}

// Persistent: the next groups are prefetched while one is multiplied.
static py::object pipelined(py::object a_object, py::object b_object) {
    const Batch p = checked(a_object, b_object);
    check_tensor_cores(p.a);
    if (p.empty()) return p.c.object;
    check_size(p);
    dispatch_tiles(p, [&](auto zero, auto BLOCK_N) {
        using T = decltype(zero);
        constexpr int MATRICES = matrices_of(BLOCK_N), BLOCKS = blocks_of(BLOCK_N);
        const std::int64_t blocks =
            std::min<std::int64_t>(ceil_div(p.B, MATRICES), BLOCKS * multiprocessors(p.a));
        dispatch_lie(
            p,
            [&](auto A, auto B) {
                launch_group<T>(p, {blocks, MATRICES * BLOCK_N * 2, STAGES * group_bytes(BLOCK_N)},
                                &batched_matmul_pipelined_kernel<T, A, B, BLOCK_N, MATRICES, STAGES, BLOCKS>);
            },
            [&] { launch_any_layout<T, BLOCK_N>(p); });
    });
    return p.c.object;
}

PYBIND11_MODULE(batched_matmul, m) {
    m.def("naive", &naive);
    m.def("tiled", &tiled);
    m.def("tensor_core", &tensor_core);
    m.def("pipelined", &pipelined);
}
