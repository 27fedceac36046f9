// Stream-K: the groups of all tiles are one sequence, divided evenly among the blocks. Source: Osama et al.,
// "Stream-K: Work-centric Parallel Decomposition for Dense Matrix-Matrix Multiplication on the GPU" (2023).
//
// Invariants. Blocks wait only for partial sums of blocks with smaller numbers. The wait ends if all blocks
// are resident: a GPU that runs nothing else has room for the grid. Beside other kernels it relies on blocks
// that start in the order of their numbers, which CUDA does not document. Flags belong to the prepared
// weights and are 0 between calls. Concurrent calls with the same weights clear each other's flags: one adds
// sums that are not written yet, the other waits forever. An aborted launch leaves flags set: prepare the
// weights again.
#pragma once

#include "common.cuh"

// A block's share of the sequence of groups, tile after tile. Tiles are visited last to first, and the groups
// of each in order: the tile that the next block finishes comes first, so that its partial sums are there
// early.
struct Share {
    int tile, group, stop;  // the present group, and where the share's part of the tile stops
    int first_tile, first;  // where the share begins
    int groups;             // of a tile

    // Of the sequence's groups begin to end - 1.
    __device__ __forceinline__ Share(int begin, int end, int groups) : groups(groups) {
        first_tile = begin / groups, first = begin - first_tile * groups;
        tile = (end - 1) / groups, stop = end - tile * groups;
        if (begin == end) tile = first_tile - 1;
        enter();
    }
    __device__ __forceinline__ void enter() { group = tile == first_tile ? first : 0; }
    __device__ __forceinline__ bool more() const { return tile >= first_tile; }
    __device__ __forceinline__ bool ends_here() const { return group + 1 == stop; }
    __device__ __forceinline__ bool has_last() const { return stop == groups; }  // of the tile
    __device__ __forceinline__ void next_tile() {
        --tile, stop = groups;
        enter();
    }
    __device__ __forceinline__ void next() {
        if (++group == stop) next_tile();
    }
};

// Where a block's share begins: the first blocks have one group more if they do not divide evenly.
__device__ __forceinline__ int share_begin(int units, int block) {
    const int blocks = static_cast<int>(gridDim.x), each = units / blocks;
    return each * block + min(block, units - each * blocks);
}
