// What all levels share: the group of a tile, and stores of its sums. Tiles of group 0 have the first
// numbers, then come those of group 1, and so on.
#pragma once

#include "common.cuh"
#include "matmul/tiles.cuh"
#include "x2.cuh"

// A search in the offsets that ascends: a block's tiles do, so it goes on where the last one ended. All
// blocks read the same few bytes, from the L1 or L2.
template <int BLOCK_M>
struct Groups {
    const int* offsets_ptr;
    int G, tiles_n;
    int group = 0, begin = 0, end, first = 0;  // of the group: its number, its rows, its first tile

    __device__ __forceinline__ Groups(const int* offsets_ptr, int G, int tiles_n)
        : offsets_ptr(offsets_ptr), G(G), tiles_n(tiles_n), end(offsets_ptr[0]) {}

    __device__ __forceinline__ int rows() const { return end - begin; }
    __device__ __forceinline__ int tiles_m() const { return (rows() + BLOCK_M - 1) / BLOCK_M; }

    // Walks on to the group of `tile`; false if all groups have fewer tiles.
    __device__ __forceinline__ bool find(int tile) {
        for (int tiles = tiles_m() * tiles_n; tile >= first + tiles; tiles = tiles_m() * tiles_n) {
            first += tiles;
            if (++group == G) return false;
            begin = end;
            end = offsets_ptr[group];
        }
        return true;
    }
};

// Stores columns n (even) and n + 1 of a row of c, if it has them: together if all rows are 4-byte aligned.
template <typename T>
__device__ __forceinline__ void store_two(T* c_row, index_t n, index_t N, float left, float right) {
    if (N % 2 == 0) {
        if (n < N) *reinterpret_cast<unsigned*>(c_row + n) = to_x2<T>(left, right);
    } else {
        if (n < N) c_row[n] = T(left);
        if (n + 1 < N) c_row[n + 1] = T(right);
    }
}
