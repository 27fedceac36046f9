// Outputs that are not shaped like an input: fresh tensors of any shape, on the device of one that is there.
#pragma once

#include <initializer_list>

#include "tensor.h"

// A fresh, dense tensor of that shape, with the dtype and the device of `like`.
inline Tensor new_empty(const Tensor& like, std::initializer_list<std::int64_t> shape) {
    static const py::str& method = *new py::str(Torch::name("new_empty"));
    py::tuple sizes(shape.size());
    Tensor fresh = like;  // dtype and device are known
    fresh.ndim = int(shape.size());
    fresh.shape = {};
    int i = 0;
    for (const std::int64_t size : shape) {
        sizes[std::size_t(i)] = py::int_(size);
        fresh.shape[std::size_t(i++)] = size;
    }
    fresh.strides = fresh.dense_strides();
    fresh.object = made(PyObject_CallMethodOneArg(like.object.ptr(), method.ptr(), sizes.ptr()));
    fresh.address = call(fresh.object, Torch::get().data_ptr).cast<std::uintptr_t>();
    return fresh;
}
