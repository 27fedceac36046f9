// all_reduce: x[N] on each of RANKS GPUs -> y[N] on each,  y[n] = sum over ranks r of x_r[n]
//
// Variants; the first two read and write other GPUs' memory through NVLink, by addresses from a table:
//   one_shot     every rank reads all ranks' x and adds them up: RANKS - 1 times x per link, one step
//   two_shot     a rank adds up its part of x and writes the sums to all ranks: 2 (RANKS - 1) / RANKS times x
//   low_latency  as one_shot, but each rank writes its x into the others' memory, with a flag in every word:
//                one trip through the link where one_shot waits for four, and twice the bytes
//
// Sums are in fp32 and in the ranks' order, so all ranks have the same bits. x is contiguous and starts on 16
// bytes. A block waits for the same block of the other ranks only, so all blocks of a grid must be resident.
//
// flag_ptrs[r] is rank r's array of one flag per block and rank. A flag holds an epoch, which only grows:
// nothing is reset between launches. epochs[b] is block b's last epoch, in this rank's own memory.
#pragma once

#include "common.cuh"

// Of an access to a flag: RELEASE, and whoever sees the flag sees the block's writes before it, on any GPU;
// ACQUIRE, and after it the block sees what the writer of the flag had released. Both cost less than
// __threadfence_system, a sequentially consistent fence. Source: PTX ISA, "Memory Consistency Model".
enum Order { RELAXED, RELEASE, ACQUIRE };

// With HOST_BUILD, host/device.h has the same functions.
#ifndef HOST_BUILD
template <Order STORE>
__device__ __forceinline__ void store_flag(unsigned* ptr, unsigned value) {
    if constexpr (STORE == RELEASE) {
        asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(ptr), "r"(value) : "memory");
    } else {
        asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(ptr), "r"(value) : "memory");
    }
}
template <Order LOAD>
__device__ __forceinline__ unsigned load_flag(const unsigned* ptr) {
    unsigned value;
    if constexpr (LOAD == ACQUIRE) {
        asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(ptr) : "memory");
    } else {
        asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(ptr) : "memory");
    }
    return value;
}
#endif

// A barrier of block b of all ranks.
template <int RANKS, Order STORE, Order LOAD>
__device__ __forceinline__ void wait_for_ranks(unsigned* const* flag_ptrs, unsigned epoch, int rank) {
    __syncthreads();
    if (threadIdx.x < RANKS) {
        const int row = blockIdx.x * RANKS;
        store_flag<STORE>(flag_ptrs[threadIdx.x] + row + rank, epoch);
        const unsigned* flag = flag_ptrs[rank] + row + threadIdx.x;
        while (static_cast<int>(load_flag<LOAD>(flag) - epoch) < 0) {  // a rank is ahead by one epoch at most
        }
    }
    __syncthreads();
}

// The sums of vectors begin to end - 1 over all ranks, each passed to `store(vector, sum)`. Threads of the
// grid take vectors round-robin. All loads of UNROLL vectors are in flight at once: a read through NVLink
// takes about 1 us.
template <int RANKS, typename T, typename Store>
__device__ __forceinline__ void add_ranks(T* const (&x)[RANKS], index_t begin, index_t end, Store store) {
    constexpr int VEC = 16 / sizeof(T), UNROLL = 8 / RANKS;
    const index_t threads = index_t(gridDim.x) * blockDim.x;
    for (index_t i = begin + index_t(blockIdx.x) * blockDim.x + threadIdx.x; i < end; i += UNROLL * threads) {
        Packed<T, VEC> parts[UNROLL][RANKS];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            if (i + u * threads >= end) break;
#pragma unroll
            for (int r = 0; r < RANKS; ++r) parts[u][r] = load_packed<VEC>(x[r] + (i + u * threads) * VEC);
        }
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            if (i + u * threads >= end) break;
            float sums[VEC] = {};
#pragma unroll
            for (int r = 0; r < RANKS; ++r) {
                const Vec<T, VEC> part = parts[u][r].unpack();
#pragma unroll
                for (int v = 0; v < VEC; ++v) sums[v] += to_float(part, v);
            }
            Vec<T, VEC> sum;
#pragma unroll
            for (int v = 0; v < VEC; ++v) sum[v] = T(sums[v]);
            store(i + u * threads, sum);
        }
    }
}

// The sum of one element over all ranks: for those behind the last whole vector.
template <int RANKS, typename T>
__device__ __forceinline__ T add_ranks_at(T* const (&x)[RANKS], index_t n) {
    float sum = 0.0f;
#pragma unroll
    for (int r = 0; r < RANKS; ++r) sum += float(x[r][n]);
    return T(sum);
}

// ---- one_shot ------------------------------------------------------------------------------------------
// Grid: at most as many blocks as are resident. x_ptrs[r] is rank r's x.

template <typename T, int RANKS, int THREADS>
__global__ __launch_bounds__(THREADS) void all_reduce_one_shot_kernel(
    T* const* x_ptrs, T* y_ptr, unsigned* const* flag_ptrs, unsigned* epochs, int rank, index_t N) {
    constexpr int VEC = 16 / sizeof(T);
    const unsigned epoch = epochs[blockIdx.x];
    T* x[RANKS];
#pragma unroll
    for (int r = 0; r < RANKS; ++r) x[r] = x_ptrs[r];

    // Every rank's x is complete: the kernels before this one wrote it.
    wait_for_ranks<RANKS, RELAXED, ACQUIRE>(flag_ptrs, epoch + 1, rank);
    add_ranks<RANKS>(
        x, 0, N / VEC, [&](index_t i, const Vec<T, VEC>& sum) { store_vec(y_ptr + i * VEC, sum); });
    const index_t n = N / VEC * VEC + threadIdx.x;
    if (blockIdx.x == 0 && n < N) y_ptr[n] = add_ranks_at(x, n);
    // No rank changes its x before all have read it.
    wait_for_ranks<RANKS, RELAXED, RELAXED>(flag_ptrs, epoch + 2, rank);

    if (threadIdx.x == 0) epochs[blockIdx.x] = epoch + 2;
}

