// attention, level 3, tensor_core. Change: mma.sync multiplies. A warp has 32 rows of q, so each fragment of
// k and v that it loads serves two products. Scores become p in the layout of the second product's left
// operand, so p does not pass through shared memory. cp.async fetches the next tiles of k and v meanwhile.
// 16-bit elements, sm_80.
#pragma once

#include "attention/mma_tile.cuh"
#include "attention/online_softmax.cuh"

// Grid: one block per 128 rows of q of a head, 4 warps; two blocks share a multiprocessor, and one multiplies
// during the other's softmax. Two stages of BLOCK_N rows of k and of v.
template <typename T, int D, int BLOCK_N>
__global__ __launch_bounds__(128, 2) void attention_tensor_core_kernel(
    const T* q_ptr, const T* k_ptr, const T* v_ptr, T* o_ptr, float* lse_ptr, Problem p) {
    constexpr int THREADS = 128, BLOCK_M = 128, COUNT = 2;
    DYNAMIC_SHARED(T, q_tile);
    T* const stages = q_tile + BLOCK_M * D;  // k, v; k, v
    const Tile at = longest_first(p, BLOCK_M);
    const int kv_head = at.head / (p.Hq / p.Hk), warp = threadIdx.x / WARP;
    const T* const k_head = row_of(k_ptr, p.k, at.batch, 0, kv_head);
    const T* const v_head = row_of(v_ptr, p.v, at.batch, 0, kv_head);
    const T* const q_head = row_of(q_ptr, p.q, at.batch, 0, at.head);
    const auto fetch = [&](int n) {
        T* const k_tile = stages + n % 2 * 2 * BLOCK_N * D;
        fetch_rows<D, BLOCK_N, THREADS>(k_tile, k_head, p.k.s, n * BLOCK_N, p.Skv);
        fetch_rows<D, BLOCK_N, THREADS>(k_tile + BLOCK_N * D, v_head, p.v.s, n * BLOCK_N, p.Skv);
        cp_async_commit();
    };
    fetch_rows<D, BLOCK_M, THREADS>(q_tile, q_head, p.q.s, at.m, p.Sq);
    fetch(0);
    cp_async_wait<0>();
    __syncthreads();

    // A Softmax has 16 rows of each warp, from its own first row on.
    const int first = at.m + warp * 16;
    Softmax<T, D> softmax[COUNT] = {{at, first}, {at, first + 16}};
    const int tiles_n = at.tiles_n(BLOCK_M, BLOCK_N), unmasked = at.keys_of(at.m + warp * 32);
    float o[COUNT][D / 2] = {}, s[COUNT][BLOCK_N / 2];
    unsigned weights[COUNT][BLOCK_N / 4];
    for (int n = 0; n < tiles_n; ++n) {
        if (n + 1 < tiles_n) fetch(n + 1);  // all have read the other stage
        const T* const k_tile = stages + n % 2 * 2 * BLOCK_N * D;
        multiply_transposed<D, BLOCK_N>(s, q_tile, warp * 32, k_tile);
#pragma unroll
        for (int r = 0; r < COUNT; ++r) {
            softmax[r].update(s[r], n * BLOCK_N, unmasked);
            softmax[r].rescale(o[r]);
            round_p<T>(weights[r], s[r]);
        }
        multiply_add<D, BLOCK_N>(o, weights, k_tile + BLOCK_N * D);
        cp_async_wait<0>();
        __syncthreads();  // the next stage has landed, and all have read this one
    }
#pragma unroll
    for (int r = 0; r < COUNT; ++r) softmax[r].finish(o[r], o_ptr, lse_ptr, p.Hq);
}
