// attention_backward, level 5, overlapped. Change: a tile's product for dq runs one tile later, under the
// exponentials of the next one, and no consumer waits for the other's ds of this tile. Tiles have 80 queries
// (128 with D = 64): wgmma's operands in shared memory limit level 4, and more queries read k and v less
// often. Blocks are persistent: the next keys arrive while dk and dv are stored. With a causal mask, keys
// with the most tiles come first. A vectorized kernel computes delta and zeroes dq's sums.
#pragma once

#include "attention_backward/04_wgmma.cuh"

// p is rounded 2^12 times as large: fp16 holds numbers below 2^-14 with fewer digits, and ds is computed from
// the rounded p. lse2 is smaller by 12, and what p is multiplied with is scaled back: it costs nothing.
constexpr float P_EXPONENT = 12, P_SCALE = 4096;

// delta and lse2 as attention_backward_delta_kernel, but for p's scale, and zeros for dq's sums and the count
// of taken keys. Grid: D / 8 threads a row, each with 16 bytes of o and do.
template <typename T, int D, int THREADS>
__global__ __launch_bounds__(THREADS) void attention_backward_prepare_kernel(
    const T* o_ptr, const T* do_ptr, const float* lse_ptr, float* delta_ptr, float* lse2_ptr, float* dq_ptr,
    int* taken, index_t rows, Problem p) {
    constexpr int LANES = D / 8;
    const index_t thread = index_t(blockIdx.x) * THREADS + threadIdx.x;
    if (thread == 0) *taken = 0;
    const unsigned row = thread / LANES;
    if (row >= rows) return;  // whole warps: rows are a multiple of 16
    const unsigned head = row / p.pitch, i = row % p.pitch;
    float sum = 0, lse = negative_infinity();
    if (i < unsigned(p.Sq)) {
        const int batch = head / p.Hq, h = head % p.Hq, d = threadIdx.x % LANES * 8;
        const Vec<T, 8> o = load_vec<8>(head_of(o_ptr, p.o, batch, h) + i * p.o.s + d);
        const Vec<T, 8> d_o = load_vec<8>(head_of(do_ptr, p.d_o, batch, h) + i * p.d_o.s + d);
        lse = lse_ptr[index_t(head) * p.Sq + i];
#pragma unroll
        for (int j = 0; j < 8; ++j) sum += to_float(d_o, j) * to_float(o, j);
    }
    float4* zeros = reinterpret_cast<float4*>(dq_ptr) + (thread / WARP * (2 * WARP) + thread % WARP);
    zeros[0] = zeros[WARP] = make_float4(0, 0, 0, 0);
    sum = warp_reduce<Sum, LANES>(sum);
    if (threadIdx.x % LANES > 0) return;
    delta_ptr[row] = sum / P_SCALE;
    lse2_ptr[row] = lse == negative_infinity() ? -lse : lse * LOG2_E - P_EXPONENT;
}

#if HAS_WGMMA_LEVELS

template <int D, int BLOCK_M_>
struct OverlappedTiles {
    static constexpr int BLOCK_M = BLOCK_M_, BLOCK_N = 128;
    // Of a consumer's part of dq, 64 of D by as many queries: half of D, or half of the queries.
    static constexpr int DQ_M = D == 128 ? BLOCK_M : BLOCK_M / 2;

    unsigned char k[BLOCK_N * D * 2], v[BLOCK_N * D * 2];
    struct Stage {
        unsigned char q[BLOCK_M * D * 2], d_o[BLOCK_M * D * 2];
    } stages[STAGES];
    unsigned char ds[2][2][BLOCK_M * LINE_BYTES];  // two tiles; a piece of 64 keys per consumer
    float dq[2][DQ_M * 64];                        // of each consumer
    float lse2[STAGES][BLOCK_M], delta[STAGES][BLOCK_M];
    mbarrier_t keys_full, keys_empty, full[STAGES], empty[STAGES], ds_full[2];
    int taken;  // which keys; valid while k and v are

