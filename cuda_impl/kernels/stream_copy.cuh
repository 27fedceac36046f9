// stream_copy: x[N] -> y[N],  y[n] = x[n]
//
// No arithmetic: bytes in flight decide, and where they are held on the way. A multiprocessor needs tens of
// kilobytes in flight to keep the memory busy. Variants; triton_impl/stream_copy.py has the same under the
// same names:
//   naive       one element per thread
//   vectorized  VECTORS 16-byte vectorized accesses per thread, all loads in flight at once
//   hinted      as vectorized, with cache hints
//   prefetch    persistent blocks; the next chunks are prefetched into registers
//   cp_async    as prefetch, into shared memory by cp.async, bypassing registers
//   tma         one chunk per block again, loaded and stored by TMA: Hopper
// prefetch and cp_async have a ring of STAGES stages: a chunk stays in its stage until it is written, then
// the stage is refilled. The others rely on the GPU to keep enough chunks in flight: where a block ends, it
// starts the next.
//
// A copy needs only the size of T, which is an unsigned integer. y is contiguous and 16-byte aligned. naive
// and vectorized take any x, the others a contiguous, 16-byte aligned one.
#pragma once

#include "bulk.cuh"
#include "common.cuh"
#include "tensor_core.cuh"

// ---- naive ---------------------------------------------------------------------------------------------
// Grid: one block per blockDim.x elements.

template <typename T>
__global__ void stream_copy_naive_kernel(
    const T* __restrict__ x_ptr, T* __restrict__ y_ptr, index_t N, index_t stride_xn) {
    const index_t n = index_t(blockIdx.x) * blockDim.x + threadIdx.x;
    if (n < N) y_ptr[n] = x_ptr[n * stride_xn];
}

// ---- vectorized ----------------------------------------------------------------------------------------
// Grid: one block per VECTORS * THREADS consecutive 16-byte vectors; neighbouring threads have neighbouring
// vectors: coalesced.

template <typename T, int VECTORS, int THREADS>
__global__ __launch_bounds__(THREADS) void stream_copy_vectorized_kernel(
    const T* __restrict__ x_ptr, T* __restrict__ y_ptr, index_t N) {
    constexpr int VEC = 16 / sizeof(T);
    const index_t first = index_t(blockIdx.x) * VECTORS * THREADS + threadIdx.x, vectors = N / VEC;
    uint4 x[VECTORS];
#pragma unroll
    for (int p = 0; p < VECTORS; ++p) {
        const index_t i = first + p * THREADS;
        if (i < vectors) x[p] = reinterpret_cast<const uint4*>(x_ptr)[i];
    }
#pragma unroll
    for (int p = 0; p < VECTORS; ++p) {
        const index_t i = first + p * THREADS;
        if (i < vectors) reinterpret_cast<uint4*>(y_ptr)[i] = x[p];
    }
    const index_t n = vectors * VEC + threadIdx.x;  // the elements after the last whole vector
    if (blockIdx.x == 0 && n < N) y_ptr[n] = x_ptr[n];
}

// x strided or unaligned: a thread loads the elements of its vector one by one, and stores the vector.
template <typename T, int THREADS>
__global__ __launch_bounds__(THREADS) void stream_copy_gathered_kernel(
    const T* __restrict__ x_ptr, T* __restrict__ y_ptr, index_t N, index_t stride_xn) {
    constexpr int VEC = 16 / sizeof(T);
    const index_t i = index_t(blockIdx.x) * THREADS + threadIdx.x, vectors = N / VEC;
    if (i < vectors) {
        Vec<T, VEC> x;
#pragma unroll
        for (int v = 0; v < VEC; ++v) x[v] = x_ptr[(i * VEC + v) * stride_xn];
        reinterpret_cast<Vec<T, VEC>*>(y_ptr)[i] = x;
    }
    const index_t n = vectors * VEC + threadIdx.x;  // the elements after the last whole vector
    if (blockIdx.x == 0 && n < N) y_ptr[n] = x_ptr[n * stride_xn];
}

// ---- hinted --------------------------------------------------------------------------------------------
// Grid: as vectorized. A hint does not change the result, only what the caches keep. This kernel touches no
// line twice, so none is worth keeping; a kernel that follows may benefit from other hints.

enum Hint {
    NO_HINT,
    EVICT_FIRST,  // evict these lines before others, from both caches
    L2_ONLY,      // ".cg": cached in L2, not in L1
    NO_ALLOCATE,  // loads only: no L1 line is allocated. Triton has no equivalent (to 3.9)
};