// ---- two_shot ------------------------------------------------------------------------------------------
// Grid: as one_shot. In place: rank r's part of x is read and written by rank r alone, in every rank's x.

template <typename T, int RANKS, int THREADS>
__global__ __launch_bounds__(THREADS) void all_reduce_two_shot_kernel(
    T* const* x_ptrs, unsigned* const* flag_ptrs, unsigned* epochs, int rank, index_t N) {
    constexpr int VEC = 16 / sizeof(T);
    const unsigned epoch = epochs[blockIdx.x];
    T* x[RANKS];
#pragma unroll
    for (int r = 0; r < RANKS; ++r) x[r] = x_ptrs[r];
    const index_t vectors = N / VEC, begin = vectors * rank / RANKS, end = vectors * (rank + 1) / RANKS;

    wait_for_ranks<RANKS, RELAXED, ACQUIRE>(flag_ptrs, epoch + 1, rank);  // every rank's x is complete
    add_ranks<RANKS>(x, begin, end, [&](index_t i, const Vec<T, VEC>& sum) {
#pragma unroll
        for (int r = 0; r < RANKS; ++r) store_vec(x[r] + i * VEC, sum);
    });
    const index_t n = vectors * VEC + threadIdx.x;
    if (rank == 0 && blockIdx.x == 0 && n < N) {
        const T sum = add_ranks_at(x, n);
#pragma unroll
        for (int r = 0; r < RANKS; ++r) x[r][n] = sum;
    }
    wait_for_ranks<RANKS, RELEASE, RELAXED>(flag_ptrs, epoch + 2, rank);  // every rank's part has arrived

    if (threadIdx.x == 0) epochs[blockIdx.x] = epoch + 2;
}

// ---- low_latency ---------------------------------------------------------------------------------------
// Grid: as one_shot. A message is a 4-byte word of x and, above it, the epoch: 8 bytes that one store writes,
// so a reader that sees the epoch has the word, and no fence is needed (NCCL's LL protocol).
//
// receive_ptrs[r] is rank r's memory: per block two receive buffers in turn, each with MESSAGES messages from
// each rank. A rank writes into a buffer again two epochs later. By then the receiver has answered the epoch
// between, so it has read the buffer.

template <typename T, int RANKS, int THREADS, int MESSAGES>
__global__ __launch_bounds__(THREADS) void all_reduce_low_latency_kernel(
    const T* x_ptr, T* y_ptr, word_t* const* receive_ptrs, unsigned* epochs, int rank, index_t N) {
    constexpr int PER_WORD = 4 / sizeof(T), PER_THREAD = MESSAGES / THREADS;
    static_assert(PER_THREAD * THREADS == MESSAGES, "every thread has as many messages");
    const index_t words = (N + PER_WORD - 1) / PER_WORD;
    unsigned epoch = epochs[blockIdx.x];
    __syncthreads();  // all threads have read it before it grows
    word_t* receive[RANKS];
#pragma unroll
    for (int r = 0; r < RANKS; ++r) receive[r] = receive_ptrs[r] + index_t(blockIdx.x) * 2 * RANKS * MESSAGES;

    for (index_t begin = index_t(blockIdx.x) * MESSAGES; begin < words;
         begin += index_t(gridDim.x) * MESSAGES) {
        ++epoch;
        const int half = epoch % 2 * RANKS;
        Vec<T, PER_WORD> own[PER_THREAD];
#pragma unroll
        for (int m = 0; m < PER_THREAD; ++m) {
            const int message = m * THREADS + threadIdx.x;
            const index_t n = (begin + message) * PER_WORD;
            if (n >= N) break;
#pragma unroll
            for (int v = 0; v < PER_WORD; ++v) own[m][v] = n + v < N ? x_ptr[n + v] : T(0.0f);
            const word_t word = word_t(epoch) << 32 | reinterpret_cast<const unsigned&>(own[m]);
#pragma unroll
            for (int r = 0; r < RANKS; ++r) {
                if (r == rank) continue;
                *static_cast<volatile word_t*>(receive[r] + (half + rank) * MESSAGES + message) = word;
            }
        }
#pragma unroll
        for (int m = 0; m < PER_THREAD; ++m) {
            const int message = m * THREADS + threadIdx.x;
            const index_t n = (begin + message) * PER_WORD;
            if (n >= N) break;
            float sums[PER_WORD] = {};
#pragma unroll
            for (int r = 0; r < RANKS; ++r) {
                Vec<T, PER_WORD> part = own[m];
                if (r != rank) {
                    const volatile word_t* from = receive[rank] + (half + r) * MESSAGES + message;
                    word_t word = *from;
                    while (static_cast<unsigned>(word >> 32) != epoch) word = *from;
                    reinterpret_cast<unsigned&>(part) = static_cast<unsigned>(word);
                }
#pragma unroll
                for (int v = 0; v < PER_WORD; ++v) sums[v] += float(part[v]);
            }
#pragma unroll
            for (int v = 0; v < PER_WORD; ++v) {
                if (n + v < N) y_ptr[n + v] = T(sums[v]);
            }
        }
    }
    if (threadIdx.x == 0) epochs[blockIdx.x] = epoch;
}
