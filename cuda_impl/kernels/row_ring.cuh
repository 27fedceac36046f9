// What the cluster kernels of layer_norm and rms_norm share. ClusterRows: which rows and columns a block has.
// RowRing: slots of shared memory that TMA fills with a block's slices of the next rows, and the partial
// results of a row, which the blocks exchange. Hopper only.
//
//   iteration   0      1      2      3      4        r0, r1 ... are a cluster's rows; 3 slots
//   fetches     r0-2   -      r3     r4     r5       into the slot of r0, r1, r2, which has been written
//   reduces     r0     r1     r2     r3     r4       a block its slice; it sends the result to all blocks
//   writes      -      r0     r1     r2     r3       all blocks' results of that row have arrived meanwhile
//
// Four buffers of results are enough: a block that reduces row r has all results of row r - 2. So all blocks
// have sent these, after they had written row r - 4.
#pragma once

#include "hopper.cuh"
#include "norm.cuh"

#if HAS_HOPPER_UNITS

template <typename T, int SLOTS, int CLUSTER>
struct RowRing {
    static constexpr int BUFFERS = 4;
    mbarrier_t full[SLOTS], arrived[BUFFERS];
    word_t results[BUFFERS][CLUSTER];

    // By one thread, before a barrier.
    __device__ __forceinline__ void init() {
        for (int slot = 0; slot < SLOTS; ++slot) mbarrier_init(&full[slot], 1);
        for (int buffer = 0; buffer < BUFFERS; ++buffer) mbarrier_init(&arrived[buffer], 1);
        mbarrier_init_fence();
    }
    // By one thread: starts the copy of a slice of a row.
    __device__ __forceinline__ void fetch(int row, T* slots, int slice, const T* from, int columns) {
        const unsigned bytes = columns * sizeof(T);
        mbarrier_arrive_expect_bytes(&full[row % SLOTS], bytes);
        if (bytes > 0) bulk_copy_to_shared(slots + row % SLOTS * slice, from, bytes, &full[row % SLOTS]);
    }
    __device__ __forceinline__ void wait_for_slice(int row) {
        mbarrier_wait(&full[row % SLOTS], row / SLOTS % 2);
    }
    // By all threads: the block's result goes into the shared memory of all blocks.
    __device__ __forceinline__ void send(int row, int rank, word_t result) {
        const int buffer = row % BUFFERS;
        if (threadIdx.x == 0) mbarrier_arrive_expect_bytes(&arrived[buffer], sizeof(results[buffer]));
        if (threadIdx.x < CLUSTER) {
            store_async_to_block(&results[buffer][rank], threadIdx.x, result, &arrived[buffer]);
        }
    }
    // Lane l gets the result of block l % CLUSTER.
    __device__ __forceinline__ word_t receive(int row) {
        mbarrier_wait(&arrived[row % BUFFERS], row / BUFFERS % 2);
        return results[row % BUFFERS][threadIdx.x % CLUSTER];
    }
};

// Which part of which rows a block has: a slice of the rows' body, and the first block the rows' edges.
// BLOCK_M rows per cluster: if not ALIGNED every VEC-th, because these start alike between 16-byte
// boundaries.
template <typename T, bool ALIGNED, int CLUSTER>
struct ClusterRows {
    static constexpr int STEP = ALIGNED ? 1 : 16 / sizeof(T);
    const T* x_ptr;
    T* y_ptr;
    index_t N, stride_xm, first_m;
    // begin: the slice's first column in the row. Columns are so few that an int counts them.
    int body, begin, edge, rank, rows, columns, slice;

    __device__ __forceinline__ ClusterRows(
        const T* x, T* y, index_t M, index_t columns_of_row, index_t stride, int columns_of_slice,
        int BLOCK_M)
        : x_ptr(x), y_ptr(y), N(columns_of_row), stride_xm(stride), slice(columns_of_slice) {
        rank = cluster_block_rank();
        const index_t cluster = blockIdx.x / CLUSTER;
        first_m = cluster / STEP * STEP * BLOCK_M + cluster % STEP;
        const index_t left = (M - first_m + STEP - 1) / STEP;  // none or fewer for the last clusters
        rows = static_cast<int>(left < BLOCK_M ? left : BLOCK_M);
        const Parts<T, ALIGNED> parts(y_row(0), N, threadIdx.x);  // as of the cluster's other rows
        body = static_cast<int>(parts.body);
        edge = rank == 0 ? static_cast<int>(parts.edge) : -1;
        begin = parts.head + rank * slice;
        columns = slice_columns(body, rank * slice, slice);
    }
    __device__ __forceinline__ const T* x_row(int row) const {
        return x_ptr + (first_m + row * STEP) * stride_xm;
    }
    __device__ __forceinline__ T* y_row(int row) const { return y_ptr + (first_m + row * STEP) * N; }
    __device__ __forceinline__ T edge_of(const T* ptr) const { return edge >= 0 ? ptr[edge] : T(0.0f); }
    __device__ __forceinline__ T x_edge(int row) const { return row < rows ? edge_of(x_row(row)) : T(0.0f); }
    // Number of this block's edges.
    __device__ __forceinline__ int edges() const { return rank == 0 ? static_cast<int>(N) - body : 0; }
    // Elements of a block, edges included.
    __device__ __forceinline__ float count_of(int block) const {
        const int count = slice_columns(body, block * slice, slice);
        return float(block == 0 ? count + static_cast<int>(N) - body : count);
    }
};

#endif  // HAS_HOPPER_UNITS
