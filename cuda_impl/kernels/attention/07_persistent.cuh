// attention, level 7, persistent. Change: one block per multiprocessor computes tile after tile, and the ring
// continues across tiles: while the consumers store o, the next tile is fetched and its first product runs.
// Causal tiles are taken longest first, each by the first free block, so that all blocks end together.
#pragma once

#include "attention/hopper_tiles.cuh"

#if HAS_WGMMA_LEVELS

// The order of tiles: by section of 16 heads (causal; else one), whose k and v the L2 keeps; within a section
// longest first: from the last rows of q to the first.
template <int BLOCK_M>
struct Order {
    int Sq, Skv, heads, Hq;
    bool causal;

    __device__ __forceinline__ int tiles_m() const { return (Sq + BLOCK_M - 1) / BLOCK_M; }
    __device__ __forceinline__ int tiles() const { return tiles_m() * heads; }
    __device__ __forceinline__ Tile tile(int t) const {
        const int most = causal ? 16 : 1, section = t / (most * tiles_m()) * most;
        const int in_section = t % (most * tiles_m()), width = min(most, heads - section);
        const int head = section + in_section % width;
        return {head % Hq, head / Hq, (tiles_m() - 1 - in_section / width) * BLOCK_M, Sq, Skv, causal};
    }
};

