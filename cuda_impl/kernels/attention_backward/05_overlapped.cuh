// attention_backward, level 5, overlapped. Change: a tile's product for dq runs one tile later, under the
// exponentials of the next one. So no consumer waits for the other's ds: each is up to a tile ahead, and
// while one computes exponentials, the other multiplies. Tiles have up to 80 queries: shared memory, which
// feeds wgmma, limits level 4, and more queries read k and v less often. With a causal mask, blocks with the
// most tiles start first. A vectorized kernel computes delta and zeroes dq's sums.
#pragma once

#include "attention_backward/04_wgmma.cuh"

// delta and lse2 as attention_backward_delta_kernel, and zeros for dq's sums. Grid: D / 8 threads a row, each
// with 16 bytes of o and do.
template <typename T, int D, int THREADS>
__global__ __launch_bounds__(THREADS) void attention_backward_prepare_kernel(const T* o_ptr, const T* do_ptr,
                                                                             const float* lse_ptr,
                                                                             float* delta_ptr,
                                                                             float* lse2_ptr, float* dq_ptr,
                                                                             index_t rows, Problem p) {
    constexpr int LANES = D / 8;
    const index_t thread = index_t(blockIdx.x) * THREADS + threadIdx.x;
    const unsigned row = thread / LANES;
    if (row >= rows) return;  // whole warps: rows are a multiple of 16
    const unsigned head = row / p.pitch, i = row % p.pitch;
    float sum = 0, lse = negative_infinity();
    if (i < p.Sq) {
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
    delta_ptr[row] = sum;
    lse2_ptr[row] = lse == negative_infinity() ? -lse : lse * LOG2_E;
}

#if HAS_WGMMA_LEVELS

template <int D, int BLOCK_M_, int STAGES_, bool BULK>
struct OverlappedTiles {
    static constexpr int BLOCK_M = BLOCK_M_, BLOCK_N = 128, STAGES = STAGES_;
    // Of a consumer's part of dq, 64 of D by as many queries: half of D, or half of the queries.
    static constexpr int DQ_M = D == 128 ? BLOCK_M : BLOCK_M / 2;

    unsigned char k[BLOCK_N * D * 2], v[BLOCK_N * D * 2];
    struct Stage {
        unsigned char q[BLOCK_M * D * 2], d_o[BLOCK_M * D * 2];
    } stages[STAGES];
    unsigned char ds[2][2][BLOCK_M * LINE_BYTES];  // two tiles; a piece of 64 keys per consumer
    float dq[2][BULK ? DQ_M * 64 : 4];             // of each consumer
    float lse2[STAGES][BLOCK_M], delta[STAGES][BLOCK_M];
    mbarrier_t keys, full[STAGES], empty[STAGES], ds_full[2];
};

// dq[64 of D, queries] = k^T ds^T over 128 keys. Lines of k are keys: the left operand is read transposed.
// Lines of ds are queries, a piece is 64 keys.
template <typename T, int PIECE_ROWS, int COUNT>
__device__ __forceinline__ void multiply_keys(float (&dq)[COUNT], unsigned k, unsigned ds) {
    const matrix_t k_first = descriptor_at(k, 0), ds_first = descriptor_at(ds, 0);
    wgmma_fence();
#pragma unroll
    for (int n = 0; n < 128; n += 16) {
        wgmma<T, true, false>(dq, k_first + (n * LINE_BYTES >> 4),
                              ds_first + ((n / 64 * PIECE_ROWS * LINE_BYTES + n % 64 * 2) >> 4), n > 0);
    }
    wgmma_commit_group();
}

#endif  // HAS_WGMMA_LEVELS

// Grid: a block per 128 keys of a key head. A consumer has 64 of them, and half of each tile of dq.
template <typename T, int D, int BLOCK_M, int STAGES, bool BULK>
__global__ __launch_bounds__(3 * WARPGROUP, 1) void attention_backward_overlapped_kernel(
    const __grid_constant__ TensorMap q_map, const __grid_constant__ TensorMap k_map,
    const __grid_constant__ TensorMap v_map, const __grid_constant__ TensorMap do_map, const float* lse2_ptr,
    const float* delta_ptr, float* dq_ptr, T* dk_ptr, T* dv_ptr, Problem p) {
#if HAS_WGMMA_LEVELS
    using Shared = OverlappedTiles<D, BLOCK_M, STAGES, BULK>;
    constexpr int BLOCK_N = Shared::BLOCK_N, DQ_M = Shared::DQ_M, CONSUMERS = 2;
    DYNAMIC_SHARED(unsigned char, bytes);
    Shared& shared = *reinterpret_cast<Shared*>(bytes + (-shared_address(bytes) & 1023));
    // Causal: by section of 16 heads, and in it from the first keys, which most queries see. Else by head.
    const int blocks = (p.Skv + BLOCK_N - 1) / BLOCK_N, heads = gridDim.x / blocks;
    const int most = p.diagonal < p.Skv ? 16 : 1, section = blockIdx.x / (most * blocks) * most;
    const int in_section = blockIdx.x % (most * blocks), width = min(most, heads - section);
    const int first_key = in_section / width * BLOCK_N, of_batches = section + in_section % width;
    const int kv_head = of_batches % p.Hk, batch = of_batches / p.Hk;
    if (threadIdx.x == 0) {
        mbarrier_init(&shared.keys, 1);
        for (int stage = 0; stage < STAGES; ++stage) {
            mbarrier_init(&shared.full[stage], 1);
            mbarrier_init(&shared.empty[stage], CONSUMERS);
        }
        for (int buffer = 0; buffer < 2; ++buffer) {
            mbarrier_init(&shared.ds_full[buffer], CONSUMERS * WARPGROUP / WARP);
        }
        mbarrier_init_fence();
    }
    __syncthreads();

    // Tiles of BLOCK_M queries of each head that shares the key head, from the first that sees a key.
    const int first_tile = max(first_key - p.diagonal, 0) / BLOCK_M, end_tile = p.pitch / BLOCK_M;
    const int end_head = (kv_head + 1) * (p.Hq / p.Hk);
    int head = kv_head * (p.Hq / p.Hk), tile = first_tile, stage = 0;
    unsigned parity = 0;
    const auto advance = [&] {
        if (++tile == end_tile) tile = first_tile, ++head;
        if (++stage == STAGES) stage = 0, parity ^= 1;
    };
    if (threadIdx.x < WARPGROUP) {
        setmaxnreg_dec<24>();
        if (threadIdx.x > 0) return;
        mbarrier_arrive_expect_bytes(&shared.keys, sizeof(shared.k) + sizeof(shared.v));
        head_copy_to_shared(shared.k, &k_map, first_key, kv_head, batch, &shared.keys);
        head_copy_to_shared(shared.v, &v_map, first_key, kv_head, batch, &shared.keys);
        for (; head < end_head && first_tile < end_tile; advance()) {
            const index_t row = (index_t(batch) * p.Hq + head) * p.pitch + tile * BLOCK_M;
            mbarrier_t* full = &shared.full[stage];
            mbarrier_wait(&shared.empty[stage], parity ^ 1);  // in the first round all stages are empty
            mbarrier_arrive_expect_bytes(full, sizeof(shared.stages[0]) + 2 * BLOCK_M * sizeof(float));
            head_copy_to_shared(shared.stages[stage].q, &q_map, tile * BLOCK_M, head, batch, full);
            bulk_copy_to_shared(shared.lse2[stage], lse2_ptr + row, BLOCK_M * sizeof(float), full);
            head_copy_to_shared(shared.stages[stage].d_o, &do_map, tile * BLOCK_M, head, batch, full);
            bulk_copy_to_shared(shared.delta[stage], delta_ptr + row, BLOCK_M * sizeof(float), full);
        }
        return;
    }

    setmaxnreg_inc<240>();
    const int consumer = __shfl_sync(FULL_WARP, threadIdx.x / WARPGROUP, 0) - 1;
    const int thread = threadIdx.x % WARPGROUP, warp = thread / WARP;
    const int lane = threadIdx.x % WARP, own = consumer * 64 + warp * 16, pair = lane % 4 * 2;
    // Addresses in shared memory. Of dq a consumer has a piece of D, or half of the queries.
    const unsigned k_lines = shared_address(shared.k) + consumer * 64 * LINE_BYTES;
    const unsigned v_lines = shared_address(shared.v) + consumer * 64 * LINE_BYTES;
    const unsigned k_piece = shared_address(shared.k) + (D == 128 ? consumer * BLOCK_N * LINE_BYTES : 0);
    const unsigned ds_lines = shared_address(shared.ds) + (D == 128 ? 0 : consumer * DQ_M * LINE_BYTES);
    const auto q_at = [&] {
        return shared_address(shared.stages[0].q) + stage * unsigned(sizeof(shared.stages[0]));
    };
    const auto do_at = [&] { return q_at() + unsigned(sizeof(shared.stages[0].q)); };

    float dk[D / 2], dv[D / 2], s[BLOCK_M / 2], ds[BLOCK_M / 2];
    float (&dq)[DQ_M / 2] = reinterpret_cast<float (&)[DQ_M / 2]>(ds);  // never used at once
#pragma unroll
    for (int i = 0; i < D / 2; ++i) dk[i] = dv[i] = 0;
    unsigned left[BLOCK_M / 4];
    int buffer = 0;
    unsigned ds_parity = 0;

    // p of the scores, and the start of dv's product.
    const auto start_dv = [&] {
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
        round_sums<T>(left, s);
        add_product<T, BLOCK_M>(dv, left, do_at());
    };
    // ds^T, in registers and in shared memory, there with queries as lines.
    const auto finish_ds = [&] {
        multiply_lines<T, D, BLOCK_N, BLOCK_M>(ds, v_lines, do_at());
        wgmma_wait_group<0>(ds);
        const float* delta = shared.delta[stage] + pair;
#pragma unroll
        for (int i = 0; i < BLOCK_M / 2; ++i) ds[i] = s[i] * (ds[i] - delta[i / 4 * 8 + i % 2]);
        round_sums<T>(left, ds);
        unsigned char* lines = shared.ds[buffer][consumer];
#pragma unroll
        for (int n = 0; n < BLOCK_M / 16; ++n) {
            const int line = n * 16 + lane / 16 * 8 + lane % 8, vector = (2 * warp + lane / 8 % 2) ^ line % 8;
            stmatrix_x4_trans(lines + line * LINE_BYTES + vector * 16, left[4 * n], left[4 * n + 1],
                              left[4 * n + 2], left[4 * n + 3]);
        }
        fence_proxy_async();
        __syncwarp();
        if (lane == 0) mbarrier_arrive(&shared.ds_full[buffer]);
    };
    // Starts dq's product of the latest ds, when both consumers have written their keys.
    float* to;
    const auto start_dq = [&] {
        mbarrier_wait(&shared.ds_full[buffer], ds_parity);
        multiply_keys<T, BLOCK_M>(dq, k_piece, ds_lines + buffer * unsigned(sizeof(shared.ds[0])));
        buffer ^= 1;
        ds_parity ^= buffer == 0;
    };
    const auto place_of_dq = [&] {
        const index_t of_tile = (index_t(batch) * p.Hq + head) * end_tile + tile;
        return dq_ptr + (of_tile * 2 + consumer) * (DQ_M * 64) + (BULK ? 0 : thread * 4);
    };
    const auto add_dq = [&] {
        if constexpr (BULK) {
            bulk_wait_group_read<0>();
            named_barrier_sync<WARPGROUP>(2 + consumer);  // the tile before has been read
#pragma unroll
            for (int i = 0; i < DQ_M / 2; i += 4) {
                *reinterpret_cast<float4*>(shared.dq[consumer] + (i / 4 * WARPGROUP + thread) * 4) =
                    make_float4(dq[i], dq[i + 1], dq[i + 2], dq[i + 3]);
            }
            fence_proxy_async();
            named_barrier_sync<WARPGROUP>(2 + consumer);
            bulk_add_to_global_if(thread == 0, to, shared.dq[consumer], sizeof(shared.dq[0]));
            bulk_commit_group();
        } else {
#pragma unroll
            for (int i = 0; i < DQ_M / 2; i += 4) {
                add_to_global(to + i * WARPGROUP, dq[i], dq[i + 1], dq[i + 2], dq[i + 3]);
            }
        }
    };
    if (first_tile < end_tile) {
        mbarrier_wait(&shared.keys, 0);
        mbarrier_wait(&shared.full[0], 0);
        multiply_lines<T, D, BLOCK_N, BLOCK_M>(s, k_lines, q_at());
        wgmma_wait_group<0>(s);
        start_dv();
        finish_ds();
        unsigned q_before;
        while (true) {
            to = place_of_dq();
            mbarrier_t* empty = &shared.empty[stage];
            q_before = q_at();
            advance();
            if (head == end_head) break;
            add_product<T, BLOCK_M>(dk, left, q_before);
            mbarrier_wait(&shared.full[stage], parity);
            multiply_lines<T, D, BLOCK_N, BLOCK_M>(s, k_lines, q_at());
            start_dq();
            wgmma_wait_group<1>(s);  // also dk: the stage before has been read
            if (thread == 0) mbarrier_arrive(empty);
            start_dv();
            wgmma_wait_group<1>(dq);
            add_dq();
            finish_ds();
        }
        add_product<T, BLOCK_M>(dk, left, q_before);
        start_dq();
        wgmma_wait_group<0>(dq);
        add_dq();
        bulk_wait_group_read<0>();
    }

    const index_t stride_s = index_t(p.Hk) * D, of_head = (index_t(batch) * p.Skv * p.Hk + kv_head) * D;
    store_gradient<D>(dk_ptr + of_head, stride_s, first_key + own, p.Skv, p.scale, dk);
    store_gradient<D>(dv_ptr + of_head, stride_s, first_key + own, p.Skv, 1.0f, dv);
#endif
}

// dq = scale * sum, rounded once, from sums in the order of a warpgroup's registers: 64 of D by DQ_M queries.
// Through shared memory, so that rows of dq are written in 16-byte vectors. Grid: a block of a warpgroup per
// part of dq that a consumer has added.
template <typename T, int D, int BLOCK_M>
__global__ __launch_bounds__(WARPGROUP) void attention_backward_transpose_kernel(const float* sum_ptr,
                                                                                 T* dq_ptr, Problem p) {
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