__device__ __forceinline__ uint4 load_without_line(const uint4* ptr) {
#ifdef HOST_BUILD
    return *ptr;
#else
    uint4 value;
    asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
                 : "l"(ptr));
    return value;
#endif
}

template <int HINT>
__device__ __forceinline__ uint4 load_hinted(const uint4* ptr) {
    if constexpr (HINT == EVICT_FIRST) {
        return __ldcs(ptr);
    } else if constexpr (HINT == L2_ONLY) {
        return __ldcg(ptr);
    } else if constexpr (HINT == NO_ALLOCATE) {
        return load_without_line(ptr);
    } else {
        return *ptr;
    }
}

template <int HINT>
__device__ __forceinline__ void store_hinted(uint4* ptr, uint4 value) {
    if constexpr (HINT == EVICT_FIRST) {
        __stcs(ptr, value);
    } else if constexpr (HINT == L2_ONLY) {
        __stcg(ptr, value);
    } else {
        *ptr = value;
    }
}

template <typename T, int VECTORS, int THREADS, int LOAD_HINT, int STORE_HINT>
__global__ __launch_bounds__(THREADS) void stream_copy_hinted_kernel(
    const T* __restrict__ x_ptr, T* __restrict__ y_ptr, index_t N) {
    constexpr int VEC = 16 / sizeof(T);
    const index_t first = index_t(blockIdx.x) * VECTORS * THREADS + threadIdx.x, vectors = N / VEC;
    uint4 x[VECTORS];
#pragma unroll
    for (int p = 0; p < VECTORS; ++p) {
        const index_t i = first + p * THREADS;
        if (i < vectors) x[p] = load_hinted<LOAD_HINT>(reinterpret_cast<const uint4*>(x_ptr) + i);
    }
#pragma unroll
    for (int p = 0; p < VECTORS; ++p) {
        const index_t i = first + p * THREADS;
        if (i < vectors) store_hinted<STORE_HINT>(reinterpret_cast<uint4*>(y_ptr) + i, x[p]);
    }
    const index_t n = vectors * VEC + threadIdx.x;  // the elements after the last whole vector
    if (blockIdx.x == 0 && n < N) y_ptr[n] = x_ptr[n];
}

// ---- prefetch ------------------------------------------------------------------------------------------
// Grid: persistent, at most BLOCKS blocks per multiprocessor, all resident; chunks are assigned round-robin.
// Prefetch distance STAGES: as soon as a chunk is written, its registers are loaded again.

// The elements from `begin` on, less than a chunk, shared by all blocks.
template <typename T>
__device__ __forceinline__ void copy_rest(
    const T* __restrict__ x_ptr, T* __restrict__ y_ptr, index_t begin, index_t N) {
    const index_t threads = index_t(gridDim.x) * blockDim.x;
    for (index_t n = begin + index_t(blockIdx.x) * blockDim.x + threadIdx.x; n < N; n += threads) {
        y_ptr[n] = x_ptr[n];
    }
}

template <typename T, int VECTORS, int THREADS, int STAGES, int BLOCKS>
__global__ __launch_bounds__(THREADS, BLOCKS) void stream_copy_prefetch_kernel(
    const T* __restrict__ x_ptr, T* __restrict__ y_ptr, index_t N) {
    constexpr int CHUNK = VECTORS * THREADS, VEC = 16 / sizeof(T);  // CHUNK in vectors
    const uint4* x = reinterpret_cast<const uint4*>(x_ptr) + threadIdx.x;
    uint4* y = reinterpret_cast<uint4*>(y_ptr) + threadIdx.x;
    const index_t whole = N / (CHUNK * VEC), step = gridDim.x;
    uint4 ring[STAGES][VECTORS];  // indexed by unrolled loops only: registers have no addresses
    const auto load = [&](int stage, index_t chunk) {
        if (chunk >= whole) return;
#pragma unroll
        for (int p = 0; p < VECTORS; ++p) ring[stage][p] = x[chunk * CHUNK + p * THREADS];
    };

    index_t chunk = blockIdx.x;
#pragma unroll
    for (int stage = 0; stage < STAGES; ++stage) load(stage, chunk + stage * step);
    while (chunk < whole) {
#pragma unroll
        for (int stage = 0; stage < STAGES; ++stage, chunk += step) {
            if (chunk >= whole) break;
#pragma unroll
            for (int p = 0; p < VECTORS; ++p) y[chunk * CHUNK + p * THREADS] = ring[stage][p];
            load(stage, chunk + STAGES * step);
        }
    }
    copy_rest(x_ptr, y_ptr, whole * CHUNK * VEC, N);
}

