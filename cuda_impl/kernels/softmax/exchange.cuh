// What split and ring share: which chunk a block has, and a row's partial results, exchanged through global
// memory.
#pragma once

#include "running.cuh"

// volatile bypasses the L1, which is not coherent with other blocks' writes.
__device__ __forceinline__ void publish(word_t* chunk_result, Running value) {
    *static_cast<volatile word_t*>(chunk_result) = to_word(value);
}
__device__ __forceinline__ word_t poll(const word_t* chunk_result) {
    return *static_cast<const volatile word_t*>(chunk_result);
}

// Thread c waits for the c-th chunk of a row and every THREADS-th after it, and returns their combination.
// `early` is poll_early's result: that load is issued first, and the caller's work hides its latency.
__device__ __forceinline__ word_t poll_early(const word_t* row_results, int chunks) {
    const int c = threadIdx.x;
    return c < chunks ? poll(row_results + c) : 0;
}
template <int THREADS>
__device__ __forceinline__ Running wait_for_row(const word_t* row_results, int chunks, word_t early) {
    Running row = identity();
    word_t word = early;
    for (int c = threadIdx.x; c < chunks; c += THREADS) {
        if (c >= THREADS) word = poll(row_results + c);
        while (word == 0) {
            __nanosleep(32);
            word = poll(row_results + c);
        }
        row = combine(row, from_word(word));
    }
    __syncwarp();  // reconverge: else lanes that waited less go on apart, which takes twice as long
    return row;
}

// The c-th chunk of row m. Incremental, because that is cheaper than a division per iteration.
struct Chunk {
    index_t m;
    int c;

    __device__ __forceinline__ void advance(Chunk step, int chunks) {
        m += step.m;
        c += step.c;
        if (c >= chunks) {
            c -= chunks;
            ++m;
        }
    }
};
