// histogram: x[N] -> y[256],  y[b] = how many x[n] are b,  x of bytes, y of 64-bit counts that start as 0
//
// Every element is an atomic increment of a counter, so conflicts decide. Variants, slow to fast; they differ
// in which threads share a counter. triton_impl/histogram.py has the first two, and the last in Gluon:
//   global  all threads: an atomic addition in global memory per element
//   shared  a block: its counters are in shared memory, and are added to y once, at its end
//   warps   a warp: 256 counters each; 16-byte vectorized loads of x
//   lanes   a lane: one private counter per bin, in a bank of its own, shared by all warps of a block
//
// x's elements are stride_xn apart. A block counts in 32 bits, so it takes at most 2^32 elements.
#pragma once

#include "common.cuh"

using byte_t = unsigned char;
using count_t = unsigned long long;  // y's int64

constexpr int BINS = 256;

// ---- global --------------------------------------------------------------------------------------------
// Grid: one thread per element.

template <int THREADS>
__global__ __launch_bounds__(THREADS) void histogram_global_kernel(const byte_t* __restrict__ x_ptr,
                                                                   count_t* __restrict__ y_ptr, index_t N,
                                                                   index_t stride_xn) {
    const index_t n = index_t(blockIdx.x) * THREADS + threadIdx.x;
    if (n < N) atomicAdd(y_ptr + x_ptr[n * stride_xn], count_t(1));
}

// ---- shared --------------------------------------------------------------------------------------------
// Grid: persistent, a few blocks per multiprocessor; tiles of THREADS elements are assigned round-robin.
// THREADS equals BINS, so that each thread initialises and flushes one counter.

template <int THREADS>
__global__ __launch_bounds__(THREADS) void histogram_shared_kernel(const byte_t* __restrict__ x_ptr,
                                                                   count_t* __restrict__ y_ptr, index_t N,
                                                                   index_t stride_xn) {
    static_assert(THREADS == BINS, "a thread a bin");
    __shared__ unsigned count[BINS];
    count[threadIdx.x] = 0;
    __syncthreads();
    const index_t step = index_t(gridDim.x) * THREADS;
    for (index_t n = index_t(blockIdx.x) * THREADS + threadIdx.x; n < N; n += step) {
        atomicAdd(count + x_ptr[n * stride_xn], 1u);
    }
    __syncthreads();
    const unsigned all = count[threadIdx.x];
    if (all != 0) atomicAdd(y_ptr + threadIdx.x, count_t(all));
}

// ---- warps, lanes --------------------------------------------------------------------------------------
// Grid: persistent, at most as many blocks as the GPU holds. Chunks of THREADS * PACKS 16-byte vectors are
// assigned round-robin. The first `head` elements lie before a 16-byte boundary, where vectors begin; block 0
// counts them one by one, and those after the last whole vector. A strided x has VEC = 1, and no such ends.

// Byte v.
__device__ __forceinline__ unsigned byte_of(const Pack<byte_t, 1>& pack, int) {
    return pack.element;
}
__device__ __forceinline__ unsigned byte_of(const Pack<byte_t, 16>& pack, int v) {
    return pack.word[v / 4] >> v % 4 * 8 & 0xff;
}

// Counts a chunk of `packs` vectors, `step` elements from one to the next.
template <int VEC, int PACKS, int THREADS, typename Counters>
__device__ __forceinline__ void count_chunk(const Counters& counters, const byte_t* chunk_ptr, index_t step,
                                            index_t packs) {
    const byte_t* own_ptr = chunk_ptr + threadIdx.x * step;
    if (packs >= PACKS * THREADS) {
        Pack<byte_t, VEC> x[PACKS];  // all loads are in flight before the first is counted
#pragma unroll
        for (int p = 0; p < PACKS; ++p) x[p] = load<byte_t, VEC>(own_ptr + p * THREADS * step);
#pragma unroll
        for (int p = 0; p < PACKS; ++p) {
#pragma unroll
            for (int v = 0; v < VEC; ++v) counters.add(byte_of(x[p], v));
        }
    } else {
        for (index_t p = threadIdx.x; p < packs; p += THREADS, own_ptr += THREADS * step) {
            const Pack<byte_t, VEC> x = load<byte_t, VEC>(own_ptr);
#pragma unroll
            for (int v = 0; v < VEC; ++v) counters.add(byte_of(x, v));
        }
    }
}

