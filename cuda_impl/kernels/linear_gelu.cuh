// linear_gelu: x[M,K], w[K,N], bias[N] -> y[M,N],  y = gelu(x @ w + bias), accumulated in fp32, GELU by tanh
//
// Variants:
//   tensor_core  matmul's tensor_core with bias and GELU as its epilogue, in registers; sm_75, bf16 sm_80
//   unfused      matmul's tma_store, then a kernel that reads and writes all of y again; sm_90a
//   fused        matmul's split_k with bias and GELU as its epilogue, in registers; sm_90a
//
// The product is matmul.cuh's; this file adds the epilogue.
#pragma once

#include "matmul.cuh"
#include "x2.cuh"

// ---- bias and GELU -----------------------------------------------------------------------------------
// gelu(v) = v / 2 * (1 + tanh(u)) with u = (2 / pi)^(1/2) * (v + 0.044715 * v^3), which is v / (1 + e^(-2u)):
// one exponential and one reciprocal, both accurate to the last bits for any v. The tanh.approx instruction
// has about 11 bits. Source: Hendrycks and Gimpel, "Gaussian Error Linear Units".

__device__ __forceinline__ float gelu(float v) {
    constexpr float LINEAR = -2.302208198f;  // -2 * log2(e) * (2 / pi)^(1/2)
    constexpr float CUBIC = LINEAR * 0.044715f;
    return __fdividef(v, 1.0f + exp2f(v * (CUBIC * (v * v) + LINEAR)));
}

// An epilogue, in place of matmul's Identity. The bias is 4-byte aligned. N_EVEN: N is even.
template <typename T, bool N_EVEN>
struct BiasGelu {
    const T* bias_ptr;

    // The biases of columns n and n + 1 in one word; 0 outside.
    template <typename Index>
    __device__ __forceinline__ unsigned of(Index n, Index N) const {
        if (!N_EVEN && n + 1 == N) return *reinterpret_cast<const unsigned short*>(bias_ptr + n);
        return n < N ? *reinterpret_cast<const unsigned*>(bias_ptr + n) : 0;
    }

    __device__ __forceinline__ float2 apply(unsigned biases, float x, float y) const {
        const float2 bias = from_x2<T>(biases);
        return make_float2(gelu(x + bias.x), gelu(y + bias.y));
    }

    // The same of one column, for sums that are transposed.
    template <typename Index>
    __device__ __forceinline__ float of_one(Index n, Index N) const {
        return n < N ? float(bias_ptr[n]) : 0.0f;
    }

    __device__ __forceinline__ float apply_one(float bias, float x) const { return gelu(x + bias); }
};

// ---- tensor_core -------------------------------------------------------------------------------------
// Grid: as matmul's.

template <
    typename T, bool X_BY_ROWS, bool W_BY_ROWS, int BLOCK_M, int BLOCK_N, int BLOCK_K, int WARPS_M,
    int WARPS_N, int STAGES, int BLOCKS>
__global__ __launch_bounds__(WARPS_M * WARPS_N * WARP, BLOCKS) void linear_gelu_tensor_core_kernel(
    const T* x_ptr, const T* w_ptr, const T* bias_ptr, T* y_ptr, index_t M, index_t N, index_t K, index_t ldx,
    index_t ldw) {
    multiply_by_tensor_cores<T, X_BY_ROWS, W_BY_ROWS, BLOCK_M, BLOCK_N, BLOCK_K, WARPS_M, WARPS_N, STAGES>(
        x_ptr, w_ptr, y_ptr, M, N, K, ldx, ldw, BiasGelu<T, false>{bias_ptr});
}

// ---- unfused: the kernel after matmul's ------------------------------------------------------------------
// Grid: one block per THREADS vectors of y, which is overwritten. VEC divides N, or is 1.

template <typename T, int VEC, int THREADS>
__global__ __launch_bounds__(THREADS) void linear_gelu_unfused_kernel(
    const T* bias_ptr, T* y_ptr, index_t M, index_t N) {
    const index_t vector = static_cast<index_t>(blockIdx.x) * THREADS + threadIdx.x;
    if (vector >= M * N / VEC) return;
    T* y = y_ptr + vector * VEC;
    Vec<T, VEC> x = *reinterpret_cast<const Vec<T, VEC>*>(y);
    const Vec<T, VEC> bias = *reinterpret_cast<const Vec<T, VEC>*>(bias_ptr + vector * VEC % N);
#pragma unroll
    for (int v = 0; v < VEC; ++v) x[v] = T(gelu(to_float(x, v) + to_float(bias, v)));
    *reinterpret_cast<Vec<T, VEC>*>(y) = x;
}

// ---- fused -----------------------------------------------------------------------------------------------
// Grid: as matmul's split_k. A thread loads the biases of its columns after a tile's last wgmma.

template <
    typename T, bool X_BY_ROWS, bool W_BY_ROWS, int BLOCK_M, int BLOCK_N, int STAGES, int SHARING, int SPLIT,
    bool EXCHANGED, int ADDERS>
__global__ __launch_bounds__(SPLIT_K_THREADS<BLOCK_M, BLOCK_N, EXCHANGED>, 1)
    CLUSTER_OF(SHARING* SPLIT) void linear_gelu_fused_kernel(
        const __grid_constant__ TensorMap x_map, const __grid_constant__ TensorMap w_map,
        const __grid_constant__ TensorMap y_map, const T* bias_ptr, int M, int N, int K) {
#if HAS_WGMMA_LEVELS
    multiply_and_split<T, X_BY_ROWS, W_BY_ROWS, BLOCK_M, BLOCK_N, STAGES, SHARING, SPLIT, EXCHANGED, ADDERS>(
        x_map, w_map, y_map, M, N, K, BiasGelu<T, true>{bias_ptr});
#endif
}
