"""Task 2: y = x in CUDA C++.  The kernel is right; its loads are narrow."""

import numpy as np
import torch

from compare.registry import implementation
from cuda_impl.loader import kernel

SOURCE = r"""
// T: an unsigned integer of an element's size. Thread t copies the elements from t * VEC on: VEC of them, 16
// bytes in all.
template <typename T>
__global__ void copy_kernel(const T* __restrict__ x_ptr, T* __restrict__ y_ptr, long long N) {
    constexpr int VEC = 16 / sizeof(T);
    const long long t = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
    const long long vectors = N / VEC;  // whole ones
    // Step 2: look at the loads. The compiler may not make one of VEC loads: it cannot know that x_ptr is a
    //         multiple of 16, so you have to say so. A uint4 is 16 bytes and is loaded at once:
    //         reinterpret_cast<const uint4*>(x_ptr)[t], if t < vectors; the store likewise.
    // Step 3: the elements after the last whole vector, fewer than VEC, stay element by element.
    for (long long n = t * VEC; n < t * VEC + VEC && n < N; ++n) y_ptr[n] = x_ptr[n];
}

// Thread n copies element n: for any x_ptr.
template <typename T>
__global__ void copy_elements_kernel(const T* __restrict__ x_ptr, T* __restrict__ y_ptr, long long N) {
    const long long n = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (n < N) y_ptr[n] = x_ptr[n];
}
"""

CTYPES = {4: "unsigned", 2: "unsigned short"}
THREADS = 256


@implementation("stream_copy", "cupy.mine", level="tiled")
def mine(x: torch.Tensor) -> torch.Tensor:
    """A copy of contiguous ``x[N]``, in a new tensor."""
    # Step 1: delete the next line. The tests pass, and the one about the machine code says what to change.
    raise NotImplementedError("not written yet: delete this line, then look at the machine code")
    if x.numel() > 1 and x.stride(0) != 1:
        raise NotImplementedError("this kernel takes a contiguous x")
    N = x.numel()
    y = x.new_empty(N)
    if N > 0:
        # Step 4: run the tests. A uint4 has to be at a multiple of 16. Where x.data_ptr() is none, launch
        #         copy_elements_kernel, one thread per element.
        VEC = 16 // x.element_size()
        launch = kernel(SOURCE, f"copy_kernel<{CTYPES[x.element_size()]}>", x.device)
        threads = -(-N // VEC)
        launch((-(-threads // THREADS),), (THREADS,), (x.data_ptr(), y.data_ptr(), np.int64(N)))
    return y
