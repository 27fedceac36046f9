// reduce_sum: x[N] -> y[],  y = sum_n x[n], in fp32
//
// The ladder, slow to fast. Every element is read once and added once; what changes is how threads meet, how
// much of x is on its way at a time, and what becomes of the blocks' sums. triton_impl/reduce_sum.py has the
// same but for shuffle, which its compiler does by itself:
//   tree        an element a thread; a block's threads add in halves, in shared memory, and meet at each
//   shuffle     the same, but that warps add from register to register, and the block meets once
//   vectorized  16 packs of 16 bytes a thread are on their way at once; few blocks, which go on and on
//   atomic      no second kernel for the blocks' sums: each block adds its own to y, in no certain order
//   last_block  the last block to be done adds them, in a certain order
//
// The first three leave a sum for each block and are launched again, on these, until one is left.
// x's elements are stride_xn apart. VEC elements move at a time: 16 bytes' worth where they are neighbours.
#pragma once

#include "common.cuh"
#include "reduction.cuh"

// ---- from threads to a block ---------------------------------------------------------------------------

// Every thread gets the sum over the block. Between two calls there must be another barrier: of_warp is used
// again.
template <int THREADS>
__device__ __forceinline__ float block_sum(float sum) {
    constexpr int WARPS = THREADS / WARP;
    __shared__ float of_warp[WARPS];
    sum = warp_sum<WARP>(sum);
    if (threadIdx.x % WARP == 0) of_warp[threadIdx.x / WARP] = sum;
    __syncthreads();
    return warp_sum<WARP>(threadIdx.x % WARP < WARPS ? of_warp[threadIdx.x % WARP] : 0.0f);
}

// ---- tree ----------------------------------------------------------------------------------------------
// Grid: a block for THREADS elements. At every step the first half of the threads that are left adds what the
// second half has, and all meet.

template <typename T, int THREADS>
__global__ __launch_bounds__(THREADS) void reduce_sum_tree_kernel(const T* __restrict__ x_ptr,
                                                                  float* __restrict__ y_ptr, index_t N,
                                                                  index_t stride_xn) {
    __shared__ float of_thread[THREADS];
    const int thread = threadIdx.x;
    const index_t n = index_t(blockIdx.x) * THREADS + thread;
    of_thread[thread] = n < N ? to_float(x_ptr[n * stride_xn]) : 0.0f;
    __syncthreads();
#pragma unroll
    for (int half = THREADS / 2; half > 0; half /= 2) {
        if (thread < half) of_thread[thread] += of_thread[thread + half];
        __syncthreads();
    }
    if (thread == 0) y_ptr[blockIdx.x] = of_thread[0];
}

// ---- shuffle -------------------------------------------------------------------------------------------
// Grid: as tree.

template <typename T, int THREADS>
__global__ __launch_bounds__(THREADS) void reduce_sum_shuffle_kernel(const T* __restrict__ x_ptr,
                                                                     float* __restrict__ y_ptr, index_t N,
                                                                     index_t stride_xn) {
    const index_t n = index_t(blockIdx.x) * THREADS + threadIdx.x;
    const float sum = block_sum<THREADS>(n < N ? to_float(x_ptr[n * stride_xn]) : 0.0f);
    if (threadIdx.x == 0) y_ptr[blockIdx.x] = sum;
}

// ---- vectorized ----------------------------------------------------------------------------------------
// Grid: as many blocks as the GPU holds, or fewer. x is cut into chunks of THREADS * PACKS packs, and the
// blocks take every gridDim.x-th. No thread waits for another before the chunks are over.
//
// The first `head` elements lie before a 16-byte boundary, where packs begin; block 0 adds them one by one,
// and those behind the last whole pack. A strided x has packs of one element, and no such ends.

// Sums that do not wait for each other.
constexpr int SUMS = 4;

