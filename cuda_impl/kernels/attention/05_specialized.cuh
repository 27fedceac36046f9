// attention, level 5, specialized. Change: warp specialization. One producer thread fetches into a ring of
// stages, and gives most of its registers to consumer warpgroups, so tiles are larger. The consumers multiply
// in turn (ping-pong): while one multiplies, the others' softmax runs.
#pragma once

#include "attention/hopper_tiles.cuh"

// Grid: one block per CONSUMERS * 64 rows of q of a head. Warpgroup 0: producer; the others: consumers, of
// 64 rows each. A stage of the ring is one tile of k or v; they alternate.
template <typename T, int D, int CONSUMERS, int BLOCK_N, int STAGES>
__global__ __launch_bounds__((1 + CONSUMERS) * WARPGROUP, 1) void attention_specialized_kernel(
    const __grid_constant__ TensorMap q_map, const __grid_constant__ TensorMap k_map,
    const __grid_constant__ TensorMap v_map, T* o_ptr, float* lse_ptr, int Sq, int Skv, int Hq, int Hk,
    int causal) {
#if HAS_WGMMA_LEVELS
    constexpr int BLOCK_M = CONSUMERS * GROUP_M, Q_BYTES = BLOCK_M * D * 2, BYTES = BLOCK_N * D * 2;
    static_assert(STAGES >= 2, "a tile of v and the next of k are in use at once");
    DYNAMIC_SHARED(unsigned char, shared);
    unsigned char* const q = align_1024(shared);
    unsigned char* const stages = q + Q_BYTES;
    __shared__ mbarrier_t q_full, full[STAGES], empty[STAGES];
    const int tiles_m = (Sq + BLOCK_M - 1) / BLOCK_M, heads = blockIdx.x / tiles_m;
    const int m = (tiles_m - 1 - int(blockIdx.x) % tiles_m) * BLOCK_M;
    const Tile tile = {heads % Hq, heads / Hq, m, Sq, Skv, causal != 0};
    const int tiles_n = tile.tiles_n(BLOCK_M, BLOCK_N);
    const int group = __shfl_sync(FULL_WARP, threadIdx.x / WARPGROUP, 0);

    if (threadIdx.x == 0) {
        mbarrier_init(&q_full, 1);
        for (int stage = 0; stage < STAGES; ++stage) {
            mbarrier_init(&full[stage], 1);
            mbarrier_init(&empty[stage], CONSUMERS);
        }
        mbarrier_init_fence();
    }
    __syncthreads();

    Ring<STAGES> ring;
    if (group == 0) {
        setmaxnreg_dec<PRODUCER_REGISTERS<CONSUMERS>>();
        if (threadIdx.x > 0) return;
        const auto fetch = [&](const TensorMap* map, int row) {
            mbarrier_t* const landed = &full[ring.stage];
            mbarrier_wait(&empty[ring.stage], ring.parity ^ 1);  // in the first round all are empty
            mbarrier_arrive_expect_bytes(landed, BYTES);
            head_copy_to_shared(
                stages + ring.stage * BYTES, map, row, tile.head / (Hq / Hk), tile.batch, landed);
            ring.advance();
        };
        mbarrier_arrive_expect_bytes(&q_full, Q_BYTES);
        head_copy_to_shared(q, &q_map, tile.m, tile.head, tile.batch, &q_full);
        for (int n = 0; n < tiles_n; ++n) {
            fetch(&k_map, n * BLOCK_N);
            fetch(&v_map, n * BLOCK_N);
        }
    } else {
        setmaxnreg_inc<CONSUMER_REGISTERS<CONSUMERS>>();
        const int consumer = group - 1;
        const unsigned char* const q_group = q + consumer * GROUP_M * LINE_BYTES;
        Softmax<T, D> softmax(tile, tile.m + consumer * GROUP_M);
        const int unmasked = tile.keys_of(tile.m + consumer * GROUP_M);  // keys that all its rows see
        const auto next_stage = [&] {                                    // waits for the ring's next tile
            const int stage = ring.stage;
            mbarrier_wait(&full[stage], ring.parity);
            ring.advance();
            return stage;
        };
        const auto release = [&](int stage) {
            if (threadIdx.x % WARPGROUP == 0) mbarrier_arrive(&empty[stage]);
        };
        float o[D / 2] = {}, s[BLOCK_N / 2];
        unsigned p[BLOCK_N / 4];
        // Named barrier 1 + i: consumer i may multiply. 0 is __syncthreads.
        if (consumer == CONSUMERS - 1) named_barrier_arrive<2 * WARPGROUP>(1);

        mbarrier_wait(&q_full, 0);
        const int first = next_stage();
        multiply_qk<T, D, BLOCK_M>(s, q_group, stages + first * BYTES);
        wgmma_wait_group<0>(s);
        release(first);
        softmax.update(s, 0, unmasked);
        round_p<T>(p, s);
        for (int n = 1; n < tiles_n; ++n) {
            const int v = next_stage(), k = next_stage();
            named_barrier_sync<2 * WARPGROUP>(1 + consumer);
            multiply_pv<T>(o, p, stages + v * BYTES);
            multiply_qk<T, D, BLOCK_M>(s, q_group, stages + k * BYTES);
            named_barrier_arrive<2 * WARPGROUP>(1 + (consumer + 1) % CONSUMERS);
            wgmma_wait_group<0>(o);
            wgmma_wait_group<0>(s);
            release(v);
            release(k);
            softmax.update(s, n * BLOCK_N, unmasked);
            softmax.rescale(o);
            round_p<T>(p, s);
        }
        const int last = next_stage();
        multiply_pv<T>(o, p, stages + last * BYTES);
        wgmma_wait_group<0>(o);
        softmax.finish(o, o_ptr, lse_ptr, Hq);
    }
#endif
}
