"""attention: a thread per query, with an online softmax."""

import numpy as np
import torch

from compare.registry import implementation
from cuda_impl.loader import kernel

SOURCE = r"""
#include <math_constants.h>
__global__ void attend(const float* q, const float* k, const float* v, float* o, float* lse,
                       int Sq, int Skv, int Hq, int Hk, int D, int causal) {
    int m = blockIdx.x * blockDim.x + threadIdx.x, head = blockIdx.y, batch = blockIdx.z;
    if (m >= Sq) return;
    int key_head = head / (Hq / Hk);
    q += (((long long)batch * Sq + m) * Hq + head) * D;
    k += ((long long)batch * Skv * Hk + key_head) * D;
    v += ((long long)batch * Skv * Hk + key_head) * D;
    float row_max = -CUDART_INF_F, total = 0.0f, sums[128] = {};
    int keys = causal ? min(Skv, m + Skv - Sq + 1) : Skv;
    for (int n = 0; n < keys; ++n) {
        float score = 0.0f;
        for (int d = 0; d < D; ++d) score += q[d] * k[(long long)n * Hk * D + d];
        score *= rsqrtf((float)D);
        float larger = score != score ? score : fmaxf(row_max, score);
        if (larger == -CUDART_INF_F) continue;
        float weight = expf(score - larger), rescale = expf(row_max - larger);
        for (int d = 0; d < D; ++d) sums[d] = sums[d] * rescale + weight * v[(long long)n * Hk * D + d];
        total = total * rescale + weight;
        row_max = larger;
    }
    o += (((long long)batch * Sq + m) * Hq + head) * D;
    for (int d = 0; d < D; ++d) o[d] = total == 0.0f ? 0.0f : sums[d] / total;
    lse[((long long)batch * Hq + head) * Sq + m] = row_max + logf(total);
}
"""


@implementation("attention", "cupy.mine", level="naive")
def mine(q, k, v, causal):
    B, Sq, Hq, D = q.shape
    Skv, Hk = k.shape[1:3]
    if q.dtype != torch.float32:
        raise NotImplementedError("fp32 only")
    q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
    o, lse = torch.empty_like(q), torch.empty((B, Hq, Sq), device=q.device)
    if o.numel():
        pointers = (each.data_ptr() for each in (q, k, v, o, lse))
        sizes = (np.int32(size) for size in (Sq, Skv, Hq, Hk, D, causal))
        kernel(SOURCE, "attend", q.device)((-(-Sq // 32), Hq, B), (32,), (*pointers, *sizes))
    return o, lse
