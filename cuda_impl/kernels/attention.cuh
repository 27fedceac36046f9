// attention: softmax(q @ k.T / sqrt(D)) @ v for each head
//
// Variants, slow to fast:
//   wgmma        TMA fetches tiles; wgmma multiplies 64 rows of q per warpgroup, p from registers; sm_90a
//   specialized  a producer warp fetches, two or three consumer warpgroups multiply in turn (ping-pong)
//   overlapped   softmax of a tile also overlaps with the same warpgroup's p @ v of the previous one
//   persistent   one block per multiprocessor; causal tiles longest first; prefetch while o is stored
#pragma once

#include "attention/04_wgmma.cuh"
#include "attention/05_specialized.cuh"
#include "attention/06_overlapped.cuh"
#include "attention/07_persistent.cuh"
