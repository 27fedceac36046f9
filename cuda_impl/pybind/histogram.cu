// histogram from C++: checks and launches the kernels of kernels/histogram.cuh.
#include "histogram.cuh"

#include <algorithm>

#include "whole.h"

// An atomic addition in global memory per element.
static py::object globally(py::object x_object) {
    constexpr int THREADS = 256;
    const Tensor x = check_bytes("histogram", x_object), y = x.zeros(BINS);
    const std::int64_t N = x.shape[0], blocks = std::max<std::int64_t>(1, ceil_div(N, THREADS));
    launch(x, {blocks, THREADS}, histogram_global_kernel<THREADS>, x.data<byte_t>(), y.data<count_t>(), N,
           x.strides[0]);
    return y.object;
}

// A block counts in shared memory and adds its counts to y at its end.
static py::object shared(py::object x_object) {
    constexpr int THREADS = 256, BLOCKS = 8;
    const Tensor x = check_bytes("histogram", x_object), y = x.zeros(BINS);
    const std::int64_t N = x.shape[0], most = BLOCKS * std::int64_t(multiprocessors(x));
    const std::int64_t blocks = std::max<std::int64_t>(1, std::min(ceil_div(N, THREADS), most));
    launch(x, {blocks, THREADS}, histogram_shared_kernel<THREADS>, x.data<byte_t>(), y.data<count_t>(), N,
           x.strides[0]);
    return y.object;
}

constexpr int PACKS = 4;  // 16-byte loads per thread in flight
constexpr int THREADS = 512;
constexpr int BLOCKS = 2;  // per multiprocessor

// Chunks of THREADS * PACKS vectors, for as many blocks as a GPU holds, at most one per chunk. A strided x
// uses `shared`.
template <typename Kernel>
static py::object by_chunks(const py::object& x_object, Kernel* kernel, int shared_bytes = 0) {
    const Tensor x = check_bytes("histogram", x_object);
    const std::int64_t N = x.shape[0], head = std::min(N, std::int64_t(-x.address % 16));
    if (N > 1 && x.strides[0] != 1) return shared(x_object);
    const Tensor y = x.zeros(BINS);
    const std::int64_t chunks = ceil_div((N - head) / 16, THREADS * PACKS);
    const std::int64_t most = BLOCKS * std::int64_t(multiprocessors(x));
    const std::int64_t blocks = std::max<std::int64_t>(1, std::min(chunks, most));
    launch(x, {blocks, THREADS, shared_bytes}, kernel, x.data<byte_t>(), y.data<count_t>(), N, int(head));
    return y.object;
}

// One set of counters per warp.
static py::object warps(py::object x) {
    return by_chunks(x, histogram_warps_kernel<PACKS, THREADS, BLOCKS>);
}

// One private counter per lane, in a bank of its own.
static py::object lanes(py::object x) {
    return by_chunks(x, histogram_lanes_kernel<PACKS, THREADS, BLOCKS>, BINS * COPIES * 4);
}

PYBIND11_MODULE(histogram, m) {
    m.def("global", &globally);
    m.def("shared", &shared);
    m.def("warps", &warps);
    m.def("lanes", &lanes);
}
