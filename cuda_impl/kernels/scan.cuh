// scan: x[M,N] -> y[M,N],  y[m, n] = x[m, 0] + ... + x[m, n], with sums in fp32
//
// Variants, slow to fast. Within a tile all are the same; they differ in how a tile learns the sum of those
// before it. triton_impl/scan.py has the same:
//   row       a block has a row and scans its tiles one after another: rows are all the parallelism
//   twopass   three launches: sum each tile, scan the sums, read x again and scan: x is read twice
//   lookback  single-pass scan with decoupled look-back: a tile reads the sums that earlier tiles have
//             published, which add up in a fixed tree: x is read once
//
// A tile is BLOCK_N columns of a row. A warp has consecutive columns, a lane a 16-byte vector of each step.
// x's rows are contiguous and stride_xm apart.
#pragma once

#include "common.cuh"

// ---- a tile in registers -------------------------------------------------------------------------------
//
// Rows start anywhere between 16-byte boundaries. So a row's first tile starts at the boundary before it:
//
//   [. . .|0 1 2 3 4|5 . . . . . . .|. . . .|. . . .]   the row's columns; bars: 16-byte boundaries of y
//    skew   columns of the first tile
//
// Then vectors of y are whole but at the row's two ends. Columns outside of the row count as 0.

template <typename T, int VECTORS_, int THREADS_>
struct Tile {
    static constexpr int VECTORS = VECTORS_, THREADS = THREADS_, VEC = 16 / sizeof(T);
    static constexpr int BLOCK_N = VECTORS * THREADS * VEC;
    static constexpr int WIDTH = THREADS < WARP ? THREADS : WARP, STEP = WIDTH * VEC;

    Packed<T, VEC> x[VECTORS];
    index_t n;       // the first column of the thread's first vector, or behind its skew of up to VEC - 1
    int begin, end;  // the row's columns, counted from n: all before `end`, and from `begin` on
    bool whole;      // whether all of the tile is inside of the row, and no load is by element

    // Loads the thread's vectors of the c-th tile of a row.
    __device__ __forceinline__ Tile(const T* x_row, const T* y_row, int c, index_t N, int thread) {
        const index_t first = index_t(c) * BLOCK_N - int(reinterpret_cast<word_t>(y_row) % 16 / sizeof(T));
        n = first + (thread / WIDTH * VECTORS * WIDTH + thread % WIDTH) * VEC;
        begin = n < 0 ? -int(n) : 0;
        end = N - n < BLOCK_N ? int(N - n) : BLOCK_N;
        // x's rows may start elsewhere between boundaries than y's: then it is read element by element.
        const bool aligned = reinterpret_cast<word_t>(x_row + n) % 16 == 0;
        whole = aligned && first >= 0 && first + BLOCK_N <= N;
        if (whole) {
#pragma unroll
            for (int v = 0; v < VECTORS; ++v) x[v] = load_packed<VEC>(x_row + n + v * STEP);
            return;
        }
        // First all 16-byte loads, so that they are in flight together.
#pragma unroll
        for (int v = 0; v < VECTORS; ++v) {
            x[v].words = {};
            if (aligned && is_whole(v)) x[v] = load_packed<VEC>(x_row + n + v * STEP);
        }
#pragma unroll
        for (int v = 0; v < VECTORS; ++v) {
            if ((aligned && is_whole(v)) || !is_cut(v)) continue;
            Vec<T, VEC> elements;
#pragma unroll
            for (int i = 0; i < VEC; ++i) elements[i] = is_inside(v, i) ? x_row[n + v * STEP + i] : T(0.0f);
            x[v] = reinterpret_cast<const Packed<T, VEC>&>(elements);
        }
    }

    // Whether all of a vector is inside of the row, some of it, or one of its elements.
    __device__ __forceinline__ bool is_whole(int v) const {
        return begin <= v * STEP && v * STEP + VEC <= end;
    }
    __device__ __forceinline__ bool is_cut(int v) const { return begin < v * STEP + VEC && v * STEP < end; }
    __device__ __forceinline__ bool is_inside(int v, int i) const {
        return begin <= v * STEP + i && v * STEP + i < end;
    }

    // The sum of a vector of the thread.
    __device__ __forceinline__ float vector_sum(int v) const {
        const Vec<T, VEC> elements = x[v].unpack();
        float sum = to_float(elements, 0);
#pragma unroll
        for (int i = 1; i < VEC; ++i) sum += to_float(elements, i);
        return sum;
    }

    // The tile's sum; `warps_before` becomes that of the warps before the thread's. Needs a barrier between
    // two calls.
    __device__ __forceinline__ float sum(float& warps_before) const {
        float own = 0.0f;
#pragma unroll
        for (int v = 0; v < VECTORS; ++v) own += vector_sum(v);
        const float warp_sum = warp_reduce<Sum, WIDTH>(own);
        if constexpr (THREADS <= WARP) {
            warps_before = 0.0f;
            return warp_sum;
        } else {
            constexpr int WARPS = THREADS / WARP;
            __shared__ float warp_sums[WARPS];
            const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
            if (lane == 0) warp_sums[warp] = warp_sum;
            __syncthreads();
            const float other = lane < WARPS ? warp_sums[lane] : 0.0f;
            warps_before = warp_reduce<Sum>(lane < warp ? other : 0.0f);
            return warp_reduce<Sum>(other);
        }
    }

