"""cross_entropy: a warp per row, with an online sum."""

import numpy as np
import torch

from compare.registry import implementation
from cuda_impl.loader import kernel

SOURCE = r"""
#include <math_constants.h>
__device__ void merge(float& row_max, float& total, float other_max, float other_total) {
    float larger = fmaxf(row_max, other_max);
    if (larger == -CUDART_INF_F) larger = 0.0f;
    total = total * expf(row_max - larger) + other_total * expf(other_max - larger);
    row_max = fmaxf(row_max, other_max);
}
__global__ void loss_rows(const float* x, const long long* targets, float* loss, int M, int V) {
    int row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (row >= M) return;
    x += (long long)row * V;
    float row_max = -CUDART_INF_F, total = 0.0f;
    for (int v = lane; v < V; v += 32) merge(row_max, total, x[v], 1.0f);
    for (int step = 16; step > 0; step /= 2) {
        float other_max = __shfl_xor_sync(0xffffffff, row_max, step);
        float other_total = __shfl_xor_sync(0xffffffff, total, step);
        merge(row_max, total, other_max, other_total);
    }
    if (lane > 0) return;
    long long target = targets[row];
    float picked = target >= 0 && target < V ? x[target] : CUDART_NAN_F;
    loss[row] = target == -100 ? 0.0f : logf(total) + (row_max - picked);
}
"""


@implementation("cross_entropy", "cupy.mine", level="tiled")
def mine(logits, targets):
    M, V = logits.shape
    if logits.dtype != torch.float32:
        raise NotImplementedError("fp32 only")
    logits, targets = logits.contiguous(), targets.contiguous()
    loss = torch.empty(M, device=logits.device)
    if M:
        pointers = (each.data_ptr() for each in (logits, targets, loss))
        launch = kernel(SOURCE, "loss_rows", logits.device)
        launch((-(-M // 4),), (128,), (*pointers, np.int32(M), np.int32(V)))
    return loss
