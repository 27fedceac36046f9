// What all levels share: which elements are kept, and where a warp stores them.
#pragma once

#include "common.cuh"

// value > 0: false for NaN, true for subnormals. Inline PTX, because in C++ -ftz=true flushes subnormals to 0
// in comparisons too; in PTX each instruction states it.
__device__ __forceinline__ bool is_kept(float value) {
#ifdef HOST_BUILD
    return value > 0.0f;
#else
    int kept;
    asm("{ .reg .pred p; setp.gt.f32 p, %1, 0f00000000; selp.s32 %0, 1, 0, p; }" : "=r"(kept) : "f"(value));
    return kept != 0;
#endif
}

// Loads the thread's elements of a tile. Returns a bit per element, set if it is kept: comparing again later
// would make the compiler keep all of x in fp32.
template <int THREADS, int ITEMS, typename T>
__device__ __forceinline__ unsigned load_tile(
    T (&x)[ITEMS], const T* x_ptr, index_t N, index_t stride_xn, index_t tile) {
    static_assert(ITEMS <= 32, "a bit a step");
    const index_t begin = tile * THREADS * ITEMS;
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const index_t first = begin + warp * (WARP * ITEMS) + lane;
    // All loads are in flight before the first is used. A condition on each could make the compiler wait in
    // between, so only the partial tile at x's end has one.
    if (begin + THREADS * ITEMS <= N) {
#pragma unroll
        for (int i = 0; i < ITEMS; ++i) x[i] = x_ptr[(first + i * WARP) * stride_xn];
    } else {
#pragma unroll
        for (int i = 0; i < ITEMS; ++i) {
            const index_t n = first + i * WARP;
            x[i] = n < N ? x_ptr[n * stride_xn] : T(0.0f);  // 0 is not kept
        }
    }
    unsigned kept = 0;
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) kept |= unsigned(is_kept(float(x[i]))) << i;
    return kept;
}

// Exclusive sum over the warps before this one, and the block's total, of what each warp keeps. Needs another
// barrier between two calls: warp_counts is reused.
struct Counted {
    int before, all;
};
template <int THREADS>
__device__ __forceinline__ Counted scan_warps(int count) {
    constexpr int WARPS = THREADS / WARP;
    __shared__ int warp_counts[WARPS];
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    if (lane == 0) warp_counts[warp] = count;
    __syncthreads();
    const int other = lane < WARPS ? warp_counts[lane] : 0;
    return {warp_reduce<Sum>(lane < warp ? other : 0), warp_reduce<Sum>(other)};
}

// Stream compaction of 32 consecutive elements by a warp: one ballot tells which lanes keep theirs, and one
// popc how many of those are before this lane. Kept elements are consecutive, so a step's stores are
// coalesced.
template <typename T>
__device__ __forceinline__ void store_kept(T*& place, T x, bool keep) {
    const unsigned kept = __ballot_sync(FULL_WARP, keep), lanes_before = (1u << threadIdx.x % WARP) - 1;
    if (keep) place[__popc(kept & lanes_before)] = x;
    place += __popc(kept);
}

// The NaN that ends y, if there is room.
template <typename T>
__device__ __forceinline__ void store_end(T* y_ptr, index_t count, index_t N) {
    if (threadIdx.x == 0 && count < N) y_ptr[count] = T(__int_as_float(0x7fc00000));
}