    // before[v] becomes the sum of the tile's elements before the thread's vector v.
    __device__ __forceinline__ void scan(float (&before)[VECTORS], float warps_before) const {
        const int lane = threadIdx.x % WIDTH;
#pragma unroll
        for (int v = 0; v < VECTORS; ++v) {
            // Kogge-Stone: in log2(WIDTH) steps every lane has the sum of all lanes up to itself.
            float inclusive = vector_sum(v);
#pragma unroll
            for (int distance = 1; distance < WIDTH; distance *= 2) {
                const float other = __shfl_up_sync(FULL_WARP, inclusive, distance, WIDTH);
                if (lane >= distance) inclusive += other;
            }
            // The lane before has the exclusive sum; a subtraction would make NaN of infinity.
            const float exclusive = __shfl_up_sync(FULL_WARP, inclusive, 1, WIDTH);
            before[v] = lane == 0 ? warps_before : warps_before + exclusive;
            warps_before += __shfl_sync(FULL_WARP, inclusive, WIDTH - 1, WIDTH);
        }
    }

    // Writes the inclusive sums. `before` as from scan; `carry` is the sum of the tiles before.
    __device__ __forceinline__ void store(T* y_row, const float (&before)[VECTORS], float carry) const {
#pragma unroll
        for (int v = 0; v < VECTORS; ++v) {
            const Vec<T, VEC> elements = x[v].unpack();
            Vec<T, VEC> y;
            float sum = carry + before[v];
#pragma unroll
            for (int i = 0; i < VEC; ++i) y[i] = T(sum += to_float(elements, i));
            T* y_ptr = y_row + n + v * STEP;
            store_vec_if(whole || is_whole(v), y_ptr, y);
            if (whole || is_whole(v) || !is_cut(v)) continue;
#pragma unroll
            for (int i = 0; i < VEC; ++i)
                if (is_inside(v, i)) y_ptr[i] = y[i];
        }
    }
};

// ---- row -----------------------------------------------------------------------------------------------
// Grid: one block per BLOCK_M rows, of THREADS threads each: short rows share a block, or even a warp.

template <typename T, int VECTORS, int THREADS, int BLOCK_M>
__global__ __launch_bounds__(THREADS* BLOCK_M) void scan_row_kernel(
    const T* __restrict__ x_ptr, T* __restrict__ y_ptr, index_t M, index_t N, index_t stride_xm, int tiles) {
    static_assert(BLOCK_M == 1 || THREADS <= WARP, "several rows a block: each within a warp");
    const index_t m = index_t(blockIdx.x) * BLOCK_M + threadIdx.x / THREADS;
    T* y_row = y_ptr + m * N;
    const index_t columns = m < M ? N : 0;  // every thread takes part in shuffles, with a row or without one
    float carry = 0.0f;
    for (int c = 0; c < tiles; ++c) {
        const Tile<T, VECTORS, THREADS> tile(x_ptr + m * stride_xm, y_row, c, columns, threadIdx.x % THREADS);
        float before[VECTORS], warps_before;
        const float tile_sum = tile.sum(warps_before);
        tile.scan(before, warps_before);
        tile.store(y_row, before, carry);
        carry += tile_sum;
        if constexpr (THREADS > WARP) __syncthreads();  // all have read what sum shared
    }
}

// ---- twopass -------------------------------------------------------------------------------------------
// Grid: one block per tile. Between the two, scan_row_kernel scans each row's sums.

template <typename T, int VECTORS, int THREADS>
__global__ __launch_bounds__(THREADS) void scan_reduce_kernel(
    const T* __restrict__ x_ptr, const T* __restrict__ y_ptr, index_t N, index_t stride_xm, int tiles,
    float* __restrict__ tile_sums) {
    const index_t m = blockIdx.x / tiles;
    const Tile<T, VECTORS, THREADS> tile(
        x_ptr + m * stride_xm, y_ptr + m * N, blockIdx.x % tiles, N, threadIdx.x);
    float warps_before;
    const float tile_sum = tile.sum(warps_before);
    if (threadIdx.x == 0) tile_sums[blockIdx.x] = tile_sum;
}

template <typename T, int VECTORS, int THREADS>
__global__ __launch_bounds__(THREADS) void scan_add_kernel(
    const T* __restrict__ x_ptr, T* __restrict__ y_ptr, index_t N, index_t stride_xm, int tiles,
    const float* __restrict__ scanned_sums) {
    const index_t m = blockIdx.x / tiles;
    const int c = blockIdx.x % tiles;
    const Tile<T, VECTORS, THREADS> tile(x_ptr + m * stride_xm, y_ptr + m * N, c, N, threadIdx.x);
    float before[VECTORS], warps_before;
    tile.sum(warps_before);
    tile.scan(before, warps_before);
    tile.store(y_ptr + m * N, before, c > 0 ? scanned_sums[blockIdx.x - 1] : 0.0f);
}