    // Named barriers of each consumer and its warp for dq.
    static constexpr int DQ_FULL = 1, DQ_EMPTY = 3, DQ_THREADS = WARPGROUP + WARP, CONSUMERS = 2;

    __device__ __forceinline__ void init_barriers() {
        mbarrier_init(&keys_full, 1);
        mbarrier_init(&keys_empty, CONSUMERS * (WARPGROUP + WARP));
        for (int stage = 0; stage < STAGES; ++stage) {
            mbarrier_init(&full[stage], 1);
            mbarrier_init(&empty[stage], CONSUMERS * WARPGROUP);
        }
        for (int buffer = 0; buffer < 2; ++buffer) {
            mbarrier_init(&ds_full[buffer], CONSUMERS * WARPGROUP / WARP);
        }
        mbarrier_init_fence();
    }
    __device__ __forceinline__ int wait_for_keys(unsigned parity) {
        mbarrier_wait(&keys_full, parity);
        return __shfl_sync(FULL_WARP, taken, 0);
    }
};

// dq[64 of D, queries] = k^T ds^T over 128 keys. Lines of k are keys: the left operand is read transposed.
// Lines of ds are queries, a piece is 64 keys.
template <typename T, int PIECE_ROWS, int COUNT>
__device__ __forceinline__ void multiply_keys(float (&dq)[COUNT], unsigned k, unsigned ds) {
    const matrix_t k_first = descriptor_at(k, 0), ds_first = descriptor_at(ds, 0);
    wgmma_fence();
#pragma unroll
    for (int n = 0; n < 128; n += 16) {
        wgmma<T, true, false>(
            dq, k_first + (n * LINE_BYTES >> 4),
            ds_first + ((n / 64 * PIECE_ROWS * LINE_BYTES + n % 64 * 2) >> 4), n > 0);
    }
    wgmma_commit_group();
}

// As store_gradient, in 16-byte vectors: the four lanes of a row exchange their pairs.
template <int D, typename T>
__device__ __forceinline__ void store_vectors(
    T* head, index_t stride_s, int row, int end, float factor, const float (&sums)[D / 2]) {
    const int lane = threadIdx.x % WARP;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int own = row + half * 8 + lane / 4;
        unsigned words[D / 8];
#pragma unroll
        for (int n = 0; n < D / 8; ++n) {
            const float* two = sums + n * 4 + half * 2;
            words[n] = to_x2<T>(factor * two[0], factor * two[1]);
        }
#pragma unroll
        for (int n = 0; n < D / 8; n += 4) transpose_4x4(words + n);
        if (own >= end) continue;
        uint4* vectors = reinterpret_cast<uint4*>(head + own * stride_s);
#pragma unroll
        for (int n = 0; n < D / 8; n += 4) {
            vectors[n + lane % 4] = make_uint4(words[n], words[n + 1], words[n + 2], words[n + 3]);
        }
    }
}

// A block's keys, and the tiles of queries that it loops over: of each head that shares the key head, from
// the first tile that sees a key. There is at least one: the last query sees all keys.
template <int BLOCK_M>
struct Loop {
    int first_key, kv_head, batch, head, end_head, tile, first_tile, end_tile;

    // The order of blocks. Causal: by section of 16 heads, and in it from the first keys, which most queries
    // see; else by head.
    __device__ __forceinline__ Loop(int block, int blocks, int heads, const Problem& p) {
        const int most = p.diagonal < p.Skv ? 16 : 1, section = block / (most * blocks) * most;
        const int in_section = block % (most * blocks), width = min(most, heads - section);
        const int batch_head = section + in_section % width;
        first_key = in_section / width * 128;
        kv_head = batch_head % p.Hk, batch = batch_head / p.Hk;
        head = kv_head * (p.Hq / p.Hk), end_head = head + p.Hq / p.Hk;
        tile = first_tile = max(first_key - p.diagonal, 0) / BLOCK_M, end_tile = p.pitch / BLOCK_M;
    }
    __device__ __forceinline__ int tiles() const { return (end_tile - first_tile) * (end_head - head); }
    __device__ __forceinline__ bool more() const { return head < end_head; }
    __device__ __forceinline__ void advance() {
        if (++tile == end_tile) tile = first_tile, ++head;
    }
};

