// softmax over rows: x[M,N] -> y[M,N],  y[m,n] = exp(x[m,n] - max_m) / sum_n exp(x[m,n] - max_m)
//
// Variants, a file each; triton_impl/softmax.py has the same under the same names except the last two, which
// Triton cannot express:
//   online   a block reads its row twice: any row length
//   onepass  the row stays in registers between reduction and output, so it is read once: 32768 columns
//   split    several blocks share a row and exchange partial sums through global memory: long rows, any GPU
//   cluster  the blocks of a cluster share a row, which stays in their shared memory: Hopper
//   ring     as split, and TMA prefetches the next chunks into shared memory: Hopper
//
// Rows of x are stride_xm elements apart, y is contiguous. VEC is 16 bytes' worth of elements if every row is
// 16-byte aligned, else 1. A vector is completely inside the row or outside.
#pragma once

#include "softmax/01_online.cuh"
#include "softmax/02_onepass.cuh"
#include "softmax/03_split.cuh"
#include "softmax/04_cluster.cuh"
#include "softmax/05_ring.cuh"
