// Arguments that are vectors of bytes, which tensor.h's Element has no word for.
#pragma once

#include "tensor.h"

// The argument as a tensor of one dimension of uint8, with any stride; else the error of
// compare.arguments.check_bytes.
inline Tensor check_bytes(const char* op, const py::object& object) {
    static const py::object& uint8 = *new py::object(Torch::get().torch.attr("uint8"));
    const Torch& torch = Torch::get();
    Tensor x;
    if (py::isinstance(object, torch.tensor) && get(object, torch.layout).is(torch.strided) &&
        get(object, torch.dtype).is(uint8)) {
        x.object = object;
        x.element_size = 1;
        x.address = call(object, torch.data_ptr).cast<std::uintptr_t>();
        x.device = call(object, torch.get_device).cast<int>();
        x.ndim = read(get(object, torch.shape), x.shape);
        read(call(object, torch.stride), x.strides);
        if (x.ndim == 1 && get(object, torch.is_here).ptr() == Py_True) return x;
    }
    py::module_::import("compare.arguments").attr("check_bytes")(op, object);
    throw std::runtime_error(std::string(op) + ": these arguments are not taken");
}
