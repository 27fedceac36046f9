// What attention's levels from wgmma on share: tiles of a head in shared memory, the two products of a tile
// of keys, and the online softmax on wgmma's accumulators. They take 16-bit elements.
//
// A tile is D / 64 pieces of `rows` rows of 128 bytes, as TMA writes them (128-byte swizzle). A warpgroup has
// 64 rows of q. A thread has parts of two of them: with h = 0, 1, accumulator 4 * j + 2 * h + i is row
// 16 * warp + 8 * h + lane / 4, column 8 * j + 2 * (lane % 4) + i.
#pragma once

#include "attention/hopper_ptx.cuh"
#include "common.cuh"

constexpr int GROUP_M = 64;      // rows of q of a warpgroup
constexpr int LINE_BYTES = 128;  // of a row of a piece
constexpr int PIECE_D = 64;

#if HAS_WGMMA_LEVELS

// Registers per thread, of 65536, for one producer and two or three consumer warpgroups.
template <int CONSUMERS>
constexpr int PRODUCER_REGISTERS = CONSUMERS == 2 ? 24 : 32;
template <int CONSUMERS>
constexpr int CONSUMER_REGISTERS = CONSUMERS == 2 ? 240 : 160;

// The 128-byte swizzle repeats every 1024 bytes and needs that alignment; dynamic shared memory may lack it.
__device__ __forceinline__ unsigned char* align_1024(unsigned char* shared) {
    return shared + (-shared_address(shared) & 1023);
}

// A stage of a ring of STAGES, and its mbarriers' phase parity.
template <int STAGES>
struct Ring {
    int stage = 0;
    unsigned parity = 0;

    __device__ __forceinline__ void advance() {
        if (++stage == STAGES) {
            stage = 0;
            parity ^= 1;
        }
    }
};

// The rows of q of a tile, and the keys that they see: the causal diagonal ends at the last key.
struct Tile {
    int head, batch, m;  // m: first row of q
    int Sq, Skv;
    bool causal;

    __device__ __forceinline__ int keys_of(int row) const {
        return causal ? min(max(row + 1 + Skv - Sq, 0), Skv) : Skv;
    }
    // Tiles of keys, at least one: a row that sees no key is masked as any other.
    __device__ __forceinline__ int tiles_n(int BLOCK_M, int BLOCK_N) const {
        return max((keys_of(m + BLOCK_M - 1) + BLOCK_N - 1) / BLOCK_N, 1);
    }
};

template <typename T>
__device__ __forceinline__ unsigned two_of(float x, float y) {
    if constexpr (IS_BF16<T>) {
        const __nv_bfloat162 two = __floats2bfloat162_rn(x, y);
        return *reinterpret_cast<const unsigned*>(&two);
    } else {
        const __half2 two = __floats2half2_rn(x, y);
        return *reinterpret_cast<const unsigned*>(&two);
    }
}

// s = a warpgroup's rows of q @ a tile of k, transposed: D / 16 wgmma, both operands from shared memory.
template <typename T, int D, int BLOCK_M, int COUNT>
__device__ __forceinline__ void multiply_qk(float (&s)[COUNT], const unsigned char* q,
                                            const unsigned char* k) {
    constexpr int BLOCK_N = 2 * COUNT;
    const matrix_t q_first = matrix_descriptor(q, 0), k_first = matrix_descriptor(k, 0);
    wgmma_fence();
#pragma unroll
    for (int d = 0; d < D; d += 16) {
        const int piece = d / PIECE_D, in_line = d % PIECE_D * 2;
        const matrix_t q_d = q_first + ((piece * BLOCK_M * LINE_BYTES + in_line) >> 4);
        const matrix_t k_d = k_first + ((piece * BLOCK_N * LINE_BYTES + in_line) >> 4);
        wgmma<T, false, false>(s, q_d, k_d, d > 0);
    }
    wgmma_commit_group();
}

// o += p @ a tile of v: BLOCK_N / 16 wgmma. p comes from registers: no store to shared memory, no barrier.
template <typename T, int WORDS, int COUNT>
__device__ __forceinline__ void multiply_pv(float (&o)[COUNT], const unsigned (&p)[WORDS],
                                            const unsigned char* v) {
    constexpr int BLOCK_N = 4 * WORDS;
    const matrix_t v_first = matrix_descriptor(v, BLOCK_N * LINE_BYTES);
    wgmma_fence();
#pragma unroll
    for (int n = 0; n < BLOCK_N; n += 16) {
        wgmma_from_registers<T>(o, p + n / 4, v_first + (n * LINE_BYTES >> 4));
    }
    wgmma_commit_group();
}

