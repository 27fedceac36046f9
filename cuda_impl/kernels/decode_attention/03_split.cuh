// decode_attention, level 3, split. Change: `splits` blocks share the tokens of a key head, so that few
// sequences keep all multiprocessors busy. Each writes its output and log-sum-exp, and a second kernel
// combines them.
#pragma once

#include "decode_attention/tile.cuh"

// The tokens of a split: an equal share of the sequence's whole tiles of BLOCK_N.
struct Chunk {
    int begin, end;

    __device__ __forceinline__ Chunk(int length, int split, int splits) {
        const int tiles = (length + BLOCK_N - 1) / BLOCK_N, each = (tiles + splits - 1) / splits;
        begin = split * each * BLOCK_N;
        end = min(begin + each * BLOCK_N, length);
    }
};

// Grid: block ((b * splits + split) * groups + group) * Hk + hk. Writes o_part[B,Hq,splits,D] and
// lse_part[B,Hq,splits], in fp32 and base 2; of a split without tokens only lse_part, -inf.
template <typename T, int D, int BLOCKS>
__global__ __launch_bounds__(THREADS, BLOCKS) void decode_attention_split_kernel(
    const T* q_ptr, const T* k_ptr, const T* v_ptr, const int* table_ptr, const int* lengths_ptr,
    float* o_part_ptr, float* lse_part_ptr, int splits, int Hk, int G, int groups, int pages, int page_size,
    float scale_log2, index_t stride_qb, index_t stride_qh, index_t stride_kp, index_t stride_kn,
    index_t stride_kh, index_t stride_vp, index_t stride_vn, index_t stride_vh) {
    DYNAMIC_SHARED(T, tiles);
    const int hk = blockIdx.x % Hk, group = blockIdx.x / Hk % groups;
    const int split = blockIdx.x / Hk / groups % splits;
    const index_t b = blockIdx.x / Hk / groups / splits;
    const int first_head = hk * G + group * HEADS, heads = min(G - group * HEADS, HEADS);
    const Sequence<T> sequence = {
        k_ptr + hk * stride_kh, v_ptr + hk * stride_vh, stride_kp, stride_kn, stride_vp, stride_vn,
        table_ptr + b * pages,  page_size};
    HeadTile<T, D> of_heads(q_ptr + b * stride_qb + first_head * stride_qh, stride_qh, heads);

    const int warp = threadIdx.x / WARP;
    const Chunk chunk(lengths_ptr[b], split, splits);
    T* tile = tiles + warp * TILE<D>;
    for (int n = chunk.begin + warp * TOKENS; n < chunk.end; n += BLOCK_N) {
        fetch_tile<D>(tile, sequence, sequence.page_of(n), n, chunk.end - n);
        cp_async_commit();
        cp_async_wait<0>();
        __syncwarp();  // the tile has landed
        of_heads.include(tile, chunk.end - n, scale_log2);
        __syncwarp();  // all lanes have read it
    }
    const index_t first_part = (b * Hk * G + first_head) * splits + split;
    combine_warps(of_heads, reinterpret_cast<float*>(tiles), heads,
                  [&](int head, int d, float value, float lse) {
                      const index_t part = first_part + index_t(head) * splits;
                      o_part_ptr[part * D + d] = value;
                      if (d == 0) lse_part_ptr[part] = lse;
                  });
}

// Grid: block b * Hq + h, a thread per element of its output.
template <typename T, int D>
__global__ __launch_bounds__(D) void decode_attention_combine_kernel(const float* o_part_ptr,
                                                                     const float* lse_part_ptr, T* o_ptr,
                                                                     int splits) {
    const index_t first_part = index_t(blockIdx.x) * splits;
    float max = negative_infinity(), sum = 0.0f, o = 0.0f;
    for (int split = 0; split < splits; ++split) max = fmaxf(max, lse_part_ptr[first_part + split]);
    const float shift = finite_shift(max);
#pragma unroll 8
    for (int split = 0; split < splits; ++split) {
        const float weight = exp2f(lse_part_ptr[first_part + split] - shift);
        sum += weight;
        o += weight * o_part_ptr[(first_part + split) * D + threadIdx.x];
    }
    o_ptr[index_t(blockIdx.x) * D + threadIdx.x] = T(sum == 0.0f ? 0.0f : o / sum);
}
