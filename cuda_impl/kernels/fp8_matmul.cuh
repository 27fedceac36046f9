// fp8_matmul: a[M,K], b[N,K], scale_a[M], scale_b[N] -> c[M,N] in bf16,
// c[m,n] = sum_k a[m,k] * b[n,k] * scale_a[m] * scale_b[n], of e4m3, on Hopper (sm_90a)
//
// Variants, slow to fast; each changes one thing, and is a file of its own in scaled_matmul/, which
// int8_matmul's share. Their sums stay in the tensor cores (fp22), those of the last are promoted to fp32:
//   wgmma        one tile of c per warpgroup, operands read from shared memory, filled by TMA
//   specialized  warp specialization: one producer warp fetches, eight consumer warps multiply
//   persistent   one block per multiprocessor, round-robin tiles; TMA stores c
//   multicast    TMA multicast: two blocks that need the same tile of b load half of it each, into both
//   promoted     as persistent; sums of 128 of K are added in fp32 registers
//
// Rows of a and b are contiguous and 16-byte aligned. Any size is supported: elements outside of a and b
// count as 0, and those of c are not written.
#pragma once

#include "scaled_matmul/01_wgmma.cuh"
#include "scaled_matmul/02_specialized.cuh"
#include "scaled_matmul/03_persistent.cuh"
#include "scaled_matmul/04_multicast.cuh"
#include "scaled_matmul/05_promoted.cuh"
