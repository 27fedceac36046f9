// decode_attention, level 2, grouped. Change: the query heads of a key head are the rows of one tensor-core
// tile, so that its keys and values are read once and not G times. 16-bit elements.
#pragma once

#include "decode_attention/tile.cuh"

// Grid: a block per Unit. The warps take tiles of TOKENS tokens in turn, each with its own shared memory.
template <typename T, int D>
__global__ __launch_bounds__(THREADS, BLOCKS<D>) void decode_attention_grouped_kernel(
    const T* q_ptr, const T* k_ptr, const T* v_ptr, const int* table_ptr, const int* lengths_ptr, T* o_ptr,
    int Hk, int G, int groups, int pages, int page_size, float scale_log2, index_t stride_qb,
    index_t stride_qh, index_t stride_kp, index_t stride_kn, index_t stride_kh, index_t stride_vp,
    index_t stride_vn, index_t stride_vh) {
    DYNAMIC_SHARED(T, tiles);
    const Unit unit(Hk, G, groups, 1);
    k_ptr += unit.hk * stride_kh;
    v_ptr += unit.hk * stride_vh;
    table_ptr += unit.b * pages;
    const Sequence<T> sequence = {k_ptr,     v_ptr,     stride_kp, stride_kn,
                                  stride_vp, stride_vn, table_ptr, page_size};
    HeadTile<T, D> of_heads(q_ptr + unit.b * stride_qb + unit.first_head * stride_qh, stride_qh, unit.heads);

    const int warp = threadIdx.x / WARP, length = lengths_ptr[unit.b];
    T* tile = tiles + warp * TILE<D>;
    for (int n = warp * TOKENS; n < length; n += BLOCK_N) {
        fetch_tile<D>(tile, sequence, sequence.page_of(n), n, length - n);
        cp_async_commit();
        cp_async_wait<0>();
        __syncwarp();  // the tile has landed
        of_heads.include(tile, length - n, scale_log2);
        __syncwarp();  // all lanes have read it
    }
    T* o = o_ptr + (unit.b * Hk * G + unit.first_head) * D;
    combine_warps(
        of_heads, reinterpret_cast<float*>(tiles), unit.heads,
        [&](int head, int d, float value, float) { o[head * D + d] = T(value); });
}
