// cross_entropy: logits[M,V], targets[M] -> loss[M]
//
//   loss[m] = log(sum_v exp(logits[m,v])) - logits[m,targets[m]]
//
// Variants; triton_impl/cross_entropy.py has the same under the same names except the last, which is in
// Gluon, in triton_impl/gluon_cluster/:
//   online   a warp or a block reads a row once, tile by tile, with a running maximum and sum
//   split    several blocks share a row; the last to finish combines the partial results: few long rows
//   cluster  the blocks of a cluster share a row and send partial results to the first block: Hopper
//
// The output is one number per row, so nothing of a row needs to be kept: bytes in flight decide. Rows of
// logits are stride_lm elements apart, at any alignment.
#pragma once

#include "common.cuh"
#include "hopper.cuh"
#include "reduction.cuh"
#include "running.cuh"

constexpr index_t IGNORED = -100;  // PyTorch's ignore_index: the loss of such a row is 0

// Reduces `count` consecutive elements; each of THREADS threads returns its share. Vectorized 16-byte loads,
// VECTORS in flight per thread, start at the first 16-byte boundary. The elements before it and after the
// last vector are fewer than two vectors together: one per thread.
template <typename T, int VECTORS, int THREADS>
__device__ __forceinline__ Running reduce(const T* part_ptr, index_t count, int thread) {
    constexpr int VEC = 16 / sizeof(T);
    const int misaligned = static_cast<int>(reinterpret_cast<unsigned long long>(part_ptr) / sizeof(T) % VEC);
    index_t head = (VEC - misaligned) % VEC;
    if (head > count) head = count;
    const index_t vectors = (count - head) / VEC;
    const index_t edges = count - vectors * VEC;
    const T* body_ptr = part_ptr + head;

    T edge = T(0.0f);  // used at the end, so that its load overlaps with the rest
    if (thread < edges) edge = part_ptr[thread < head ? thread : count - edges + thread];

    Running seen = identity();
    constexpr int TILE = THREADS * VECTORS;
    for (index_t begin = 0; begin < vectors; begin += TILE) {
        const int left = static_cast<int>(vectors - begin < TILE ? vectors - begin : TILE);
        const T* tile_ptr = body_ptr + begin * VEC;
        Packed<T, VEC> x[VECTORS];
#pragma unroll
        for (int p = 0; p < VECTORS; ++p) {
            const int vector = p * THREADS + thread;
            if (vector < left) x[p] = load_packed<VEC>(tile_ptr + vector * VEC);
        }
#pragma unroll
        for (int p = 0; p < VECTORS; ++p) {
            if (p * THREADS + thread < left) seen = include(seen, x[p].unpack());
        }
    }
    if (thread < edges) seen = combine(seen, {float(edge), 1.0f});
    return seen;
}

// The target's logit; NaN for an out-of-range target.
template <typename T>
__device__ __forceinline__ float pick(const T* row_ptr, index_t V, index_t target) {
    return target >= 0 && target < V ? float(row_ptr[target]) : __int_as_float(0x7fc00000);
}

// log(sum(exp(x))) - picked. This order keeps the logarithm's precision where maximum and picked are large.
__device__ __forceinline__ float loss_of(Running row, float picked, index_t target) {
    return target == IGNORED ? 0.0f : logf(row.sum) - (picked - row.max);
}

// ---- online --------------------------------------------------------------------------------------------
// Grid: one block per BLOCK_M rows. THREADS / BLOCK_M threads share a row: one warp, or the whole block. The
// target is loaded with the row. Its logit is loaded after the row, and overlaps with the final reduction.
// 48 registers hold four vectors, 64 eight: room for 1280 and 1024 threads.

template <typename T, int VECTORS, int THREADS, int BLOCK_M>
__global__
__launch_bounds__(THREADS, (VECTORS == 4 && MOST_THREADS == 2048 ? 1280 : 1024) / THREADS) void cross_entropy_online_kernel(
    const T* logits_ptr, const index_t* targets_ptr, float* loss_ptr, index_t M, index_t V, index_t stride_lm,
    index_t stride_tm) {
    constexpr int ROW_THREADS = THREADS / BLOCK_M;
    static_assert(BLOCK_M == 1 || ROW_THREADS == WARP, "several rows a block: a warp each");
    const int thread = threadIdx.x % ROW_THREADS;
    const index_t m = static_cast<index_t>(blockIdx.x) * BLOCK_M + threadIdx.x / ROW_THREADS;
    if (m >= M) return;
    const T* row_ptr = logits_ptr + m * stride_lm;
    const index_t target = targets_ptr[m * stride_tm];

    Running row = reduce<T, VECTORS, ROW_THREADS>(row_ptr, V, thread);
    const float picked = pick(row_ptr, V, target);
    if constexpr (BLOCK_M == 1) {
        row = block_combine<THREADS>(row);
    } else {
        row = warp_combine<WARP>(row);
    }
    if (thread == 0) loss_ptr[m] = loss_of(row, picked, target);
}

