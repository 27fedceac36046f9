// rotary: q[B,S,H,D], k[B,S,Hk,D], cos[S,D/2], sin[S,D/2] -> out[B,S,H+Hk,D], heads of q first
//
//   out[..., d]       = x[..., d] * cos[s, d] - x[..., d + D/2] * sin[s, d]      d < D/2
//   out[..., d + D/2] = x[..., d + D/2] * cos[s, d] + x[..., d] * sin[s, d]
//
// The ladder. triton_impl/rotary.py has the same variants under the same names:
//   pairs  a thread turns one pair of elements, and fetches its cosine and sine for it alone
//   token  threads share the heads of a token, and keep their places' cosines and sines for all of them
//
// q and k have any strides but that elements of a head lie side by side; so have rows of cos and sin. out is
// dense. Arithmetic is in fp32.
#pragma once

#include "common.cuh"

// Heads of q and k by their number in out.
template <typename T>
struct Heads {
    const T *q_ptr, *k_ptr;
    index_t H, stride_qb, stride_qs, stride_qh, stride_kb, stride_ks, stride_kh;

    __device__ __forceinline__ const T* of(index_t b, index_t s, index_t h) const {
        return h < H ? q_ptr + b * stride_qb + s * stride_qs + h * stride_qh
                     : k_ptr + b * stride_kb + s * stride_ks + (h - H) * stride_kh;
    }
};

// ---- pairs ---------------------------------------------------------------------------------------------
// Thread n turns the n-th pair: of half = D/2 in a head, of heads = H + Hk in a token.

template <typename T>
__global__ void rotary_pairs_kernel(const T* q_ptr, const T* k_ptr, const T* cos_ptr, const T* sin_ptr,
                                    T* out_ptr, index_t pairs, index_t S, index_t H, index_t heads,
                                    index_t half, index_t stride_qb, index_t stride_qs, index_t stride_qh,
                                    index_t stride_kb, index_t stride_ks, index_t stride_kh,
                                    index_t stride_cs, index_t stride_ss) {
    const Heads<T> x = {q_ptr, k_ptr, H, stride_qb, stride_qs, stride_qh, stride_kb, stride_ks, stride_kh};
    const index_t n = index_t(blockIdx.x) * blockDim.x + threadIdx.x;
    if (n >= pairs) return;
    const index_t d = n % half, head = n / half, h = head % heads, token = head / heads;
    const index_t s = token % S, b = token / S;
    const float cos = to_float(cos_ptr[s * stride_cs + d]), sin = to_float(sin_ptr[s * stride_ss + d]);
    const T* x_ptr = x.of(b, s, h) + d;
    const float first = to_float(x_ptr[0]), second = to_float(x_ptr[half]);
    T* to_ptr = out_ptr + head * 2 * half + d;
    to_ptr[0] = from_float<T>(first * cos - second * sin);
    to_ptr[half] = from_float<T>(second * cos + first * sin);
}

// ---- token ---------------------------------------------------------------------------------------------
// Grid: a block for `block_tokens` tokens. Of a token's token_threads threads, `lanes` lie along half a head, a
// pack each; the next as many have the next head, and so on. A thread has two packs of each of HEADS heads on
// their way at a time: one of either half. VEC is 16 bytes' worth where all halves start on 16-byte boundaries,
// else 1.

template <typename T, int VEC, int HEADS>
__global__ __launch_bounds__(256) void rotary_token_kernel(
    const T* q_ptr, const T* k_ptr, const T* cos_ptr, const T* sin_ptr, T* out_ptr, index_t tokens, index_t S,
    index_t H, index_t heads, index_t half, index_t stride_qb, index_t stride_qs, index_t stride_qh,
    index_t stride_kb, index_t stride_ks, index_t stride_kh, index_t stride_cs, index_t stride_ss, int lanes,
    int token_threads, int block_tokens) {
    const Heads<T> x = {q_ptr, k_ptr, H, stride_qb, stride_qs, stride_qh, stride_kb, stride_ks, stride_kh};
    const int thread = threadIdx.x % token_threads, slot = threadIdx.x / token_threads;
    const index_t token = index_t(blockIdx.x) * block_tokens + slot;
    if (slot >= block_tokens || token >= tokens) return;
    const index_t s = token % S, b = token / S;
    const int groups = token_threads / lanes;
    T* token_ptr = out_ptr + token * heads * 2 * half;

    for (index_t d = thread % lanes * VEC; d < half; d += lanes * VEC) {
        const Pack<T, VEC> cos = load<T, VEC>(cos_ptr + s * stride_cs + d);
        const Pack<T, VEC> sin = load<T, VEC>(sin_ptr + s * stride_ss + d);
        for (index_t begin = thread / lanes; begin < heads; begin += groups * HEADS) {
            Pack<T, VEC> first[HEADS], second[HEADS];
#pragma unroll
            for (int i = 0; i < HEADS; ++i) {
                const index_t h = begin + i * groups;
                if (h < heads) {
                    const T* x_ptr = x.of(b, s, h) + d;
                    first[i] = load<T, VEC>(x_ptr);
                    second[i] = load<T, VEC>(x_ptr + half);
                }
            }
#pragma unroll
            for (int i = 0; i < HEADS; ++i) {
                const index_t h = begin + i * groups;
                if (h >= heads) break;
                float turned_first[VEC], turned_second[VEC];
#pragma unroll
                for (int v = 0; v < VEC; ++v) {
                    const float c = get(cos, v), sn = get(sin, v);
                    turned_first[v] = get(first[i], v) * c - get(second[i], v) * sn;
                    turned_second[v] = get(second[i], v) * c + get(first[i], v) * sn;
                }
                Pack<T, VEC> y;
                T* to_ptr = token_ptr + h * 2 * half + d;
                set(y, turned_first);
                store(to_ptr, y);
                set(y, turned_second);
                store(to_ptr + half, y);
            }
        }
    }
}
