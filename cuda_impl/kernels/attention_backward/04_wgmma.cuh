// attention_backward, level 4, wgmma. Change: Hopper's units. A producer warp loads tiles by TMA, two
// consumer warpgroups multiply them with wgmma, asynchronously: the exponentials of a tile overlap with the
// product do v^T, its sums of dq with the next scores. dq's tiles are added to memory by TMA (bulk
// reduction), in an order of elements that suits it; another kernel puts them in place. 16-bit elements,
// sm_90a.
#pragma once

#include "attention/hopper_ptx.cuh"
#include "attention_backward/hopper_ptx.cuh"
#include "attention_backward/rows.cuh"
#include "ring.cuh"

#if HAS_WGMMA_LEVELS

// A tile in shared memory: pieces of 64 elements of D, a row a line of 128 bytes, as TMA writes them
// (128-byte swizzle).
constexpr int PIECE_D = 64, STAGES = 2;

template <int D>
struct SharedTiles {
    static constexpr int BLOCK_M = 64, BLOCK_N = 128;

    unsigned char k[BLOCK_N * D * 2], v[BLOCK_N * D * 2];
    struct Stage {
        unsigned char q[BLOCK_M * D * 2], d_o[BLOCK_M * D * 2];
    } stages[STAGES];
    unsigned char ds[2][BLOCK_N * BLOCK_M * 2];  // a line a key
    float dq[2][BLOCK_M * D / 2];                // of each consumer
    float lse2[STAGES][BLOCK_M], delta[STAGES][BLOCK_M];
    mbarrier_t keys, full[STAGES], empty[STAGES];
};

// d = a[64,D] b[COLUMNS,D]^T, both from shared memory: a piece is A_ROWS (B_ROWS) lines.
template <typename T, int D, int A_ROWS, int B_ROWS, int COUNT>
__device__ __forceinline__ void multiply_lines(float (&d)[COUNT], unsigned a, unsigned b) {
    asm volatile("" : "+r"(a));  // hides that a stays the same: eight descriptors in registers would spill
    const matrix_t a_first = descriptor_at(a, 0), b_first = descriptor_at(b, 0);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < D; k += 16) {
        const int piece = k / PIECE_D, in_line = k % PIECE_D * 2;
        wgmma<T, false, false>(
            d, a_first + ((piece * A_ROWS * LINE_BYTES + in_line) >> 4),
            b_first + ((piece * B_ROWS * LINE_BYTES + in_line) >> 4), k > 0);
    }
    wgmma_commit_group();
}

// d[64,D] += a[64,ROWS] b[ROWS,D], a from registers.
template <typename T, int ROWS, int COUNT>
__device__ __forceinline__ void add_product(float (&d)[COUNT], const unsigned (&a)[ROWS / 4], unsigned b) {
    const matrix_t b_first = descriptor_at(b, ROWS * LINE_BYTES);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < ROWS; k += 16) {
        wgmma_from_registers<T>(d, a + k / 4, b_first + (k * LINE_BYTES >> 4));
    }
    wgmma_commit_group();
}

template <typename T, int COUNT>
__device__ __forceinline__ void round_sums(unsigned (&a)[COUNT / 2], const float (&d)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT / 2; ++i) a[i] = to_x2<T>(d[2 * i], d[2 * i + 1]);
}

// Stores a warp's factor * sums[16,D] to rows of a gradient from `row` on, those before `end`.
template <int D, typename T>
__device__ __forceinline__ void store_gradient(
    T* head, index_t stride_s, int row, int end, float factor, const float (&sums)[D / 2]) {
    const int lane = threadIdx.x % WARP;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int own = row + half * 8 + lane / 4;
        if (own >= end) continue;
        unsigned* pairs = reinterpret_cast<unsigned*>(head + own * stride_s);
#pragma unroll
        for (int n = 0; n < D / 8; ++n) {
            const float* two = sums + n * 4 + half * 2;
            pairs[n * 4 + lane % 4] = to_x2<T>(factor * two[0], factor * two[1]);
        }
    }
}

