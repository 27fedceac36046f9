// attention, level 4, wgmma. Change: Hopper's own units. One thread has TMA fetch whole tiles, a warpgroup's
// 64 rows of q are multiplied by wgmma, and p goes from registers into the second product.
#pragma once

#include "attention/hopper_tiles.cuh"

// softmax(q @ k.T / sqrt(D)) @ v -> o[B,Sq,Hq,D], lse[B,Hq,Sq]. Grid: one block per 128 rows of q of a head.
// Warpgroup: 64 rows of q. If the registers of two blocks fit a multiprocessor, one's softmax runs while the
// other multiplies.
template <typename T, int D, int BLOCK_N, int STAGES>
__global__ __launch_bounds__(2 * WARPGROUP, D == 64 ? 2 : 1) void attention_wgmma_kernel(
    const __grid_constant__ TensorMap q_map, const __grid_constant__ TensorMap k_map,
    const __grid_constant__ TensorMap v_map, T* o_ptr, float* lse_ptr, int Sq, int Skv, int Hq, int Hk,
    int causal) {
#if HAS_WGMMA_LEVELS
    constexpr int BLOCK_M = 2 * GROUP_M, Q_BYTES = BLOCK_M * D * 2, BYTES = BLOCK_N * D * 2;
    DYNAMIC_SHARED(unsigned char, shared);
    unsigned char* const q = align_1024(shared);
    unsigned char* const k = q + Q_BYTES;  // STAGES tiles of k and of v
    unsigned char* const v = k + STAGES * BYTES;
    __shared__ mbarrier_t full[STAGES];
    const int tiles_m = (Sq + BLOCK_M - 1) / BLOCK_M, heads = blockIdx.x / tiles_m;
    // A head's last rows, which causally see the most keys, go first.
    const int m = (tiles_m - 1 - int(blockIdx.x) % tiles_m) * BLOCK_M;
    const Tile tile = {heads % Hq, heads / Hq, m, Sq, Skv, causal != 0};
    const int tiles_n = tile.tiles_n(BLOCK_M, BLOCK_N);

    const auto fetch = [&](int n) {  // the first copies include q
        mbarrier_t* const landed = &full[n % STAGES];
        mbarrier_arrive_expect_bytes(landed, 2 * BYTES + (n == 0 ? Q_BYTES : 0));
        if (n == 0) head_copy_to_shared(q, &q_map, tile.m, tile.head, tile.batch, landed);
        const int k_head = tile.head / (Hq / Hk);
        head_copy_to_shared(k + n % STAGES * BYTES, &k_map, n * BLOCK_N, k_head, tile.batch, landed);
        head_copy_to_shared(v + n % STAGES * BYTES, &v_map, n * BLOCK_N, k_head, tile.batch, landed);
    };
    if (threadIdx.x == 0) {
        for (int stage = 0; stage < STAGES; ++stage) mbarrier_init(&full[stage], 1);
        mbarrier_init_fence();
        for (int n = 0; n < min(STAGES, tiles_n); ++n) fetch(n);
    }
    __syncthreads();

    const int group = __shfl_sync(FULL_WARP, threadIdx.x / WARPGROUP, 0);
    const unsigned char* const q_group = q + group * GROUP_M * LINE_BYTES;
    Softmax<T, D> softmax(tile, tile.m + group * GROUP_M);
    const int unmasked = tile.keys_of(tile.m + group * GROUP_M);  // keys that all of the warpgroup's rows see
    float o[D / 2] = {}, s[BLOCK_N / 2];
    unsigned p[BLOCK_N / 4];
    Ring<STAGES> ring;
    for (int n = 0; n < tiles_n; ++n, ring.advance()) {
        mbarrier_wait(&full[ring.stage], ring.parity);
        multiply_qk<T, D, BLOCK_M>(s, q_group, k + ring.stage * BYTES);
        wgmma_wait_group<0>(s);
        softmax.update(s, n * BLOCK_N, unmasked);
        softmax.rescale(o);
        round_p<T>(p, s);
        multiply_pv<T>(o, p, v + ring.stage * BYTES);
        wgmma_wait_group<0>(o);
        __syncthreads();  // both warpgroups have read this stage
        if (threadIdx.x == 0 && n + STAGES < tiles_n) fetch(n + STAGES);
    }
    softmax.finish(o, o_ptr, lse_ptr, Hq);
#endif
}
