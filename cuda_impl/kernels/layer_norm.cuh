// layer_norm over rows: x[M,N], weight[N], bias[N] -> y[M,N],
//   y[m,n] = (x[m,n] - mean_m) / sqrt(variance_m + eps) * weight[n] + bias[n]
//
// The ladder. triton_impl/layer_norm.py has the first two under the same names; for the last Triton has no
// words, and has programs that wait for each other through memory in its place. The kernels are norm.cuh's.
//   online   a block reads its row twice, tile by tile: any row length
//   onepass  the row waits in registers between reduction and output, so it is read once: 64 KB
//   cluster  the blocks of a cluster share rows, which wait in their shared memory: Hopper
#pragma once

#include "norm.cuh"

struct LayerNorm {
    static constexpr bool CENTERED = true;
};
