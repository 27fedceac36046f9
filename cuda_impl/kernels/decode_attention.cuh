// decode_attention: q[B,1,Hq,D], k_pages[P,PAGE,Hk,D], v_pages[P,PAGE,Hk,D], block_table[B,pages], lengths[B]
//   -> o[B,1,Hq,D],  o = softmax(q k^T / sqrt(D)) v over the lengths[b] tokens of sequence b
//
// Variants, a file each; triton_impl/decode_attention.py has the same under the same names:
//   naive      a block per query head: query heads that share a key head each read its keys and values
//   grouped    a block per key head: its query heads are the rows of one tensor-core tile; keys are read once
//   split      several blocks share a key head's tokens, and a second kernel combines their results
//   pipelined  as split, and cp.async keeps the next tiles in flight: a ring of stages in each warp
//
// Token n of sequence b is in slot n % PAGE of page block_table[b][n / PAGE], PAGE a multiple of 16. Behind
// the end of a sequence, entries of the table are not read, and slots of a page count as 0. Heads are
// contiguous, and 16-byte aligned except for naive; other strides are arbitrary. G query heads share a key
// head. Softmax is in base 2: scale_log2 is log2(e) / sqrt(D).
#pragma once

#include "decode_attention/01_naive.cuh"
#include "decode_attention/02_grouped.cuh"
#include "decode_attention/03_split.cuh"
#include "decode_attention/04_pipelined.cuh"
