// What all levels of attention share: the sizes, and the tile of rows of q that a block computes.
#pragma once

#include "attention/heads.cuh"

struct Problem {
    Strides q, k, v;
    int Sq, Skv, Hq, Hk, causal;
};

// Of the scores: 1 / sqrt(D).
template <int D>
constexpr float SCALE = D == 64 ? 0.125f : 0.08838834764831845f;

// The rows of q of a tile, and the keys that they see: the causal diagonal ends at the last key.
struct Tile {
    int head, batch, m;  // m: first row of q
    int Sq, Skv;
    bool causal;

    __device__ __forceinline__ int keys_of(int row) const {
        return causal ? min(max(row + 1 + Skv - Sq, 0), Skv) : Skv;
    }
    // Tiles of keys, at least one: a row that sees no key is masked as any other.
    __device__ __forceinline__ int tiles_n(int BLOCK_M, int BLOCK_N) const {
        return max((keys_of(m + BLOCK_M - 1) + BLOCK_N - 1) / BLOCK_N, 1);
    }
};

// The tile of this block, head by head. Causal: the last rows see the most keys, and their blocks start
// first.
__device__ __forceinline__ Tile longest_first(const Problem& p, int BLOCK_M) {
    const int tiles_m = (p.Sq + BLOCK_M - 1) / BLOCK_M, head = blockIdx.x / tiles_m;
    const int tile = p.causal ? tiles_m - 1 - int(blockIdx.x % tiles_m) : blockIdx.x % tiles_m;
    return {head % p.Hq, head / p.Hq, tile * BLOCK_M, p.Sq, p.Skv, p.causal != 0};
}
