// attention_backward, level 2, split. Change: tiles in shared memory, products on tensor cores. Each gradient
// stays in the registers of the block that owns its rows: a block of keys loops over the queries for dk and
// dv, a block of queries loops over the keys for dq. Both compute scores, seven products instead of five, and
// no two blocks write to one element: deterministic. 16-bit elements, sm_80.
#pragma once

#include "attention_backward/tile.cuh"

// dk and dv of BLOCK_N keys of a key head; a warp has 16 of them. Two stages: the next tile of q and do
// arrives while one is used. Scores are computed transposed, keys by queries: so p^T and ds^T are in
// registers as left operands need them. `use(ds, head, first_query)` gets a warp's ds^T of every tile.
template <typename T, int D, int BLOCK_M, int BLOCK_N, typename Use>
__device__ __forceinline__ void loop_over_queries(
    const T* q_ptr, const T* k_ptr, const T* v_ptr, const T* do_ptr, const float* lse2_ptr,
    const float* delta_ptr, T* dk_ptr, T* dv_ptr, const Problem& p, T* k_tile, const Use& use) {
    constexpr int THREADS = BLOCK_N * 2;
    T* v_tile = k_tile + BLOCK_N * D;
    T* stages = v_tile + BLOCK_N * D;                                        // q, do; q, do
    float* row_stages = reinterpret_cast<float*>(stages + 4 * BLOCK_M * D);  // lse2, delta; lse2, delta

    const int blocks = (p.Skv + BLOCK_N - 1) / BLOCK_N, first_key = blockIdx.x % blocks * BLOCK_N;
    const int kv_head = blockIdx.x / blocks % p.Hk, batch = blockIdx.x / blocks / p.Hk;
    const int lane = threadIdx.x % WARP, own = threadIdx.x / WARP * 16, pair = lane % 4 * 2;
    const int key = first_key + own + lane / 4;  // and the one 8 further

    // Tiles of BLOCK_M queries of each head that shares the key head, from the first that sees a key.
    const int first_tile = max(first_key - p.diagonal, 0) / BLOCK_M;
    const int tiles = (p.Sq + BLOCK_M - 1) / BLOCK_M - first_tile, group = p.Hq / p.Hk;
    const auto fetch = [&](int step) {
        const int head = kv_head * group + step / tiles, stage = step % 2;
        const int begin = (first_tile + step % tiles) * BLOCK_M;
        T* q_tile = stages + stage * 2 * BLOCK_M * D;
        fetch_rows<D, BLOCK_M, THREADS>(q_tile, head_of(q_ptr, p.q, batch, head), p.q.s, begin, p.Sq);
        fetch_rows<D, BLOCK_M, THREADS>(
            q_tile + BLOCK_M * D, head_of(do_ptr, p.d_o, batch, head), p.d_o.s, begin, p.Sq);
        if (threadIdx.x < BLOCK_M / 2) {  // 16 bytes a thread: first lse2, then delta
            const int i = threadIdx.x % (BLOCK_M / 4) * 4;
            const bool is_lse2 = threadIdx.x < BLOCK_M / 4;
            const float* from = is_lse2 ? lse2_ptr : delta_ptr;
            cp_async_16(
                row_stages + (stage * 2 + !is_lse2) * BLOCK_M + i,
                from + (index_t(batch) * p.Hq + head) * p.pitch + begin + i, 16);
        }
        cp_async_commit();
    };
    fetch_rows<D, BLOCK_N, THREADS>(k_tile, head_of(k_ptr, p.k, batch, kv_head), p.k.s, first_key, p.Skv);
    fetch_rows<D, BLOCK_N, THREADS>(v_tile, head_of(v_ptr, p.v, batch, kv_head), p.v.s, first_key, p.Skv);
    fetch(0);

    float dk[D / 8][4] = {}, dv[D / 8][4] = {};
    for (int step = 0; step < group * tiles; ++step) {
        cp_async_wait<0>();
        __syncthreads();  // this stage has arrived, and the other one is free
        if (step + 1 < group * tiles) fetch(step + 1);
        const T* q_tile = stages + step % 2 * 2 * BLOCK_M * D;
        const T* do_tile = q_tile + BLOCK_M * D;
        const float* lse2 = row_stages + step % 2 * 2 * BLOCK_M;
        const float* delta = lse2 + BLOCK_M;
        const int first_query = (first_tile + step % tiles) * BLOCK_M;

        float s[BLOCK_M / 8][4], ds[BLOCK_M / 8][4];
        multiply_transposed<D, BLOCK_M>(s, k_tile, own, q_tile);
#pragma unroll
        for (int n = 0; n < BLOCK_M / 8; ++n) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                s[n][i] = exp2f(s[n][i] * (p.scale * LOG2_E) - lse2[n * 8 + pair + i % 2]);
            }
        }
        if (first_key + BLOCK_N > min(p.Skv, first_query + p.diagonal + 1)) {
#pragma unroll
            for (int n = 0; n < BLOCK_M / 8; ++n) {
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const int keys = min(p.Skv, first_query + n * 8 + pair + i % 2 + p.diagonal + 1);
                    if (key + i / 2 * 8 >= keys) s[n][i] = 0;
                }
            }
        }
        unsigned left[BLOCK_M / 16][4];
        round_to<T, BLOCK_M>(left, s);
        multiply_add<D, BLOCK_M>(dv, left, do_tile);

        multiply_transposed<D, BLOCK_M>(ds, v_tile, own, do_tile);