// One thread of the producer warp: k and v of each block of keys, then its tiles of queries.
template <int D, int BLOCK_M>
__device__ __forceinline__ void load_tiles(
    OverlappedTiles<D, BLOCK_M>& shared, const TensorMap& q_map, const TensorMap& k_map,
    const TensorMap& v_map, const TensorMap& do_map, const float* lse2_ptr, const float* delta_ptr, int* next,
    int blocks, int heads, const Problem& p) {
    Ring<STAGES> ring;
    for (unsigned parity = 0;; parity ^= 1) {
        const int block = atomicAdd(next, 1);
        mbarrier_wait(&shared.keys_empty, parity ^ 1);
        shared.taken = block;
        if (block >= blocks * heads) return mbarrier_arrive(&shared.keys_full);
        Loop<BLOCK_M> loop(block, blocks, heads, p);
        mbarrier_arrive_expect_bytes(&shared.keys_full, sizeof(shared.k) + sizeof(shared.v));
        head_copy_to_shared(shared.k, &k_map, loop.first_key, loop.kv_head, loop.batch, &shared.keys_full);
        head_copy_to_shared(shared.v, &v_map, loop.first_key, loop.kv_head, loop.batch, &shared.keys_full);
#pragma unroll 1
        for (; loop.more(); loop.advance(), ring.advance()) {
            const int first_query = loop.tile * BLOCK_M;
            const int row = (loop.batch * p.Hq + loop.head) * p.pitch + first_query;
            auto& tile = shared.stages[ring.stage];
            mbarrier_t* full = &shared.full[ring.stage];
            mbarrier_wait(&shared.empty[ring.stage], ring.parity ^ 1);  // at first all are empty
            mbarrier_arrive_expect_bytes(full, sizeof(tile) + 2 * BLOCK_M * sizeof(float));
            head_copy_to_shared(tile.q, &q_map, first_query, loop.head, loop.batch, full);
            bulk_copy_to_shared(shared.lse2[ring.stage], lse2_ptr + row, BLOCK_M * sizeof(float), full);
            head_copy_to_shared(tile.d_o, &do_map, first_query, loop.head, loop.batch, full);
            bulk_copy_to_shared(shared.delta[ring.stage], delta_ptr + row, BLOCK_M * sizeof(float), full);
        }
    }
}

// A warp per consumer: adds the consumer's part of each tile of dQ to memory, so that the consumer does not
// wait until TMA has read it.
template <int D, int BLOCK_M>
__device__ __forceinline__ void add_dq_to_memory(
    OverlappedTiles<D, BLOCK_M>& shared, int consumer, float* dq_ptr, int blocks, int heads,
    const Problem& p) {
    using Shared = OverlappedTiles<D, BLOCK_M>;
    const int end = blocks * heads, lane = threadIdx.x % WARP;
    named_barrier_arrive<Shared::DQ_THREADS>(Shared::DQ_EMPTY + consumer);
    unsigned parity = 0;
    for (int block = shared.wait_for_keys(parity); block < end; block = shared.wait_for_keys(parity ^= 1)) {
        Loop<BLOCK_M> loop(block, blocks, heads, p);
#pragma unroll 1
        for (; loop.more(); loop.advance()) {
            const int tile = (loop.batch * p.Hq + loop.head) * loop.end_tile + loop.tile;
            named_barrier_sync<Shared::DQ_THREADS>(Shared::DQ_FULL + consumer);
            bulk_add_to_global_if(
                lane == 0, dq_ptr + index_t(tile * 2 + consumer) * (Shared::DQ_M * 64), shared.dq[consumer],
                sizeof(shared.dq[0]));
            bulk_commit_group();
            bulk_wait_group_read<0>();
            __syncwarp();
            named_barrier_arrive<Shared::DQ_THREADS>(Shared::DQ_EMPTY + consumer);
        }
        mbarrier_arrive(&shared.keys_empty);
    }
}

