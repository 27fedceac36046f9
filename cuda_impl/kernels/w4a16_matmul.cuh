// w4a16_matmul: a[M,K], packed[N,K/8], scales[N,K/128], zeros[N,K/128] -> y[M,N],
// y[m,n] = sum_k a[m,k] * (q[n,k] - zeros[n,k/128]) * scales[n,k/128], in fp16 or bf16 with fp32 sums
//
// Variants, slow to fast; each changes one thing, and is a file of its own:
//   naive        one thread per element of y; a word is eight weights, extracted one by one
//   tensor_core  one tile of y per block, multiplied by mma; lop3 dequantizes to registers; sm_80
//   streamk      stream-K: each block has an equal share of the tiles' groups; weights are repacked offline,
//                so that a warp's 128-bit loads are one contiguous piece, and its mma operands; sm_80
//   transposed   y.T = w @ a.T by wgmma, with dequantized weights in registers; TMA fetches; sm_90a
//   wide         256 columns per tile; scaled weights, so that one set of sums is enough; sm_90a
//
// Nibble k % 8 of word k / 8 of a row of packed is q[n,k]. Sums of 128 products (a group) have exact terms;
// they are scaled in fp32: the scale and the zero point never round a weight. Any size is supported: elements
// past the end of K count as 0.
#pragma once

#include "w4a16_matmul/01_naive.cuh"
#include "w4a16_matmul/02_tensor_core.cuh"
#include "w4a16_matmul/03_streamk.cuh"
#include "w4a16_matmul/04_transposed.cuh"
#include "w4a16_matmul/05_wide.cuh"
