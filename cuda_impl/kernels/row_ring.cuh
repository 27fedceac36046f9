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
//
// A cluster has `rows_each` neighbouring rows. If that is 0, clusters are persistent, and rows are assigned
// to them round-robin, so that those at work access neighbouring rows. They differ in speed by a third, and
// therefore take the rows after the first SLOTS from a counter: a ticket is the number of a row. The first
// block takes it an iteration before the others need it.
#pragma once

#include "bulk.cuh"
#include "line.cuh"
#include "norm.cuh"

#if HAS_HOPPER_LEVELS

// Which part of which rows a block has: a slice of the rows' body, and the first block the rows' edges. If
// not ALIGNED, all rows of a cluster start alike between 16-byte boundaries: a class is every VEC-th row, and
// the number of clusters is a multiple of VEC. `i` counts the rows of the class.
template <typename T, bool ALIGNED, int CLUSTER>
struct ClusterRows {
    static constexpr int VEC = 16 / sizeof(T), STEP = ALIGNED ? 1 : VEC;
    const T* x_ptr;
    T* y_ptr;
    index_t N, stride_xm;
    // rows: of the class. begin: the slice's first column in the row. Columns are so few that an int counts
    // them.
    int first_m, first, clusters, rows_each, rows, head, body, begin, edge, rank, columns, slice;

    __device__ __forceinline__ ClusterRows(
        const T* x, T* y, index_t M, index_t columns_of_row, index_t stride, int columns_of_slice,
        int rows_of_cluster)
        : x_ptr(x),
          y_ptr(y),
          N(columns_of_row),
          stride_xm(stride),
          rows_each(rows_of_cluster),
          slice(columns_of_slice) {
        rank = cluster_block_rank();
        const int cluster = blockIdx.x / CLUSTER;
        first_m = cluster % STEP;
        first = cluster / STEP;
        clusters = gridDim.x / CLUSTER / STEP;
        rows = static_cast<int>((M - first_m + STEP - 1) / STEP);
        const Parts<T, ALIGNED> parts(y_row(0), N, threadIdx.x);  // as of the class's other rows
        head = parts.head;
        body = static_cast<int>(parts.body);
        edge = rank == 0 ? static_cast<int>(parts.edge) : -1;
        begin = head + rank * slice;
        columns = slice_columns(body, rank * slice, slice);
    }
    // The n-th row of a cluster that takes none from a counter; `rows` behind its last.
    __device__ __forceinline__ int nth(int n) const {
        const index_t each = rows_each, i = each > 0 ? first * each + n : first + index_t(n) * clusters;
        return i < rows && (each == 0 || n < each) ? static_cast<int>(i) : rows;
    }
    __device__ __forceinline__ index_t row(int i) const { return first_m + static_cast<index_t>(i) * STEP; }
    __device__ __forceinline__ const T* x_row(int i) const { return x_ptr + row(i) * stride_xm; }
    __device__ __forceinline__ T* y_row(int i) const { return y_ptr + row(i) * N; }
    // Of weight or bias, from copies that are aligned to the body: packed's windows.
    __device__ __forceinline__ const T* window(const T* windows, index_t pitch) const {
        return windows + head * pitch + rank * slice;
    }
    __device__ __forceinline__ T edge_of(const T* ptr) const { return edge >= 0 ? ptr[edge] : T(0.0f); }
    __device__ __forceinline__ T x_edge(int i) const { return i < rows ? edge_of(x_row(i)) : T(0.0f); }
    // Number of this block's edges.
    __device__ __forceinline__ int edges() const { return rank == 0 ? static_cast<int>(N) - body : 0; }
    // Elements of a block, edges included.
    __device__ __forceinline__ float count_of(int block) const {
        const int count = slice_columns(body, block * slice, slice);
        return float(block == 0 ? count + static_cast<int>(N) - body : count);
    }
};

template <typename T, int SLOTS, int CLUSTER>
struct RowRing {
    static constexpr int BUFFERS = 4, TICKETS = 8;
    mbarrier_t full[SLOTS], arrived[BUFFERS], issued[TICKETS];
    word_t results[BUFFERS][CLUSTER], tickets[TICKETS];
    int place[TICKETS];  // of the cluster's n-th row in its class, n % TICKETS

