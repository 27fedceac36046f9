// compact by CUB's DeviceSelect: a baseline for the variants.
#include <cub/device/device_select.cuh>

#include "compact.cuh"
#include "cub.h"

struct IsKept {
    template <typename T>
    __device__ bool operator()(T value) const {
        return is_kept(float(value));
    }
};

// CUB writes the count to memory; this kernel writes the NaN after the kept elements.
template <typename T>
__global__ void compact_end_kernel(T* y_ptr, std::int64_t N, const std::int64_t* count_ptr) {
    const std::int64_t count = *count_ptr;
    if (count < N) y_ptr[count] = T(__int_as_float(0x7fc00000));
}

static py::object cub_if(py::object x_object) {
    const Tensor x = check_same("compact", 1, {{"x", x_object}})[0].contiguous(), y = x.empty_like();
    const Tensor count = zeros(x, 1, "int64");
    dispatch(x, [&](auto zero) {
        using T = decltype(zero);
        with_scratch(x, [&](void* scratch, std::size_t& bytes, cudaStream_t stream) {
            return cub::DeviceSelect::If(
                scratch, bytes, x.data<const T>(), y.data<T>(), count.data<std::int64_t>(), x.shape(0),
                IsKept(), stream);
        });
        launch(x, {1, 1}, compact_end_kernel<T>, y.data<T>(), x.shape(0), count.data<const std::int64_t>());
    });
    return y.object;
}

PYBIND11_MODULE(compact, m) {
    m.def("cub", &cub_if);
}
