// matmul: a[M,K], b[K,N] -> c[M,N],  c[m,n] = sum_k a[m,k] * b[k,n], accumulated in fp32
//
// Variants, slow to fast; each changes one thing, and is a file of its own in matmul/:
//   naive        one thread per element of c; a warp's threads on consecutive rows: uncoalesced loads of a
//   coalesced    a warp's threads on consecutive columns: coalesced loads of b and stores of c
//   shared       one block per tile of c; tiles of a and b in shared memory, loaded once per block
//   blocktile    a thread computes 8 x 8 elements: per 64 products it reads 16 elements of shared memory
//   vectorized   accesses of 16 bytes, of global and of shared memory
//   cp_async     cp.async prefetches the next tiles past the registers; fp32
//   pipelined    double buffering: shared memory is read one step ahead; a larger tile; fp32
//   tensor_core  one tile of c per warp, multiplied on tensor cores by mma; sm_75, bf16 from sm_80
// from here on with Hopper's own units, sm_90a:
//   wgmma        one tile of c per warpgroup, operands read from shared memory, filled by TMA
//   specialized  warp specialization: one producer warp fetches, eight consumer warps multiply
//   persistent   one block per multiprocessor, round-robin tiles: prefetch while c is written
//   multicast    TMA multicast: two blocks that need the same tile of b load half of it each, into both
//   tma_store    TMA stores c while the next tile is multiplied; smaller tiles for a small c
//   split_k      tiles of many sizes, by predicted time; a cluster splits K where tiles are few
// for few rows of a:
//   skinny       warps with stages of their own, filled by cp.async; they and a cluster's blocks split K
//
// The first four take any strides. The others take row- or column-major operands (A_BY_ROWS, B_BY_ROWS) whose
// rows, or columns, are 16-byte aligned and ld elements apart. c is contiguous. Any size is supported:
// out-of-bounds elements of a and b count as 0, and those of c are not written.
#pragma once

#include "matmul/01_naive.cuh"
#include "matmul/02_coalesced.cuh"
#include "matmul/03_shared.cuh"
#include "matmul/04_blocktile.cuh"
#include "matmul/05_vectorized.cuh"
#include "matmul/06_cp_async.cuh"
#include "matmul/07_pipelined.cuh"
#include "matmul/08_tensor_core.cuh"
#include "matmul/09_wgmma.cuh"
#include "matmul/10_specialized.cuh"
#include "matmul/11_persistent.cuh"
#include "matmul/12_multicast.cuh"
#include "matmul/13_tma_store.cuh"
#include "matmul/14_split_k.cuh"
#include "matmul/15_skinny.cuh"
