// Outputs that are not of an input's shape and dtype.
#pragma once

#include <initializer_list>

#include "tensor.h"

// A fresh, dense tensor of these sizes on the device of `like`.
inline Tensor fresh_tensor(std::initializer_list<std::int64_t> sizes, Element element, const Tensor& like) {
    const Torch& torch = Torch::get();
    static const py::object& torch_empty = *new py::object(torch.torch.attr("empty"));
    const py::object& dtype = element == Element::FP32   ? torch.fp32
                              : element == Element::FP16 ? torch.fp16
                                                         : torch.bf16;
    Tensor fresh;
    for (const std::int64_t size : sizes) fresh.shape[fresh.ndim++] = size;
    py::tuple shape(fresh.ndim);
    for (int i = 0; i < fresh.ndim; ++i) shape[i] = fresh.shape[i];
    const py::object on = get(like.object, torch.device);
    PyObject* arguments[] = {shape.ptr(), dtype.ptr(), on.ptr()};
    fresh.object = made(PyObject_Vectorcall(torch_empty.ptr(), arguments, 1, torch.of_zeros.ptr()));
    fresh.address = call(fresh.object, torch.data_ptr).cast<std::uintptr_t>();
    fresh.device = like.device;
    fresh.element = element;
    fresh.element_size = element == Element::FP32 ? 4 : 2;
    fresh.strides = fresh.dense_strides();
    return fresh;
}
