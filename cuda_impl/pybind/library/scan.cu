// scan of one row by CUB's DeviceScan: a baseline for the variants. Its look-back adds whatever earlier tiles
// have published when it reads, so that two calls may differ in the last bits.
#include <thrust/iterator/transform_iterator.h>
#include <cub/device/device_scan.cuh>
#include <cuda/std/functional>

#include "cub.h"

struct ToFloat {
    template <typename T>
    __device__ float operator()(T value) const {
        return float(value);
    }
};

static py::object cub_scan(py::object x_object) {
    const Tensor x = check_same("scan", 2, {{"x", x_object}})[0].contiguous(), y = x.empty_like();
    if (x.shape(0) != 1) not_taken("M=" + std::to_string(x.shape(0)) + ": CUB scans one row");
    dispatch(x, [&](auto zero) {
        using T = decltype(zero);
        const auto x_floats = thrust::make_transform_iterator(x.data<const T>(), ToFloat());
        with_scratch(x, [&](void* scratch, std::size_t& bytes, cudaStream_t stream) {
            return cub::DeviceScan::InclusiveScan(
                scratch, bytes, x_floats, y.data<T>(), cuda::std::plus<>(), x.shape(1), stream);
        });
    });
    return y.object;
}

PYBIND11_MODULE(scan, m) {
    m.def("cub", &cub_scan);
}
