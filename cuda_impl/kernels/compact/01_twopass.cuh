// compact, level 1, twopass: three launches. x is read twice.
#pragma once

#include "compact/tile.cuh"

// Grid: one block per tile.
template <typename T, int ITEMS, int THREADS>
__global__ __launch_bounds__(THREADS) void compact_count_kernel(
    const T* __restrict__ x_ptr, index_t N, index_t stride_xn, index_t* __restrict__ tile_counts) {
    T x[ITEMS];
    const unsigned kept = load_tile<THREADS>(x, x_ptr, N, stride_xn, blockIdx.x);
    const int count = block_reduce<Sum, THREADS>(__popc(kept));
    if (threadIdx.x == 0) tile_counts[blockIdx.x] = count;
}

// Grid: one block. Exclusive scan of the tiles' counts, in place; tile_counts[tiles] gets the total.
template <int THREADS>
__global__ __launch_bounds__(THREADS) void compact_scan_kernel(index_t* tile_counts, index_t tiles) {
    const int lane = threadIdx.x % WARP;
    index_t before = 0;
    for (index_t begin = 0; begin < tiles; begin += THREADS) {
        const index_t tile = begin + threadIdx.x;
        const int count = tile < tiles ? int(tile_counts[tile]) : 0;
        int in_warp = count;  // inclusive scan over the warp's lanes
#pragma unroll
        for (int distance = 1; distance < WARP; distance *= 2) {
            const int other = __shfl_up_sync(FULL_WARP, in_warp, distance);
            if (lane >= distance) in_warp += other;
        }
        const Counted counted = scan_warps<THREADS>(__shfl_sync(FULL_WARP, in_warp, WARP - 1));
        if (tile < tiles) tile_counts[tile] = before + counted.before + in_warp - count;
        before += counted.all;
        __syncthreads();  // all have read what scan_warps shared
    }
    if (threadIdx.x == 0) tile_counts[tiles] = before;
}

// Grid: as compact_count_kernel.
template <typename T, int ITEMS, int THREADS>
__global__ __launch_bounds__(THREADS) void compact_scatter_kernel(
    const T* __restrict__ x_ptr, T* __restrict__ y_ptr, index_t N, index_t stride_xn,
    const index_t* __restrict__ tile_counts) {
    T x[ITEMS];
    const unsigned kept = load_tile<THREADS>(x, x_ptr, N, stride_xn, blockIdx.x);
    T* place = y_ptr + tile_counts[blockIdx.x] + scan_warps<THREADS>(warp_reduce<Sum>(__popc(kept))).before;
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) store_kept(place, x[i], kept >> i & 1);
    if (blockIdx.x == 0) store_end(y_ptr, tile_counts[gridDim.x], N);
}
