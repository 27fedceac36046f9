// rotary: q[B,S,H,D], k[B,S,Hk,D], cos[S,D/2], sin[S,D/2] -> out[B,S,H+Hk,D], heads of q first
//
//   out[..., d]       = x[..., d] * cos[s, d] - x[..., d + D/2] * sin[s, d]      d < D/2
//   out[..., d + D/2] = x[..., d + D/2] * cos[s, d] + x[..., d] * sin[s, d]
//
// Variants; triton_impl/rotary.py has the same under the same names:
//   pairs  a thread rotates one pair of elements, with its own loads of cosine and sine
//   token  threads share the heads of a token and reuse its cosines and sines for all of them
//
// Heads of q and k and rows of cos and sin are contiguous; other strides are arbitrary. out is contiguous.
// Arithmetic is in fp32.
#pragma once

#include "common.cuh"

// ---- pairs ---------------------------------------------------------------------------------------------
// Thread n rotates the n-th pair; half = D/2 pairs per head, heads = H + Hk per token.

template <typename T>
__global__ void rotary_pairs_kernel(
    const T* q_ptr, const T* k_ptr, const T* cos_ptr, const T* sin_ptr, T* out_ptr, index_t pairs, index_t S,
    index_t H, index_t heads, index_t half, index_t stride_qb, index_t stride_qs, index_t stride_qh,
    index_t stride_kb, index_t stride_ks, index_t stride_kh, index_t stride_cs, index_t stride_ss) {
    const index_t n = index_t(blockIdx.x) * blockDim.x + threadIdx.x;
    if (n >= pairs) return;
    const index_t d = n % half, head = n / half, h = head % heads, token = head / heads;
    const index_t s = token % S, b = token / S;
    const float cos = float(cos_ptr[s * stride_cs + d]), sin = float(sin_ptr[s * stride_ss + d]);
    const T* x_ptr = d + (h < H ? q_ptr + b * stride_qb + s * stride_qs + h * stride_qh
                                : k_ptr + b * stride_kb + s * stride_ks + (h - H) * stride_kh);
    const float first = float(x_ptr[0]), second = float(x_ptr[half]);
    T* to_ptr = out_ptr + head * 2 * half + d;
    to_ptr[0] = T(first * cos - second * sin);
    to_ptr[half] = T(second * cos + first * sin);
}

// ---- token ---------------------------------------------------------------------------------------------
// Grid: `pieces` blocks per `block_tokens` tokens. A token has token_threads threads: `lanes` consecutive
// ones cover half a head, or a piece of it, with one vector each; the next `lanes` have the next head, and so
// on. A thread has 2 * HEADS loads in flight: both halves of each of HEADS heads. VEC is 16 bytes' worth of
// elements if all halves are 16-byte aligned, else 1. At most 96 registers per thread, so that five blocks
// share a multiprocessor.

// Rotates every groups-th of `heads` heads from head `group` on, with the thread's cosines and sines.
template <int HEADS, typename T, int VEC>
__device__ __forceinline__ void rotate_heads(
    const T* x_ptr, index_t stride_xh, const Packed<T, VEC>& packed_cos, const Packed<T, VEC>& packed_sin,
    T* to_ptr, index_t half, int heads, int group, int groups) {
#pragma unroll 1
    for (int begin = group; begin < heads; begin += groups * HEADS) {
        Packed<T, VEC> first[HEADS], second[HEADS];
#pragma unroll
        for (int i = 0; i < HEADS; ++i) {
            const index_t h = begin + i * groups;
            if (h >= heads) break;
            first[i] = load_packed<VEC>(x_ptr + h * stride_xh);
            second[i] = load_packed<VEC>(x_ptr + h * stride_xh + half);
        }
#pragma unroll
        for (int i = 0; i < HEADS; ++i) {
            const index_t h = begin + i * groups;
            if (h >= heads) break;
            const Vec<T, VEC> cos = packed_cos.unpack(), sin = packed_sin.unpack();
            const Vec<T, VEC> x = first[i].unpack(), y = second[i].unpack();
            Vec<T, VEC> rotated_x, rotated_y;
#pragma unroll
            for (int v = 0; v < VEC; ++v) {
                const float c = to_float(cos, v), s = to_float(sin, v), a = to_float(x, v),
                            b = to_float(y, v);
                rotated_x[v] = T(a * c - b * s);
                rotated_y[v] = T(b * c + a * s);
            }
            store_vec(to_ptr + h * 2 * half, rotated_x);
            store_vec(to_ptr + h * 2 * half + half, rotated_y);
        }
    }
}

template <typename T, int VEC, int HEADS>
__global__ __launch_bounds__(128, 5) void rotary_token_kernel(
    const T* q_ptr, const T* k_ptr, const T* cos_ptr, const T* sin_ptr, T* out_ptr, index_t tokens, index_t S,
    index_t H, index_t heads, index_t half, index_t stride_qb, index_t stride_qs, index_t stride_qh,
    index_t stride_kb, index_t stride_ks, index_t stride_kh, index_t stride_cs, index_t stride_ss, int lanes,
    int pieces, int token_threads, int block_tokens) {
    const int thread = threadIdx.x % token_threads, slot = threadIdx.x / token_threads;
    const index_t token = index_t(blockIdx.x / pieces) * block_tokens + slot;
    const index_t d = index_t(blockIdx.x % pieces * lanes + thread % lanes) * VEC;
    if (slot >= block_tokens || token >= tokens || d >= half) return;
    const index_t s = token % S, b = token / S;
    const Packed<T, VEC> cos = load_packed<VEC>(cos_ptr + s * stride_cs + d);
    const Packed<T, VEC> sin = load_packed<VEC>(sin_ptr + s * stride_ss + d);
    const int group = thread / lanes, groups = token_threads / lanes;
    q_ptr += b * stride_qb + s * stride_qs + d;
    k_ptr += b * stride_kb + s * stride_ks + d;
    out_ptr += token * heads * 2 * half + d;
    rotate_heads<HEADS>(q_ptr, stride_qh, cos, sin, out_ptr, half, int(H), group, groups);
    rotate_heads<HEADS>(
        k_ptr, stride_kh, cos, sin, out_ptr + H * 2 * half, half, int(heads - H), group, groups);
}