// A consumer warpgroup: 64 of the block's 128 keys, and half of each tile of dQ. Scores are transposed, keys
// by queries: P^T and dS^T are then left operands in registers. Iteration t, from left to right: "=" is a
// product (wgmma), "-" is work of the threads, and each bar names its tile of queries.
//
//                                 first_half            second_half
//   S^T  = K Q^T               .                     .                        ==t+1==
//   P^T  = exp2(S^T - lse2)    .  ---t---            .
//   dV  += P^T dO              .           ====t==== .
//   dP^T = V dO^T              .                     .  ==t==
//   dS^T = P^T (dP^T - delta)  .                     .         ---t---
//   dK  += dS^T Q              .                     .                  ==t==
//   dQ^T = K^T dS^T            .  ==t-1==  --store-- .
template <typename T, int D, int BLOCK_M>
struct Consumer {
    using Shared = OverlappedTiles<D, BLOCK_M>;
    static constexpr int BLOCK_N = Shared::BLOCK_N, DQ_M = Shared::DQ_M;

    Shared& shared;
    const Problem& p;
    const int index, warp = threadIdx.x % WARPGROUP / WARP, lane = threadIdx.x % WARP;
    const int first_row = index * 64 + warp * 16;  // of the warp's keys in the block's
    Ring<STAGES> ring;
    Ring<2> ds_ring;

    float dk[D / 2], dv[D / 2];     // sums over the tiles of a block of keys
    float s_or_p[BLOCK_M / 2];      // S^T, then P^T in place
    unsigned p_or_ds[BLOCK_M / 4];  // 16-bit operand: P^T for dV, then dS^T for dK

    __device__ __forceinline__ Consumer(Shared& shared, const Problem& p, int index)
        : shared(shared), p(p), index(index) {}

    // Addresses in shared memory.
    __device__ __forceinline__ unsigned q(int stage) const {
        return shared_address(shared.stages[0].q) + stage * unsigned(sizeof(shared.stages[0]));
    }
    __device__ __forceinline__ unsigned d_o(int stage) const { return q(stage) + BLOCK_M * D * 2; }
    __device__ __forceinline__ unsigned rows_of(const unsigned char* keys) const {
        return shared_address(keys) + index * 64 * LINE_BYTES;
    }

    // The stage of the next tile, when it has arrived.
    __device__ __forceinline__ int wait_for_tile() {
        const int stage = __shfl_sync(FULL_WARP, ring.stage, 0);  // uniform: so are wgmma's descriptors
        mbarrier_wait(&shared.full[stage], ring.parity);
        ring.advance();
        return stage;
    }
    // All threads: an arrival releases a thread's own reads, and each has read lse2 and delta.
    __device__ __forceinline__ void release(int stage) { mbarrier_arrive(&shared.empty[stage]); }

    __device__ __forceinline__ void start_s(int stage) {
        multiply_lines<T, D, BLOCK_N, BLOCK_M>(s_or_p, rows_of(shared.k), q(stage));
    }
    __device__ __forceinline__ void start_dv(int stage) {
        round_sums<T>(p_or_ds, s_or_p);
        add_product<T, BLOCK_M>(dv, p_or_ds, d_o(stage));
    }
    __device__ __forceinline__ void start_dk(int stage) { add_product<T, BLOCK_M>(dk, p_or_ds, q(stage)); }

