// What every kernel file uses: element types, vectorized access, and reductions over a warp or a block.
//
// Device code only, and no standard headers: the same text is compiled by NVRTC, by nvcc and, with
// HOST_BUILD defined, by g++ for machines without a GPU.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#ifndef HOST_BUILD
// Shared memory whose size the launch sets. One declaration serves all types of a template.
#define DYNAMIC_SHARED(type, name)                                \
    extern __shared__ __align__(16) unsigned char name##_bytes[]; \
    type* name = reinterpret_cast<type*>(name##_bytes)

// A pointer to shared memory as PTX takes it. With HOST_BUILD, host/hopper_units.h has the same function.
__device__ __forceinline__ unsigned shared_address(const void* ptr) {
    return static_cast<unsigned>(__cvta_generic_to_shared(ptr));
}
#endif

using index_t = long long;          // offsets: tensors may hold more than 2^31 elements
using word_t = unsigned long long;  // 8 bytes that one instruction writes: no reader sees half of them

constexpr int WARP = 32;
constexpr unsigned FULL_WARP = 0xffffffffu;

// Threads per multiprocessor, for __launch_bounds__: 2048, with 32 registers each, where it can hold as many.
#if defined(__CUDA_ARCH__) && (__CUDA_ARCH__ == 800 || __CUDA_ARCH__ == 900 || __CUDA_ARCH__ == 1000)
constexpr int MOST_THREADS = 2048;
#else
constexpr int MOST_THREADS = 1024;
#endif

__device__ __forceinline__ float negative_infinity() {
    return __int_as_float(0xff800000);
}

// The shift before exp: 0 if the maximum is -inf, where exp(-inf - -inf) would be NaN instead of 0.
__device__ __forceinline__ float finite_shift(float max) {
    return max == negative_infinity() ? 0.0f : max;
}

// ---- Vec: N neighbouring elements in one vectorized access, of 16 bytes or of one element ----------------
// Arithmetic is in fp32: read with `to_float(x, i)`, write `y[i] = T(value)`, which rounds once.

template <typename T, int N>
struct alignas(N * sizeof(T)) Vec {
    T element[N];

    __device__ __forceinline__ T& operator[](int i) { return element[i]; }
    __device__ __forceinline__ const T& operator[](int i) const { return element[i]; }
};

template <typename T, int N>
__device__ __forceinline__ float to_float(const Vec<T, N>& x, int i) {
    return float(x[i]);
}
// bf16 is the upper half of fp32: one instruction on the 32-bit word of two elements. float(x[i]) would take
// two, to extract the 16 bits and to shift them.
template <int N>
__device__ __forceinline__ float to_float(const Vec<__nv_bfloat16, N>& x, int i) {
    if constexpr (N == 1) return float(x[i]);
    const unsigned two = reinterpret_cast<const unsigned*>(x.element)[i / 2];
    return __uint_as_float(i % 2 == 0 ? two << 16 : two & 0xffff0000u);
}

// A vector as four 32-bit words, for one that stays in registers: its 16-bit elements would take a register
// each.
template <typename T, int N>
struct Packed {
    static_assert(N * sizeof(T) == 16, "a vector is 16 bytes or one element");
    uint4 words;

    // The empty asm statement hides that an earlier pass unpacked the same words: the compiler would keep
    // that pass's fp32 elements, in twice the registers.
    __device__ __forceinline__ Vec<T, N> unpack() const {
        uint4 opaque = words;
        asm volatile("" : "+r"(opaque.x), "+r"(opaque.y), "+r"(opaque.z), "+r"(opaque.w));
        return reinterpret_cast<const Vec<T, N>&>(opaque);
    }
};
template <typename T>
struct Packed<T, 1> {
    Vec<T, 1> element;

    __device__ __forceinline__ Vec<T, 1> unpack() const { return element; }
};

template <int N, typename T>
__device__ __forceinline__ Packed<T, N> load_packed(const T* ptr) {
    return *reinterpret_cast<const Packed<T, N>*>(ptr);
}
template <int N, typename T>
__device__ __forceinline__ Vec<T, N> load_vec(const T* ptr) {
    const Packed<T, N> loaded = load_packed<N>(ptr);
    return reinterpret_cast<const Vec<T, N>&>(loaded);
}
// One 16-byte store; an assignment may compile to a store per element. The empty asm statement keeps the
// arithmetic of x before the branch, where that of several vectors overlaps.
template <typename T, int N>
__device__ __forceinline__ void store_vec_if(bool condition, T* ptr, const Vec<T, N>& x) {
    if constexpr (N == 1) {
        if (condition) *ptr = x[0];
    } else {
        uint4 words = reinterpret_cast<const uint4&>(x);
        asm volatile("" : "+r"(words.x), "+r"(words.y), "+r"(words.z), "+r"(words.w));
        if (condition) __stwb(reinterpret_cast<uint4*>(ptr), words);
    }
}
template <typename T, int N>
__device__ __forceinline__ void store_vec(T* ptr, const Vec<T, N>& x) {
    store_vec_if(true, ptr, x);
}

// ---- rows that start and end anywhere between 16-byte boundaries -----------------------------------------
//
//   [. . .|. . . . . . . .|. . . . . . . .|. . . . . . . .|. .]   a row; bars: 16-byte boundaries
//   [head |                     body                      |tail]
//
// The body is whole vectors: one fewer than N elements make, so that there are as many in every row. Head and
// tail are fewer than two vectors together, so one element per thread: its `edge`. If all rows are ALIGNED at
// both ends, the body is the row, and no code is left for edges.

template <typename T, bool ALIGNED>
struct Parts {
    static constexpr int VEC = 16 / sizeof(T);
    index_t body, edge;  // columns of the body; the column of this thread's edge, or -1
    int head;            // columns

    __device__ __forceinline__ Parts(const T* row, index_t N, int thread) : body(N), edge(-1), head(0) {
        if constexpr (!ALIGNED) {
            const int past = static_cast<int>(reinterpret_cast<word_t>(row) % 16 / sizeof(T));
            head = (VEC - past) % VEC;
            body = N < VEC ? 0 : (N / VEC - 1) * VEC;
            edge = thread < head ? thread : thread + body;
            if (edge >= N) edge = -1;
        }
    }
};

// A vector of the body; element by element in an x whose rows start elsewhere between boundaries than y's.
template <bool ALIGNED, int VEC, typename T>
__device__ __forceinline__ Packed<T, VEC> load_body(const T* ptr) {
    if constexpr (ALIGNED) {
        return load_packed<VEC>(ptr);
    } else {
        if (reinterpret_cast<word_t>(ptr) % 16 == 0) return load_packed<VEC>(ptr);
        Vec<T, VEC> x;
#pragma unroll
        for (int v = 0; v < VEC; ++v) x[v] = ptr[v];
        return reinterpret_cast<const Packed<T, VEC>&>(x);
    }
}

// ---- reductions: warp shuffles, then one value per warp through shared memory ---------------------------

struct Sum {
    template <typename T>
    __device__ __forceinline__ T operator()(T a, T b) const {
        return a + b;
    }
};
struct Max {
    __device__ __forceinline__ float operator()(float a, float b) const { return fmaxf(a, b); }
};

// Every lane of each group of WIDTH neighbouring lanes gets the group's reduction.
template <typename Op, int WIDTH = WARP, typename T>
__device__ __forceinline__ T warp_reduce(T value) {
#pragma unroll
    for (int offset = WIDTH / 2; offset > 0; offset /= 2) {
        value = Op()(value, __shfl_xor_sync(FULL_WARP, value, offset));
    }
    return value;
}

// Every thread of the block gets the reduction over all THREADS. Each CALL has its own shared memory; the
// same CALL again needs a barrier in between.
template <typename Op, int THREADS, int CALL = 0, typename T>
__device__ __forceinline__ T block_reduce(T value) {
    constexpr int WARPS = THREADS / WARP;
    __shared__ T of_warp[WARPS];
    value = warp_reduce<Op>(value);
    if (threadIdx.x % WARP == 0) of_warp[threadIdx.x / WARP] = value;
    __syncthreads();
    return warp_reduce<Op, WARPS>(of_warp[threadIdx.x % WARPS]);
}

// Every thread gets the reduction over the THREADS / BLOCK_M threads that share its row: the block, or a part
// of a warp if a block has several rows.
template <typename Op, int THREADS, int BLOCK_M, int CALL = 0>
__device__ __forceinline__ float row_reduce(float value) {
    if constexpr (BLOCK_M == 1) {
        return block_reduce<Op, THREADS, CALL>(value);
    } else {
        static_assert(THREADS / BLOCK_M <= WARP, "several rows a block: each within a warp");
        return warp_reduce<Op, THREADS / BLOCK_M>(value);
    }
}