// The online softmax of a thread's two rows. A row's sum is that of this thread's columns until `finish`.
template <typename T, int D>
struct Softmax {
    static constexpr float SCALE_LOG2 = (D == 64 ? 0.125f : 0.08838834764831845f) * 1.4426950408889634f;

    float max[2] = {negative_infinity(), negative_infinity()};  // of s * SCALE_LOG2
    float sum[2] = {0.0f, 0.0f};
    float factor[2];  // from sums of earlier tiles to the new maximum
    int row;          // of q, the first of the two; the other is 8 further
    Tile tile;

    __device__ __forceinline__ Softmax(const Tile& tile, int first_row)
        : row(first_row + threadIdx.x % WARPGROUP / WARP * 16 + threadIdx.x % WARP / 4), tile(tile) {}

    // s becomes exp2(s * SCALE_LOG2 - max): one FFMA and one MUFU.EX2 per element. n: the tile's first key.
    template <int COUNT>
    __device__ __forceinline__ void update(float (&s)[COUNT], int n, int unmasked) {
        if (n + 2 * COUNT > unmasked) mask(s, n);
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            float highest = fmaxf(s[2 * h], s[2 * h + 1]);
#pragma unroll
            for (int j = 1; j < COUNT / 4; ++j) {
                highest = fmaxf(highest, fmaxf(s[4 * j + 2 * h], s[4 * j + 2 * h + 1]));
            }
            const float before = max[h];
            max[h] = fmaxf(before, warp_reduce<Max, 4>(highest) * SCALE_LOG2);
            const float subtract = max[h] == negative_infinity() ? 0.0f : max[h];  // no key yet: no NaN
            factor[h] = exp2f(before - subtract);
            sum[h] *= factor[h];
#pragma unroll
            for (int j = 0; j < COUNT / 4; ++j) {
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    float& element = s[4 * j + 2 * h + i];
                    element = exp2f(element * SCALE_LOG2 - subtract);
                    sum[h] += element;
                }
            }
        }
    }

    template <int COUNT>
    __device__ __forceinline__ void mask(float (&s)[COUNT], int n) const {
        const int key = n + threadIdx.x % 4 * 2;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const int keys = tile.keys_of(row + 8 * h) - key;
#pragma unroll
            for (int j = 0; j < COUNT / 4; ++j) {
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    if (8 * j + i >= keys) s[4 * j + 2 * h + i] = negative_infinity();
                }
            }
        }
    }

    template <int COUNT>
    __device__ __forceinline__ void rescale(float (&o)[COUNT]) const {
#pragma unroll
        for (int i = 0; i < COUNT; ++i) o[i] *= factor[i / 2 % 2];
    }

    // Stores o / sum and lse. A row without a key has sum 0: o = 0, lse = -inf.
    template <int COUNT>
    __device__ __forceinline__ void finish(const float (&o)[COUNT], T* o_ptr, float* lse_ptr, int Hq) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const float total = warp_reduce<Sum, 4>(sum[h]);
            const float inverse = total == 0.0f ? 0.0f : 1.0f / total;
            const int m = row + 8 * h;
            if (m >= tile.Sq) continue;
            const index_t at = (static_cast<index_t>(tile.batch) * tile.Sq + m) * Hq + tile.head;
            T* const to = o_ptr + at * D + threadIdx.x % 4 * 2;
#pragma unroll
            for (int j = 0; j < D / 8; ++j) {
                const float* const two = o + 4 * j + 2 * h;
                *reinterpret_cast<unsigned*>(to + 8 * j) = two_of<T>(two[0] * inverse, two[1] * inverse);
            }
            if (threadIdx.x % 4 == 0) {
                const index_t row_of_lse = static_cast<index_t>(tile.batch) * Hq + tile.head;
                lse_ptr[row_of_lse * tile.Sq + m] = (max[h] + log2f(total)) * 0.6931471805599453f;
            }
        }
    }
};

// p, rounded to T, in the order of wgmma's operand a, which is that of the accumulators of q @ k.
template <typename T, int COUNT>
__device__ __forceinline__ void round_p(unsigned (&p)[COUNT / 2], const float (&s)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT / 2; ++i) p[i] = two_of<T>(s[2 * i], s[2 * i + 1]);
}

#endif  // HAS_WGMMA_LEVELS
