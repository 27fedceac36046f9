// matmul from C++: checks and launches the kernels of kernels/matmul/.
#include "matmul.cuh"

#include <string>
#include <type_traits>

#include "product.h"
#include "tensor.h"

// a, b and an uninitialised c. Raises compare.arguments' TypeError or ValueError for other arguments.
static Product checked(const py::object& a, const py::object& b) {
    if (is_matrix(a) && is_matrix(b)) {
        Product p;
        p.a = Tensor(a);
        p.b = a.is(b) ? p.a : Tensor(b);
        const bool same_device = p.a.device == p.b.device && get(b, Torch::get().is_here).ptr() == Py_True;
        if (is_taken(p.a) && is_taken(p.b) && p.a.element == p.b.element && same_device &&
            p.a.shape[1] == p.b.shape[0]) {
            p.M = p.a.shape[0], p.K = p.a.shape[1], p.N = p.b.shape[1];
            p.c = empty(p.M, p.N, p.a);
            return p;
        }
    }
    py::module_::import("compare.arguments").attr("check_product")("matmul", a, b);
    throw std::runtime_error("matmul: these arguments are not taken");
}

// ---- any strides, element by element ---------------------------------------------------------------------

constexpr std::int64_t MOST_PRODUCTS = std::int64_t(1) << 37;

static void check_slow(const Product& p) {
    const std::int64_t products = p.M * p.N * p.K;
    if (products <= MOST_PRODUCTS) return;
    not_taken("M*N*K=" + std::to_string(products) + ": it would take seconds, at most " +
              std::to_string(MOST_PRODUCTS));
}

template <typename T>
static void launch_strided(const Product& p, std::int64_t BLOCK_M, std::int64_t BLOCK_N, int threads,
                           void (*kernel)(const T*, const T*, T*, index_t, index_t, index_t, index_t, index_t,
                                          index_t, index_t)) {
    const std::int64_t blocks = ceil_div(p.M, BLOCK_M) * ceil_div(p.N, BLOCK_N);
    launch(p.a, {blocks, threads}, kernel, p.a.data<T>(), p.b.data<T>(), p.c.data<T>(), p.M, p.N, p.K,
           p.a.strides[0], p.a.strides[1], p.b.strides[0], p.b.strides[1]);
}

// One element per thread; a warp's threads on consecutive rows: uncoalesced.
static py::object naive(py::object a, py::object b) {
    const Product p = checked(a, b);
    check_slow(p);
    if (p.empty()) return p.c.object;
    dispatch(p.a, [&](auto zero) {
        constexpr int THREADS = 256;
        launch_strided(p, WARP, THREADS / WARP, THREADS, matmul_naive_kernel<decltype(zero), THREADS>);
    });
    return p.c.object;
}

// One element per thread; a warp's threads on consecutive columns: coalesced.
static py::object coalesced(py::object a, py::object b) {
    const Product p = checked(a, b);
    check_slow(p);
    if (p.empty()) return p.c.object;
    dispatch(p.a, [&](auto zero) {
        constexpr int THREADS = 256;
        launch_strided(p, THREADS / WARP, WARP, THREADS, matmul_coalesced_kernel<decltype(zero), THREADS>);
    });
    return p.c.object;
}

// One tile per block, from tiles in shared memory.
static py::object shared(py::object a, py::object b) {
    const Product p = checked(a, b);
    check_slow(p);
    if (p.empty()) return p.c.object;
    dispatch(p.a, [&](auto zero) {
        constexpr int BLOCK = 32;
        launch_strided(p, BLOCK, BLOCK, BLOCK * BLOCK, matmul_shared_kernel<decltype(zero), BLOCK>);
    });
    return p.c.object;
}

// A tile per thread, in registers.
static py::object blocktile(py::object a, py::object b) {
    const Product p = checked(a, b);
    if (p.empty()) return p.c.object;
    dispatch(p.a, [&](auto zero) {
        constexpr int BLOCK_M = 128, BLOCK_N = 128, BLOCK_K = 16, THREAD_M = 8, THREAD_N = 8;
        launch_strided(
            p, BLOCK_M, BLOCK_N, BLOCK_M * BLOCK_N / (THREAD_M * THREAD_N),
            matmul_blocktile_kernel<decltype(zero), BLOCK_M, BLOCK_N, BLOCK_K, THREAD_M, THREAD_N>);
    });
    return p.c.object;
}

// ---- 16-byte vectorized access ---------------------------------------------------------------------------

