// delegates: a bound first, from the largest element of each group.
//
// Grid: as radix. Unlike there, only the largest of each GROUP elements, its delegate, is counted by digits.
// The K-th largest delegate is a bound that at least K elements reach, and few others: a group seldom has two
// of the largest. The bound need not be exact, so two digits do. If too many elements reach it - equal ones,
// or a row in order - the tile is searched as in radix. Source: Gaihre et al., "Dr. Top-k: delegate-centric
// top-k on GPUs", 2021.
#pragma once

#include "topk/tile.cuh"

// Elements of the tile that reach `bound`, K or more of them.
struct Reached {
    unsigned bound;
    int count;
};

template <typename T, bool ALIGNED, int VECTORS, int THREADS>
__device__ __forceinline__ Reached
collect_by_delegates(const Tile<T, ALIGNED, VECTORS, THREADS>& tile, Candidates& candidates, int N, int K) {
    constexpr int GROUPS = 4, GROUP = VECTORS * (16 / sizeof(T)) / GROUPS;
    unsigned delegates[GROUPS];
#pragma unroll
    for (int g = 0; g < GROUPS; ++g) {
        delegates[g] = tile.key(g * GROUP);
#pragma unroll
        for (int i = 1; i < GROUP; ++i) delegates[g] = max(delegates[g], tile.key(g * GROUP + i));
    }
    unsigned bound = radix_select<THREADS, 16>(K, [&](auto count) {
#pragma unroll
        for (int g = 0; g < GROUPS; ++g) count(delegates[g]);
        if constexpr (!ALIGNED) count(tile.edge_key);
    });
    bound = max(bound, 1u);  // key 0 is a missing element's: with fewer than K delegates, all are candidates
    int count = collect(tile, candidates, bound, N);
    if (count > CANDIDATES) {
        bound = radix_select<THREADS, 8 * sizeof(T)>(
            K, [&](auto count_key) { tile.each([&](unsigned key, int) { count_key(key); }); });
        count = collect_exact<THREADS>(tile, candidates, bound, N, K);
    }
    return {bound, count};
}

template <typename T, bool ALIGNED, int VECTORS, int THREADS>
__global__ __launch_bounds__(THREADS, 768 / THREADS) void topk_delegates_kernel(
    const T* __restrict__ x_ptr, const index_t* __restrict__ columns_ptr, T* __restrict__ values_ptr,
    index_t* __restrict__ indices_ptr, int N, index_t stride_xm, int tiles, int has_columns, int K) {
    __shared__ Candidates candidates;
    const Part<T> part(x_ptr, columns_ptr, has_columns, N, stride_xm, tiles, K);
    const Tile<T, ALIGNED, VECTORS, THREADS> tile(part.ptr, part.N);
    const Reached reached = collect_by_delegates(tile, candidates, part.N, K);
    part.template store_sorted<THREADS>(candidates, reached.count, values_ptr, indices_ptr);
}
