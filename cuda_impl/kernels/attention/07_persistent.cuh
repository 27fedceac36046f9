// attention, level 7, persistent. Change: one block per multiprocessor computes tile after tile, and the ring
// continues across tiles: while the consumers store o, the producer prefetches the next tile. Causal tiles
// are assigned longest first, so that all blocks end together.
#pragma once

#include "attention/hopper_tiles.cuh"

#if HAS_WGMMA_LEVELS

// The tiles of a persistent block. They are ordered by section of 16 heads (causal; else one), whose k and v
// the L2 keeps, and within a section longest first: from the last rows of q to the first. The blocks take
// them in serpentine order, so that the block with the longest of one round has the shortest of the next.
template <int BLOCK_M>
struct Schedule {
    int Sq, Skv, heads, Hq;
    bool causal;
    int round = 0;

    __device__ __forceinline__ bool next(Tile& tile) {
        const int place = round % 2 == 0 ? blockIdx.x : gridDim.x - 1 - blockIdx.x;
        const index_t t = static_cast<index_t>(round++) * gridDim.x + place;
        const int tiles_m = (Sq + BLOCK_M - 1) / BLOCK_M, most = causal ? 16 : 1;
        if (t >= static_cast<index_t>(tiles_m) * heads) return false;
        const int section = static_cast<int>(t) / (most * tiles_m),
                  in_section = static_cast<int>(t) % (most * tiles_m);
        const int width = min(most, heads - section * most);
        const int head = section * most + in_section % width;
        tile = {head % Hq, head / Hq, (tiles_m - 1 - in_section / width) * BLOCK_M, Sq, Skv, causal};
        return true;
    }
};

#endif

// Grid: persistent. Warpgroups as in specialized.
template <typename T, int D, int CONSUMERS, int BLOCK_N, int STAGES>
__global__ __launch_bounds__((1 + CONSUMERS) * WARPGROUP,
                             1) void attention_persistent_kernel(const __grid_constant__ TensorMap q_map,
                                                                 const __grid_constant__ TensorMap k_map,
                                                                 const __grid_constant__ TensorMap v_map,
                                                                 T* o_ptr, float* lse_ptr, int B, int Sq,
                                                                 int Skv, int Hq, int Hk, int causal) {
#if HAS_WGMMA_LEVELS
    constexpr int BLOCK_M = CONSUMERS * GROUP_M, Q_BYTES = BLOCK_M * D * 2, BYTES = BLOCK_N * D * 2;
    static_assert(STAGES >= 3, "v's stage is released after the next tile of v has landed");
    DYNAMIC_SHARED(unsigned char, shared);
    unsigned char* const q = align_1024(shared);
    unsigned char* const stages = q + Q_BYTES;
    __shared__ mbarrier_t q_full, q_empty, full[STAGES], empty[STAGES];
    Schedule<BLOCK_M> schedule = {Sq, Skv, B * Hq, Hq, causal != 0};
    Tile tile = {};
    const int group = __shfl_sync(FULL_WARP, threadIdx.x / WARPGROUP, 0);

    if (threadIdx.x == 0) {
        mbarrier_init(&q_full, 1);
        mbarrier_init(&q_empty, CONSUMERS);
        for (int stage = 0; stage < STAGES; ++stage) {
            mbarrier_init(&full[stage], 1);
            mbarrier_init(&empty[stage], CONSUMERS);
        }
        mbarrier_init_fence();
    }
    __syncthreads();

    Ring<STAGES> ring;
    Ring<1> q_ring;
    if (group == 0) {
        setmaxnreg_dec<PRODUCER_REGISTERS<CONSUMERS>>();
        if (threadIdx.x > 0) return;
        const auto fetch = [&](const TensorMap* map, int row) {
            mbarrier_t* const landed = &full[ring.stage];
            mbarrier_wait(&empty[ring.stage], ring.parity ^ 1);
            mbarrier_arrive_expect_bytes(landed, BYTES);
            head_copy_to_shared(stages + ring.stage * BYTES, map, row, tile.head / (Hq / Hk), tile.batch,
                                landed);
            ring.advance();
        };
        for (; schedule.next(tile); q_ring.advance()) {
            mbarrier_wait(&q_empty, q_ring.parity ^ 1);
            mbarrier_arrive_expect_bytes(&q_full, Q_BYTES);
            head_copy_to_shared(q, &q_map, tile.m, tile.head, tile.batch, &q_full);
            const int tiles_n = tile.tiles_n(BLOCK_M, BLOCK_N);
            for (int n = 0; n < tiles_n; ++n) {
                fetch(&k_map, n * BLOCK_N);
                fetch(&v_map, n * BLOCK_N);
            }
        }
    } else {
        setmaxnreg_inc<CONSUMER_REGISTERS<CONSUMERS>>();
        const int consumer = group - 1;
        const unsigned char* const q_group = q + consumer * GROUP_M * LINE_BYTES;
        const auto next_stage = [&] {
            // The same in all lanes: the shuffle tells the compiler, which then keeps wgmma's descriptors in
            // uniform registers.
            const int stage = __shfl_sync(FULL_WARP, ring.stage, 0);
            mbarrier_wait(&full[stage], ring.parity);
            ring.advance();
            return stage;
        };
        const auto release = [&](mbarrier_t* of) {
            if (threadIdx.x % WARPGROUP == 0) mbarrier_arrive(of);
        };
        if (consumer == CONSUMERS - 1) named_barrier_arrive<2 * WARPGROUP>(1);

        float s[BLOCK_N / 2];
        unsigned p[BLOCK_N / 4];
        const auto begin = [&] {  // starts q @ the first tile of k, and returns its stage
            mbarrier_wait(&q_full, q_ring.parity);
            q_ring.advance();
            const int stage = next_stage();
            multiply_qk<T, D, BLOCK_M>(s, q_group, stages + stage * BYTES);
            return stage;
        };
        schedule.next(tile);  // every block has a tile
        int first = begin();
        wgmma_wait_group<0>(s);
        while (true) {
            const int tiles_n = tile.tiles_n(BLOCK_M, BLOCK_N);
            Softmax<T, D> softmax(tile, tile.m + consumer * GROUP_M);
            const int unmasked = tile.keys_of(tile.m + consumer * GROUP_M);
            float o[D / 2] = {};
            release(&empty[first]);
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
                release(&empty[k]);
                softmax.update(s, n * BLOCK_N, unmasked);
                const int v_next = next_stage();
                wgmma_wait_group<0>(o);
                release(&empty[v]);
                v = v_next;
                softmax.rescale(o);
                round_p<T>(p, s);
            }
            release(&q_empty);
            multiply_pv<T>(o, p, stages + v * BYTES);
            wgmma_wait_group<0>(o);
            release(&empty[v]);
            if (!schedule.next(tile)) return softmax.finish(o, o_ptr, lse_ptr, Hq);
            first = begin();
            softmax.finish(o, o_ptr, lse_ptr, Hq);  // while the next tile's first product runs
            wgmma_wait_group<0>(s);
        }
    }
#endif
}
