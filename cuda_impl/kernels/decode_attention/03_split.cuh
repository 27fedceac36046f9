// decode_attention, level 3, split. Change: `splits` blocks share the tokens of a key head, so that few
// sequences keep all multiprocessors busy. Each writes its output and log-sum-exp, and a second kernel
// combines them.
#pragma once

#include "decode_attention/tile.cuh"

// The tokens of a split: the same whole tiles of BLOCK_N in every sequence, so that blocks have equal work;
// those behind the end of a short sequence end at once.
struct Chunk {
    int begin, end;

    __device__ __forceinline__ Chunk(int length, int most, int split, int splits) {
        const int tiles = (most + BLOCK_N - 1) / BLOCK_N, each = (tiles + splits - 1) / splits;
        begin = split * each * BLOCK_N;
        end = min(begin + each * BLOCK_N, length);
    }
};

// Writes a block's part: to o_part[B,Hq,splits,D] and lse_part[B,Hq,splits], in fp32 and base 2. A part
// without tokens is 0, and its lse is -inf.
template <typename T, int D>
__device__ __forceinline__ void store_part(
    const HeadTile<T, D>& of_heads, float* shared, const Unit& unit, index_t Hq, int splits,
    float* o_part_ptr, float* lse_part_ptr) {
    const index_t first = (unit.b * Hq + unit.first_head) * splits + unit.split;
    combine_warps(of_heads, shared, unit.heads, [&](int head, int d, float o, float lse) {
        const index_t part = first + index_t(head) * splits;
        o_part_ptr[part * D + d] = o;
        if (d == 0) lse_part_ptr[part] = lse;
    });
}

// Grid: a block per Unit.
template <typename T, int D>
__global__ __launch_bounds__(THREADS, BLOCKS<D>) void decode_attention_split_kernel(
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
    HeadTile<T, D> of_heads(q_ptr + unit.b * stride_qb + unit.first_head * stride_qh, stride_qh, unit.heads);

    const int warp = threadIdx.x / WARP;
    const Chunk chunk(lengths_ptr[unit.b], pages * page_size, unit.split, splits);
    T* tile = tiles + warp * TILE<D>;
    for (int n = chunk.begin + warp * TOKENS; n < chunk.end; n += BLOCK_N) {
        fetch_tile<D>(tile, sequence, sequence.page_of(n), n, chunk.end - n);
        cp_async_commit();
        cp_async_wait<0>();
        __syncwarp();  // the tile has landed
        of_heads.include(tile, chunk.end - n, scale_log2);
        __syncwarp();  // all lanes have read it
    }
    store_part(
        of_heads, reinterpret_cast<float*>(tiles), unit, index_t(Hk) * G, splits, o_part_ptr, lse_part_ptr);
}

// Grid: block b * Hq + h, a thread per element of its output.
template <typename T, int D>
__global__ __launch_bounds__(D) void decode_attention_combine_kernel(
    const float* o_part_ptr, const float* lse_part_ptr, T* o_ptr, int splits) {
    const index_t first_part = index_t(blockIdx.x) * splits;
    float max = negative_infinity(), sum = 0.0f, o = 0.0f;
    for (int split = threadIdx.x % WARP; split < splits; split += WARP) {
        max = fmaxf(max, lse_part_ptr[first_part + split]);
    }
    max = warp_reduce<Max, WARP>(max);
    const float shift = finite_shift(max);
#pragma unroll 16
    for (int split = 0; split < splits; ++split) {
        const float weight = exp2f(lse_part_ptr[first_part + split] - shift);
        sum += weight;
        o += weight * o_part_ptr[(first_part + split) * D + threadIdx.x];
    }
    o_ptr[index_t(blockIdx.x) * D + threadIdx.x] = T(sum == 0.0f ? 0.0f : o / sum);
}
