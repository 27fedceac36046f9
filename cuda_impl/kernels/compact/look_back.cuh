// What onepass and ring share: decoupled look-back. Source: Merrill and Garland, "Single-pass Parallel Prefix
// Scan with Decoupled Look-back", 2016.
//
// Every tile has a word of state and count. First it publishes its own count (OWN). When it has added the
// counts of all tiles before it, it publishes the inclusive sum (ALL). A later tile adds OWN counts backwards
// until it meets an ALL, so no tile waits for a chain of tiles. State and count are one 8-byte word, written
// and read by one instruction. No fence is needed, because no other data is handed over.
//
// Blocks wait for earlier tiles. They take tiles by ticket and not by blockIdx: a block with a ticket is
// running, so all earlier tiles belong to running blocks, in whatever order the GPU starts blocks. words[0]
// counts tickets, words[1 + tile] is the tile's; all start as 0.
#pragma once

#include "common.cuh"

constexpr word_t UNKNOWN = 0, OWN = 1, ALL = 2;  // the lowest two bits; the count is above

// int, as tile indices are: 2^31 tiles would need more memory than any GPU has.
__device__ __forceinline__ int take_ticket(word_t* words) {
    return atomicAdd(reinterpret_cast<int*>(words), 1);
}

// volatile bypasses the L1, which is not coherent with other blocks' writes.
__device__ __forceinline__ void publish(volatile word_t* tile_words, word_t state, index_t count) {
    *tile_words = word_t(count) << 2 | state;
}

// How many elements all tiles before this one keep. A warp reads 32 tiles per iteration, the nearest first.
// An iteration takes one L2 round trip, during which the GPU starts more tiles: tiles must be large enough
// that these are fewer than 32. Reading more tiles per iteration would load the L2 with words that are not
// needed.
__device__ __forceinline__ index_t look_back(const volatile word_t* tile_words, int tile) {
    const int lane = threadIdx.x % WARP;
    index_t sum = 0;  // per lane
    for (int nearest = tile - 1;;) {
        const int other = nearest - lane;
        const word_t word = other >= 0 ? tile_words[other] : ALL;  // before the first tile nothing is kept
        const unsigned knows_all = __ballot_sync(FULL_WARP, (word & 3) == ALL);
        // Lanes up to the first with ALL: its lowest bit, and those below. All lanes if no lane has it.
        const unsigned needed = knows_all ^ (knows_all - 1);
        if ((__ballot_sync(FULL_WARP, (word & 3) == UNKNOWN) & needed) != 0) {
            __nanosleep(32);
            continue;
        }
        if (needed >> lane & 1) sum += index_t(word >> 2);
        if (knows_all != 0) return warp_reduce<Sum>(sum);
        nearest -= WARP;
    }
}

// look_back for a block: one warp looks back and publishes, then the result is broadcast. Needs another
// barrier between two calls.
__device__ __forceinline__ index_t block_look_back(word_t* tile_words, int tile, int count) {
    __shared__ index_t shared_before;
    if (threadIdx.x < WARP) {
        const index_t before = look_back(tile_words, tile);
        if (threadIdx.x == 0) {
            publish(tile_words + tile, ALL, before + count);
            shared_before = before;
        }
    }
    __syncthreads();
    return shared_before;
}
