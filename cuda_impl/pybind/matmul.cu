// matmul from C++: checks and launches the kernels of kernels/matmul.cuh.
#include "matmul.cuh"

#include <string>
#include <type_traits>

#include "tensor.h"

struct Product {
    Tensor a, b, c;
    std::int64_t M, N, K;
    bool empty() const { return M == 0 || N == 0; }
};

static py::object empty(std::int64_t rows, std::int64_t columns, const Tensor& like) {
    static const py::object& torch_empty = *new py::object(py::module_::import("torch").attr("empty"));
    py::dict options;
    options["dtype"] = like.object.attr("dtype");
    options["device"] = like.object.attr("device");
    return torch_empty(py::make_tuple(rows, columns), **options);
}

static bool is_matrix(const py::object& object) {
    const Torch& torch = Torch::get();
    if (!py::isinstance(object, torch.tensor)) return false;
    const py::object layout = object.attr("layout"), dtype = object.attr("dtype");
    return layout.is(torch.strided) &&
           (dtype.is(torch.fp32) || dtype.is(torch.fp16) || dtype.is(torch.bf16)) &&
           object.attr("dim")().cast<int>() == 2;
}

// a, b and an empty c; a TypeError or ValueError, which compare.arguments words, if they are no product.
static Product checked(const py::object& a, const py::object& b) {
    if (is_matrix(a) && is_matrix(b) && a.attr("dtype").equal(b.attr("dtype")) &&
        a.attr("device").equal(b.attr("device"))) {
        Product p;
        p.a = Tensor(a);
        p.b = Tensor(b);
        p.M = p.a.shape[0], p.K = p.a.shape[1], p.N = p.b.shape[1];
        if (p.b.shape[0] == p.K) {
            p.c = Tensor(empty(p.M, p.N, p.a));
            return p;
        }
    }
    py::module_::import("compare.arguments").attr("check_product")("matmul", a, b);
    throw std::runtime_error("matmul: these arguments are not taken");
}

[[noreturn]] static void not_taken(const std::string& why) {
    PyErr_SetString(PyExc_NotImplementedError, why.c_str());
    throw py::error_already_set();
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

// A thread an element; a warp's threads below each other.
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

// A thread an element; a warp's threads beside each other.
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

// A block a tile, from tiles in shared memory.
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

// ---- 16 bytes at a time ----------------------------------------------------------------------------------

struct Operand {
    Tensor tensor;
    bool by_rows;
    std::int64_t ld;  // elements between rows (columns)
};

// The tensor with rows, or columns, that are dense and start on 16-byte boundaries; a copy with such rows
// where they do not.
static Operand aligned(const Tensor& x) {
    const int pack = 16 / x.element_size;
    if (x.address % 16 == 0) {
        if (x.strides[1] == 1 && x.strides[0] % pack == 0) return {x, true, x.strides[0]};
        if (x.strides[0] == 1 && x.strides[1] % pack == 0) return {x, false, x.strides[1]};
    }
    const std::int64_t columns = x.shape[1], pitch = ceil_div(columns, pack) * pack;
    const py::object padded = empty(x.shape[0], pitch, x);
    padded.attr("narrow")(1, 0, columns).attr("copy_")(x.object);
    return {Tensor(padded), true, pitch};
}

// Calls `function` with how two operands lie as constants.
template <typename Function>
static void dispatch_layouts(const Operand& a, const Operand& b, Function function) {
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

// A thread a tile, copies on their way meanwhile.
static py::object register_(py::object a_object, py::object b_object) {
    const Product p = checked(a_object, b_object);
    if (p.empty()) return p.c.object;
    const Operand a = aligned(p.a), b = aligned(p.b);
    dispatch(p.a, [&](auto zero) {
        dispatch_layouts(a, b, [&](auto A_BY_ROWS, auto B_BY_ROWS) {
            using T = decltype(zero);
            constexpr int BLOCK_M = 128, BLOCK_N = 128, BLOCK_K = 64 / sizeof(T);
            constexpr int THREAD_M = 8, THREAD_N = 8, STAGES = 2, BLOCKS = 2;
            constexpr int a_tile = PaddedTile<T, A_BY_ROWS, BLOCK_M, BLOCK_K>::ELEMENTS;
            constexpr int b_tile = PaddedTile<T, !B_BY_ROWS, BLOCK_N, BLOCK_K>::ELEMENTS;
            constexpr int shared_bytes = STAGES * (a_tile + b_tile) * sizeof(T);
            launch(p.a,
                   {ceil_div(p.M, BLOCK_M) * ceil_div(p.N, BLOCK_N),
                    BLOCK_M * BLOCK_N / (THREAD_M * THREAD_N), shared_bytes},
                   matmul_register_kernel<T, A_BY_ROWS, B_BY_ROWS, BLOCK_M, BLOCK_N, BLOCK_K, THREAD_M,
                                          THREAD_N, STAGES, BLOCKS>,
                   a.tensor.data<T>(), b.tensor.data<T>(), p.c.data<T>(), p.M, p.N, p.K, a.ld, b.ld);
        });
    });
    return p.c.object;
}

// Refuses what the tensor cores of this GPU cannot multiply.
static void check_tensor_cores(const Tensor& x) {
    const Torch& torch = Torch::get();
    const py::object dtype = x.object.attr("dtype");
    if (dtype.is(torch.fp32)) not_taken("fp32: tensor cores would multiply it as TF32");
    if (!dtype.is(torch.bf16) || x.device < 0) return;
    int major = 0, minor = 0;
    check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, x.device));
    check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, x.device));
    if (major < 8) {
        not_taken("bf16: tensor cores multiply it from sm_80 on, this is sm_" +
                  std::to_string(10 * major + minor));
    }
}

// A warp a tile, by tensor cores.
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
                constexpr int WARPS_M = 2, WARPS_N = 2, STAGES = 3, BLOCKS = 2;
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

PYBIND11_MODULE(matmul, m) {
    m.def("naive", &naive);
    m.def("coalesced", &coalesced);
    m.def("shared", &shared);
    m.def("register", &register_);
    m.def("tensor_core", &tensor_core);
}
