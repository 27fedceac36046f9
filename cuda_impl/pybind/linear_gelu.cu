// linear_gelu from C++: checks and launches the kernels of kernels/linear_gelu.cuh, and of matmul.cuh.
#include "linear_gelu.cuh"

#include <type_traits>

#include "product.h"

struct Layer {
    Product product;  // its c is y
    Tensor bias;
};

static bool is_good(const Layer& layer) {
    const Tensor &x = layer.product.a, &w = layer.product.b, &bias = layer.bias;
    const auto is_here = [](const Tensor& tensor) {
        return get(tensor.object, Torch::get().is_here).ptr() == Py_True;
    };
    return is_taken(x) && is_taken(w) && x.element != Element::FP32 && bias.ndim == 1 &&
           w.element == x.element && bias.element == x.element && w.shape[0] == x.shape[1] &&
           bias.shape[0] == w.shape[1] && w.device == x.device && bias.device == x.device && is_here(w) &&
           is_here(bias);
}

// Everything but y. Raises compare.arguments' TypeError or ValueError for other arguments.
static Layer checked(const py::object& x, const py::object& w, const py::object& bias) {
    if (is_matrix(x) && is_matrix(w) && is_matrix(bias)) {
        Layer layer;
        Product& p = layer.product;
        p.a = Tensor(x), p.b = x.is(w) ? p.a : Tensor(w), layer.bias = Tensor(bias);
        if (is_good(layer)) {
            p.M = p.a.shape[0], p.K = p.a.shape[1], p.N = p.b.shape[1];
            check_tensor_cores(p.a);
            return layer;
        }
    }
    py::module_::import("compare.arguments").attr("check_linear")("linear_gelu", x, w, bias);
    throw std::runtime_error("linear_gelu: these arguments are not taken");
}

// The bias if it is contiguous and 16-byte aligned, else such a copy.
static Tensor packed(const Tensor& bias) {
    if (bias.strides[0] == 1 && bias.address % 16 == 0) return bias;
    return Tensor(bias.object.attr("clone")(py::arg("memory_format") = Torch::get().dense));
}

static py::object launch_tensor_core(Layer& layer) {
    Product& p = layer.product;
    p.c = empty(p.M, p.N, p.a);
    if (p.empty()) return p.c.object;
    const Operand x = aligned(p.a), w = aligned(p.b);
    const Tensor bias = packed(layer.bias);
    dispatch_operands(x, w, [&](auto zero, auto X_BY_ROWS, auto W_BY_ROWS) {
        using T = decltype(zero);
        constexpr int BLOCK_M = 128, BLOCK_N = 128, BLOCK_K = 32;
        constexpr int WARPS_M = 2, WARPS_N = 2, STAGES = 4, BLOCKS = 2;
        constexpr int shared_bytes = STAGES * (BLOCK_M + BLOCK_N) * BLOCK_K * sizeof(T);
        launch(p.a, {ceil_div(p.M, BLOCK_M) * ceil_div(p.N, BLOCK_N), WARPS_M * WARPS_N * WARP, shared_bytes},
               linear_gelu_tensor_core_kernel<T, X_BY_ROWS, W_BY_ROWS, BLOCK_M, BLOCK_N, BLOCK_K, WARPS_M,
                                              WARPS_N, STAGES, BLOCKS>,
               x.tensor.data<T>(), w.tensor.data<T>(), bias.data<T>(), p.c.data<T>(), p.M, p.N, p.K, x.ld,
               w.ld);
    });
    return p.c.object;
}

// matmul's kernel with bias and GELU as its epilogue, in registers.
static py::object tensor_core(py::object x, py::object w, py::object bias) {
    Layer layer = checked(x, w, bias);
    return launch_tensor_core(layer);
}

// matmul's tma_store, then bias and GELU in a separate kernel.
static py::object unfused(py::object x, py::object w, py::object bias_object) {
    Layer layer = checked(x, w, bias_object);
    Product& p = layer.product;
    check_copy_engine(p);
    p.c = empty(p.M, p.N, p.a);
    if (p.empty()) return p.c.object;
    const int pack = 16 / p.c.element_size;
    if (p.K == 0) {
        p.c.object.attr("zero_")();
    } else if (p.N % pack != 0) {
        launch_matmul_multicast(p, aligned(p.a), aligned(p.b));
    } else {
        launch_matmul_tma_store(p, aligned(p.a), aligned(p.b));
    }
    const Tensor bias = packed(layer.bias);
    dispatch(p.c, [&](auto zero) {
        using T = decltype(zero);
        if constexpr (sizeof(T) == 2) {
            constexpr int THREADS = 256, PACK = 16 / sizeof(T);
            const auto launch_packs = [&](auto VEC) {
                launch(p.c, {ceil_div(p.M * p.N / VEC, THREADS), THREADS},
                       linear_gelu_unfused_kernel<T, VEC, THREADS>, bias.data<T>(), p.c.data<T>(), p.M, p.N);
            };
            if (p.N % PACK == 0) {
                launch_packs(std::integral_constant<int, PACK>());
            } else {
                launch_packs(std::integral_constant<int, 1>());
            }
        }
    });
    return p.c.object;
}

// matmul's tma_store with bias and GELU as its epilogue, in registers. Falls back to tensor_core where TMA
// cannot be used: rows of y that are not 16-byte aligned, or K = 0.
static py::object fused(py::object x, py::object w, py::object bias_object) {
    Layer layer = checked(x, w, bias_object);
    Product& p = layer.product;
    check_copy_engine(p);
    if (p.K == 0 || p.N * p.a.element_size % 16 != 0) return launch_tensor_core(layer);
    p.c = empty(p.M, p.N, p.a);
    if (p.empty()) return p.c.object;
    const Tensor bias = packed(layer.bias);
    const auto kernel_of = [](auto zero, auto X, auto W, auto BLOCK_N, auto STAGES) {
        return linear_gelu_fused_kernel<decltype(zero), X, W, BLOCK_N, STAGES>;
    };
    launch_tma_store(p, aligned(p.a), aligned(p.b), kernel_of, bias);
    return p.c.object;
}

PYBIND11_MODULE(linear_gelu, m) {
    m.def("tensor_core", &tensor_core);
    m.def("unfused", &unfused);
    m.def("fused", &fused);
}