// A tile per thread, by accesses of 16 bytes.
static py::object vectorized(py::object a_object, py::object b_object) {
    const Product p = checked(a_object, b_object);
    if (p.empty()) return p.c.object;
    const Operand a = aligned(p.a), b = aligned(p.b);
    dispatch(p.a, [&](auto zero) {
        dispatch_layouts(a, b, [&](auto A_BY_ROWS, auto B_BY_ROWS) {
            using T = decltype(zero);
            constexpr int BLOCK_M = 128, BLOCK_N = 128, BLOCK_K = 16, THREAD_M = 8, THREAD_N = 8;
            launch(
                p.a,
                {ceil_div(p.M, BLOCK_M) * ceil_div(p.N, BLOCK_N), BLOCK_M * BLOCK_N / (THREAD_M * THREAD_N)},
                matmul_vectorized_kernel<T, A_BY_ROWS, B_BY_ROWS, BLOCK_M, BLOCK_N, BLOCK_K, THREAD_M,
                                         THREAD_N>,
                a.tensor.data<T>(), b.tensor.data<T>(), p.c.data<T>(), p.M, p.N, p.K, a.ld, b.ld);
        });
    });
    return p.c.object;
}

// Whether the tensor's GPU is older than sm_80.
static bool is_turing(const Tensor& x) {
    if (x.device < 0) return false;
    int major = 0;
    check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, x.device));
    return major < 8;
}

template <int BLOCK_N, int THREAD_N, int STAGES, typename KernelOf>
static void launch_stages(const Product& p, const Operand& a, const Operand& b, KernelOf kernel_of) {
    constexpr int BLOCK_M = 128, BLOCK_K = 16, THREAD_M = 8;
    constexpr int threads = BLOCK_M * BLOCK_N / (THREAD_M * THREAD_N);
    constexpr int shared_bytes = STAGES * BLOCK_K * (BLOCK_M + 4 + BLOCK_N + 4) * 4;
    dispatch_layouts(a, b, [&](auto A_BY_ROWS, auto B_BY_ROWS) {
        launch(p.a, {ceil_div(p.M, BLOCK_M) * ceil_div(p.N, BLOCK_N), threads, shared_bytes},
               kernel_of(A_BY_ROWS, B_BY_ROWS, std::integral_constant<int, STAGES>()), a.tensor.data<float>(),
               b.tensor.data<float>(), p.c.data<float>(), p.M, p.N, p.K, a.ld, b.ld);
    });
}

// A kernel that prefetches tiles by cp.async, BLOCK_N columns of c wide.
template <int BLOCK_N, int THREAD_N, typename KernelOf>
static py::object launch_cp_async(const Product& p, KernelOf kernel_of) {
    if (p.a.element != Element::FP32) {
        not_taken("16-bit elements: cp.async cannot transpose less than 4 bytes");
    }
    if (p.empty()) return p.c.object;
    const Operand a = aligned(p.a), b = aligned(p.b);
    if (is_turing(p.a)) {  // sm_75: shared memory holds two stages
        launch_stages<BLOCK_N, THREAD_N, 2>(p, a, b, kernel_of);
    } else {
        launch_stages<BLOCK_N, THREAD_N, 3>(p, a, b, kernel_of);
    }
    return p.c.object;
}

// cp.async prefetches the next tiles.
static py::object cp_async(py::object a, py::object b) {
    return launch_cp_async<128, 8>(checked(a, b), [](auto A_BY_ROWS, auto B_BY_ROWS, auto STAGES) {
        return matmul_cp_async_kernel<A_BY_ROWS, B_BY_ROWS, 128, 128, 16, 8, 8, STAGES>;
    });
}

// Shared memory is read one step ahead as well, by a thread with twice the columns.
static py::object pipelined(py::object a, py::object b) {
    return launch_cp_async<256, 16>(checked(a, b), [](auto A_BY_ROWS, auto B_BY_ROWS, auto STAGES) {
        return matmul_pipelined_kernel<A_BY_ROWS, B_BY_ROWS, 128, 256, 16, 8, 16, STAGES>;
    });
}

