// What matmul's levels from 6 on share: the order of tiles.
#pragma once

#include "common.cuh"

__device__ __forceinline__ int at_most(index_t count, int limit) {
    return static_cast<int>(count < limit ? count : limit);
}

struct TilePlace {
    int m, n;
};

// Grouped order: down GROUP_M tiles, then one to the right, and so on. The blocks that run at a time then
// cover a part of c about as high as wide. That needs the fewest rows of a and columns of b, which stay in
// the L2.
template <int GROUP_M>
__device__ __forceinline__ TilePlace grouped_tile(unsigned tile, int tiles_m, int tiles_n) {
    const unsigned of_group = static_cast<unsigned>(GROUP_M) * tiles_n;
    const int first_m = tile / of_group * GROUP_M;
    const int height = min(tiles_m - first_m, GROUP_M);
    const int within = tile % of_group;
    return {first_m + within % height, within / height};
}
