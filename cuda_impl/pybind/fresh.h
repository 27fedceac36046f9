// Outputs unlike any input: new tensors of any shape, on the device of a given tensor.
#pragma once

#include <initializer_list>

#include "tensor.h"

// `like.METHOD(shape)`: a contiguous tensor of that shape on the device of `like`, of dtype fp32 if `fp32`,
// else of the dtype of `like`.
inline Tensor fresh(const py::str& method, const Tensor& like, std::initializer_list<std::int64_t> shape,
                    bool fp32) {
    static const py::tuple& of_dtype = *new py::tuple(py::make_tuple(Torch::name("dtype")));
    Tensor made_of = like;  // copies device and dtype
    if (fp32) {
        made_of.element = Element::FP32;
        made_of.element_size = 4;
    }
    py::tuple sizes(shape.size());
    made_of.ndim = int(shape.size());
    made_of.shape = {};
    int i = 0;
    for (const std::int64_t size : shape) {
        sizes[std::size_t(i)] = py::int_(size);
        made_of.shape[std::size_t(i++)] = size;
    }
    made_of.strides = made_of.dense_strides();
    PyObject* arguments[] = {like.object.ptr(), sizes.ptr(), Torch::get().fp32.ptr()};
    PyObject* keywords = fp32 ? of_dtype.ptr() : nullptr;
    made_of.object = made(PyObject_VectorcallMethod(method.ptr(), arguments, 2, keywords));
    made_of.address = call(made_of.object, Torch::get().data_ptr).cast<std::uintptr_t>();
    return made_of;
}

// With the dtype of `like`.
inline Tensor new_empty(const Tensor& like, std::initializer_list<std::int64_t> shape) {
    static const py::str& method = *new py::str(Torch::name("new_empty"));
    return fresh(method, like, shape, false);
}
inline Tensor new_empty_fp32(const Tensor& like, std::initializer_list<std::int64_t> shape) {
    static const py::str& method = *new py::str(Torch::name("new_empty"));
    return fresh(method, like, shape, true);
}
inline Tensor new_zeros_fp32(const Tensor& like, std::initializer_list<std::int64_t> shape) {
    static const py::str& method = *new py::str(Torch::name("new_zeros"));
    return fresh(method, like, shape, true);
}