// Adds a chunk's packs, of which `packs` are there, `step` elements from one to the next.
template <typename T, int VEC, int PACKS, int THREADS>
__device__ __forceinline__ void add_chunk(float (&sum)[SUMS], const T* chunk_ptr, index_t step,
                                          index_t packs) {
    Pack<T, VEC> x[PACKS];
    const T* own_ptr = chunk_ptr + threadIdx.x * step;
    // All loads are on their way before the first is added. A condition on each would have the compiler wait
    // between, so only the last chunk has one.
    if (packs >= PACKS * THREADS) {
#pragma unroll
        for (int p = 0; p < PACKS; ++p) x[p] = load<T, VEC>(own_ptr + p * THREADS * step);
    } else {
        const float nothing[VEC] = {};
#pragma unroll
        for (int p = 0; p < PACKS; ++p) {
            set(x[p], nothing);
            if (p * THREADS + threadIdx.x < packs) x[p] = load<T, VEC>(own_ptr + p * THREADS * step);
        }
    }
#pragma unroll
    for (int p = 0; p < PACKS; ++p) {
#pragma unroll
        for (int v = 0; v < VEC; ++v) sum[(p * VEC + v) % SUMS] += get(x[p], v);
    }
}

// The sum of the block's chunks; every thread gets it.
template <typename T, int VEC, int PACKS, int THREADS>
__device__ __forceinline__ float sum_of_chunks(const T* x_ptr, index_t N, index_t stride_xn, int head) {
    constexpr int CHUNK = PACKS * THREADS;
    const index_t step = VEC > 1 ? VEC : stride_xn;
    const index_t packs = (N - head) / VEC;
    float sum[SUMS] = {};
    for (index_t begin = index_t(blockIdx.x) * CHUNK; begin < packs; begin += index_t(gridDim.x) * CHUNK) {
        add_chunk<T, VEC, PACKS, THREADS>(sum, x_ptr + head + begin * step, step, packs - begin);
    }
    if (VEC > 1 && blockIdx.x == 0) {
        const int thread = threadIdx.x;
        const index_t behind = head + packs * VEC + thread;
        if (thread < head) sum[0] += to_float(x_ptr[thread]);
        if (behind < N) sum[0] += to_float(x_ptr[behind]);
    }
    return block_sum<THREADS>((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

template <typename T, int VEC, int PACKS, int THREADS, int BLOCKS>
__global__ __launch_bounds__(THREADS, BLOCKS) void reduce_sum_vectorized_kernel(const T* __restrict__ x_ptr,
                                                                                float* __restrict__ y_ptr,
                                                                                index_t N, index_t stride_xn,
                                                                                int head) {
    const float sum = sum_of_chunks<T, VEC, PACKS, THREADS>(x_ptr, N, stride_xn, head);
    if (threadIdx.x == 0) y_ptr[blockIdx.x] = sum;
}

// ---- atomic --------------------------------------------------------------------------------------------
// Grid: as vectorized. y starts as 0. Which block comes first is different every time, and with it how the
// sum is rounded.

template <typename T, int VEC, int PACKS, int THREADS, int BLOCKS>
__global__ __launch_bounds__(THREADS, BLOCKS) void reduce_sum_atomic_kernel(const T* __restrict__ x_ptr,
                                                                            float* __restrict__ y_ptr,
                                                                            index_t N, index_t stride_xn,
                                                                            int head) {
    const float sum = sum_of_chunks<T, VEC, PACKS, THREADS>(x_ptr, N, stride_xn, head);
    if (threadIdx.x == 0) atomicAdd(y_ptr, sum);
}

// ---- last_block ----------------------------------------------------------------------------------------
// Grid: as vectorized. Every block writes its sum to of_block and counts itself in blocks_done, which starts
// as 0. Who counts last knows that all sums are there, and adds them in the order of the blocks.

template <typename T, int VEC, int PACKS, int THREADS, int BLOCKS>
__global__ __launch_bounds__(THREADS, BLOCKS) void reduce_sum_last_block_kernel(
    const T* __restrict__ x_ptr, float* __restrict__ y_ptr, index_t N, index_t stride_xn, int head,
    float* of_block, unsigned long long* blocks_done) {
    const float sum = sum_of_chunks<T, VEC, PACKS, THREADS>(x_ptr, N, stride_xn, head);
    if (threadIdx.x == 0) of_block[blockIdx.x] = sum;
    if (!arrives_last(blocks_done, gridDim.x)) return;

    float total = 0.0f;
    for (unsigned i = threadIdx.x; i < gridDim.x; i += THREADS) total += __ldcg(of_block + i);  // past the L1
    total = block_sum<THREADS>(total);
    if (threadIdx.x == 0) *y_ptr = total;
}
