// batched_matmul: a[B,N,N] @ b[B,N,N] -> c[B,N,N],  products of small matrices, accumulated in fp32
//
// Variants, slow to fast, a file each:
//   naive        one thread per element of c, straight from global memory: every element is loaded N times
//   tiled        a block holds whole matrices, loaded once; ROWS x 4 elements per thread, no tensor cores
//   tensor_core  a block holds whole matrices, a warp 16 rows of one; on tensor cores
//   pipelined    as tensor_core, persistent: loads of the next groups overlap with multiplication
//
// A 16-bit matrix needs N / 3 operations per byte, so from tensor_core on the kernels are memory-bound: bytes
// in flight decide. A tile has BLOCK_N rows: N rounded up to a multiple of 16, the height of a tensor core's
// matrix. Triton's tiles are powers of two: 64 for N = 48.
//
// From tiled on, operands whose rows are whole, aligned 16-byte vectors use vectorized accesses. All others,
// of any strides, are accessed element by element; tensor_core then has a kernel of its own (any_layout.cuh).
// Tensor cores also take column-major operands (A_BY_ROWS, B_BY_ROWS). c is contiguous.
#pragma once

#include "batched_matmul/01_naive.cuh"
#include "batched_matmul/02_tiled.cuh"
#include "batched_matmul/03_tensor_core.cuh"
#include "batched_matmul/04_pipelined.cuh"
#include "batched_matmul/any_layout.cuh"
