// cross_entropy: logits[M,V], targets[M] -> loss[M]
//
//   loss[m] = log(sum_v exp(logits[m,v])) - logits[m,targets[m]]
//
// Variants; triton_impl/cross_entropy.py has the same under the same names except the last, which is in
// Gluon, in triton_impl/gluon_cluster/:
//   online   half a warp, a warp or a block reads a row once, tile by tile, with a running maximum and sum
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
#include "x2.cuh"

constexpr index_t IGNORED = -100;  // PyTorch's ignore_index: the loss of such a row is 0

// The maximum of VECTORS vectors. That of 16-bit elements is exact in 16 bits: one instruction for two of
// them, where fp32 takes two to unpack and two to compare.
template <int VECTORS, typename T, int VEC>
__device__ __forceinline__ float max_of(const Packed<T, VEC>* x) {
    if constexpr (sizeof(T) == 2) {
        using Two = typename WordOf<T>::type;
        Two max[4];
#pragma unroll
        for (int p = 0; p < VECTORS; ++p) {
            const Two* two = reinterpret_cast<const Two*>(&x[p].words);
#pragma unroll
            for (int i = 0; i < 4; ++i) max[i] = p == 0 ? two[i] : __hmax2(max[i], two[i]);
        }
        const Two two = __hmax2(__hmax2(max[0], max[1]), __hmax2(max[2], max[3]));
        return fmaxf(float(two.x), float(two.y));
    } else {
        float max = negative_infinity();
#pragma unroll
        for (int p = 0; p < VECTORS; ++p) {
            const Vec<T, VEC> four = x[p].unpack();
#pragma unroll
            for (int v = 0; v < VEC; ++v) max = fmaxf(max, four[v]);
        }
        return max;
    }
}

// As running.cuh's include, but the old sum is rescaled once for VECTORS vectors. Four sums: one alone would
// be a chain of dependent additions.
template <int VECTORS, typename T, int VEC>
__device__ __forceinline__ Running include(Running seen, const Packed<T, VEC>* packed) {
    const float max = fmaxf(seen.max, max_of<VECTORS>(packed));
    const float shift = finite_shift(max);
    float sum[4] = {};
#pragma unroll
    for (int p = 0; p < VECTORS; ++p) {
        const Vec<T, VEC> x = packed[p].unpack();
#pragma unroll
        for (int v = 0; v < VEC; ++v) sum[v % 4] += __expf(to_float(x, v) - shift);
    }
    return {max, seen.sum * __expf(seen.max - shift) + ((sum[0] + sum[1]) + (sum[2] + sum[3]))};
}

// A thread's VECTORS vectors of a tile, the first at `own_ptr`, then THREADS vectors apart; -inf from the
// tile's vector `left` on, so that what follows has no branches. __ldcs: the L2 may evict them first.
template <int THREADS, typename T, int VEC, int VECTORS>
__device__ __forceinline__ void load_tile(
    Packed<T, VEC> (&x)[VECTORS], const uint4* own_ptr, int left, int thread) {
    if (left >= THREADS * VECTORS) {
#pragma unroll
        for (int p = 0; p < VECTORS; ++p) x[p].words = __ldcs(own_ptr + p * THREADS);
    } else {
        Vec<T, VEC> nothing;
#pragma unroll
        for (int v = 0; v < VEC; ++v) nothing[v] = T(negative_infinity());
#pragma unroll
        for (int p = 0; p < VECTORS; ++p) {
            x[p] = reinterpret_cast<const Packed<T, VEC>&>(nothing);
            if (p * THREADS + thread < left) x[p].words = __ldcs(own_ptr + p * THREADS);
        }
    }
}

// Reduces `count` consecutive elements; each of THREADS threads returns its share. Vectorized 16-byte loads,
// VECTORS in flight per thread, start at the first 16-byte boundary. The elements before it and after the
// last vector are fewer than two vectors together: one per thread. ONE_TILE: the vectors are one tile.
template <typename T, int VECTORS, int THREADS, bool ONE_TILE = false>
__device__ __forceinline__ Running reduce(const T* part_ptr, index_t count, int thread) {
    constexpr int VEC = 16 / sizeof(T), TILE = THREADS * VECTORS;
    static_assert(THREADS >= 2 * VEC - 2, "an edge per thread");
    const int misaligned = static_cast<int>(reinterpret_cast<word_t>(part_ptr) / sizeof(T) % VEC);
    int head = (VEC - misaligned) % VEC;
    if (head > count) head = static_cast<int>(count);
    const int vectors = static_cast<int>((count - head) / VEC);  // an int counts those of 32 GB
    const int edges = static_cast<int>(count - index_t(vectors) * VEC);

    T edge = T(0.0f);  // used at the end, so that its load overlaps with the rest
    if (thread < edges) edge = part_ptr[thread < head ? thread : count - edges + thread];

    Running seen = identity();
    const uint4* own_ptr = reinterpret_cast<const uint4*>(part_ptr + head) + thread;
    for (int left = vectors; left > 0; left -= TILE, own_ptr += TILE) {
        Packed<T, VEC> x[VECTORS];
        load_tile<THREADS>(x, own_ptr, left, thread);
        if constexpr (ONE_TILE) {
            seen = include<VECTORS>(seen, x);
            break;
        }
        // In halves: of a row's last tile the second may be empty.
        seen = include<VECTORS / 2>(seen, x);
        if (left > TILE / 2) seen = include<VECTORS / 2>(seen, x + VECTORS / 2);
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
// Grid: one block per BLOCK_M rows. THREADS / BLOCK_M threads share a row: half a warp, a warp, or the block.
// The target is loaded with the row. Its logit is loaded after the row, and overlaps with the final
// reduction. A row is at most one tile, except with 8 vectors, which take any row.

// Threads per multiprocessor. 40 registers hold 4 vectors, 48 hold 6, 64 hold 8; sm_75 takes more to unpack.
constexpr int resident_threads(int VECTORS) {
    if (MOST_THREADS == 1024) return VECTORS == 4 ? 1024 : 768;
    return VECTORS == 8 ? 1024 : VECTORS == 6 ? 1280 : 1536;
}

template <typename T, int VECTORS, int THREADS, int BLOCK_M>
__global__ __launch_bounds__(THREADS, resident_threads(VECTORS) / THREADS) void cross_entropy_online_kernel(
    const T* logits_ptr, const index_t* targets_ptr, float* loss_ptr, index_t M, index_t V, index_t stride_lm,
    index_t stride_tm) {
    constexpr int ROW_THREADS = THREADS / BLOCK_M;
    static_assert(BLOCK_M == 1 || ROW_THREADS <= WARP, "several rows a block: each within a warp");
    const int thread = threadIdx.x % ROW_THREADS;
    index_t m = static_cast<index_t>(blockIdx.x) * BLOCK_M + threadIdx.x / ROW_THREADS;
    const bool exists = BLOCK_M == 1 || m < M;
    if (!exists) m = M - 1;  // all lanes take part in the shuffles
    const T* row_ptr = logits_ptr + m * stride_lm;
    const index_t target = targets_ptr[m * stride_tm];

    Running row = reduce<T, VECTORS, ROW_THREADS, VECTORS != 8>(row_ptr, V, thread);
    const float picked = pick(row_ptr, V, target);
    if constexpr (BLOCK_M == 1) {
        row = block_combine<THREADS>(row);
    } else {
        row = warp_combine<ROW_THREADS>(row);
    }
    if (thread == 0 && exists) loss_ptr[m] = loss_of(row, picked, target);
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
#if HAS_HOPPER_LEVELS
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