#pragma unroll
        for (int n = 0; n < BLOCK_M / 8; ++n) {
#pragma unroll
            for (int i = 0; i < 4; ++i) ds[n][i] = s[n][i] * (ds[n][i] - delta[n * 8 + pair + i % 2]);
        }
        round_to<T, BLOCK_M>(left, ds);
        multiply_add<D, BLOCK_M>(dk, left, q_tile);
        use(left, kv_head * group + step / tiles, first_query);
    }

    const index_t stride_s = index_t(p.Hk) * D, head = (index_t(batch) * p.Skv * p.Hk + kv_head) * D;
    store_rows<D>(dk_ptr + head, stride_s, first_key + own, p.Skv, p.scale, dk);
    store_rows<D>(dv_ptr + head, stride_s, first_key + own, p.Skv, 1.0f, dv);
}

// Grid: a block per BLOCK_N keys of a key head.
template <typename T, int D, int BLOCK_M, int BLOCK_N>
__global__ __launch_bounds__(BLOCK_N * 2) void attention_backward_split_dkdv_kernel(
    const T* q_ptr, const T* k_ptr, const T* v_ptr, const T* do_ptr, const float* lse2_ptr,
    const float* delta_ptr, T* dk_ptr, T* dv_ptr, Problem p) {
    DYNAMIC_SHARED(T, k_tile);
    const auto ignore = [](const unsigned (&)[BLOCK_M / 16][4], int, int) {};
    loop_over_queries<T, D, BLOCK_M, BLOCK_N>(
        q_ptr, k_ptr, v_ptr, do_ptr, lse2_ptr, delta_ptr, dk_ptr, dv_ptr, p, k_tile, ignore);
}