// Persistent blocks. Warpgroups as in specialized. A block's first tile is its own; next_tile, 0 at first,
// counts those taken later. Online: the softmax of a thread's rows, here or of level 8.
template <typename T, int D, int CONSUMERS, int BLOCK_N, int STAGES, typename Online>
__device__ __forceinline__ void attend_persistently(
    const TensorMap& q_map, const TensorMap& k_map, const TensorMap& v_map, T* o_ptr, float* lse_ptr,
    unsigned long long* next_tile, int B, int Sq, int Skv, int Hq, int Hk, int causal) {
    constexpr int BLOCK_M = CONSUMERS * GROUP_M, Q_BYTES = BLOCK_M * D * 2, BYTES = BLOCK_N * D * 2;
    static_assert(STAGES >= 3, "v's stage is released after the next tile of v has landed");
    DYNAMIC_SHARED(unsigned char, shared);
    unsigned char* const q = align_1024(shared);
    unsigned char* const stages = q + 2 * Q_BYTES;
    __shared__ mbarrier_t q_full[2], q_empty[2], full[STAGES], empty[STAGES];
    __shared__ int taken[2];  // the tile of each q; it is valid while q is
    const Order<BLOCK_M> order = {Sq, Skv, B * Hq, Hq, causal != 0};
    Tile tile = {};
    const int group = __shfl_sync(FULL_WARP, threadIdx.x / WARPGROUP, 0);

    if (threadIdx.x == 0) {
        for (int i = 0; i < 2; ++i) {
            mbarrier_init(&q_full[i], 1);
            mbarrier_init(&q_empty[i], CONSUMERS);
        }
        for (int stage = 0; stage < STAGES; ++stage) {
            mbarrier_init(&full[stage], 1);
            mbarrier_init(&empty[stage], CONSUMERS);
        }
        mbarrier_init_fence();
    }
    __syncthreads();

    Ring<STAGES> ring;
    Ring<2> q_ring;  // the next tile's q is fetched while this one's is used
    if (group == 0) {
        setmaxnreg_dec<PRODUCER_REGISTERS<CONSUMERS>>();
        if (threadIdx.x > 0) return;
        int t = blockIdx.x;
        for (;; t = gridDim.x + int(atomicAdd(next_tile, 1ull)), q_ring.advance()) {
            mbarrier_t* const q_landed = &q_full[q_ring.stage];
            mbarrier_wait(&q_empty[q_ring.stage], q_ring.parity ^ 1);
            taken[q_ring.stage] = t;
            if (t >= order.tiles()) return mbarrier_arrive(q_landed);  // the consumers see that none is left
            tile = order.tile(t);
            mbarrier_arrive_expect_bytes(q_landed, Q_BYTES);
            head_copy_to_shared(q + q_ring.stage * Q_BYTES, &q_map, tile.m, tile.head, tile.batch, q_landed);
            const int rows = tile.tiles_n(BLOCK_M, BLOCK_N) * BLOCK_N, k_head = tile.head / (Hq / Hk);
            const auto fetch = [&](const TensorMap* map, int row) {
                mbarrier_t* const landed = &full[ring.stage];
                mbarrier_wait(&empty[ring.stage], ring.parity ^ 1);
                mbarrier_arrive_expect_bytes(landed, BYTES);
                head_copy_to_shared(stages + ring.stage * BYTES, map, row, k_head, tile.batch, landed);
                ring.advance();
            };
#pragma unroll 1  // the producer has few registers
            for (int row = 0; row < rows; row += BLOCK_N) {
                fetch(&k_map, row);
                fetch(&v_map, row);
            }
        }
    } else {
        setmaxnreg_inc<CONSUMER_REGISTERS<CONSUMERS>>();
        const int consumer = group - 1;
        const unsigned char* q_group;
        int q_stage;
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
        if (!Online::GUESSES && consumer == CONSUMERS - 1) named_barrier_arrive<2 * WARPGROUP>(1);

        float s[BLOCK_N / 2];
        unsigned p[BLOCK_N / 4];
        int first;                         // stage of the first tile of k
        const auto next_tile_of_q = [&] {  // false if no tile is left
            q_stage = __shfl_sync(FULL_WARP, q_ring.stage, 0);
            mbarrier_wait(&q_full[q_stage], q_ring.parity);
            q_ring.advance();
            const int t = __shfl_sync(FULL_WARP, taken[q_stage], 0);
            if (t >= order.tiles()) return false;
            tile = order.tile(t);
            q_group = q + q_stage * Q_BYTES + consumer * GROUP_M * LINE_BYTES;
            return true;
        };
        const auto start = [&] {  // q @ its first tile of k
            first = next_stage();
            multiply_qk<T, D, BLOCK_M>(s, q_group, stages + first * BYTES);
        };
        next_tile_of_q();  // every block has a tile
        start();
        wgmma_wait_group<0>(s);
        while (true) {
            const int tiles_n = tile.tiles_n(BLOCK_M, BLOCK_N);
            float o[D / 2] = {};
            Online softmax(tile, tile.m + consumer * GROUP_M);
            const int unmasked = tile.keys_of(tile.m + consumer * GROUP_M);
            release(&empty[first]);
            softmax.update(s, 0, unmasked);
            round_p<T>(p, s);
            int v = next_stage();
            // Speculative, the weights of one tile and of the next are in registers of their own, and the
            // loop has two tiles: ptxas lets no register move into one that wgmma reads.
            [[maybe_unused]] constexpr int TILES = Online::GUESSES ? 2 : 1;
#pragma unroll TILES
            for (int n = 1; n < tiles_n; ++n) {
                const int k = next_stage();
                if constexpr (!Online::GUESSES) named_barrier_sync<2 * WARPGROUP>(1 + consumer);
                multiply_qk<T, D, BLOCK_M>(s, q_group, stages + k * BYTES);
                multiply_pv<T>(o, p, stages + v * BYTES);
                if constexpr (!Online::GUESSES) {
                    named_barrier_arrive<2 * WARPGROUP>(1 + (consumer + 1) % CONSUMERS);
                }
                wgmma_wait_group<1>(s);
                release(&empty[k]);
                unsigned next_p[BLOCK_N / 4];
                bool guessed = false;
                if constexpr (Online::GUESSES) guessed = softmax.guess(next_p, s, n * BLOCK_N, unmasked);
                if (!guessed) softmax.update(s, n * BLOCK_N, unmasked);
                if (Online::GUESSES && !guessed) round_p<T>(next_p, s);
                const int v_next = next_stage();
                wgmma_wait_group<0>(o);
                release(&empty[v]);
                v = v_next;
                softmax.rescale(o);
                if constexpr (Online::GUESSES) {
#pragma unroll
                    for (int i = 0; i < BLOCK_N / 4; ++i) {
                        asm volatile("" : "+r"(p[i])::"memory");  // what wgmma has read: no move before
                        p[i] = next_p[i];
                    }
                } else {
                    round_p<T>(p, s);
                }
            }
            release(&q_empty[q_stage]);
            multiply_pv<T>(o, p, stages + v * BYTES);
            wgmma_wait_group<0>(o);
            release(&empty[v]);
            if (!next_tile_of_q()) return softmax.finish(o, o_ptr, lse_ptr, Hq);
            start();
            softmax.finish(o, o_ptr, lse_ptr, Hq);  // while the next tile's first product runs
            wgmma_wait_group<0>(s);
        }
    }
}

#endif  // HAS_WGMMA_LEVELS

// Grid: persistent.
template <typename T, int D, int CONSUMERS, int BLOCK_N, int STAGES>
__global__ __launch_bounds__((1 + CONSUMERS) * WARPGROUP, 1) void attention_persistent_kernel(
    const __grid_constant__ TensorMap q_map, const __grid_constant__ TensorMap k_map,
    const __grid_constant__ TensorMap v_map, T* o_ptr, float* lse_ptr, unsigned long long* next_tile, int B,
    int Sq, int Skv, int Hq, int Hk, int causal) {
#if HAS_WGMMA_LEVELS
    attend_persistently<T, D, CONSUMERS, BLOCK_N, STAGES, Softmax<T, D>>(
        q_map, k_map, v_map, o_ptr, lse_ptr, next_tile, B, Sq, Skv, Hq, Hk, causal);
#endif
}
