// int8_matmul: a[M,K], b[N,K], scale_a[M], scale_b[N] -> c[M,N] in bf16,
// c[m,n] = sum_k a[m,k] * b[n,k] * scale_a[m] * scale_b[n], of int8, with exact sums in int32
//
// Variants, slow to fast; each changes one thing, and is a file of its own:
//   naive        one thread per element of c; dp4a multiplies four pairs of int8
//   tensor_core  one tile of c per warp, multiplied on tensor cores by mma; sm_75
// from here on with Hopper's own units, sm_90a, in scaled_matmul/, which fp8_matmul's share:
//   wgmma        one tile of c per warpgroup, operands read from shared memory, filled by TMA
//   specialized  warp specialization: one producer warp fetches, eight consumer warps multiply
//   persistent   one block per multiprocessor, round-robin tiles; TMA stores c
//   multicast    TMA multicast: two blocks that need the same tile of b load half of it each, into both
//
// Rows of a and b are contiguous and 16-byte aligned. Any size is supported: elements outside of a and b
// count as 0, and those of c are not written.
#pragma once

#include "int8_matmul/01_naive.cuh"
#include "int8_matmul/02_tensor_core.cuh"
#include "scaled_matmul/01_wgmma.cuh"
#include "scaled_matmul/02_specialized.cuh"
#include "scaled_matmul/03_persistent.cuh"
#include "scaled_matmul/04_multicast.cuh"