    // When both consumers have written dS of their keys. A consumer has 64 of D, or half of the queries.
    __device__ __forceinline__ void start_dq(float (&dq)[DQ_M / 2]) {
        const unsigned k = shared_address(shared.k) + (D == 128 ? index * BLOCK_N * LINE_BYTES : 0);
        const unsigned ds = shared_address(shared.ds) + (D == 128 ? 0 : index * DQ_M * LINE_BYTES);
        mbarrier_wait(&shared.ds_full[ds_ring.stage], ds_ring.parity);
        multiply_keys<T, BLOCK_M>(dq, k, ds + ds_ring.stage * unsigned(sizeof(shared.ds[0])));
        ds_ring.advance();
    }

    __device__ __forceinline__ void make_p(int stage, const Loop<BLOCK_M>& loop) {
        const int pair = lane % 4 * 2;
        const float* lse2 = shared.lse2[stage] + pair;
#pragma unroll
        for (int i = 0; i < BLOCK_M / 2; i += 4) {
            const float2 two = *reinterpret_cast<const float2*>(lse2 + i * 2);
#pragma unroll
            for (int j = i; j < i + 4; ++j) {
                s_or_p[j] = exp2f(s_or_p[j] * (p.scale * LOG2_E) - (j % 2 == 0 ? two.x : two.y));
            }
        }
        const int first_query = loop.tile * BLOCK_M;
        if (loop.first_key + BLOCK_N > min(p.Skv, first_query + p.diagonal + 1)) {
            const int key = loop.first_key + first_row + lane / 4;  // and the one 8 further
#pragma unroll
            for (int i = 0; i < BLOCK_M / 2; ++i) {
                const int keys = min(p.Skv, first_query + i / 4 * 8 + pair + i % 2 + p.diagonal + 1);
                if (key + i / 2 % 2 * 8 >= keys) s_or_p[i] = 0;
            }
        }
    }

    // dS^T, in registers and in shared memory, there with queries as lines. P is read back from its rounded
    // operand: there are no registers for both.
    __device__ __forceinline__ void make_ds(const float (&dp)[BLOCK_M / 2], int stage) {
        const float* delta = shared.delta[stage] + lane % 4 * 2;
#pragma unroll
        for (int i = 0; i < BLOCK_M / 4; i += 2) {
            const float2 two = *reinterpret_cast<const float2*>(delta + i * 4);
#pragma unroll
            for (int j = i; j < i + 2; ++j) {
                const float2 prob = from_x2<T>(p_or_ds[j]);
                p_or_ds[j] = to_x2<T>(
                    prob.x * (dp[2 * j] * (1 / P_SCALE) - two.x),
                    prob.y * (dp[2 * j + 1] * (1 / P_SCALE) - two.y));
            }
        }
        unsigned char* lines = shared.ds[ds_ring.stage][index];
#pragma unroll
        for (int n = 0; n < BLOCK_M / 16; ++n) {
            const int line = n * 16 + lane / 16 * 8 + lane % 8, vector = (2 * warp + lane / 8 % 2) ^ line % 8;
            stmatrix_x4_trans(
                lines + line * LINE_BYTES + vector * 16, p_or_ds[4 * n], p_or_ds[4 * n + 1],
                p_or_ds[4 * n + 2], p_or_ds[4 * n + 3]);
        }
        fence_proxy_async();
        __syncwarp();
        if (lane == 0) mbarrier_arrive(&shared.ds_full[ds_ring.stage]);
    }

    // A thread's sums side by side, 16 bytes at a time: bank-conflict-free, and one bulk reduction.
    __device__ __forceinline__ void store_dq(const float (&dq)[DQ_M / 2]) {
        float* sums = shared.dq[index] + threadIdx.x % WARPGROUP * 4;
        named_barrier_sync<Shared::DQ_THREADS>(Shared::DQ_EMPTY + index);
#pragma unroll
        for (int i = 0; i < DQ_M / 2; i += 4) {
            *reinterpret_cast<float4*>(sums + i * WARPGROUP) =
                make_float4(dq[i], dq[i + 1], dq[i + 2], dq[i + 3]);
        }
        fence_proxy_async();
        named_barrier_arrive<Shared::DQ_THREADS>(Shared::DQ_FULL + index);
    }

