// fp8_matmul from C++: checks and launches the kernels of kernels/scaled_matmul/.
#include "fp8_matmul.cuh"

#include <algorithm>
#include <limits>

#include "scaled_matmul.h"

static ScaledProduct product(const py::object& a, const py::object& b, const py::object& scale_a,
                             const py::object& scale_b) {
    constexpr std::int64_t ANY = std::numeric_limits<std::int64_t>::max();
    return checked("fp8_matmul", QuantizedDtypes::get().e4m3, ANY, a, b, scale_a, scale_b);
}

static py::object wgmma_(py::object a, py::object b, py::object scale_a, py::object scale_b) {
    return launch_wgmma<float>(product(a, b, scale_a, scale_b));
}
static py::object specialized(py::object a, py::object b, py::object scale_a, py::object scale_b) {
    return launch_specialized<float>(product(a, b, scale_a, scale_b));
}
static py::object persistent(py::object a, py::object b, py::object scale_a, py::object scale_b) {
    return launch_persistent<float>(product(a, b, scale_a, scale_b));
}
static py::object multicast(py::object a, py::object b, py::object scale_a, py::object scale_b) {
    return launch_multicast<float>(product(a, b, scale_a, scale_b));
}

template <int BLOCK_N, int WAVES, int STAGES>
static py::object launch_promoted(const ScaledProduct& p, std::int64_t blocks) {
    constexpr int BLOCK_M = CONSUMERS * WAVES * WARPGROUP_M;
    launch_storing<BLOCK_M, BLOCK_N, STAGES>(
        p, blocks, 1, 1,
        p.c_aligned() ? scaled_matmul_promoted_kernel<BLOCK_N, WAVES, STAGES, true>
                      : scaled_matmul_promoted_kernel<BLOCK_N, WAVES, STAGES, false>);
    return p.c.object;
}

// Sums of 128 of K are added in fp32; the largest tile of which there is one per multiprocessor.
static py::object promoted(py::object a, py::object b, py::object scale_a, py::object scale_b) {
    const ScaledProduct p = product(a, b, scale_a, scale_b);
    if (is_done(p)) return p.c.object;
    const std::int64_t processors = multiprocessors(p.a);
    const auto tiles = [&](int BLOCK_N, int WAVES) {
        return ceil_div(p.M, CONSUMERS * WAVES * WARPGROUP_M) * ceil_div(p.N, BLOCK_N);
    };
    if (tiles(128, 2) >= processors) return launch_promoted<128, 2, 4>(p, processors);
    if (tiles(128, 1) >= processors) return launch_promoted<128, 1, 6>(p, processors);
    return launch_promoted<64, 1, 8>(p, std::min(processors, tiles(64, 1)));
}

PYBIND11_MODULE(fp8_matmul, m) {
    const py::arg a("a"), b("b"), scale_a("scale_a"), scale_b("scale_b");
    m.def("wgmma", &wgmma_, a, b, scale_a, scale_b);
    m.def("specialized", &specialized, a, b, scale_a, scale_b);
    m.def("persistent", &persistent, a, b, scale_a, scale_b);
    m.def("multicast", &multicast, a, b, scale_a, scale_b);
    m.def("promoted", &promoted, a, b, scale_a, scale_b);
}
