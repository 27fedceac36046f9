// attention, level 8, speculative. Change: the weights of a tile are computed with the maximum of earlier
// tiles, so that no thread looks for one first. A row's sum, which is needed anyway, tells whether the
// maximum was too low for a weight to fit. Then, seldom after the first tile, the warp does softmax again
// from the scores. Without the search for the maximum, softmax is so short that the consumers need not
// multiply in turn.
#pragma once

#include "attention/07_persistent.cuh"

// Grid: persistent.
template <typename T, int D, int CONSUMERS, int BLOCK_N, int STAGES>
__global__ __launch_bounds__((1 + CONSUMERS) * WARPGROUP, 1) void attention_speculative_kernel(
    const __grid_constant__ TensorMap q_map, const __grid_constant__ TensorMap k_map,
    const __grid_constant__ TensorMap v_map, T* o_ptr, float* lse_ptr, unsigned long long* next_tile, int B,
    int Sq, int Skv, int Hq, int Hk, int causal) {
#if HAS_WGMMA_LEVELS
    attend_persistently<T, D, CONSUMERS, BLOCK_N, STAGES, true>(
        q_map, k_map, v_map, o_ptr, lse_ptr, next_tile, B, Sq, Skv, Hq, Hk, causal);
#endif
}
