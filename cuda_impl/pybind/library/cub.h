// What calls of CUB share: scratch memory, and torch's stream.
#pragma once

#include "tensor.h"

// `call(scratch, scratch_bytes, stream)` on torch's current stream of `on`'s device. Called twice, as CUB
// requires: the first call returns the scratch size.
template <typename Call>
void with_scratch(const Tensor& on, Call call) {
    const OnDevice guard(on.device());
    const cudaStream_t stream = current_stream(on);
    std::size_t bytes = 0;
    check(call(nullptr, bytes, stream));
    // At least one byte: with a null address the second call would only return the size again.
    const Tensor scratch = on.empty(py::make_tuple(std::max<std::size_t>(bytes, 1)), "uint8");
    check(call(scratch.data<void>(), bytes, stream));
}