#endif  // HAS_WGMMA_LEVELS

// Grid: a block per 128 keys of a key head. A consumer has 64 of them, and half of D of each tile of dq.
template <typename T, int D>
__global__ __launch_bounds__(3 * WARPGROUP, 1) void attention_backward_wgmma_kernel(
    const __grid_constant__ TensorMap q_map, const __grid_constant__ TensorMap k_map,
    const __grid_constant__ TensorMap v_map, const __grid_constant__ TensorMap do_map, const float* lse2_ptr,
    const float* delta_ptr, float* dq_ptr, T* dk_ptr, T* dv_ptr, Problem p) {
#if HAS_WGMMA_LEVELS
    using Shared = SharedTiles<D>;
    constexpr int BLOCK_M = Shared::BLOCK_M, BLOCK_N = Shared::BLOCK_N, CONSUMERS = 2;
    DYNAMIC_SHARED(unsigned char, bytes);
    // The 128-byte swizzle repeats every 1024 bytes and needs that alignment.
    Shared& shared = *reinterpret_cast<Shared*>(align_1024(bytes));
    const int blocks = (p.Skv + BLOCK_N - 1) / BLOCK_N, first_key = blockIdx.x % blocks * BLOCK_N;
    const int kv_head = blockIdx.x / blocks % p.Hk, batch = blockIdx.x / blocks / p.Hk;
    if (threadIdx.x == 0) {
        mbarrier_init(&shared.keys, 1);
        for (int stage = 0; stage < STAGES; ++stage) {
            mbarrier_init(&shared.full[stage], 1);
            mbarrier_init(&shared.empty[stage], CONSUMERS * WARPGROUP);
        }
        mbarrier_init_fence();
    }
    __syncthreads();

    // Tiles of BLOCK_M queries of each head that shares the key head, from the first that sees a key.
    const int first_tile = max(first_key - p.diagonal, 0) / BLOCK_M,
              end_tile = (p.Sq + BLOCK_M - 1) / BLOCK_M;
    const int end_head = (kv_head + 1) * (p.Hq / p.Hk);
    int head = kv_head * (p.Hq / p.Hk), tile = first_tile, stage = 0;
    unsigned parity = 0;
    const auto advance = [&] {
        if (++tile == end_tile) tile = first_tile, ++head;
        stage ^= 1;
        parity ^= stage == 0;
    };
    if (threadIdx.x < WARPGROUP) {
        setmaxnreg_dec<24>();
        if (threadIdx.x > 0) return;
        mbarrier_arrive_expect_bytes(&shared.keys, sizeof(shared.k) + sizeof(shared.v));
        head_copy_to_shared(shared.k, &k_map, first_key, kv_head, batch, &shared.keys);
        head_copy_to_shared(shared.v, &v_map, first_key, kv_head, batch, &shared.keys);
        for (; head < end_head; advance()) {
            const int row = (batch * p.Hq + head) * p.pitch + tile * BLOCK_M;
            mbarrier_t* full = &shared.full[stage];
            mbarrier_wait(&shared.empty[stage], parity ^ 1);  // in the first round all stages are empty
            mbarrier_arrive_expect_bytes(full, sizeof(shared.stages[0]) + 2 * BLOCK_M * sizeof(float));
            head_copy_to_shared(shared.stages[stage].q, &q_map, tile * BLOCK_M, head, batch, full);
            head_copy_to_shared(shared.stages[stage].d_o, &do_map, tile * BLOCK_M, head, batch, full);
            bulk_copy_to_shared(shared.lse2[stage], lse2_ptr + row, BLOCK_M * sizeof(float), full);
            bulk_copy_to_shared(shared.delta[stage], delta_ptr + row, BLOCK_M * sizeof(float), full);
        }
        return;
    }

    setmaxnreg_inc<240>();
    const int consumer = threadIdx.x / WARPGROUP - 1, thread = threadIdx.x % WARPGROUP;
    const int lane = threadIdx.x % WARP, own = consumer * 64 + thread / WARP * 16, pair = lane % 4 * 2;
    // Addresses in shared memory. A consumer's half of D is a piece of k, or half of a piece.
    const unsigned k_lines = shared_address(shared.k) + consumer * 64 * LINE_BYTES;
    const unsigned v_lines = shared_address(shared.v) + consumer * 64 * LINE_BYTES;
    const unsigned k_half =
        shared_address(shared.k) + consumer * (D == 128 ? BLOCK_N * LINE_BYTES : LINE_BYTES / 2);
    const auto q_at = [&] {
        return shared_address(shared.stages[0].q) + stage * unsigned(sizeof(shared.stages[0]));
    };
    const auto do_at = [&] { return q_at() + unsigned(sizeof(shared.stages[0].q)); };

    float dk[D / 2], dv[D / 2], s[BLOCK_M / 2], ds[BLOCK_M / 2], dq[D / 4];
#pragma unroll
    for (int i = 0; i < D / 2; ++i) dk[i] = dv[i] = 0;
    // Starts the scores of a tile, transposed: keys by queries.
    const auto start_scores = [&] { multiply_lines<T, D, BLOCK_N, BLOCK_M>(s, k_lines, q_at()); };
    // Starts v do^T, and makes p of the scores meanwhile.
    const auto finish_scores = [&] {
        multiply_lines<T, D, BLOCK_N, BLOCK_M>(ds, v_lines, do_at());
        wgmma_wait_group<1>(s);
        const float* lse2 = shared.lse2[stage] + pair;
#pragma unroll
        for (int i = 0; i < BLOCK_M / 2; ++i) {
            s[i] = exp2f(s[i] * (p.scale * LOG2_E) - lse2[i / 4 * 8 + i % 2]);
        }
        if (first_key + BLOCK_N > min(p.Skv, tile * BLOCK_M + p.diagonal + 1)) {
            const int key = first_key + own + lane / 4;  // and the one 8 further
#pragma unroll
            for (int i = 0; i < BLOCK_M / 2; ++i) {
                const int keys = min(p.Skv, tile * BLOCK_M + i / 4 * 8 + pair + i % 2 + p.diagonal + 1);
                if (key + i / 2 % 2 * 8 >= keys) s[i] = 0;
            }
        }
        wgmma_wait_group<0>(ds);
    };
    // Adds dq to global memory, a thread's sums side by side, 16 bytes at a time: bank-conflict-free, and one
    // bulk reduction. No branch: one between the start of wgmma and the wait for a part of it serializes
    // wgmma.
    const auto add_dq = [&](float* to) {
        bulk_wait_group_read<0>();
        named_barrier_sync<WARPGROUP>(2 + consumer);  // the tile before has been read
#pragma unroll
        for (int i = 0; i < D / 4; i += 4) {
            *reinterpret_cast<float4*>(shared.dq[consumer] + (i / 4 * WARPGROUP + thread) * 4) =
                make_float4(dq[i], dq[i + 1], dq[i + 2], dq[i + 3]);
        }
        fence_proxy_async();
        named_barrier_sync<WARPGROUP>(2 + consumer);
        bulk_add_to_global_if(thread == 0, to, shared.dq[consumer], sizeof(shared.dq[0]));
        bulk_commit_group();
    };
    mbarrier_wait(&shared.keys, 0);
    mbarrier_wait(&shared.full[0], 0);
    start_scores();
    finish_scores();
    float* to;  // where this tile of dq is
    for (int buffer = 0;; buffer ^= 1) {
        unsigned left[BLOCK_M / 4], left_ds[BLOCK_M / 4];
        round_sums<T>(left, s);
        add_product<T, BLOCK_M>(dv, left, do_at());
        const float* delta = shared.delta[stage] + pair;
#pragma unroll
        for (int i = 0; i < BLOCK_M / 2; ++i) ds[i] = s[i] * (ds[i] - delta[i / 4 * 8 + i % 2]);
        round_sums<T>(left_ds, ds);

        // ds^T as the left operand of dq, a line a key: wgmma reads it transposed. Two buffers: the other
        // consumer may still read the one before.
        unsigned char* ds_lines = shared.ds[buffer];
#pragma unroll
        for (int n = 0; n < BLOCK_M / 16; ++n) {
            const int row = own + lane % 16, vector = (2 * n + lane / 16) ^ row % 8;
            stmatrix_x4(
                ds_lines + row * LINE_BYTES + vector * 16, left_ds[4 * n], left_ds[4 * n + 1],
                left_ds[4 * n + 2], left_ds[4 * n + 3]);
        }
        add_product<T, BLOCK_M>(dk, left_ds, q_at());
        fence_proxy_async();
        named_barrier_sync<CONSUMERS * WARPGROUP>(1);  // all lines of ds have been written

        const unsigned ds_at = shared_address(shared.ds[0]) + buffer * unsigned(sizeof(shared.ds[0]));
        const matrix_t ds_first = descriptor_at(ds_at, 0), k_first = descriptor_at(k_half, 0);
        wgmma_fence();
#pragma unroll
        for (int n = 0; n < BLOCK_N; n += 16) {
            const int offset = n * LINE_BYTES >> 4;
            wgmma_across_k<T>(dq, ds_first + offset, k_first + offset, n > 0);
        }
        wgmma_commit_group();
        const int square = ((batch * p.Hq + head) * (p.pitch / BLOCK_M) + tile) * 2 + consumer;
        to = dq_ptr + index_t(square) * (BLOCK_M * D / 2);
        wgmma_wait_group<0>(dq);  // also dk and dv: the stage has been read
        // All threads arrive: an arrival releases a thread's own reads, and each has read lse2 and delta.
        mbarrier_arrive(&shared.empty[stage]);
        advance();
        if (head == end_head) break;
        mbarrier_wait(&shared.full[stage], parity);
        start_scores();
        add_dq(to);
        finish_scores();
    }
    add_dq(to);
    bulk_wait_group_read<0>();

    const index_t stride_s = index_t(p.Hk) * D, of_head = (index_t(batch) * p.Skv * p.Hk + kv_head) * D;
    store_gradient<D>(dk_ptr + of_head, stride_s, first_key + own, p.Skv, p.scale, dk);
    store_gradient<D>(dv_ptr + of_head, stride_s, first_key + own, p.Skv, 1.0f, dv);
#endif
}

