"""vector_add: float4 where all addresses are aligned, with a scalar tail."""

import numpy as np
import torch

from compare.registry import implementation
from cuda_impl.loader import kernel

SOURCE = r"""
__global__ void add(const float* x, const float* y, float* z, int N, bool aligned) {
    int first = blockIdx.x * blockDim.x + threadIdx.x;
    int step = gridDim.x * blockDim.x;
    int vectors = aligned ? N / 4 : 0;
    for (int i = first; i < vectors; i += step) {
        float4 a = ((const float4*)x)[i], b = ((const float4*)y)[i];
        ((float4*)z)[i] = make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
    }
    for (int n = 4 * vectors + first; n < N; n += step) z[n] = x[n] + y[n];
}
"""


@implementation("vector_add", "cupy.mine", level="tiled")
def mine(x, y):
    if x.dtype != torch.float32:
        raise NotImplementedError("fp32 only")
    x, y = x.contiguous(), y.contiguous()
    N = x.numel()
    z = torch.empty(N, device=x.device)
    if N:
        aligned = all(each.data_ptr() % 16 == 0 for each in (x, y, z))
        blocks = min(-(-N // 64), 132)
        arguments = (x.data_ptr(), y.data_ptr(), z.data_ptr(), np.int32(N), np.bool_(aligned))
        kernel(SOURCE, "add", x.device)((blocks,), (64,), arguments)
    return z
