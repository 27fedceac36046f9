// What calls of CUB share: scratch memory, and torch's stream.
#pragma once

#include "fresh.h"
#include "tensor.h"

// `call(scratch, scratch_bytes, stream)` on torch's current stream of `on`'s device. Called twice, as CUB
// requires: the first call returns the scratch size.
template <typename Call>
void with_scratch(const Tensor& on, Call call) {
    int current = on.device;
    check(cudaGetDevice(&current));
    if (current != on.device) check(cudaSetDevice(on.device));
    const cudaStream_t stream = current_stream(on.device);
    std::size_t bytes = 0;
    cudaError_t error = call(nullptr, bytes, stream);
    if (error == cudaSuccess) {
        // At least one element: with a null address the second call would only return the size again.
        const Tensor scratch = new_empty_fp32(on, {std::max<std::int64_t>(1, ceil_div(bytes, 4))});
        error = call(scratch.data<void>(), bytes, stream);
    }
    if (current != on.device) check(cudaSetDevice(current));
    check(error);
}