    // Where the slice of the n-th row is, the i-th of its class. If not ALIGNED, a slot is a line longer.
    template <typename Rows>
    __device__ __forceinline__ T* slot(T* slots, int n, int i, const Rows& my) const {
        if constexpr (Rows::STEP == 1) return slots + n % SLOTS * my.slice;
        T* slot = slots + n % SLOTS * (my.slice + LINE_BYTES / static_cast<int>(sizeof(T)));
        return as_far_from_line(slot, my.x_row(i) + my.begin);
    }
    // By one thread: starts the copy of that slice, if there is such a row.
    template <typename Rows>
    __device__ __forceinline__ void fetch(int n, int i, const Rows& my, T* slots) {
        place[n % TICKETS] = i;
        if (i >= my.rows) return;
        const unsigned bytes = my.columns * sizeof(T);
        mbarrier_arrive_expect_bytes(&full[n % SLOTS], bytes);
        if (bytes > 0) {
            bulk_copy_to_shared(slot(slots, n, i, my), my.x_row(i) + my.begin, bytes, &full[n % SLOTS]);
        }
    }
    // By all threads, before run_ring: starts the copies of the first rows, and initializes what is needed
    // later while they arrive. `counted`: clusters take rows from a counter.
    template <typename Rows>
    __device__ __forceinline__ void start(const Rows& my, T* slots, bool counted) {
        static_assert(SLOTS != 2, "the next row's place must be known while a row is reduced");
        if (threadIdx.x == 0) {
            for (int slot = 0; slot < SLOTS; ++slot) mbarrier_init(&full[slot], 1);
            mbarrier_init_fence();
            for (int n = 0; n < SLOTS; ++n) fetch(n, my.nth(n), my, slots);
            if (SLOTS == 1) place[1] = my.rows;
            for (int buffer = 0; buffer < BUFFERS; ++buffer) mbarrier_init(&arrived[buffer], 1);
            for (int ticket = 0; ticket < (counted ? TICKETS : 0); ++ticket)
                mbarrier_init(&issued[ticket], 1);
            mbarrier_init_fence();
        }
        __syncthreads();
        cluster_arrive_relaxed();
    }
    __device__ __forceinline__ void wait_for_slice(int n) { mbarrier_wait(&full[n % SLOTS], n / SLOTS % 2); }
    // By all threads: the block's result goes into the shared memory of all blocks.
    __device__ __forceinline__ void send(int n, int rank, word_t result) {
        const int buffer = n % BUFFERS;
        if (threadIdx.x == 0) mbarrier_arrive_expect_bytes(&arrived[buffer], sizeof(results[buffer]));
        if (threadIdx.x < CLUSTER) {
            store_async_to_block(&results[buffer][rank], threadIdx.x, result, &arrived[buffer]);
        }
    }
    // Lane l gets the result of block l % CLUSTER.
    __device__ __forceinline__ word_t receive(int n) {
        mbarrier_wait(&arrived[n % BUFFERS], n / BUFFERS % 2);
        return results[n % BUFFERS][threadIdx.x % CLUSTER];
    }
    // Of the row after the n-th, behind a barrier in reduce.
    __device__ __forceinline__ int next_place(int n) const { return place[(n + 1) % TICKETS]; }
    // By one thread: the place of the n-th row, n >= SLOTS, goes to all blocks; each takes it.
    __device__ __forceinline__ void send_ticket(int n, int place_of_row) {
        const int ticket = (n - SLOTS) % TICKETS;
        for (int block = 0; block < CLUSTER; ++block) {
            store_async_to_block(&tickets[ticket], block, place_of_row, &issued[ticket]);
        }
    }
    __device__ __forceinline__ int take_ticket(int n) {
        const int ticket = (n - SLOTS) % TICKETS;
        mbarrier_arrive_expect_bytes(&issued[ticket], sizeof(tickets[ticket]));
        mbarrier_wait(&issued[ticket], (n - SLOTS) / TICKETS % 2);
        return static_cast<int>(*static_cast<volatile word_t*>(&tickets[ticket]));
    }
};

// Calls reduce(n, i) and write(n, i) for all rows of a cluster, after `start`: its n-th is the i-th of the
// class. Then reduce once more, with i >= my.rows, before the last write. `taken` counts the rows of each
// class that were taken from it; null: a cluster has every clusters-th row. STAGED: write leaves its output
// in the slot.
template <bool STAGED, typename T, bool ALIGNED, int SLOTS, int CLUSTER, typename Reduce, typename Write>
__device__ __forceinline__ void run_ring(
    RowRing<T, SLOTS, CLUSTER>& ring, const ClusterRows<T, ALIGNED, CLUSTER>& my, T* slots, int* taken,
    const Reduce& reduce, const Write& write) {
    constexpr int TICKETS = RowRing<T, SLOTS, CLUSTER>::TICKETS;
    const bool leads = threadIdx.x == 0;
    const auto copy_output = [&](int n) {
        const int i = ring.place[n % TICKETS];
        if (my.columns > 0)
            bulk_copy_to_global(my.y_row(i) + my.begin, ring.slot(slots, n, i, my), my.columns * sizeof(T));
        bulk_commit_group();
        bulk_wait_group_read<0>();
    };
    const auto next_place = [&] { return atomicAdd(taken + my.first_m, 1) + SLOTS * my.clusters; };
    // Of the leading thread: whether the last ticket had a row; of the first block's, the next ticket.
    bool has_row = my.nth(SLOTS - 1) < my.rows;
    int next = 0;

    cluster_wait();  // all blocks of the cluster have started: their shared memory may be written
    if (leads && my.rank == 0 && taken != nullptr && has_row) {
        next = next_place();
        ring.send_ticket(SLOTS, next);
        if (next < my.rows) next = next_place();
    }
    for (int n = 0, old_i = 0;; ++n) {
        __syncthreads();  // all warps have written row n - 2: its slot is free
        const int i = ring.place[n % TICKETS];
        if (leads && n >= 2) {
            if (STAGED) copy_output(n - 2);
            const int fetched = n - 2 + SLOTS;
            int fetched_i = my.nth(fetched);
            if (taken != nullptr) {
                fetched_i = my.rows;
                if (has_row) fetched_i = ring.take_ticket(fetched);
                has_row = fetched_i < my.rows;
                if (has_row && my.rank == 0) {
                    ring.send_ticket(fetched + 1, next);
                    if (next < my.rows) next = next_place();
                }
            }
            ring.fetch(fetched, fetched_i, my, slots);
        }
        reduce(n, i);
        if (n > 0) write(n - 1, old_i);
        if (i >= my.rows) {
            if (STAGED) {
                __syncthreads();
                if (leads && n > 0) copy_output(n - 1);
            }
            return;
        }
        old_i = i;
    }
}

#endif  // HAS_HOPPER_LEVELS
