// attention, level 6, overlapped. Change: within a warpgroup, too, softmax overlaps with a product. q @ k of
// this tile and p @ v of the previous one are both in flight; softmax starts when the first has finished.
#pragma once

#include "attention/hopper_tiles.cuh"

// Grid and warpgroups as in specialized.
template <typename T, int D, int CONSUMERS, int BLOCK_N, int STAGES>
__global__ __launch_bounds__((1 + CONSUMERS) * WARPGROUP, 1) void attention_overlapped_kernel(
    const __grid_constant__ TensorMap q_map, const __grid_constant__ TensorMap k_map,
    const __grid_constant__ TensorMap v_map, T* o_ptr, float* lse_ptr, int Sq, int Skv, int Hq, int Hk,
    int causal) {
#if HAS_WGMMA_LEVELS
    constexpr int BLOCK_M = CONSUMERS * GROUP_M, Q_BYTES = BLOCK_M * D * 2, BYTES = BLOCK_N * D * 2;
    static_assert(STAGES >= 3, "v's stage is released after the next tile of v has landed");
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
            mbarrier_wait(&empty[ring.stage], ring.parity ^ 1);
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
        const int unmasked = tile.keys_of(tile.m + consumer * GROUP_M);
        const auto next_stage = [&] {
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
        if (consumer == CONSUMERS - 1) named_barrier_arrive<2 * WARPGROUP>(1);

        mbarrier_wait(&q_full, 0);
        const int first = next_stage();
        multiply_qk<T, D, BLOCK_M>(s, q_group, stages + first * BYTES);
        wgmma_wait_group<0>(s);
        release(first);
        softmax.update(s, 0, unmasked);
        round_p<T>(p, s);
        int v = next_stage();
        for (int n = 1; n < tiles_n; ++n) {
            const int k = next_stage();
            named_barrier_sync<2 * WARPGROUP>(1 + consumer);
            multiply_qk<T, D, BLOCK_M>(s, q_group, stages + k * BYTES);
            multiply_pv<T>(o, p, stages + v * BYTES);
            named_barrier_arrive<2 * WARPGROUP>(1 + (consumer + 1) % CONSUMERS);
            wgmma_wait_group<1>(s);
            release(k);
            softmax.update(s, n * BLOCK_N, unmasked);  // while o += p @ v runs
            // This tile of v has usually landed. Its wait stands here because it is a branch: without one,
            // ptxas moves softmax behind the wait for p @ v.
            const int v_next = next_stage();
            wgmma_wait_group<0>(o);
            release(v);
            v = v_next;
            softmax.rescale(o);
            round_p<T>(p, s);
        }
        multiply_pv<T>(o, p, stages + v * BYTES);
        wgmma_wait_group<0>(o);
        softmax.finish(o, o_ptr, lse_ptr, Hq);
    }
#endif
}