// dq = scale * sum, rounded once, from sums in the order of a warpgroup's registers. Grid: a block of a
// warpgroup per 64 queries and half of D.
template <typename T, int D>
__global__ __launch_bounds__(WARPGROUP) void attention_backward_place_kernel(
    const float* sum_ptr, T* dq_ptr, Problem p) {
    const int tiles = p.pitch / 64, half_d = blockIdx.x % 2, tile = blockIdx.x / 2 % tiles;
    const index_t head = blockIdx.x / 2 / tiles;  // of all batches
    const float4* sums = reinterpret_cast<const float4*>(sum_ptr + index_t(blockIdx.x) * (32 * D));
    const int lane = threadIdx.x % WARP, query = tile * 64 + threadIdx.x / WARP * 16 + lane / 4;
#pragma unroll
    for (int i = 0; i < D / 16; ++i) {
        const float4 sum = sums[i * WARPGROUP + threadIdx.x];
        const float rows[2][2] = {{sum.x, sum.y}, {sum.z, sum.w}};
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            if (query + h * 8 >= p.Sq) continue;
            const index_t row = (head / p.Hq * p.Sq + query + h * 8) * p.Hq + head % p.Hq;
            T* to = dq_ptr + row * D + half_d * (D / 2) + i * 8 + lane % 4 * 2;
            *reinterpret_cast<unsigned*>(to) = to_x2<T>(p.scale * rows[h][0], p.scale * rows[h][1]);
        }
    }
}