// One tile per warp, on tensor cores.
static py::object tensor_core(py::object a_object, py::object b_object) {
    const Product p = checked(a_object, b_object);
    check_tensor_cores(p.a);
    if (p.empty()) return p.c.object;
    const Operand a = aligned(p.a), b = aligned(p.b);
    dispatch(p.a, [&](auto zero) {
        using T = decltype(zero);
        if constexpr (sizeof(T) == 2) {
            dispatch_layouts(a, b, [&](auto A_BY_ROWS, auto B_BY_ROWS) {
                constexpr int BLOCK_M = 128, BLOCK_N = 128, BLOCK_K = 32;
                constexpr int WARPS_M = 2, WARPS_N = 2, STAGES = 4, BLOCKS = 2;
                constexpr int shared_bytes = STAGES * (BLOCK_M + BLOCK_N) * BLOCK_K * sizeof(T);
                launch(
                    p.a,
                    {ceil_div(p.M, BLOCK_M) * ceil_div(p.N, BLOCK_N), WARPS_M * WARPS_N * WARP, shared_bytes},
                    matmul_tensor_core_kernel<T, A_BY_ROWS, B_BY_ROWS, BLOCK_M, BLOCK_N, BLOCK_K, WARPS_M,
                                              WARPS_N, STAGES, BLOCKS>,
                    a.tensor.data<T>(), b.tensor.data<T>(), p.c.data<T>(), p.M, p.N, p.K, a.ld, b.ld);
            });
        }
    });
    return p.c.object;
}

// ---- Hopper's own units ----------------------------------------------------------------------------------

// Checks the arguments, then calls `launch_kernel` with the product and its operands. c is zeros if K is 0.
template <typename Launch>
static py::object multiplied(const py::object& a, const py::object& b, Launch launch_kernel) {
    const Product p = checked(a, b);
    check_tensor_cores(p.a);
    check_copy_engine(p);
    if (p.empty() || p.K == 0) return p.c.object.attr("zero_")();
    launch_kernel(p, aligned(p.a), aligned(p.b));
    return p.c.object;
}

// One tile per warpgroup, fetched by TMA.
static py::object wgmma_(py::object a_object, py::object b_object) {
    return multiplied(a_object, b_object, [](const Product& p, const Operand& a, const Operand& b) {
        constexpr int BLOCK_M = 128, BLOCK_N = 128, STAGES = 3;
        const TensorMap a_map = operand_map(a, a.by_rows, BLOCK_M);
        const TensorMap b_map = operand_map(b, !b.by_rows, BLOCK_N);
        const std::int64_t blocks = ceil_div(p.M, BLOCK_M) * ceil_div(p.N, BLOCK_N);
        dispatch_operands(a, b, [&](auto zero, auto A_BY_ROWS, auto B_BY_ROWS) {
            using T = decltype(zero);
            launch(p.a, {blocks, WARPGROUP, tile_ring_bytes(BLOCK_M, BLOCK_N, STAGES)},
                   matmul_wgmma_kernel<T, A_BY_ROWS, B_BY_ROWS, STAGES>, a_map, b_map, p.c.data<T>(),
                   int(p.M), int(p.N), int(p.K));
        });
    });
}

// One producer warp, eight consumer warps.
static py::object specialized(py::object a_object, py::object b_object) {
    return multiplied(a_object, b_object, [](const Product& p, const Operand& a, const Operand& b) {
        launch_specialized<false, 1>(p, a, b, [](auto zero, auto A, auto B, auto BLOCK_N, auto STAGES) {
            return matmul_specialized_kernel<decltype(zero), A, B, BLOCK_N, STAGES>;
        });
    });
}

// Persistent: one block per multiprocessor, round-robin tile scheduling.
static py::object persistent(py::object a_object, py::object b_object) {
    return multiplied(a_object, b_object, [](const Product& p, const Operand& a, const Operand& b) {
        launch_specialized<true, 1>(p, a, b, [](auto zero, auto A, auto B, auto BLOCK_N, auto STAGES) {
            return matmul_persistent_kernel<decltype(zero), A, B, BLOCK_N, STAGES>;
        });
    });
}

// TMA multicast: two blocks share their loads of b.
static py::object multicast(py::object a_object, py::object b_object) {
    return multiplied(a_object, b_object, launch_matmul_multicast);
}

// TMA stores c. Falls back to multicast if rows of c are not 16-byte aligned.
static py::object tma_store(py::object a_object, py::object b_object) {
    return multiplied(a_object, b_object, [](const Product& p, const Operand& a, const Operand& b) {
        if (p.N * p.c.element_size % 16 != 0) return launch_matmul_multicast(p, a, b);
        launch_matmul_tma_store(p, a, b);
    });
}

PYBIND11_MODULE(matmul, m) {
    m.def("naive", &naive);
    m.def("coalesced", &coalesced);
    m.def("shared", &shared);
    m.def("blocktile", &blocktile);
    m.def("vectorized", &vectorized);
    m.def("cp_async", &cp_async);
    m.def("pipelined", &pipelined);
    m.def("tensor_core", &tensor_core);
    m.def("wgmma", &wgmma_);
    m.def("specialized", &specialized);
    m.def("persistent", &persistent);
    m.def("multicast", &multicast);
    m.def("tma_store", &tma_store);
}
