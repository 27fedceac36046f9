// What calls of CUB share: its scratch memory, and torch's stream.
#pragma once

#include "fresh.h"
#include "tensor.h"

// `call(scratch, scratch_bytes, stream)` on torch's current stream of the device that `on` lies on. As all of
// CUB's functions it is called twice: first it says how much scratch memory it needs.
template <typename Call>
void with_scratch(const Tensor& on, Call call) {
    int current = on.device;
    check(cudaGetDevice(&current));
    if (current != on.device) check(cudaSetDevice(on.device));
    const cudaStream_t stream = current_stream(on.device);
    std::size_t bytes = 0;
    cudaError_t error = call(nullptr, bytes, stream);
    if (error == cudaSuccess) {
        // At least one: without an address the call would be a question again.
        const Tensor scratch = new_empty_fp32(on, {std::max<std::int64_t>(1, ceil_div(bytes, 4))});
        error = call(scratch.data<void>(), bytes, stream);
    }
    if (current != on.device) check(cudaSetDevice(current));
    check(error);
}
