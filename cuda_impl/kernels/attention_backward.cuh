// attention_backward: q[B,Sq,Hq,D], k[B,Skv,Hk,D], v[B,Skv,Hk,D], o[B,Sq,Hq,D], lse[B,Hq,Sq], do[B,Sq,Hq,D]
//                     -> dq[B,Sq,Hq,D], dk[B,Skv,Hk,D], dv[B,Skv,Hk,D]
//
// Variants, slow to fast, a file each:
//   naive  a warp per row of dq, then a warp per row of dk and dv; scalar, from global memory
//   split  tensor cores: a kernel for dk and dv loops over queries, one for dq loops over keys
//   fused  one kernel loops over queries: scores are computed once, dq is summed by atomics
//   wgmma  as fused, with Hopper's units: TMA, a producer warp, two consumer warpgroups
//   overlapped  dq's product of a tile runs under the exponentials of the next one
//
// With s = scale * q k^T, p = exp(s - lse), delta = rowsum(do * o) and ds = p * (do v^T - delta):
//   dv = p^T do    dk = scale * ds^T q    dq = scale * ds k
// So no S x S matrix is stored: a tile of p is recomputed from q, k and lse. Source: FlashAttention-2,
// algorithm 2.
//
// rows.cuh has delta, tile.cuh what split and fused share. Gradients are contiguous.
#pragma once

#include "attention_backward/01_naive.cuh"
#include "attention_backward/02_split.cuh"
#include "attention_backward/03_fused.cuh"
#include "attention_backward/04_wgmma.cuh"
#include "attention_backward/05_overlapped.cuh"
