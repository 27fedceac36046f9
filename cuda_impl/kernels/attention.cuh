// attention: softmax(q @ k.T / sqrt(D)) @ v for each head
//
// Variants, slow to fast:
//   naive        three kernels: scores to memory, softmax of each row, times v
//   online       one pass over the keys, with each row's running maximum and sum; scores stay on chip
//   tensor_core  mma.sync, p from registers, cp.async for the next tiles (FlashAttention-2); sm_80
//   wgmma        TMA fetches tiles; wgmma multiplies 64 rows of q per warpgroup, p from registers; sm_90a
//   specialized  a producer warp fetches, two or three consumer warpgroups multiply in turn (ping-pong)
//   overlapped   softmax of a tile also overlaps with the same warpgroup's p @ v of the previous one
//   persistent   one block per multiprocessor; causal tiles longest first; prefetch while o is stored
//   speculative  weights from the maximum of earlier tiles; the sums tell where that was too low
#pragma once

#include "attention/01_naive.cuh"
#include "attention/02_online.cuh"
#include "attention/03_tensor_core.cuh"
#include "attention/04_wgmma.cuh"
#include "attention/05_specialized.cuh"
#include "attention/06_overlapped.cuh"
#include "attention/07_persistent.cuh"
#include "attention/08_speculative.cuh"