// ---- lookback ------------------------------------------------------------------------------------------
// Source: Merrill and Garland, "Single-pass Parallel Prefix Scan with Decoupled Look-back", 2016.
//
// There a tile adds the sums of earlier tiles backwards, to the first that has published its inclusive sum.
// Which one that is depends on timing, and so does the rounding of fp32 sums. Here sums add up in a fixed
// tree, so the bits are the same in every run:
//
//   tile_words    the sum of a tile, published as soon as it is known
//   group_words   the sum of 32 tiles, published by the last of them
//   prefix_words  the sum of all tiles up to the last of 32 groups, published by that one
//
// A tile adds the tiles before it in its group, the groups before that in their 32, and one prefix: two reads
// by a warp, whatever the distance. Only prefixes wait for each other in a chain, a link in 1024 tiles.
//
// Flag and sum are one 8-byte word, written and read by one instruction, so no fence is needed. Words start
// as 0. Each is written once: whoever sees the flag sees the sum that everyone sees.
//
// Blocks wait for earlier tiles. They take tiles by ticket and not by blockIdx: a block with a ticket is
// running, so all earlier tiles belong to running blocks, in whatever order the GPU starts blocks.

constexpr word_t KNOWN = word_t(1) << 32;  // the sum's bits are below

// volatile bypasses the L1, which is not coherent with other blocks' writes.
__device__ __forceinline__ void publish(volatile word_t* word, float sum) {
    *word = KNOWN | __float_as_uint(sum);
}

// The published sum of each lane's word, 0 if it is not needed. Waits until all that are needed are known.
__device__ __forceinline__ float wait_for(const volatile word_t* word_ptr, bool needed) {
    word_t word = needed ? *word_ptr : KNOWN;
    while (__any_sync(FULL_WARP, word == 0)) {
        __nanosleep(32);
        if (word == 0) word = *word_ptr;
    }
    return __uint_as_float(unsigned(word));
}

// The sum of all tiles of a row before the c-th, for one warp. The tile's own sum is published; what later
// tiles need of groups that it ends is published here.
__device__ __forceinline__ float look_back(volatile word_t* tile_words, int tiles, int c, float tile_sum) {
    volatile word_t* group_words = tile_words + tiles;
    volatile word_t* prefix_words = group_words + tiles / WARP;
    const int lane = threadIdx.x % WARP, group = c / WARP, prefix = group / WARP;
    const bool ends_group = c % WARP == WARP - 1, ends_prefix = ends_group && group % WARP == WARP - 1;

    float sum = wait_for(tile_words + group * WARP + lane, lane < c % WARP);
    if (ends_group) {
        const float group_sum = warp_reduce<Sum>(lane == WARP - 1 ? tile_sum : sum);
        if (lane == 0) publish(group_words + group, group_sum);
    }
    // At most 31 groups come before, so the last lane is free to read the prefix.
    const bool reads_prefix = lane == WARP - 1 && prefix > 0;
    sum += wait_for(
        reads_prefix ? prefix_words + prefix - 1 : group_words + prefix * WARP + lane,
        reads_prefix || lane < group % WARP);
    const float before = warp_reduce<Sum>(sum);
    if (ends_prefix && lane == 0) publish(prefix_words + prefix, before + tile_sum);
    return before;
}

// Grid: one block per tile. words[0] counts tickets; behind it are the words of each row.
template <typename T, int VECTORS, int THREADS, int BLOCKS>
__global__ __launch_bounds__(THREADS, BLOCKS) void scan_lookback_kernel(
    const T* __restrict__ x_ptr, T* __restrict__ y_ptr, index_t N, index_t stride_xm, int tiles,
    word_t* words) {
    __shared__ index_t shared_ticket;  // 8 bytes like the words: no compiler-dependent padding
    __shared__ float shared_before;
    if (threadIdx.x == 0) shared_ticket = atomicAdd(reinterpret_cast<int*>(words), 1);
    __syncthreads();
    const int ticket = int(shared_ticket), c = ticket % tiles;
    const index_t m = ticket / tiles;

    const Tile<T, VECTORS, THREADS> tile(x_ptr + m * stride_xm, y_ptr + m * N, c, N, threadIdx.x);
    word_t* const row_words = words + 1 + m * (tiles + tiles / WARP + tiles / (WARP * WARP));
    float before[VECTORS], warps_before;
    const float tile_sum = tile.sum(warps_before);
    if (threadIdx.x == 0) publish(row_words + c, tile_sum);
    tile.scan(before, warps_before);  // meanwhile, earlier tiles publish theirs
    if (threadIdx.x < WARP) {
        const float sum = look_back(row_words, tiles, c, tile_sum);
        if (threadIdx.x == 0) shared_before = sum;
    }
    __syncthreads();
    tile.store(y_ptr + m * N, before, shared_before);
}