template <int VEC, int PACKS, int THREADS, typename Counters>
__device__ __forceinline__ void count_chunks(const Counters& counters, const byte_t* x_ptr, index_t N,
                                             index_t stride_xn, int head) {
    constexpr int CHUNK = PACKS * THREADS;
    const index_t step = VEC > 1 ? VEC : stride_xn;
    const index_t packs = (N - head) / VEC;
    for (index_t begin = index_t(blockIdx.x) * CHUNK; begin < packs; begin += index_t(gridDim.x) * CHUNK) {
        count_chunk<VEC, PACKS, THREADS>(counters, x_ptr + head + begin * step, step, packs - begin);
    }
    if (VEC > 1 && blockIdx.x == 0) {
        const int thread = threadIdx.x;
        const index_t behind = head + packs * VEC + thread;
        if (thread < head) counters.add(x_ptr[thread]);
        if (behind < N) counters.add(x_ptr[behind]);
    }
}

// ---- warps ---------------------------------------------------------------------------------------------
// A warp's counters are contiguous. Two lanes may still update one counter, which the GPU combines, or two
// counters in one bank: a bank conflict.

struct OfWarp {
    unsigned* count;

    __device__ __forceinline__ void add(unsigned byte) const { atomicAdd(count + byte, 1u); }
};

template <int VEC, int PACKS, int THREADS, int BLOCKS>
__global__ __launch_bounds__(THREADS, BLOCKS) void histogram_warps_kernel(const byte_t* __restrict__ x_ptr,
                                                                          count_t* __restrict__ y_ptr,
                                                                          index_t N, index_t stride_xn,
                                                                          int head) {
    constexpr int WARPS = THREADS / WARP;
    __shared__ unsigned count[WARPS * BINS];
    for (int i = threadIdx.x; i < WARPS * BINS; i += THREADS) count[i] = 0;
    __syncthreads();
    const OfWarp own{count + threadIdx.x / WARP * BINS};
    count_chunks<VEC, PACKS, THREADS>(own, x_ptr, N, stride_xn, head);
    __syncthreads();
    for (int bin = threadIdx.x; bin < BINS; bin += THREADS) {
        unsigned all = 0;
        for (int warp = 0; warp < WARPS; ++warp) all += count[warp * BINS + bin];
        if (all != 0) atomicAdd(y_ptr + bin, count_t(all));
    }
}

// ---- lanes ---------------------------------------------------------------------------------------------
// Shared memory: BINS * COPIES counters, a bin's copies together. Lane l's copies are all in bank l, whatever
// the elements: no bank conflicts, and no two lanes of a warp on one counter. There are two copies per lane,
// one for even warps and one for odd. A bin's copies take 256 bytes, so a counter's address is byte << 8 |
// lane offset: one instruction.

constexpr int COPIES = 64;

struct OfLane {
    byte_t* count;
    unsigned lower;  // byte offset of the lane's copy

    __device__ __forceinline__ void add(unsigned byte) const {
        atomicAdd(reinterpret_cast<unsigned*>(count + (byte << 8 | lower)), 1u);
    }
};

template <int VEC, int PACKS, int THREADS, int BLOCKS>
__global__ __launch_bounds__(THREADS, BLOCKS) void histogram_lanes_kernel(const byte_t* __restrict__ x_ptr,
                                                                          count_t* __restrict__ y_ptr,
                                                                          index_t N, index_t stride_xn,
                                                                          int head) {
    DYNAMIC_SHARED(unsigned, count);
    for (int i = threadIdx.x; i < BINS * COPIES; i += THREADS) count[i] = 0;
    __syncthreads();
    const OfLane own{reinterpret_cast<byte_t*>(count), threadIdx.x % COPIES * 4};
    count_chunks<VEC, PACKS, THREADS>(own, x_ptr, N, stride_xn, head);
    __syncthreads();
    for (int bin = threadIdx.x; bin < BINS; bin += THREADS) {
        unsigned all = 0;
        // Every thread of a warp starts at another copy: conflict-free.
        for (int copy = 0; copy < COPIES; ++copy) all += count[bin * COPIES + (copy + bin) % COPIES];
        if (all != 0) atomicAdd(y_ptr + bin, count_t(all));
    }
}