    // dP and dQ are local, so that they get the same registers: 240 do not hold both.
    __device__ __forceinline__ void first_half(int stage, const Loop<BLOCK_M>& loop) {
        float dq[DQ_M / 2];
        start_dq(dq);
        make_p(stage, loop);
        start_dv(stage);
        wgmma_wait_group<1>(dq);
        store_dq(dq);
    }
    __device__ __forceinline__ void dp_to_dk(int stage) {
        float dp[BLOCK_M / 2];
        multiply_lines<T, D, BLOCK_N, BLOCK_M>(dp, rows_of(shared.v), d_o(stage));
        wgmma_wait_group<0>(dp);
        make_ds(dp, stage);
        start_dk(stage);
    }
    // Returns the stage of tile t + 1.
    __device__ __forceinline__ int second_half(int stage) {
        dp_to_dk(stage);
        const int next = wait_for_tile();
        start_s(next);
        wgmma_wait_group<0>(s_or_p);
        release(stage);
        return next;
    }
    __device__ __forceinline__ void last_dq() {
        float dq[DQ_M / 2];
        start_dq(dq);
        wgmma_wait_group<0>(dq);
        store_dq(dq);
    }

    __device__ __forceinline__ void clear_gradients() {
#pragma unroll
        for (int i = 0; i < D / 2; ++i) dk[i] = dv[i] = 0;
    }
    __device__ __forceinline__ void store_gradients(const Loop<BLOCK_M>& loop, T* dk_ptr, T* dv_ptr) const {
        const index_t head = (index_t(loop.batch) * p.Skv * p.Hk + loop.kv_head) * D;
        const index_t stride_s = index_t(p.Hk) * D;
        const int row = loop.first_key + first_row;
        store_vectors<D>(dk_ptr + head, stride_s, row, p.Skv, p.scale, dk);
        store_vectors<D>(dv_ptr + head, stride_s, row, p.Skv, 1 / P_SCALE, dv);
    }
};

#endif  // HAS_WGMMA_LEVELS

