// What split and ring share: which chunk a block has, and a row's partial results, exchanged through global
// memory.
#pragma once

#include "running.cuh"

// volatile bypasses the L1, which is not coherent with other blocks' writes.
__device__ __forceinline__ void publish(word_t* of_chunk, Running value) {
    *static_cast<volatile word_t*>(of_chunk) = to_word(value);
}
__device__ __forceinline__ word_t look(const word_t* of_chunk) {
    return *static_cast<const volatile word_t*>(of_chunk);
}

// Thread c waits for the c-th chunk of a row and every THREADS-th after it, and returns their combination.
// `early` is look_early's result: that load is issued first, and the caller's work hides its latency.
__device__ __forceinline__ word_t look_early(const word_t* of_row, int chunks) {
    const int c = threadIdx.x;
    return c < chunks ? look(of_row + c) : 0;
}
template <int THREADS>
__device__ __forceinline__ Running wait_for_row(const word_t* of_row, int chunks, word_t early) {
    Running seen = nothing_seen();
    word_t word = early;
    for (int c = threadIdx.x; c < chunks; c += THREADS) {
        if (c >= THREADS) word = look(of_row + c);
        while (word == 0) {
            __nanosleep(32);
            word = look(of_row + c);
        }
        seen = combine(seen, from_word(word));
    }
    __syncwarp();  // reconverge: else lanes that waited less go on apart, which takes twice as long
    return seen;
}

// A chunk: its row and its number in the row. Incremental, because that is cheaper than a division per
// iteration.
struct Place {
    index_t m;
    int c;

    __device__ __forceinline__ void advance(Place step, int chunks) {
        m += step.m;
        c += step.c;
        if (c >= chunks) {
            c -= chunks;
            ++m;
        }
    }
};
