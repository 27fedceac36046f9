// batched_matmul, tensor_core for operands of any layout: tiles are built element by element, and c is stored
// as one run of elements. Two unaligned cases are vectorized all the same: contiguous matrices whose N is no
// multiple of 8, and c.
#pragma once

#include "batched_matmul/half_tile.cuh"

// Strides in elements, from one matrix, row and column of an operand to the next.
struct Strides {
    index_t matrix, row, column;
};

// Elements between the preceding 16-byte boundary and `ptr`.
template <typename T>
__device__ __forceinline__ int skew(const T* ptr) {
    return int(reinterpret_cast<unsigned long long>(ptr) / sizeof(T) % 8);
}

// `matrices` matrices of an operand from matrix `m` on. Contiguous ones, row- or column-major, form one run
// of elements, which 16-byte vectors cover at any alignment.
template <typename T>
struct Run {
    const T* first;   // of matrix m, in global memory
    int before, end;  // elements of the vectors before `first`, and of all of them
    bool covered;     // the matrices are contiguous, and no vector has memory outside the operand

    __device__ __forceinline__
    Run(const T* ptr, index_t m, int matrices, index_t B, int N, const Strides& stride)
        : first(ptr + m * stride.matrix), before(skew(first)), end((before + matrices * N * N + 7) / 8 * 8) {
        const bool by_rows = stride.row == N && stride.column == 1;
        const bool by_columns = stride.row == 1 && stride.column == N;
        const bool whole = ptr <= first - before && first - before + end <= ptr + B * N * N;
        covered = stride.matrix == N * N && (by_rows || by_columns) && whole;
    }
    // Starts cp.async of the vectors, and returns the new address of matrix m.
    __device__ __forceinline__ const T* fetch(T* to) const {
        const T* from = first - before;
        for (int e = threadIdx.x * 8; e < end; e += blockDim.x * 8) cp_async_16(to + e, from + e, 16);
        return to + before;
    }
};

// Builds the tiles of matrices of any layout; `ptr` is the first, in global or shared memory. A thread has
// the vectors that fetch_tiles gives it, and loads them element by element into registers, so that many loads
// are in flight. The barrier lets all threads read a run before tiles overwrite it.
template <int BLOCK_N, typename T>
__device__ __forceinline__ void make_tiles(
    T* tiles, const T* ptr, int matrices, int N, const Strides& stride) {
    constexpr int VECTORS = BLOCK_N / 8, THREADS = 2 * BLOCK_N;  // per matrix
    const int own = threadIdx.x / THREADS, row = threadIdx.x % THREADS / VECTORS;
    const int column = threadIdx.x % VECTORS * 8;
    const T* from = ptr + own * stride.matrix + row * stride.row + column * stride.column;
    Vec<T, 8> vectors[BLOCK_N / 16];
#pragma unroll
    for (int i = 0; i < BLOCK_N / 16; ++i) {
        const bool inside = own < matrices && row + i * 16 < N;
        const T* next = from;
#pragma unroll
        for (int v = 0; v < 8; ++v) {
            vectors[i][v] = inside && column + v < N ? *next : T(0.0f);
            next += stride.column;
        }
        from += 16 * stride.row;
    }
    __syncthreads();
    T* to = tiles + swizzle<BLOCK_N>(own * BLOCK_N + row, column / 8);
#pragma unroll
    for (int i = 0; i < BLOCK_N / 16; ++i) *reinterpret_cast<Vec<T, 8>*>(to + i * 16 * BLOCK_N) = vectors[i];
}

// A warp copies a run from shared to global memory. Both have the same offset from a 16-byte boundary: whole
// vectors, and up to 7 elements before and 7 after these, one per lane.
template <typename T>
__device__ __forceinline__ void store_run(T* ptr, const T* run, int count) {
    const int lane = threadIdx.x % WARP, before = (8 - skew(ptr)) % 8;
    const int begin = before < count ? before : count, end = begin + (count - begin) / 8 * 8;
    const int loose = lane < begin ? lane : lane - begin + end;
    if (loose < count) ptr[loose] = run[loose];
    for (int e = begin + lane * 8; e < end; e += WARP * 8) store_vec(ptr + e, load_vec<8>(run + e));
}

// Grid: as tensor_core. Tiles are row-major.
template <typename T, int BLOCK_N, int MATRICES>
__global__ __launch_bounds__(MATRICES * BLOCK_N * 2) void batched_matmul_any_layout_kernel(
    const T* a_ptr, const T* b_ptr, T* c_ptr, index_t B, int N, index_t stride_ab, index_t stride_ai,
    index_t stride_aj, index_t stride_bb, index_t stride_bi, index_t stride_bj) {
    constexpr int OPERAND = MATRICES * BLOCK_N * BLOCK_N, WARPS = BLOCK_N / 16;  // per matrix
    DYNAMIC_SHARED(T, a_tiles);
    T* b_tiles = a_tiles + OPERAND;
    const index_t first = index_t(blockIdx.x) * MATRICES;
    const Strides a_stride = {stride_ab, stride_ai, stride_aj}, b_stride = {stride_bb, stride_bi, stride_bj};
    const int matrices = B - first < MATRICES ? int(B - first) : MATRICES;
    // A run is fetched into the space of its tiles if it fits; else elements are read from global memory.
    const Run<T> a(a_ptr, first, matrices, B, N, a_stride);
    const T* a_from = a.covered && a.end <= OPERAND ? a.fetch(a_tiles) : a.first;
    const Run<T> b(b_ptr, first, matrices, B, N, b_stride);
    const T* b_from = b.covered && b.end <= OPERAND ? b.fetch(b_tiles) : b.first;
    cp_async_commit();
    cp_async_wait<0>();
    __syncthreads();
    make_tiles<BLOCK_N>(a_tiles, a_from, matrices, N, a_stride);
    make_tiles<BLOCK_N>(b_tiles, b_from, matrices, N, b_stride);
    __syncthreads();

    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const int own = warp / WARPS, begin = warp % WARPS * 16, tile = own * BLOCK_N * BLOCK_N;
    float sum[BLOCK_N / 8][4] = {};
    multiply<true, true, BLOCK_N>(sum, a_tiles + tile, b_tiles + tile, begin);

    // c reuses the space of the warp's rows of a, laid out as in global memory.
    T* c_rows = c_ptr + ((first + own) * N + begin) * N;
    T* run = a_tiles + tile + begin * BLOCK_N + skew(c_rows);
    __syncwarp();
#pragma unroll
    for (int j = 0; j < BLOCK_N / 8; ++j) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            const int row = e / 2 * 8 + lane / 4, column = j * 8 + lane % 4 * 2 + e % 2;
            if (column < N) run[row * N + column] = T(sum[j][e]);
        }
    }
    __syncwarp();
    if (first + own < B) store_run(c_rows, run, (N - begin < 16 ? N - begin : 16) * N);
}
