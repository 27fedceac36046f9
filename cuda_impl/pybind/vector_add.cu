// vector_add from C++: checks and launches the kernels of kernels/vector_add.cuh.
#include "vector_add.cuh"

#include "tensor.h"

constexpr int THREADS = 256;
constexpr int VECTORS = 2;  // 16-byte vectors per thread: four loads in flight

// z[N] = x[N] + y[N], one element per thread.
static py::object scalar(py::object x_object, py::object y_object) {
    const auto tensors = check_same("vector_add", 1, {{"x", x_object}, {"y", y_object}});
    const Tensor x = tensors[0].contiguous(), y = tensors[1].contiguous(), z = x.empty_like();
    const std::int64_t N = x.numel();
    if (N == 0) return z.object;
    dispatch(x, [&](auto zero) {
        using T = decltype(zero);
        launch(
            x, {ceil_div(N, THREADS), THREADS}, vector_add_scalar_kernel<T>, x.data<T>(), y.data<T>(),
            z.data<T>(), N);
    });
    return z.object;
}

// z[N] = x[N] + y[N], 16-byte vectorized; inputs that are not 16-byte aligned element by element.
static py::object vectorized(py::object x_object, py::object y_object) {
    const auto tensors = check_same("vector_add", 1, {{"x", x_object}, {"y", y_object}});
    const Tensor x = tensors[0].contiguous(), y = tensors[1].contiguous(), z = x.empty_like();
    const std::int64_t N = x.numel();
    if (N == 0) return z.object;
    const int elements = THREADS * VECTORS * 16 / x.element_size();  // per block
    const bool aligned = (x.address() | y.address()) % 16 == 0;
    dispatch(x, [&](auto zero) {
        using T = decltype(zero);
        constexpr int VEC = 16 / sizeof(T);
        launch(
            x, {ceil_div(N, elements), THREADS},
            aligned ? vector_add_vectorized_kernel<T, VEC, VECTORS>
                    : vector_add_vectorized_kernel<T, 1, VECTORS * VEC>,
            x.data<T>(), y.data<T>(), z.data<T>(), N);
    });
    return z.object;
}

PYBIND11_MODULE(vector_add, m) {
    m.def("scalar", &scalar);
    m.def("vectorized", &vectorized);
}
