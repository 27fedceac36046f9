// layer_norm from C++: checks and launches the kernels of kernels/layer_norm.cuh.
#include "layer_norm.cuh"

#include "norm.h"

constexpr float EPS = 1e-5f;

struct LayerNorm {
    static constexpr bool HAS_BIAS = true;
    template <typename T, int VEC, int THREADS>
    static auto online() {
        return &layer_norm_online_kernel<T, VEC, THREADS>;
    }
    template <typename T, int VEC, int PACKS, int THREADS, int BLOCK_M>
    static auto onepass() {
        return &layer_norm_onepass_kernel<T, VEC, PACKS, THREADS, BLOCK_M>;
    }
    template <typename T, int PACKS, int THREADS, int CLUSTER>
    static auto cluster() {
        return &layer_norm_cluster_kernel<T, PACKS, THREADS, CLUSTER>;
    }
};

// A block reads its row twice: any row length.
static py::object online(py::object x, py::object weight, py::object bias, float eps) {
    return launch_online<LayerNorm>(checked("layer_norm", x, {{"weight", weight}, {"bias", bias}}), eps);
}

// The row stays in registers: up to 64 KB.
static py::object onepass(py::object x, py::object weight, py::object bias, float eps) {
    return launch_onepass<LayerNorm>(checked("layer_norm", x, {{"weight", weight}, {"bias", bias}}), eps);
}

// The blocks of a cluster share rows: up to 512 KB each.
static py::object cluster(py::object x, py::object weight, py::object bias, float eps) {
    Rows rows = checked("layer_norm", x, {{"weight", weight}, {"bias", bias}});
    return launch_cluster<LayerNorm>(rows, eps);
}

PYBIND11_MODULE(layer_norm, m) {
    using py::arg;
    m.def("online", &online, arg("x"), arg("weight"), arg("bias"), arg("eps") = EPS);
    m.def("onepass", &onepass, arg("x"), arg("weight"), arg("bias"), arg("eps") = EPS);
    m.def("cluster", &cluster, arg("x"), arg("weight"), arg("bias"), arg("eps") = EPS);
}
