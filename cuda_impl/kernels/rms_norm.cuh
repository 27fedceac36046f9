// rms_norm over rows: x[M,N], weight[N] -> y[M,N],
//   y[m,n] = x[m,n] / sqrt(mean of x[m,n]^2 + eps) * weight[n]
//
// Variants; triton_impl/rms_norm.py has the first two under the same names. Triton cannot express the last:
// its split exchanges partial sums through global memory instead. The kernels are in norm.cuh.
//   online   a block reads its row twice, tile by tile: any row length
//   onepass  the row stays in registers between reduction and output, so it is read once: 64 KB
//   cluster  the blocks of a cluster share rows, which stay in their shared memory: Hopper
#pragma once

#include "norm.cuh"

struct RmsNorm {
    static constexpr bool CENTERED = false;
};
