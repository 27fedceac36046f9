// decode_attention, level 4, pipelined. Change: each warp has a ring of STAGES tiles in shared memory.
// cp.async fills STAGES - 1 of them while one is multiplied, and the next page number is loaded an iteration
// before its copies start.
#pragma once

#include "decode_attention/03_split.cuh"
#include "decode_attention/tile.cuh"

// Grid and outputs as split's.
template <typename T, int D, int STAGES>
__global__ __launch_bounds__(THREADS, BLOCKS<D>) void decode_attention_pipelined_kernel(
    const T* q_ptr, const T* k_ptr, const T* v_ptr, const int* table_ptr, const int* lengths_ptr,
    float* o_part_ptr, float* lse_part_ptr, int splits, int Hk, int G, int groups, int pages, int page_size,
    float scale_log2, index_t stride_qb, index_t stride_qh, index_t stride_kp, index_t stride_kn,
    index_t stride_kh, index_t stride_vp, index_t stride_vn, index_t stride_vh) {
    DYNAMIC_SHARED(T, tiles);
    const Unit unit(Hk, G, groups, splits);
    k_ptr += unit.hk * stride_kh;
    v_ptr += unit.hk * stride_vh;
    table_ptr += unit.b * pages;
    const Sequence<T> sequence = {k_ptr,     v_ptr,     stride_kp, stride_kn,
                                  stride_vp, stride_vn, table_ptr, page_size};

    const int warp = threadIdx.x / WARP;
    const Chunk chunk(lengths_ptr[unit.b], pages * page_size, unit.split, splits);
    T* ring = tiles + warp * STAGES * TILE<D>;
    int next = chunk.begin + warp * TOKENS;  // the tile to fetch next, and its page
    int page = next < chunk.end ? sequence.page_of(next) : 0;
    const auto fetch = [&](int stage) {
        if (next < chunk.end) fetch_tile<D>(ring + stage * TILE<D>, sequence, page, next, chunk.end - next);
        cp_async_commit();  // a group per tile, empty behind the end
        next += BLOCK_N;
        if (next < chunk.end) page = sequence.page_of(next);
    };
#pragma unroll
    for (int stage = 0; stage < STAGES - 1; ++stage) fetch(stage);
    HeadTile<T, D> of_heads(q_ptr + unit.b * stride_qb + unit.first_head * stride_qh, stride_qh, unit.heads);

    int stage = 0, free_stage = STAGES - 1;
    for (int n = chunk.begin + warp * TOKENS; n < chunk.end; n += BLOCK_N) {
        cp_async_wait<STAGES - 2>();
        __syncwarp();  // this tile has landed, and all lanes have read the one before
        fetch(free_stage);
        of_heads.include(ring + stage * TILE<D>, chunk.end - n, scale_log2);
        free_stage = stage;
        stage = stage + 1 == STAGES ? 0 : stage + 1;
    }
    store_part(
        of_heads, reinterpret_cast<float*>(tiles), unit, index_t(Hk) * G, splits, o_part_ptr, lse_part_ptr);
}
