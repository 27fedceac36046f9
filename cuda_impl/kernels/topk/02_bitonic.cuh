// bitonic: one pass, with the best so far in registers.
//
// Grid: one block per row; its warps take vectors round-robin. Each warp has a sorted list of its BLOCK_K
// best, BLOCK_K / 32 registers per lane. An element that is greater than the list's least enters a queue in
// shared memory, by ballot. A full queue is sorted by a bitonic network and merged with the list. The longer
// the row, the fewer elements enter. Source: Johnson, Douze and Jegou, "Billion-scale similarity search with
// GPUs".
#pragma once

#include "topk/order.cuh"

// Element i of a list is register i / 32 of lane i % 32.
template <int ITEMS>
struct List {
    word_t word[ITEMS];

    // A step of a bitonic network: elements `stride` apart exchange, so that runs of `size` are descending
    // and ascending by turns.
    __device__ __forceinline__ void exchange(int size, int stride) {
        const int lane = threadIdx.x % WARP;
        if (stride >= WARP) {
#pragma unroll
            for (int r = 0; r < ITEMS; ++r) {
                const int other = r ^ (stride / WARP);
                if (r < other && other < ITEMS) {
                    const word_t a = word[r], b = word[other];
                    const bool swap = (a < b) == ((r * WARP & size) == 0);
                    word[r] = swap ? b : a;
                    word[other] = swap ? a : b;
                }
            }
        } else {
#pragma unroll
            for (int r = 0; r < ITEMS; ++r) {
                const bool descending = ((r * WARP + lane) & size) == 0, first = (lane & stride) == 0;
                const word_t other = __shfl_xor_sync(FULL_WARP, word[r], stride);
                word[r] = (word[r] < other) == (first == descending) ? other : word[r];
            }
        }
    }
    __device__ __forceinline__ void sort() {
#pragma unroll
        for (int size = 2; size <= ITEMS * WARP; size *= 2) {
#pragma unroll
            for (int stride = size / 2; stride > 0; stride /= 2) exchange(size, stride);
        }
    }
    // With another descending list: the greater of each element and the opposite one are the best of both, in
    // bitonic order, which the last stage of the network sorts.
    __device__ __forceinline__ void merge(const List& other) {
        word_t opposite[ITEMS];
#pragma unroll
        for (int r = 0; r < ITEMS; ++r) {
            opposite[r] = __shfl_xor_sync(FULL_WARP, other.word[ITEMS - 1 - r], WARP - 1);
        }
#pragma unroll
        for (int r = 0; r < ITEMS; ++r) word[r] = word[r] < opposite[r] ? opposite[r] : word[r];
#pragma unroll
        for (int stride = ITEMS * WARP / 2; stride > 0; stride /= 2) exchange(ITEMS * WARP, stride);
    }
    __device__ __forceinline__ word_t least() const {
        return __shfl_sync(FULL_WARP, word[ITEMS - 1], WARP - 1);
    }
};

template <typename T, int VEC, int BLOCK_K, int THREADS>
__global__ __launch_bounds__(THREADS) void topk_bitonic_kernel(
    const T* __restrict__ x_ptr, T* __restrict__ values_ptr, index_t* __restrict__ indices_ptr, int N,
    index_t stride_xm, int K) {
    constexpr int ITEMS = BLOCK_K / WARP, WARPS = THREADS / WARP;
    __shared__ word_t queues[WARPS][BLOCK_K + WARP];
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    word_t* queue = queues[warp];
    const index_t m = blockIdx.x;
    const T* row = x_ptr + m * stride_xm;

    List<ITEMS> best = {}, queued;
    word_t least = 0;
    int waiting = 0;
    const auto merge = [&] {
        __syncwarp();
#pragma unroll
        for (int r = 0; r < ITEMS; ++r) {
            queued.word[r] = r * WARP + lane < waiting ? queue[r * WARP + lane] : 0;
        }
        queued.sort();
        best.merge(queued);
        least = best.least();
    };
    for (int begin = 0; begin < N; begin += THREADS * VEC) {
        const int n = begin + threadIdx.x * VEC;
        const Vec<T, VEC> x = n < N ? load_vec<VEC>(row + n) : Vec<T, VEC>{};
#pragma unroll
        for (int v = 0; v < VEC; ++v) {
            const word_t word = n < N ? make_word(key_of(x[v]), n + v) : 0;
            const unsigned entering = __ballot_sync(FULL_WARP, word > least);
            if (entering == 0) continue;
            if (word > least) queue[waiting + __popc(entering & ((1u << lane) - 1))] = word;
            waiting += __popc(entering);
            if (waiting >= BLOCK_K) {
                merge();
                waiting -= BLOCK_K;
                if (lane < waiting) queue[lane] = queue[BLOCK_K + lane];
                __syncwarp();
            }
        }
    }
    merge();

    // The upper half of the warps hand their lists to the lower half, until the first warp has the best.
#pragma unroll
    for (int half = WARPS / 2; half > 0; half /= 2) {
        if (warp >= half && warp < 2 * half) {
#pragma unroll
            for (int r = 0; r < ITEMS; ++r) queue[r * WARP + lane] = best.word[r];
        }
        __syncthreads();
        if (warp < half) {
#pragma unroll
            for (int r = 0; r < ITEMS; ++r) queued.word[r] = queues[warp + half][r * WARP + lane];
            best.merge(queued);
        }
    }
    if (warp > 0) return;
#pragma unroll
    for (int r = 0; r < ITEMS; ++r) {
        const int k = r * WARP + lane;
        if (k < K) {
            values_ptr[m * K + k] = value_of<T>(key_of_word(best.word[r]));
            indices_ptr[m * K + k] = column_of_word(best.word[r]);
        }
    }
}
