// The floor of this route's launch overhead: an output like x and a kernel that does nothing; no checks.
#include "tensor.h"

__global__ void floor_kernel(const float*, float*) {}

static py::object launched(py::object x_object) {
    const Tensor x(x_object), y = x.empty_like();
    launch(x, {1, 32}, floor_kernel, x.data<const float>(), y.data<float>());
    return y.object;
}

PYBIND11_MODULE(floor, m) {
    m.def("launched", &launched);
}
