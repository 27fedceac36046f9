// topk: x[M,N] -> values[M,K], indices[M,K],  the K largest of each row in descending order
//
// Variants, slow to fast; triton_impl/topk.py has the same under the same names:
//   passes     K passes over the row: each finds the largest element that is less than the one before
//   bitonic    one pass: a warp keeps its best in registers, and merges new ones with a bitonic network
//   radix      a tile stays in registers: histograms of its digits find the K-th largest, then K are sorted
//   delegates  as radix, but of the largest element of each group: a bound that few other elements reach
//   filtered   as delegates in a row's first tile: of later ones few elements are greater than that bound
#pragma once

#include "topk/01_passes.cuh"
#include "topk/02_bitonic.cuh"
#include "topk/03_radix.cuh"
#include "topk/04_delegates.cuh"
#include "topk/05_filtered.cuh"
