// Which matrices kernels with 16-byte copies read as they are.
#pragma once

#include "tensor.h"

// Whether the rows of x[M,N] are contiguous, 16-byte aligned and apart, as TMA requires.
inline bool has_aligned_rows(const Tensor& x) {
    const bool apart = x.strides[0] >= x.shape[1] && x.strides[0] * x.element_size % 16 == 0;
    return x.strides[1] == 1 && apart && x.address % 16 == 0;
}
