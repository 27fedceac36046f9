// Tensors of 8-bit elements, int8 and e4m3, which tensor.h reads as Element::OTHER.
#pragma once

#include <initializer_list>

#include "tensor.h"

struct QuantizedDtypes {
    py::object int8 = Torch::get().torch.attr("int8");
    py::object e4m3 = Torch::get().torch.attr("float8_e4m3fn");
    py::str new_empty = Torch::name("new_empty");
    py::tuple of_dtype = py::make_tuple(Torch::name("dtype"));

    static const QuantizedDtypes& get() {
        static const QuantizedDtypes& dtypes = *new QuantizedDtypes();  // as `Torch::get`
        return dtypes;
    }
};

// Reads a tensor of a dtype of one byte; false if it is of another one. tensor.h would ask for its size.
inline bool read_bytes(const py::object& from, const py::object& dtype, Tensor& x) {
    const Torch& torch = Torch::get();
    if (!get(from, torch.dtype).is(dtype)) return false;
    x.object = from;
    x.element = Element::OTHER;
    x.element_size = 1;
    x.address = call(from, torch.data_ptr).cast<std::uintptr_t>();
    x.device = call(from, torch.get_device).cast<int>();
    x.ndim = read(get(from, torch.shape), x.shape);
    read(call(from, torch.stride), x.strides);
    return true;
}

// A new contiguous tensor of that shape and dtype on the device of `like`.
inline Tensor new_empty_of(const py::object& dtype, Element element, int element_size, const Tensor& like,
                           std::initializer_list<std::int64_t> shape) {
    const QuantizedDtypes& names = QuantizedDtypes::get();
    Tensor made_of = like;  // copies the device
    made_of.element = element;
    made_of.element_size = element_size;
    made_of.ndim = int(shape.size());
    made_of.shape = {};
    py::tuple sizes(shape.size());
    int i = 0;
    for (const std::int64_t size : shape) {
        sizes[std::size_t(i)] = py::int_(size);
        made_of.shape[std::size_t(i++)] = size;
    }
    made_of.strides = made_of.dense_strides();
    PyObject* arguments[] = {like.object.ptr(), sizes.ptr(), dtype.ptr()};
    made_of.object =
        made(PyObject_VectorcallMethod(names.new_empty.ptr(), arguments, 2, names.of_dtype.ptr()));
    made_of.address = call(made_of.object, Torch::get().data_ptr).cast<std::uintptr_t>();
    return made_of;
}

// A new contiguous tensor of e4m3 with the shape of `like`.
inline Tensor empty_like_e4m3(const Tensor& like) {
    static const py::tuple& keywords =
        *new py::tuple(py::make_tuple(Torch::name("dtype"), Torch::name("memory_format")));
    const Torch& torch = Torch::get();
    PyObject* arguments[] = {like.object.ptr(), QuantizedDtypes::get().e4m3.ptr(), torch.dense.ptr()};
    Tensor made_of = like;  // copies shape and device
    made_of.element = Element::OTHER;
    made_of.element_size = 1;
    made_of.strides = like.dense_strides();
    made_of.object = made(PyObject_Vectorcall(torch.empty_like.ptr(), arguments, 1, keywords.ptr()));
    made_of.address = call(made_of.object, torch.data_ptr).cast<std::uintptr_t>();
    return made_of;
}

inline Tensor new_empty_bf16(const Tensor& like, std::initializer_list<std::int64_t> shape) {
    return new_empty_of(Torch::get().bf16, Element::BF16, 2, like, shape);
}
