// What every level shares: the size of a block, and where a token of a sequence is.
#pragma once

#include "common.cuh"

constexpr int WARPS = 4, THREADS = WARPS * WARP;

// The keys and values of one sequence for one key head.
template <typename T>
struct Sequence {
    const T* k_ptr;  // of the head, in page 0
    const T* v_ptr;
    index_t stride_kp, stride_kn, stride_vp, stride_vn;  // between pages and between tokens
    const int* table;
    int page_size;

    // The page of token n.
    __device__ __forceinline__ int page_of(int n) const { return table[n / page_size]; }
    __device__ __forceinline__ const T* key(index_t page, int n) const {
        return k_ptr + page * stride_kp + n % page_size * stride_kn;
    }
    __device__ __forceinline__ const T* value(index_t page, int n) const {
        return v_ptr + page * stride_vp + n % page_size * stride_vn;
    }
};
