// decode_attention, level 2, grouped. Change: the query heads of a key head are the rows of one tensor-core
// tile, so that its keys and values are read once and not G times. 16-bit elements.
#pragma once

#include "decode_attention/tile.cuh"

// Grid: block (b * groups + group) * Hk + hk for up to HEADS of the G query heads of key head hk. The warps
// take tiles of TOKENS tokens in turn, each with its own part of shared memory.
template <typename T, int D, int BLOCKS>
__global__ __launch_bounds__(THREADS, BLOCKS) void decode_attention_grouped_kernel(
    const T* q_ptr, const T* k_ptr, const T* v_ptr, const int* table_ptr, const int* lengths_ptr, T* o_ptr,
    int Hk, int G, int groups, int pages, int page_size, float scale_log2, index_t stride_qb,
    index_t stride_qh, index_t stride_kp, index_t stride_kn, index_t stride_kh, index_t stride_vp,
    index_t stride_vn, index_t stride_vh) {
    DYNAMIC_SHARED(T, tiles);
    const int hk = blockIdx.x % Hk, group = blockIdx.x / Hk % groups;
    const index_t b = blockIdx.x / Hk / groups;
    const int first_head = hk * G + group * HEADS, heads = min(G - group * HEADS, HEADS);
    const Sequence<T> sequence = {
        k_ptr + hk * stride_kh, v_ptr + hk * stride_vh, stride_kp, stride_kn, stride_vp, stride_vn,
        table_ptr + b * pages,  page_size};
    HeadTile<T, D> of_heads(q_ptr + b * stride_qb + first_head * stride_qh, stride_qh, heads);

    const int warp = threadIdx.x / WARP, length = lengths_ptr[b];
    T* tile = tiles + warp * TILE<D>;
    for (int n = warp * TOKENS; n < length; n += BLOCK_N) {
        fetch_tile<D>(tile, sequence, sequence.page_of(n), n, length - n);
        cp_async_commit();
        cp_async_wait<0>();
        __syncwarp();  // the tile has landed
        of_heads.include(tile, length - n, scale_log2);
        __syncwarp();  // all lanes have read it
    }
    T* o = o_ptr + (b * Hk * G + first_head) * D;
    combine_warps(of_heads, reinterpret_cast<float*>(tiles), heads,
                  [&](int head, int d, float value, float) { o[head * D + d] = T(value); });
}
