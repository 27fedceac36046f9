// fp8_block_matmul: a[M,K], b[N,K], scale_a[M,K/128], scale_b[N/128,K/128] -> c[M,N], on Hopper (sm_90a).
//
// Variants, one file each in fp8_block_matmul/; triton_impl/fp8_block_matmul.py has persistent under the same
// name:
//   specialized  a producer warp fetches, two consumer warpgroups multiply, scale and add
//   persistent   one block per multiprocessor computes tile after tile
//   prefetched   scales are loaded four blocks of K ahead; TMA stores c
//   multicast    TMA multicast: two blocks that share a tile of b, or of a, load half of it each, into both
#pragma once

#include "fp8_block_matmul/01_specialized.cuh"
#include "fp8_block_matmul/02_persistent.cuh"
#include "fp8_block_matmul/03_prefetched.cuh"
#include "fp8_block_matmul/04_multicast.cuh"
