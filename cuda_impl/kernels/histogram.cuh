// histogram: x[N] -> y[256],  y[b] = how many x[n] are b,  x of bytes, y of 64-bit counts that start as 0
//
// Every element is an atomic increment of a counter, so conflicts decide. Variants, slow to fast; they differ
// in which threads share a counter. triton_impl/histogram.py has the first two, and the last in Gluon:
//   global  all threads: an atomic addition in global memory per element
//   shared  a block: its counters are in shared memory, and are added to y once, at its end
//   warps   a warp: 256 counters each; 16-byte vectorized loads of x
//   lanes   a lane: one private counter per bin, in a bank of its own, shared by all warps of a block
//
// For global and shared x's elements are stride_xn apart, for the others contiguous. A block counts in 32
// bits, so it takes at most 2^32 elements.
#pragma once

#include "common.cuh"

using byte_t = unsigned char;
using count_t = unsigned long long;  // y's int64

constexpr int BINS = 256;

// ---- global --------------------------------------------------------------------------------------------
// Grid: one thread per element.

template <int THREADS>
__global__ __launch_bounds__(THREADS) void histogram_global_kernel(
    const byte_t* __restrict__ x_ptr, count_t* __restrict__ y_ptr, index_t N, index_t stride_xn) {
    const index_t n = index_t(blockIdx.x) * THREADS + threadIdx.x;
    if (n < N) atomicAdd(y_ptr + x_ptr[n * stride_xn], count_t(1));
}

// ---- shared --------------------------------------------------------------------------------------------
// Grid: persistent, a few blocks per multiprocessor; tiles of THREADS elements are assigned round-robin.
// THREADS equals BINS, so that each thread initialises and flushes one counter.

template <int THREADS>
__global__ __launch_bounds__(THREADS) void histogram_shared_kernel(
    const byte_t* __restrict__ x_ptr, count_t* __restrict__ y_ptr, index_t N, index_t stride_xn) {
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
// Grid: persistent, at most as many blocks as the GPU holds. Chunks of THREADS * VECTORS 16-byte vectors are
// assigned round-robin. x is contiguous. The first `head` elements lie before a 16-byte boundary, where
// vectors begin; block 0 counts them one by one, and those after the last whole vector.

using Vector = Vec<unsigned, 4>;  // 16 elements, as registers hold them
__device__ __forceinline__ unsigned byte_of(const Vector& x, int v) {
    return x[v / 4] >> v % 4 * 8 & 0xff;
}

// Calls count(byte) for each element of the block's chunks.
template <int VECTORS, int THREADS, typename Count>
__device__ __forceinline__ void count_chunks(
    const byte_t* __restrict__ x_ptr, index_t N, int head, Count count) {
    constexpr int VEC = 16, CHUNK = VECTORS * THREADS;  // CHUNK in vectors
    const auto* vector = reinterpret_cast<const Vector*>(x_ptr + head);
    const index_t vectors = (N - head) / VEC, whole = vectors / CHUNK, thread = threadIdx.x;
    for (index_t chunk = blockIdx.x; chunk < whole; chunk += gridDim.x) {
        Vector x[VECTORS];  // all loads are in flight before the first is counted
#pragma unroll
        for (int p = 0; p < VECTORS; ++p) x[p] = vector[chunk * CHUNK + p * THREADS + thread];
#pragma unroll
        for (int p = 0; p < VECTORS; ++p) {
#pragma unroll
            for (int v = 0; v < VEC; ++v) count(byte_of(x[p], v));
        }
    }
    // The partial last chunk, shared by all blocks.
    const index_t threads = index_t(gridDim.x) * THREADS;
    for (index_t i = whole * CHUNK + index_t(blockIdx.x) * THREADS + thread; i < vectors; i += threads) {
        const Vector x = vector[i];
#pragma unroll
        for (int v = 0; v < VEC; ++v) count(byte_of(x, v));
    }
    if (blockIdx.x == 0) {
        const index_t tail = head + vectors * VEC + thread;
        if (thread < head) count(x_ptr[thread]);
        if (tail < N) count(x_ptr[tail]);
    }
}

// ---- warps ---------------------------------------------------------------------------------------------
// A warp's counters are contiguous. Two lanes may still update one counter, which the GPU combines, or two
// counters in one bank: a bank conflict.

template <int VECTORS, int THREADS, int BLOCKS>
__global__ __launch_bounds__(THREADS, BLOCKS) void histogram_warps_kernel(
    const byte_t* __restrict__ x_ptr, count_t* __restrict__ y_ptr, index_t N, int head) {
    constexpr int WARPS = THREADS / WARP;
    __shared__ unsigned count[WARPS * BINS];
    for (int i = threadIdx.x; i < WARPS * BINS; i += THREADS) count[i] = 0;
    __syncthreads();
    unsigned* own = count + threadIdx.x / WARP * BINS;
    count_chunks<VECTORS, THREADS>(x_ptr, N, head, [=](unsigned byte) { atomicAdd(own + byte, 1u); });
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

template <int VECTORS, int THREADS, int BLOCKS>
__global__ __launch_bounds__(THREADS, BLOCKS) void histogram_lanes_kernel(
    const byte_t* __restrict__ x_ptr, count_t* __restrict__ y_ptr, index_t N, int head) {
    DYNAMIC_SHARED(unsigned, count);
    for (int i = threadIdx.x; i < BINS * COPIES; i += THREADS) count[i] = 0;
    __syncthreads();
    const unsigned lane = threadIdx.x % COPIES * 4;  // byte offset of the lane's copy
    count_chunks<VECTORS, THREADS>(x_ptr, N, head, [=](unsigned byte) {
        atomicAdd(reinterpret_cast<unsigned*>(reinterpret_cast<byte_t*>(count) + (byte << 8 | lane)), 1u);
    });
    __syncthreads();
    for (int bin = threadIdx.x; bin < BINS; bin += THREADS) {
        unsigned all = 0;
        // Every thread of a warp starts at another copy: conflict-free.
        for (int copy = 0; copy < COPIES; ++copy) all += count[bin * COPIES + (copy + bin) % COPIES];
        if (all != 0) atomicAdd(y_ptr + bin, count_t(all));
    }
}
