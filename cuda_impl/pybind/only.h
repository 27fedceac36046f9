// Included before everything else into a module for one dtype, -DONLY=BF16: `dispatch` has that one only, so
// the kernels of the others are not built.
#pragma once

#ifdef __NVCC__
#pragma nv_diag_suppress 177  // declared but never referenced: what the kernels of other dtypes need
#endif

#include <stdexcept>
#include <type_traits>

#include "tensor.h"

template <typename Function>
void dispatch_only(const Tensor& tensor, Function function) {
    using Half = std::conditional_t<Element::ONLY == Element::FP16, __half, __nv_bfloat16>;
    using T = std::conditional_t<Element::ONLY == Element::FP32, float, Half>;
    if (tensor.element() != Element::ONLY) throw std::runtime_error("a dtype that this module is not for");
    function(T());
}

#define dispatch dispatch_only