// ---- cp_async ------------------------------------------------------------------------------------------
// Grid: as prefetch, with STAGES chunks of dynamic shared memory. The ring is in shared memory, so it takes
// no registers. A thread writes only the vectors that it has copied itself, so it waits for its own copies
// alone: no block barrier.

template <typename T, int VECTORS, int THREADS, int STAGES, int BLOCKS>
__global__ __launch_bounds__(THREADS, BLOCKS) void stream_copy_cp_async_kernel(
    const T* __restrict__ x_ptr, T* __restrict__ y_ptr, index_t N) {
    constexpr int CHUNK = VECTORS * THREADS, VEC = 16 / sizeof(T);  // CHUNK in vectors
    const uint4* x = reinterpret_cast<const uint4*>(x_ptr) + threadIdx.x;
    uint4* y = reinterpret_cast<uint4*>(y_ptr) + threadIdx.x;
    const index_t whole = N / (CHUNK * VEC), step = gridDim.x;
    DYNAMIC_SHARED(uint4, ring);
    uint4* own = ring + threadIdx.x;
    const auto fetch = [&](int stage, index_t chunk) {
        if (chunk < whole) {
#pragma unroll
            for (int p = 0; p < VECTORS; ++p) {
                cp_async_16(own + stage * CHUNK + p * THREADS, x + chunk * CHUNK + p * THREADS, 16);
            }
        }
        cp_async_commit();  // an empty group is committed too: wait_group counts groups
    };

    for (int stage = 0; stage < STAGES; ++stage) fetch(stage, blockIdx.x + stage * step);
    int stage = 0;
    for (index_t chunk = blockIdx.x; chunk < whole; chunk += step) {
        cp_async_wait<STAGES - 1>();
#pragma unroll
        for (int p = 0; p < VECTORS; ++p) y[chunk * CHUNK + p * THREADS] = own[stage * CHUNK + p * THREADS];
        fetch(stage, chunk + STAGES * step);
        if (++stage == STAGES) stage = 0;
    }
    copy_rest(x_ptr, y_ptr, whole * CHUNK * VEC, N);
}

// ---- tma -----------------------------------------------------------------------------------------------
// Grid: one block per chunk, as vectorized; a block is one warp, of which one thread works. TMA loads the
// chunk into shared memory and completes an mbarrier, then TMA stores it: no register holds data. A block
// only waits, so many blocks are resident: one's chunk lands while another's is stored, and where a block
// ends the next one starts. The block scheduler thus provides the pipeline.

template <typename T, int CHUNK_BYTES>
__global__ __launch_bounds__(WARP) void stream_copy_tma_kernel(const T* x_ptr, T* y_ptr, index_t N) {
#if HAS_HOPPER_LEVELS
    constexpr int CHUNK = CHUNK_BYTES / sizeof(T), VEC = 16 / sizeof(T);
    // The mbarrier follows the chunk, so that all shared memory is dynamic.
    DYNAMIC_SHARED(T, part);
    mbarrier_t* full = reinterpret_cast<mbarrier_t*>(part + CHUNK);
    const index_t packed = N / VEC * VEC;  // elements that TMA copies: whole 16-byte vectors only
    const index_t begin = index_t(blockIdx.x) * CHUNK;

    if (threadIdx.x == 0 && begin < packed) {
        const unsigned bytes = (packed - begin < CHUNK ? packed - begin : CHUNK) * sizeof(T);
        mbarrier_init(full, 1);
        mbarrier_init_fence();
        mbarrier_arrive_expect_bytes(full, bytes);
        bulk_copy_to_shared(part, x_ptr + begin, bytes, full);
        mbarrier_wait(full, 0);
        bulk_copy_to_global(y_ptr + begin, part, bytes);
        bulk_commit_group();
        bulk_wait_group_read<0>();  // when this block ends, its shared memory is the next block's
    }
    const index_t n = packed + threadIdx.x;  // the elements after the last whole vector
    if (blockIdx.x == 0 && n < N) y_ptr[n] = x_ptr[n];
#endif
}
