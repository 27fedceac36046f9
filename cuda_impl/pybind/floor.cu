// The floor of this route's launch overhead: an output like x and a kernel that does nothing; no checks.
#include "tensor.h"

__global__ void floor_kernel(const float*, float*) {}

// A new tensor like x, which is on this GPU (-1: the CPU).
static py::object launched(const py::object& x, int device) {
    const Torch& torch = Torch::get();
    const py::object y = made(PyObject_CallOneArg(torch.empty_like.ptr(), x.ptr()));
    Tensor on;
    on.device = device;
    launch(on, {1, 32}, floor_kernel,
           reinterpret_cast<const float*>(call(x, torch.data_ptr).cast<std::uintptr_t>()),
           reinterpret_cast<float*>(call(y, torch.data_ptr).cast<std::uintptr_t>()));
    return y;
}

PYBIND11_MODULE(floor, m) {
    m.def("launched", &launched);
}
