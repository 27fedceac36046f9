// What the tensor-core levels share: a warp's tile of 16 query heads, which it multiplies by 16 tokens at a
// time, and the combination of a block's warps. Source: Dao, "FlashAttention-2" (2023), and Dao et al.,
// "Flash-Decoding for long-context inference" (2023).
#pragma once

#include "common.cuh"
#include "decode_attention/pages.cuh"
#include "swizzle.cuh"
#include "tensor_core.cuh"

constexpr int HEADS = 16;   // rows of a tile: query heads of one key head, the rest of them 0
constexpr int TOKENS = 16;  // of a warp's tile. No tile crosses a page.
constexpr int BLOCK_N = WARPS * TOKENS;

template <int D>
constexpr int BLOCKS = 256 / D;  // per multiprocessor: 186 registers per thread with D = 128, 118 with D = 64
template <int D>
constexpr int TILE = 2 * TOKENS * D;  // elements of a warp's keys and values in shared memory

// What a block works on: up to HEADS of the G query heads of key head hk, and a split of the tokens. Blocks
// are numbered ((b * splits + split) * groups + group) * Hk + hk: the heads of a page are read together.
struct Unit {
    int hk, first_head, heads, split;
    index_t b;

    __device__ __forceinline__ Unit(int Hk, int G, int groups, int splits) {
        const int group = blockIdx.x / Hk % groups;
        hk = blockIdx.x % Hk;
        first_head = hk * G + group * HEADS;
        heads = min(G - group * HEADS, HEADS);
        split = blockIdx.x / Hk / groups % splits;
        b = blockIdx.x / Hk / groups / splits;
    }
};

// cp.async by a warp of TOKENS rows; rows from `tokens` on become 0 and are not read.
template <typename T, int D>
__device__ __forceinline__ void fetch_rows(T* tile, const T* rows, index_t stride, int tokens) {
    constexpr int VECTORS = D / 8, STEP = WARP / VECTORS;  // rows between a lane's copies
    const int row = threadIdx.x % WARP / VECTORS, vector = threadIdx.x % VECTORS;
    const T* from = rows + row * stride + vector * 8;
#pragma unroll
    for (int i = 0; i < TOKENS; i += STEP, from += STEP * stride) {
        cp_async_16(tile + swizzle<D>(row + i, vector), from, row + i < tokens ? 16 : 0);
    }
}

// Starts the copies of a tile: keys, then values, of the tokens from n on, `tokens` of which exist.
template <int D, typename T>
__device__ __forceinline__ void fetch_tile(
    T* tile, const Sequence<T>& sequence, index_t page, int n, int tokens) {
    fetch_rows<T, D>(tile, sequence.key(page, n), sequence.stride_kn, tokens);
    fetch_rows<T, D>(tile + TOKENS * D, sequence.value(page, n), sequence.stride_vn, tokens);
}

// A warp's query heads, and their output so far. With g = lane / 4 and t = lane % 4, a lane has columns 2t
// and 2t+1 of every 8, of rows g and g + 8.
template <typename T, int D>
struct HeadTile {
    unsigned q[D / 16][4];
    float o[D / 8][4] = {};
    float max[2] = {negative_infinity(), negative_infinity()};
    float sum[2] = {};  // of this lane's columns

    __device__ __forceinline__ HeadTile(const T* q_ptr, index_t stride_qh, int heads) {
        const int g = threadIdx.x % WARP / 4, t = threadIdx.x % 4;
#pragma unroll
        for (int i = 0; i < D / 16 * 4; ++i) {
            const int row = g + i % 2 * 8, column = i / 4 * 16 + i % 4 / 2 * 8 + t * 2;
            const T* two = q_ptr + row * stride_qh + column;
            q[i / 4][i % 4] = row < heads ? *reinterpret_cast<const unsigned*>(two) : 0;
        }
    }

