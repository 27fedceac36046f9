// rms_norm from C++: checks and launches the kernels of kernels/rms_norm.cuh.
#include "rms_norm.cuh"

#include "norm.h"

constexpr float EPS = 1e-5f;

struct RmsNorm {
    static constexpr bool HAS_BIAS = false;
    template <typename T, int VEC, int THREADS>
    static auto online() {
        return &rms_norm_online_kernel<T, VEC, THREADS>;
    }
    template <typename T, int VEC, int PACKS, int THREADS, int BLOCK_M>
    static auto onepass() {
        return &rms_norm_onepass_kernel<T, VEC, PACKS, THREADS, BLOCK_M>;
    }
    template <typename T, int PACKS, int THREADS, int CLUSTER>
    static auto cluster() {
        return &rms_norm_cluster_kernel<T, PACKS, THREADS, CLUSTER>;
    }
};

// A block reads its row twice: any row length.
static py::object online(py::object x, py::object weight, float eps) {
    return launch_online<RmsNorm>(checked("rms_norm", x, {{"weight", weight}}), eps);
}

// The row stays in registers: up to 64 KB.
static py::object onepass(py::object x, py::object weight, float eps) {
    return launch_onepass<RmsNorm>(checked("rms_norm", x, {{"weight", weight}}), eps);
}

// The blocks of a cluster share rows: up to 512 KB each.
static py::object cluster(py::object x, py::object weight, float eps) {
    Rows rows = checked("rms_norm", x, {{"weight", weight}});
    return launch_cluster<RmsNorm>(rows, eps);
}

PYBIND11_MODULE(rms_norm, m) {
    using py::arg;
    m.def("online", &online, arg("x"), arg("weight"), arg("eps") = EPS);
    m.def("onepass", &onepass, arg("x"), arg("weight"), arg("eps") = EPS);
    m.def("cluster", &cluster, arg("x"), arg("weight"), arg("eps") = EPS);
}
