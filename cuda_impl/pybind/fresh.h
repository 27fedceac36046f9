// Outputs that are not like an input: fresh tensors of any shape, on the device of one that is there.
#pragma once

#include <initializer_list>

#include "tensor.h"

// What `like.METHOD(shape)` returns: a dense tensor of that shape on the device of `like`. With `fp32` it
// holds fp32, else what `like` holds.
inline Tensor fresh(const py::str& method, const Tensor& like, std::initializer_list<std::int64_t> shape,
                    bool fp32) {
    static const py::tuple& of_dtype = *new py::tuple(py::make_tuple(Torch::name("dtype")));
    Tensor made_of = like;  // the device is known, and perhaps the dtype
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

// Of the dtype of `like`.
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