    // Online softmax over a tile of TOKENS tokens, `tokens` of which exist.
    __device__ __forceinline__ void include(const T* tile, int tokens, float scale_log2) {
        const int in_matrix = threadIdx.x % 8, matrix = threadIdx.x % WARP / 8, column = threadIdx.x % 4 * 2;
        float s[2][4] = {};  // scores of tokens 0 to 7 and 8 to 15
#pragma unroll
        for (int i = 0; i < D / 16; ++i) {
            unsigned k[4];  // tokens 0 to 7, both halves of 16 elements; then tokens 8 to 15
            ldmatrix_x4(k, tile + swizzle<D>(matrix / 2 * 8 + in_matrix, i * 2 + matrix % 2));
            mma_m16n8k16<T>(s[0], q[i], k[0], k[1]);
            mma_m16n8k16<T>(s[1], q[i], k[2], k[3]);
        }
        unsigned p[4];  // probabilities as the left operand of the second product
#pragma unroll
        for (int half = 0; half < 2; ++half) {  // row g, row g + 8
            float row_max = max[half];
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                float& score = s[j / 2][half * 2 + j % 2];
                const bool exists = j / 2 * 8 + column + j % 2 < tokens;
                score = exists ? score * scale_log2 : negative_infinity();
                row_max = fmaxf(row_max, score);
            }
            row_max = warp_reduce<Max, 4>(row_max);
            const float shift = finite_shift(row_max), rescale = exp2f(max[half] - shift);
            max[half] = row_max;
            sum[half] *= rescale;
#pragma unroll
            for (int j = 0; j < D / 8; ++j) {
                o[j][half * 2] *= rescale;
                o[j][half * 2 + 1] *= rescale;
            }
#pragma unroll
            for (int j = 0; j < 2; ++j) {
                const float first = exp2f(s[j][half * 2] - shift), second = exp2f(s[j][half * 2 + 1] - shift);
                sum[half] += first + second;
                const T two[2] = {T(first), T(second)};
                p[j * 2 + half] = reinterpret_cast<const unsigned&>(two);
            }
        }
        const T* values = tile + TOKENS * D;
#pragma unroll
        for (int i = 0; i < D / 16; ++i) {
            unsigned v[4];  // both halves of the tokens for 8 columns; then for the next 8
            ldmatrix_x4_trans(v, values + swizzle<D>(matrix % 2 * 8 + in_matrix, i * 2 + matrix / 2));
            mma_m16n8k16<T>(o[i * 2], p, v[0], v[1]);
            mma_m16n8k16<T>(o[i * 2 + 1], p, v[2], v[3]);
        }
    }
};

// Combines the warps' tiles and calls store(head, d, o, lse) for every element of `heads` heads; lse is in
// base 2. `shared` holds WARPS * HEADS * D floats.
template <typename T, int D, typename Store>
__device__ __forceinline__ void combine_warps(
    const HeadTile<T, D>& tile, float* shared, int heads, Store store) {
    __shared__ float max_of[WARPS][HEADS], sum_of[WARPS][HEADS];
    const int warp = threadIdx.x / WARP, g = threadIdx.x % WARP / 4, t = threadIdx.x % 4;
    __syncthreads();  // all warps have read their last tile, whose memory this is
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int row = g + half * 8;
        const float sum = warp_reduce<Sum, 4>(tile.sum[half]);
        if (t == 0) {
            max_of[warp][row] = tile.max[half];
            sum_of[warp][row] = sum;
        }
#pragma unroll
        for (int j = 0; j < D / 8; ++j) {
            *reinterpret_cast<float2*>(shared + (warp * HEADS + row) * D + j * 8 + t * 2) =
                make_float2(tile.o[j][half * 2], tile.o[j][half * 2 + 1]);
        }
    }
    __syncthreads();
    for (int i = threadIdx.x; i < heads * D; i += THREADS) {
        const int row = i / D;
        float max = negative_infinity(), sum = 0.0f, o = 0.0f;
        for (int w = 0; w < WARPS; ++w) max = fmaxf(max, max_of[w][row]);
        const float shift = finite_shift(max);
        for (int w = 0; w < WARPS; ++w) {
            const float weight = exp2f(max_of[w][row] - shift);
            sum += weight * sum_of[w][row];
            o += weight * shared[(w * HEADS + row) * D + i % D];
        }
        store(row, i % D, sum == 0.0f ? 0.0f : o / sum, shift + log2f(sum));
    }
}
