// What host code of tensors with heads, x[...,D], shares: copies where a kernel needs other strides, and D as
// a template parameter.
#pragma once

#include <type_traits>

#include "tensor.h"

// A copy at another address: `contiguous` returns a misaligned contiguous tensor as it is.
inline Tensor contiguous_copy(const Tensor& x) {
    static const py::dict& contiguous = *new py::dict(py::arg("memory_format") = Torch::get().dense);
    return Tensor(x.object.attr("clone")(**contiguous));
}

// x, or a contiguous copy unless heads are contiguous and aligned to so many elements.
inline Tensor readable(const Tensor& x, int alignment = 1) {
    bool good = x.strides[3] == 1 && x.address / x.element_size % alignment == 0;
    for (int i = 0; i < 3; ++i) good = good && x.strides[i] % alignment == 0;
    return good ? x : contiguous_copy(x);
}

// Calls `function` with a value of x's element type and D as a constant: both are template parameters.
template <typename Function>
void dispatch_heads(const Tensor& x, Function function) {
    dispatch(x, [&](auto zero) {
        if (x.shape[3] == 64) return function(zero, std::integral_constant<int, 64>());
        function(zero, std::integral_constant<int, 128>());
    });
}
