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
// x's elements are stride_xn apart. VEC is 16 bytes' worth of elements if x is contiguous, else 1.
#pragma once

#include "common.cuh"
#include "reduction.cuh"

// ---- reduction within a block --------------------------------------------------------------------------

// Every thread gets the sum over the block. Needs another barrier between two calls: of_warp is reused.
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
// Grid: one block per THREADS elements. In each step the first half of the remaining threads adds the second
// half's sums; then a barrier.

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
// Grid: persistent, at most as many blocks as the GPU holds. Chunks of THREADS * PACKS 16-byte vectors are
// assigned round-robin. Threads synchronise only after the last chunk.
//
// The first `head` elements lie before a 16-byte boundary, where vectors begin; block 0 adds them one by one,
// and those after the last whole vector. A strided x has VEC = 1, and no such ends.

// Independent accumulators, for instruction-level parallelism.
constexpr int SUMS = 4;

// Adds a chunk of `packs` vectors, `step` elements from one to the next.
template <typename T, int VEC, int PACKS, int THREADS>
__device__ __forceinline__ void add_chunk(float (&sum)[SUMS], const T* chunk_ptr, index_t step,
                                          index_t packs) {
    Pack<T, VEC> x[PACKS];
    const T* own_ptr = chunk_ptr + threadIdx.x * step;
    // All loads are in flight before the first is added. A condition on each would make the compiler wait in
    // between, so only the partial last chunk has one.
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
// Grid: as vectorized. y starts as 0. The order of the blocks, and so the rounding, varies from run to run.

template <typename T, int VEC, int PACKS, int THREADS, int BLOCKS>
__global__ __launch_bounds__(THREADS, BLOCKS) void reduce_sum_atomic_kernel(const T* __restrict__ x_ptr,
                                                                            float* __restrict__ y_ptr,
                                                                            index_t N, index_t stride_xn,
                                                                            int head) {
    const float sum = sum_of_chunks<T, VEC, PACKS, THREADS>(x_ptr, N, stride_xn, head);
    if (threadIdx.x == 0) atomicAdd(y_ptr, sum);
}

// ---- last_block ----------------------------------------------------------------------------------------
// Grid: as vectorized. Every block writes its sum to of_block, then increments blocks_done, which starts as
// 0. The last block sees all sums, and adds them in block order.

template <typename T, int VEC, int PACKS, int THREADS, int BLOCKS>
__global__ __launch_bounds__(THREADS, BLOCKS) void reduce_sum_last_block_kernel(
    const T* __restrict__ x_ptr, float* __restrict__ y_ptr, index_t N, index_t stride_xn, int head,
    float* of_block, unsigned long long* blocks_done) {
    const float sum = sum_of_chunks<T, VEC, PACKS, THREADS>(x_ptr, N, stride_xn, head);
    if (threadIdx.x == 0) of_block[blockIdx.x] = sum;
    if (!arrives_last(blocks_done, gridDim.x)) return;

    float total = 0.0f;
    for (unsigned i = threadIdx.x; i < gridDim.x; i += THREADS) total += __ldcg(of_block + i);  // not from L1
    total = block_sum<THREADS>(total);
    if (threadIdx.x == 0) *y_ptr = total;
}