// Grid: a block per BLOCK_M queries of a head; a warp has 16 of them. Two stages of k and v. With a causal
// mask the last queries have the most keys: their blocks start first.
template <typename T, int D, int BLOCK_M, int BLOCK_N>
__global__ __launch_bounds__(BLOCK_M * 2) void attention_backward_split_dq_kernel(
    const T* q_ptr, const T* k_ptr, const T* v_ptr, const T* do_ptr, const float* lse2_ptr,
    const float* delta_ptr, T* dq_ptr, Problem p) {
    constexpr int THREADS = BLOCK_M * 2;
    DYNAMIC_SHARED(T, q_tile);
    T* do_tile = q_tile + BLOCK_M * D;
    T* stages = do_tile + BLOCK_M * D;  // k, v; k, v

    const int blocks = (p.Sq + BLOCK_M - 1) / BLOCK_M;
    const int first_query = (blocks - 1 - int(blockIdx.x % blocks)) * BLOCK_M;
    const int head = blockIdx.x / blocks % p.Hq, batch = blockIdx.x / blocks / p.Hq;
    const int kv_head = head / (p.Hq / p.Hk);
    const int lane = threadIdx.x % WARP, own = threadIdx.x / WARP * 16, pair = lane % 4 * 2;
    const int query = first_query + own + lane / 4;  // and the one 8 further
    const int keys = min(p.Skv, first_query + BLOCK_M + p.diagonal);
    const int tiles = (max(keys, 0) + BLOCK_N - 1) / BLOCK_N;

    const auto fetch = [&](int tile) {
        T* k_tile = stages + tile % 2 * 2 * BLOCK_N * D;
        fetch_rows<D, BLOCK_N, THREADS>(
            k_tile, head_of(k_ptr, p.k, batch, kv_head), p.k.s, tile * BLOCK_N, p.Skv);
        fetch_rows<D, BLOCK_N, THREADS>(
            k_tile + BLOCK_N * D, head_of(v_ptr, p.v, batch, kv_head), p.v.s, tile * BLOCK_N, p.Skv);
        cp_async_commit();
    };
    fetch_rows<D, BLOCK_M, THREADS>(q_tile, head_of(q_ptr, p.q, batch, head), p.q.s, first_query, p.Sq);
    fetch_rows<D, BLOCK_M, THREADS>(do_tile, head_of(do_ptr, p.d_o, batch, head), p.d_o.s, first_query, p.Sq);
    if (tiles > 0) fetch(0);

    const index_t of_row = (index_t(batch) * p.Hq + head) * p.pitch + query;
    const float lse2[2] = {lse2_ptr[of_row], lse2_ptr[of_row + 8]};
    const float delta[2] = {delta_ptr[of_row], delta_ptr[of_row + 8]};
    float dq[D / 8][4] = {};
    for (int tile = 0; tile < tiles; ++tile) {
        cp_async_wait<0>();
        __syncthreads();  // this stage has arrived, and the other one is free
        if (tile + 1 < tiles) fetch(tile + 1);
        const T* k_tile = stages + tile % 2 * 2 * BLOCK_N * D;
        const T* v_tile = k_tile + BLOCK_N * D;
        const int first_key = tile * BLOCK_N;

        float s[BLOCK_N / 8][4], ds[BLOCK_N / 8][4];
        multiply_transposed<D, BLOCK_N>(s, q_tile, own, k_tile);
        multiply_transposed<D, BLOCK_N>(ds, do_tile, own, v_tile);
#pragma unroll
        for (int n = 0; n < BLOCK_N / 8; ++n) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const float prob = exp2f(s[n][i] * (p.scale * LOG2_E) - lse2[i / 2]);
                ds[n][i] = prob * (ds[n][i] - delta[i / 2]);
            }
        }
        if (first_key + BLOCK_N > min(p.Skv, first_query + p.diagonal + 1)) {
#pragma unroll
            for (int n = 0; n < BLOCK_N / 8; ++n) {
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const int keys = min(p.Skv, query + i / 2 * 8 + p.diagonal + 1);
                    if (first_key + n * 8 + pair + i % 2 >= keys) ds[n][i] = 0;
                }
            }
        }
        unsigned left[BLOCK_N / 16][4];
        round_to<T, BLOCK_N>(left, ds);
        multiply_add<D, BLOCK_N>(dq, left, k_tile);
    }

    T* dq_head = dq_ptr + (index_t(batch) * p.Sq * p.Hq + head) * D;
    store_rows<D>(dq_head, index_t(p.Hq) * D, first_query + own, p.Sq, p.scale, dq);
}
