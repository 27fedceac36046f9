// What attention's levels from wgmma on share: tiles of a head in shared memory, and the two products of a
// tile of keys. They take 16-bit elements. A warpgroup has 64 rows of q.
//
// A tile is D / 64 pieces of `rows` rows of 128 bytes, as TMA writes them (128-byte swizzle).
#pragma once

#include "attention/hopper_ptx.cuh"
#include "attention/online_softmax.cuh"
#include "ring.cuh"

constexpr int PIECE_D = 64;

#if HAS_WGMMA_LEVELS

// Registers per thread, of 65536, for one producer and two or three consumer warpgroups.
template <int CONSUMERS>
constexpr int PRODUCER_REGISTERS = CONSUMERS == 2 ? 24 : 32;
template <int CONSUMERS>
constexpr int CONSUMER_REGISTERS = CONSUMERS == 2 ? 240 : 160;

// s = a warpgroup's rows of q @ a tile of k, transposed: D / 16 wgmma, both operands from shared memory.
template <typename T, int D, int BLOCK_M, int COUNT>
__device__ __forceinline__ void multiply_qk(
    float (&s)[COUNT], const unsigned char* q, const unsigned char* k) {
    constexpr int BLOCK_N = 2 * COUNT;
    const matrix_t q_first = matrix_descriptor(q, 0), k_first = matrix_descriptor(k, 0);
    wgmma_fence();
#pragma unroll
    for (int d = 0; d < D; d += 16) {
        const int piece = d / PIECE_D, in_line = d % PIECE_D * 2;
        const matrix_t q_d = q_first + ((piece * BLOCK_M * LINE_BYTES + in_line) >> 4);
        const matrix_t k_d = k_first + ((piece * BLOCK_N * LINE_BYTES + in_line) >> 4);
        wgmma<T, false, false>(s, q_d, k_d, d > 0);
    }
    wgmma_commit_group();
}

// o += p @ a tile of v: BLOCK_N / 16 wgmma. p comes from registers: no store to shared memory, no barrier.
template <typename T, int WORDS, int COUNT>
__device__ __forceinline__ void multiply_pv(
    float (&o)[COUNT], const unsigned (&p)[WORDS], const unsigned char* v) {
    constexpr int BLOCK_N = 4 * WORDS;
    const matrix_t v_first = matrix_descriptor(v, BLOCK_N * LINE_BYTES);
    wgmma_fence();
#pragma unroll
    for (int n = 0; n < BLOCK_N; n += 16) {
        wgmma_from_registers<T>(o, p + n / 4, v_first + (n * LINE_BYTES >> 4));
    }
    wgmma_commit_group();
}

#endif  // HAS_WGMMA_LEVELS
