// reduce_sum: x[N] -> y[],  y = sum_n x[n], in fp32
//
// Variants, slow to fast. Every element is read once and added once; they differ in how threads communicate,
// how many bytes are in flight, and how the blocks' sums are added. triton_impl/reduce_sum.py has the same
// except shuffle, which its compiler applies by itself:
//   tree        one element per thread; tree reduction in shared memory, with a barrier per step
//   shuffle     as tree, but warp shuffles reduce in registers: one barrier per block
//   vectorized  16 vectorized 16-byte loads per thread in flight; persistent blocks, chunks round-robin
//   atomic      no second launch: each block adds its sum to y atomically, in no fixed order
//   last_block  the last block to finish adds the blocks' sums in a fixed order
//
// The first three write one sum per block and are launched again on these until one is left.
// For tree and shuffle x's elements are stride_xn apart, for the others contiguous.
#pragma once

#include "common.cuh"
#include "reduction.cuh"

// ---- tree ----------------------------------------------------------------------------------------------
// Grid: one block per THREADS elements. In each step the first half of the remaining threads adds the second
// half's sums; then a barrier.

template <typename T, int THREADS>
__global__ __launch_bounds__(THREADS) void reduce_sum_tree_kernel(
    const T* __restrict__ x_ptr, float* __restrict__ y_ptr, index_t N, index_t stride_xn) {
    __shared__ float thread_sums[THREADS];
    const int thread = threadIdx.x;
    const index_t n = index_t(blockIdx.x) * THREADS + thread;
    thread_sums[thread] = n < N ? float(x_ptr[n * stride_xn]) : 0.0f;
    __syncthreads();
#pragma unroll
    for (int half = THREADS / 2; half > 0; half /= 2) {
        if (thread < half) thread_sums[thread] += thread_sums[thread + half];
        __syncthreads();
    }
    if (thread == 0) y_ptr[blockIdx.x] = thread_sums[0];
}

// ---- shuffle -------------------------------------------------------------------------------------------
// Grid: as tree.

template <typename T, int THREADS>
__global__ __launch_bounds__(THREADS) void reduce_sum_shuffle_kernel(
    const T* __restrict__ x_ptr, float* __restrict__ y_ptr, index_t N, index_t stride_xn) {
    const index_t n = index_t(blockIdx.x) * THREADS + threadIdx.x;
    const float sum = block_reduce<Sum, THREADS>(n < N ? float(x_ptr[n * stride_xn]) : 0.0f);
    if (threadIdx.x == 0) y_ptr[blockIdx.x] = sum;
}

// ---- vectorized ----------------------------------------------------------------------------------------
// Grid: persistent, at most as many blocks as the GPU holds. Chunks of THREADS * VECTORS 16-byte vectors are
// assigned round-robin. Threads synchronise only after the last chunk. x is contiguous.
//
// The first `head` elements lie before a 16-byte boundary, where vectors begin; block 0 adds them one by one,
// and those after the last whole vector.

// The sum of the block's chunks; every thread gets it.
template <typename T, int VECTORS, int THREADS>
__device__ __forceinline__ float sum_of_chunks(const T* __restrict__ x_ptr, index_t N, int head) {
    constexpr int VEC = 16 / sizeof(T), CHUNK = VECTORS * THREADS;  // CHUNK in vectors
    const T* begin = x_ptr + head;
    const index_t vectors = (N - head) / VEC, whole = vectors / CHUNK, thread = threadIdx.x;
    float sum[4] = {};  // independent accumulators, for instruction-level parallelism
    for (index_t chunk = blockIdx.x; chunk < whole; chunk += gridDim.x) {
        Packed<T, VEC> packed[VECTORS];
#pragma unroll
        for (int p = 0; p < VECTORS; ++p)
            packed[p] = load_packed<VEC>(begin + (chunk * CHUNK + p * THREADS + thread) * VEC);
#pragma unroll
        for (int p = 0; p < VECTORS; ++p) {
            const Vec<T, VEC> x = packed[p].unpack();
#pragma unroll
            for (int v = 0; v < VEC; ++v) sum[v % 4] += to_float(x, v);
        }
    }
    // The partial last chunk, shared by all blocks. Unrolling it would take a division for the trip count.
    const index_t threads = index_t(gridDim.x) * THREADS;
#pragma unroll 1
    for (index_t i = whole * CHUNK + index_t(blockIdx.x) * THREADS + thread; i < vectors; i += threads) {
        const Vec<T, VEC> x = load_vec<VEC>(begin + i * VEC);
#pragma unroll
        for (int v = 0; v < VEC; ++v) sum[v % 4] += to_float(x, v);
    }
    if (blockIdx.x == 0) {
        const index_t tail = head + vectors * VEC + thread;
        if (thread < head) sum[0] += float(x_ptr[thread]);
        if (tail < N) sum[0] += float(x_ptr[tail]);
    }
    return block_reduce<Sum, THREADS>((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

template <typename T, int VECTORS, int THREADS, int BLOCKS>
__global__ __launch_bounds__(THREADS, BLOCKS) void reduce_sum_vectorized_kernel(
    const T* __restrict__ x_ptr, float* __restrict__ y_ptr, index_t N, int head) {
    const float sum = sum_of_chunks<T, VECTORS, THREADS>(x_ptr, N, head);
    if (threadIdx.x == 0) y_ptr[blockIdx.x] = sum;
}

// ---- atomic --------------------------------------------------------------------------------------------
// Grid: as vectorized. y starts as 0. The order of the blocks, and so the rounding, varies from run to run.

template <typename T, int VECTORS, int THREADS, int BLOCKS>
__global__ __launch_bounds__(THREADS, BLOCKS) void reduce_sum_atomic_kernel(
    const T* __restrict__ x_ptr, float* __restrict__ y_ptr, index_t N, int head) {
    const float sum = sum_of_chunks<T, VECTORS, THREADS>(x_ptr, N, head);
    if (threadIdx.x == 0) atomicAdd(y_ptr, sum);
}

// ---- last_block ----------------------------------------------------------------------------------------
// Grid: as vectorized. Every block writes its sum to block_sums, then increments blocks_done, which starts as
// 0. The last block sees all sums, and adds them in block order.

template <typename T, int VECTORS, int THREADS, int BLOCKS>
__global__ __launch_bounds__(THREADS, BLOCKS) void reduce_sum_last_block_kernel(
    const T* __restrict__ x_ptr, float* __restrict__ y_ptr, index_t N, int head, float* block_sums,
    unsigned long long* blocks_done) {
    const float sum = sum_of_chunks<T, VECTORS, THREADS>(x_ptr, N, head);
    if (threadIdx.x == 0) block_sums[blockIdx.x] = sum;
    if (!arrives_last(blocks_done, gridDim.x)) return;

    float total = 0.0f;
    for (unsigned i = threadIdx.x; i < gridDim.x; i += THREADS)
        total += __ldcg(block_sums + i);  // not from L1
    total = block_reduce<Sum, THREADS>(total);
    if (threadIdx.x == 0) *y_ptr = total;
}
