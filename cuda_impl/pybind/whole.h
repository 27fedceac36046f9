// Arguments that are vectors of integers, which tensor.h's Element does not cover.
#pragma once

#include "tensor.h"

// Reads `object` into `x` if it is a strided tensor of one dimension, this dtype and this module's device;
// any stride.
inline bool read_whole(const py::object& object, const py::object& dtype, int element_size, Tensor& x) {
    const Torch& torch = Torch::get();
    if (!py::isinstance(object, torch.tensor) || !get(object, torch.layout).is(torch.strided) ||
        !get(object, torch.dtype).is(dtype)) {
        return false;
    }
    x.object = object;
    x.element_size = element_size;
    x.address = call(object, torch.data_ptr).cast<std::uintptr_t>();
    x.device = call(object, torch.get_device).cast<int>();
    x.ndim = read(get(object, torch.shape), x.shape);
    read(call(object, torch.stride), x.strides);
    return x.ndim == 1 && get(object, torch.is_here).ptr() == Py_True;
}

// The argument as a vector of uint8; otherwise raises the error of compare.arguments.check_bytes.
inline Tensor check_bytes(const char* op, const py::object& object) {
    static const py::object& uint8 = *new py::object(Torch::get().torch.attr("uint8"));
    Tensor x;
    if (read_whole(object, uint8, 1, x)) return x;
    py::module_::import("compare.arguments").attr("check_bytes")(op, object);
    throw std::runtime_error(std::string(op) + ": these arguments are not taken");
}
