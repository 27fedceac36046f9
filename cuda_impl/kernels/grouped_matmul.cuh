// grouped_matmul: a[M,K], b[G,K,N], offsets[G] -> c[M,N]: group g's rows of c are those of a times b[g]. They
// end before row offsets[g], and begin where group g - 1's end. Accumulated in fp32.
//
// Variants, slow to fast, one file each in grouped_matmul/; triton_impl/grouped_matmul.py has the same:
//   tiled       one block per tile of the largest possible grid, which finds its group by a search in the
//               offsets; tensor cores by mma, prefetch by cp.async; sm_80
//   persistent  persistent blocks take tiles of all groups round-robin, in grouped order; sm_80
//   wgmma       Hopper's own units: a producer warp fetches by TMA, two consumer warpgroups multiply, and TMA
//               stores c where all 16 rows of a box are the group's; sm_90a
//
// The host knows no group's rows: nothing is copied from the device. Rows of a are contiguous, 16-byte
// aligned and lda elements apart. Matrices of b are row- or column-major (B_BY_ROWS), their rows (columns) as
// those of a, ldb apart, and the matrices stride_bg. c is contiguous. 16-bit elements.
#pragma once

#include "grouped_matmul/01_tiled.cuh"
#include "grouped_matmul/02_persistent.cuh"
#include "grouped_matmul/03_wgmma.cuh"
