// int8_matmul from C++: checks and launches the kernels of kernels/int8_matmul/ and kernels/scaled_matmul/.
#include "int8_matmul.cuh"

#include <string>

#include "scaled_matmul.h"

static ScaledProduct product(const py::object& a, const py::object& b, const py::object& scale_a,
                             const py::object& scale_b) {
    constexpr std::int64_t MOST_EXACT_TERMS = (1 << 17) - 1;  // whose products int32 can sum
    return checked("int8_matmul", QuantizedDtypes::get().int8, MOST_EXACT_TERMS, a, b, scale_a, scale_b);
}

// One element per thread; dp4a.
static py::object naive(py::object a_object, py::object b_object, py::object scale_a, py::object scale_b) {
    const ScaledProduct p = product(a_object, b_object, scale_a, scale_b);
    constexpr std::int64_t MOST_PRODUCTS = std::int64_t(1) << 37;
    if (p.M * p.N * p.K > MOST_PRODUCTS) {
        not_taken("M*N*K=" + std::to_string(p.M * p.N * p.K) + ": it would take seconds, at most " +
                  std::to_string(MOST_PRODUCTS));
    }
    if (p.empty()) return p.c.object;
    constexpr int THREADS = 256;
    const Tensor a = operand(p.a), b = operand(p.b);
    launch(p.a, {ceil_div(p.M, THREADS / WARP) * ceil_div(p.N, WARP), THREADS},
           int8_matmul_naive_kernel<THREADS>, a.data<signed char>(), b.data<signed char>(),
           p.scale_a.data<float>(), p.scale_b.data<float>(), p.c.data<__nv_bfloat16>(), p.M, p.N, p.K,
           a.strides[0], b.strides[0]);
    return p.c.object;
}

// One tile per warp, on tensor cores.
static py::object tensor_core(py::object a_object, py::object b_object, py::object scale_a,
                              py::object scale_b) {
    const ScaledProduct p = product(a_object, b_object, scale_a, scale_b);
    if (p.empty()) return p.c.object;
    constexpr int BLOCK_M = 128, BLOCK_N = 128, BLOCK_PAIRS = 32, WARPS_M = 2, WARPS_N = 2, STAGES = 4;
    constexpr int shared_bytes = STAGES * (BLOCK_M + BLOCK_N) * BLOCK_PAIRS * int(sizeof(Pair));
    const Tensor a = operand(p.a), b = operand(p.b);
    launch(p.a, {ceil_div(p.M, BLOCK_M) * ceil_div(p.N, BLOCK_N), WARPS_M * WARPS_N * WARP, shared_bytes},
           int8_matmul_tensor_core_kernel<BLOCK_M, BLOCK_N, BLOCK_PAIRS, WARPS_M, WARPS_N, STAGES>,
           a.data<Pair>(), b.data<Pair>(), p.scale_a.data<float>(), p.scale_b.data<float>(),
           p.c.data<__nv_bfloat16>(), p.M, p.N, ceil_div(p.K, 2), a.strides[0] / 2, b.strides[0] / 2);
    return p.c.object;
}

static py::object wgmma_(py::object a, py::object b, py::object scale_a, py::object scale_b) {
    return launch_wgmma<int>(product(a, b, scale_a, scale_b));
}
static py::object specialized(py::object a, py::object b, py::object scale_a, py::object scale_b) {
    return launch_specialized<int>(product(a, b, scale_a, scale_b));
}
static py::object persistent(py::object a, py::object b, py::object scale_a, py::object scale_b) {
    return launch_persistent<int>(product(a, b, scale_a, scale_b));
}
static py::object multicast(py::object a, py::object b, py::object scale_a, py::object scale_b) {
    return launch_multicast<int>(product(a, b, scale_a, scale_b));
}

PYBIND11_MODULE(int8_matmul, m) {
    const py::arg a("a"), b("b"), scale_a("scale_a"), scale_b("scale_b");
    m.def("naive", &naive, a, b, scale_a, scale_b);
    m.def("tensor_core", &tensor_core, a, b, scale_a, scale_b);
    m.def("wgmma", &wgmma_, a, b, scale_a, scale_b);
    m.def("specialized", &specialized, a, b, scale_a, scale_b);
    m.def("persistent", &persistent, a, b, scale_a, scale_b);
    m.def("multicast", &multicast, a, b, scale_a, scale_b);
}
