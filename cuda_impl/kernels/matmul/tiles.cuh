// What matmul's levels from 6 on share: the order of tiles, the epilogue.
#pragma once

#include "common.cuh"

__device__ __forceinline__ int at_most(index_t count, int limit) {
    return static_cast<int>(count < limit ? count : limit);
}

struct TileCoordinates {
    int m, n;
};

// Grouped order: down GROUP_M tiles, then one to the right, and so on. The blocks that run at a time then
// cover a part of c about as high as wide. That needs the fewest rows of a and columns of b, which stay in
// the L2. On 132 multiprocessors, of tiles of 128 x 256: 16 down and 8 across; of pairs, 256 x 256: 8 and 8.
template <int GROUP_M>
__device__ __forceinline__ TileCoordinates grouped_tile(unsigned tile, int tiles_m, int tiles_n) {
    const unsigned of_group = static_cast<unsigned>(GROUP_M) * tiles_n;
    const int first_m = tile / of_group * GROUP_M;
    const int height = min(tiles_m - first_m, GROUP_M);
    const int within = tile % of_group;
    return {first_m + within % height, within / height};
}

// An epilogue, applied to sums before they are rounded and stored: here the identity. Another op may pass its
// own: `of(n, N)` loads what it needs for columns n (even) and n + 1, and `apply` maps two sums in these
// columns to the outputs. `of_one` and `apply_one` are the same for one column and one sum.
struct Identity {
    struct Nothing {};
    template <typename Index>
    __device__ __forceinline__ Nothing of(Index, Index) const {
        return {};
    }
    __device__ __forceinline__ float2 apply(Nothing, float x, float y) const { return make_float2(x, y); }
    template <typename Index>
    __device__ __forceinline__ Nothing of_one(Index, Index) const {
        return {};
    }
    __device__ __forceinline__ float apply_one(Nothing, float x) const { return x; }
};
