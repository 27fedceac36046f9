// What layer_norm and rms_norm share: access to the vectors of a row and of its weights, copies of weights
// that are aligned to unaligned rows, and how many threads are resident.
//
// Rows of x are stride_xm elements apart; weight, bias and y are contiguous. ALIGNED: every row is whole
// 16-byte vectors, aligned; else common.cuh's Parts says which elements of a row are.
#pragma once

#include "common.cuh"

// Threads per multiprocessor with 40 registers each, where it can hold as many.
#if __CUDA_ARCH__ >= 800
constexpr int SMALL_TILE_THREADS = 1536;
#else
constexpr int SMALL_TILE_THREADS = 1024;
#endif

__device__ __forceinline__ float square(float x) {
    return x * x;
}

// VECTORS vectors per thread, THREADS vectors apart; zeros from `columns` on. `tile_ptr` is at this thread's
// first vector: constant offsets of one address, not an address per vector.
template <int THREADS, bool ALIGNED = true, typename T, int VEC, int VECTORS>
__device__ __forceinline__ void load_tile(Packed<T, VEC> (&x)[VECTORS], const T* tile_ptr, int columns) {
#pragma unroll
    for (int p = 0; p < VECTORS; ++p) {
        const int n = p * THREADS * VEC;
        x[p] = n < columns ? load_body<ALIGNED, VEC>(tile_ptr + n) : Packed<T, VEC>{};
    }
}

// A vector of the output: to global memory or, if STAGED, into its slot, from which TMA copies it.
template <bool STAGED, typename T, int VEC>
__device__ __forceinline__ void store_row_vec_if(bool condition, T* ptr, const Vec<T, VEC>& y) {
    if constexpr (STAGED) {
        uint4 words = reinterpret_cast<const uint4&>(y);
        asm volatile("" : "+r"(words.x), "+r"(words.y), "+r"(words.z), "+r"(words.w));  // as store_vec_if
        if (condition) *reinterpret_cast<uint4*>(ptr) = words;
    } else {
        store_vec_if(condition, ptr, y);
    }
}

// A vector of weight or bias, which start at a boundary, where rows do not: a barrel shifter takes it out of
// two aligned vectors. Both are inside, as Parts' body ends a vector before the row. Eight loads of an
// element each would be four times the wavefronts in the L1.
template <bool ALIGNED, int VEC, typename T>
__device__ __forceinline__ Packed<T, VEC> load_shifted(const T* ptr) {
    if constexpr (ALIGNED) {
        return load_packed<VEC>(ptr);
    } else {
        const unsigned bytes = static_cast<unsigned>(reinterpret_cast<word_t>(ptr) % 16);
        const T* low = ptr - bytes / sizeof(T);
        const uint4 first = load_packed<VEC>(low).words, second = load_packed<VEC>(low + VEC).words;
        unsigned word[8] = {first.x, first.y, first.z, first.w, second.x, second.y, second.z, second.w};
#pragma unroll
        for (int i = 0; i < 6; ++i) word[i] = bytes & 8 ? word[i + 2] : word[i];
#pragma unroll
        for (int i = 0; i < 5; ++i) word[i] = bytes & 4 ? word[i + 1] : word[i];
#pragma unroll
        for (int i = 0; i < 4; ++i)
            word[i] = __byte_perm(word[i], word[i + 1], 0x3210 + 0x1111 * (bytes & 3));
        return {make_uint4(word[0], word[1], word[2], word[3])};
    }
}
template <int THREADS, bool ALIGNED, typename T, int VEC, int VECTORS>
__device__ __forceinline__ void load_parameters(
    Packed<T, VEC> (&weight)[VECTORS], const T* tile_ptr, int columns) {
#pragma unroll
    for (int p = 0; p < VECTORS; ++p) {
        const int n = p * THREADS * VEC;
        weight[p] = n < columns ? load_shifted<ALIGNED, VEC>(tile_ptr + n) : Packed<T, VEC>{};
    }
}

// windows[P, VEC, pitch]: copies of P parameters, weight and bias or weight alone, from column 0, 1 ... on.
// For packed's unaligned rows: each finds weights that are aligned to its body. Grid: ceil(N / THREADS)
// blocks per parameter.
template <typename T, int THREADS>
__global__ void norm_windows_kernel(
    const T* weight_ptr, const T* bias_ptr, T* windows_ptr, index_t N, index_t pitch) {
    constexpr int VEC = 16 / sizeof(T);
    const unsigned blocks = static_cast<unsigned>((N + THREADS - 1) / THREADS);
    const int parameter = blockIdx.x / blocks, n = blockIdx.x % blocks * THREADS + threadIdx.x;
    if (n >= N) return;
    const T value = (parameter == 0 ? weight_ptr : bias_ptr)[n];
    for (int first = 0; first < VEC && first <= n; ++first) {
        windows_ptr[(parameter * VEC + first) * pitch + n - first] = value;
    }
}

// Number of columns in a cluster's slice at `begin`, of at most `most`, in a row of N.
__device__ __forceinline__ int slice_columns(index_t N, index_t begin, int most) {
    return static_cast<int>(begin >= N ? 0 : N - begin < most ? N - begin : most);
}