// ---- split ---------------------------------------------------------------------------------------------
// Grid: `splits` blocks per row, each with `slice` columns of it. A block writes its partial result to
// partials[M,splits], then increments arrived[M], which starts as 0. The block that finds all others counted
// combines the partial results, in column order whichever block it is. No block waits for another.

template <typename T, int VECTORS, int THREADS>
__global__ __launch_bounds__(THREADS, 1024 / THREADS) void cross_entropy_split_kernel(
    const T* logits_ptr, const index_t* targets_ptr, float* loss_ptr, index_t V, index_t stride_lm,
    index_t stride_tm, index_t slice, int splits, word_t* partials, word_t* arrived) {
    const index_t m = blockIdx.x / splits;
    const index_t begin = blockIdx.x % splits * slice;
    const T* row_ptr = logits_ptr + m * stride_lm;
    const index_t count = begin + slice < V ? slice : V - begin;
    const Running part =
        block_combine<THREADS>(reduce<T, VECTORS, THREADS>(row_ptr + begin, count, threadIdx.x));

    if (threadIdx.x == 0) partials[blockIdx.x] = to_word(part);
    if (!arrives_last(&arrived[m], splits) || threadIdx.x >= WARP) return;

    const index_t target = targets_ptr[m * stride_tm];
    const float picked = pick(row_ptr, V, target);
    Running row = identity();
    for (int s = threadIdx.x; s < splits; s += WARP) {
        row = combine(row, from_word(__ldcg(partials + m * splits + s)));  // bypasses the L1, maybe stale
    }
    row = warp_combine<WARP>(row);
    if (threadIdx.x == 0) loss_ptr[m] = loss_of(row, picked, target);
}

// ---- cluster -------------------------------------------------------------------------------------------
// Grid: one cluster of CLUSTER blocks per row, each with `slice` columns of it, or fewer or none at its end.
// Every block sends its partial result into the shared memory of the cluster's first block, which combines
// them. No global memory is involved, and none needs to be zeroed.

template <typename T, int VECTORS, int THREADS, int CLUSTER>
__global__ __launch_bounds__(THREADS, 1024 / THREADS) CLUSTER_OF(CLUSTER) void cross_entropy_cluster_kernel(
    const T* logits_ptr, const index_t* targets_ptr, float* loss_ptr, index_t V, index_t stride_lm,
    index_t stride_tm, index_t slice) {
#if HAS_HOPPER_UNITS
    __shared__ mbarrier_t arrived;
    __shared__ word_t block_results[CLUSTER];
    const int rank = cluster_block_rank();
    const index_t m = blockIdx.x / CLUSTER;
    const index_t begin = rank * slice;
    const T* row_ptr = logits_ptr + m * stride_lm;
    const index_t count = begin >= V ? 0 : begin + slice < V ? slice : V - begin;
    const index_t target = targets_ptr[m * stride_tm];

    if (rank == 0 && threadIdx.x == 0) {  // all blocks signal the first one
        mbarrier_init(&arrived, 1);
        mbarrier_init_fence();
    }
    __syncthreads();
    cluster_arrive_relaxed();

    const Running seen = reduce<T, VECTORS, THREADS>(row_ptr + begin, count, threadIdx.x);
    const float picked = pick(row_ptr, V, target);
    const Running part = block_combine<THREADS>(seen);

    cluster_wait();  // all blocks of the cluster have started: the first one's shared memory may be written
    if (threadIdx.x == 0) {
        if (rank == 0)
            mbarrier_arrive_expect_bytes(&arrived, sizeof(block_results));  // bytes may arrive earlier
        store_async_to_block(&block_results[rank], 0, to_word(part), &arrived);
    }
    if (rank != 0 || threadIdx.x >= WARP) return;
    mbarrier_wait(&arrived, 0);
    const Running row = warp_combine<CLUSTER>(from_word(block_results[threadIdx.x % CLUSTER]));
    if (threadIdx.x == 0) loss_ptr[m] = loss_of(row, picked, target);
#endif
}
