// filtered: a bound from the first tile, which few elements of the others reach.
//
// Grid: `tiles` blocks per row, no more than keep the GPU busy. A block reads its part tile by tile, and only
// the first is searched, as in delegates. K of its elements reach the bound, so that of all later tiles only
// the greater ones count, K of the next 8192 in a row of random order: one comparison each for the others.
// Where candidates are many, the K largest stay and the least of them is the new bound. Source: as bitonic,
// with a queue per block; the search as in radix.
#pragma once

#include "topk/04_delegates.cuh"

// Keeps the K largest of the `count` candidates and of the words that each_further(visit) visits, in any
// order. Returns the least of them.
template <int THREADS, typename Each>
__device__ __forceinline__ word_t keep_largest(Candidates& candidates, int count, int K, Each each_further) {
    constexpr int ITEMS = CANDIDATES / THREADS;
    word_t words[ITEMS];
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
        const int c = i * THREADS + static_cast<int>(threadIdx.x);
        words[i] = c < count ? candidates.word[c] : 0;
    }
    const auto each = [&](auto visit) {
#pragma unroll
        for (int i = 0; i < ITEMS; ++i) visit(words[i]);
        each_further(visit);
    };
    const word_t least = radix_select<THREADS, 64, word_t>(K, each);
    if (threadIdx.x == 0) candidates.count = 0;
    __syncthreads();
    each([&](word_t word) {
        if (word >= least) candidates.word[atomicAdd(&candidates.count, 1)] = word;
    });
    __syncthreads();
    return least;
}

template <typename T, bool ALIGNED, int VECTORS, int THREADS>
__global__ __launch_bounds__(THREADS, 768 / THREADS) void topk_filtered_kernel(
    const T* __restrict__ x_ptr, const index_t* __restrict__ columns_ptr, T* __restrict__ values_ptr,
    index_t* __restrict__ indices_ptr, int N, index_t stride_xm, int tiles, int has_columns, int K) {
    using RowTile = Tile<T, ALIGNED, VECTORS, THREADS>;
    constexpr int TILE = RowTile::ITEMS * THREADS, VEC = RowTile::VEC;
    __shared__ Candidates candidates;
    const Part<T> part(x_ptr, columns_ptr, has_columns, N, stride_xm, tiles, K);
    Reached reached =
        collect_by_delegates(RowTile(part.ptr, min(part.N, TILE)), candidates, min(part.N, TILE), K);
#pragma unroll 1
    for (int left = part.N - TILE; left > 0; left -= TILE) {
        const int begin = part.N - left;
        const RowTile tile(part.ptr + begin, min(left, TILE));
        __syncthreads();  // before the count changes, all threads have read it
        const auto append = [&](unsigned key, int n) {
            if (key <= reached.bound) return;  // of equal elements those before are larger
            const int place = atomicAdd(&candidates.count, 1);
            if (place < CANDIDATES) candidates.word[place] = make_word(key, n);
        };
#pragma unroll
        for (int p = 0; p < VECTORS; ++p) {
            unsigned largest = 0;
#pragma unroll
            for (int v = 0; v < VEC; ++v) largest = max(largest, tile.key(p * VEC + v));
            if (largest <= reached.bound) continue;  // most vectors
#pragma unroll
            for (int v = 0; v < VEC; ++v) {
                append(tile.key(p * VEC + v), begin + tile.first + RowTile::behind(p * VEC + v));
            }
        }
        if constexpr (!ALIGNED) append(tile.edge_key, begin + tile.first + tile.edge);
        __syncthreads();
        const int before = reached.count;
        reached.count = candidates.count;
        if (reached.count <= CANDIDATES / 2) continue;
        // Not all are stored if they are more than CANDIDATES, as in a row in ascending order: then the
        // tile is read again.
        const bool stored = reached.count <= CANDIDATES;
        const word_t least =
            keep_largest<THREADS>(candidates, stored ? reached.count : before, K, [&](auto visit) {
                if (stored) return;
#pragma unroll 1
                for (int n = threadIdx.x; n < min(left, TILE); n += THREADS) {
                    const unsigned key = key_of(part.ptr[begin + n]);
                    if (key > reached.bound) visit(make_word(key, begin + n));
                }
            });
        reached = {key_of_word(least), K};
    }
    if (reached.count > THREADS) {
        keep_largest<THREADS>(candidates, reached.count, K, [](auto) {});
        reached.count = K;
    }
    part.template store_sorted<THREADS>(candidates, reached.count, values_ptr, indices_ptr);
}