// Grid: persistent. A block takes 128 keys of a key head after another; next, 0 at first, counts those
// taken. Warpgroup 0: a warp loads tiles, and one per consumer adds its part of dq to memory.
template <typename T, int D, int BLOCK_M>
__global__ __launch_bounds__(3 * WARPGROUP, 1) void attention_backward_overlapped_kernel(
    const __grid_constant__ TensorMap q_map, const __grid_constant__ TensorMap k_map,
    const __grid_constant__ TensorMap v_map, const __grid_constant__ TensorMap do_map, const float* lse2_ptr,
    const float* delta_ptr, float* dq_ptr, T* dk_ptr, T* dv_ptr, int* next, int heads, Problem p) {
#if HAS_WGMMA_LEVELS
    using Shared = OverlappedTiles<D, BLOCK_M>;
    DYNAMIC_SHARED(unsigned char, bytes);
    Shared& shared = *reinterpret_cast<Shared*>(bytes + (-shared_address(bytes) & 1023));
    if (threadIdx.x == 0) shared.init_barriers();
    __syncthreads();

    // Computed in the producer, which has 24 registers, it would be spilled (nvcc).
    const int blocks = (p.Skv + Shared::BLOCK_N - 1) / Shared::BLOCK_N;
    const int warp_of_block = __shfl_sync(FULL_WARP, threadIdx.x / WARP, 0);
    if (warp_of_block < 4) {
        setmaxnreg_dec<24>();
        if (threadIdx.x == 0) {
            load_tiles(shared, q_map, k_map, v_map, do_map, lse2_ptr, delta_ptr, next, blocks, heads, p);
        } else if (warp_of_block == 1 || warp_of_block == 2) {
            add_dq_to_memory(shared, warp_of_block - 1, dq_ptr, blocks, heads, p);
        }
        return;
    }

    setmaxnreg_inc<240>();
    const int end = blocks * heads;
    Consumer<T, D, BLOCK_M> consumer(shared, p, warp_of_block / 4 - 1);
    unsigned parity = 0;
    for (int block = shared.wait_for_keys(parity); block < end; block = shared.wait_for_keys(parity ^= 1)) {
        Loop<BLOCK_M> loop(block, blocks, heads, p);
        const int tiles = loop.tiles();
        consumer.clear_gradients();

        // Begin: the first tile has no dQ before it.
        int stage = consumer.wait_for_tile();
        consumer.start_s(stage);
        wgmma_wait_group<0>(consumer.s_or_p);
        consumer.make_p(stage, loop);
        consumer.start_dv(stage);

        // Middle. No wgmma is in flight where the loop repeats: ptxas would serialize them.
        if (tiles > 1) {
            stage = consumer.second_half(stage);
            for (int t = 1; t < tiles - 1; ++t) {
                loop.advance();
                consumer.first_half(stage, loop);
                stage = consumer.second_half(stage);
            }
            loop.advance();
            consumer.first_half(stage, loop);
        }

        // End: the last tile has no S after it.
        consumer.dp_to_dk(stage);
        wgmma_wait_group<0>(consumer.dk);
        consumer.release(stage);
        consumer.last_dq();
        mbarrier_arrive(&shared.keys_empty);
        consumer.store_gradients(loop, dk_ptr, dv_ptr);
    }
#endif
}

// dq = scale * sum, rounded once, from sums in the order of a warpgroup's registers: 64 of D by DQ_M queries.
// Through shared memory, so that rows of dq are written in 16-byte vectors. Grid: a block of a warpgroup per
// part of dq that a consumer has added.
template <typename T, int D, int BLOCK_M>
__global__ __launch_bounds__(WARPGROUP) void attention_backward_transpose_kernel(
    const float* sum_ptr, T* dq_ptr, Problem p) {
    constexpr int DQ_M = D == 128 ? BLOCK_M : BLOCK_M / 2, PITCH = 64 + 8;
    __shared__ __align__(16) T rows[DQ_M * PITCH];
    const int tiles = p.pitch / BLOCK_M, part = blockIdx.x % 2, tile = blockIdx.x / 2 % tiles;
    const index_t head = blockIdx.x / 2 / tiles;  // of all batches
    const float4* sums = reinterpret_cast<const float4*>(sum_ptr + index_t(blockIdx.x) * (64 * DQ_M));
    const int lane = threadIdx.x % WARP, d = threadIdx.x / WARP * 16 + lane / 4;
#pragma unroll
    for (int i = 0; i < DQ_M / 8; ++i) {
        const float4 sum = sums[i * WARPGROUP + threadIdx.x];
        T* to = rows + (i * 8 + lane % 4 * 2) * PITCH + d;
        to[0] = T(p.scale * sum.x), to[PITCH] = T(p.scale * sum.y);
        to[8] = T(p.scale * sum.z), to[PITCH + 8] = T(p.scale * sum.w);
    }
    __syncthreads();
    const int first_query = tile * BLOCK_M + (D == 128 ? 0 : part * DQ_M);
    for (int i = threadIdx.x / 8; i < DQ_M; i += WARPGROUP / 8) {
        if (first_query + i >= p.Sq) break;
        const index_t row = (head / p.Hq * p.Sq + first_query + i) * p.Hq + head % p.Hq;
        const int vector = threadIdx.x % 8 * 8;
        T* to = dq_ptr + row * D + (D == 128 ? part * 64 : 0) + vector;
        *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(rows + i * PITCH + vector);
    }
}
