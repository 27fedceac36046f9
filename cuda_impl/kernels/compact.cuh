// compact: x[N] -> y[N],  the x[n] > 0 in order, then NaN if there is room; the rest unspecified
//
// An element's output index is the number of kept elements before it. Variants, slow to fast, a file each,
// the first two as in triton_impl/compact.py; they differ in how a block learns what the blocks before it
// keep:
//   twopass  three launches: count each tile, scan the counts, read x again and scatter: x is read twice
//   onepass  single-pass scan with decoupled look-back: a tile reads the counts that earlier tiles have
//            published: x is read once
//   ring     as onepass, and a block publishes the next tile's count before it looks back from this one
//            (Hopper: TMA prefetches tiles into a ring in shared memory)
//
// A block has one tile of consecutive elements, a warp a consecutive part of it. In each step a warp tests 32
// consecutive elements, one per lane. x's elements are stride_xn apart, at any alignment.
#pragma once

#include "compact/01_twopass.cuh"
#include "compact/02_onepass.cuh"
#include "compact/03_ring.cuh"
