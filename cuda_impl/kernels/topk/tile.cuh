// What radix and delegates share: a tile in registers, the search for a bound, and the sort of what reaches
// it.
//
// A block has a row, or one of its `tiles` parts if a row is longer than a tile or rows are few. Then a
// second launch selects among the best of all parts, tiles * K of them in a row, and looks up their columns.
#pragma once

#include "topk/order.cuh"

// The keys of up to VECTORS vectors per thread, and of the thread's edge if rows are not ALIGNED.
template <typename T, bool ALIGNED, int VECTORS, int THREADS>
struct Tile {
    static constexpr int VEC = 16 / sizeof(T), ITEMS = VECTORS * VEC;
    unsigned keys[VECTORS][4], edge_key = 0;
    int first, edge = 0;  // column of the thread's first element; how far behind it the edge is

    __device__ __forceinline__ Tile(const T* ptr, int N) {
        const Parts<T, ALIGNED> parts(ptr, N, threadIdx.x);
        first = parts.head + static_cast<int>(threadIdx.x) * VEC;
        const int end = parts.head + static_cast<int>(parts.body);
        Packed<T, VEC> x[VECTORS];
#pragma unroll
        for (int p = 0; p < VECTORS; ++p) {
            const int n = first + behind(p * VEC);
            x[p] = n < end ? load_packed<VEC>(ptr + n) : Packed<T, VEC>{};
        }
        if (parts.edge >= 0) {
            edge = static_cast<int>(parts.edge) - first;
            edge_key = key_of(ptr[parts.edge]);
        }
#pragma unroll
        for (int p = 0; p < VECTORS; ++p) {
            const bool inside = first + behind(p * VEC) < end;
            const unsigned words[4] = {x[p].words.x, x[p].words.y, x[p].words.z, x[p].words.w};
#pragma unroll
            for (int w = 0; w < 4; ++w) keys[p][w] = inside ? ordered_keys<T>(words[w]) : 0;
        }
    }
    // Columns from the thread's first element to another one.
    __device__ __forceinline__ static constexpr int behind(int item) {
        return item / VEC * THREADS * VEC + item % VEC;
    }
    // The empty asm statement hides that an earlier pass unpacked the same word: the compiler would keep that
    // pass's two keys, in twice the registers.
    __device__ __forceinline__ unsigned key(int item) const {
        unsigned word = keys[item / VEC][item % VEC * sizeof(T) / 4];
        if constexpr (sizeof(T) == 4) return word;
        asm volatile("" : "+r"(word));
        return item % 2 == 0 ? word << 16 : word & 0xffff0000u;
    }
    // Calls visit(key, columns behind the first) for each of the thread's elements; a missing one has key 0.
    template <typename Visit>
    __device__ __forceinline__ void each(Visit visit) const {
#pragma unroll
        for (int item = 0; item < ITEMS; ++item) visit(key(item), behind(item));
        if constexpr (!ALIGNED) visit(edge_key, edge);
    }
};

// ---- radix select ----------------------------------------------------------------------------------------
// Source: Alabi et al., "Fast K-selection algorithms for graphics processing units", 2012; the early stop as
// in Zhang et al., "Parallel top-K algorithms on GPU: a comprehensive study and new methods", 2023.

constexpr int BINS_PER_LANE = 8, RADIX = WARP * BINS_PER_LANE;

// One struct, aligned: NVRTC and nvcc would lay separate variables out differently.
struct alignas(8) Bins {
    int histogram[RADIX], chosen, above, in_chosen;
};

// The largest bound that at least K of the block's keys reach, in BITS leading bits: 8 in each pass. A pass
// counts the next digit of all keys that share the bound's digits so far. It stops early where all keys of
// the bound's bin are among the K. `each(count)` calls count(key) for each of the thread's keys.
template <int THREADS, int BITS, typename Key = unsigned, typename Each>
__device__ __forceinline__ Key radix_select(int K, Each each) {
    constexpr int KEY_BITS = 8 * sizeof(Key);
    __shared__ Bins bins;
    Key bound = 0, known_digits = 0;
#pragma unroll 1
    for (int shift = KEY_BITS - 8; shift >= KEY_BITS - BITS; shift -= 8) {
        for (int bin = threadIdx.x; bin < RADIX; bin += THREADS) bins.histogram[bin] = 0;
        __syncthreads();
        each([&](Key key) {
            if ((key & known_digits) == bound) atomicAdd(bins.histogram + (key >> shift & (RADIX - 1)), 1);
        });
        __syncthreads();
        if (threadIdx.x < WARP) {  // the first warp scans the bins from the largest digit down
            const int lane = threadIdx.x, first = RADIX - 1 - lane * BINS_PER_LANE;
            int count[BINS_PER_LANE], sum = 0;
#pragma unroll
            for (int b = 0; b < BINS_PER_LANE; ++b) sum += count[b] = bins.histogram[first - b];
            int above = sum;
#pragma unroll
            for (int offset = 1; offset < WARP; offset *= 2) {
                const int other = __shfl_up_sync(FULL_WARP, above, offset);
                if (lane >= offset) above += other;
            }
            above -= sum;
#pragma unroll
            for (int b = 0; b < BINS_PER_LANE; ++b) {
                if (above < K && K <= above + count[b])
                    bins.chosen = first - b, bins.above = above, bins.in_chosen = count[b];
                above += count[b];
            }
        }
        __syncthreads();
        bound |= static_cast<Key>(bins.chosen) << shift;
        known_digits |= static_cast<Key>(RADIX - 1) << shift;
        K -= bins.above;
        if (bins.in_chosen == K) break;
    }
    return bound;
}

// ---- the K largest, from a bound -------------------------------------------------------------------------

// Elements that shared memory holds for the sort: at least K, and more where many are equal to the K-th.
constexpr int CANDIDATES = 1024;

struct Candidates {
    word_t word[CANDIDATES];
    int count;
};

// Collects the elements above bound, and those equal to it before column `limit`; returns how many there are.
template <typename Tile>
__device__ __forceinline__ int collect(const Tile& tile, Candidates& candidates, unsigned bound, int limit) {
    __syncthreads();  // before the count is reset, all threads have read it
    if (threadIdx.x == 0) candidates.count = 0;
    __syncthreads();
    tile.each([&](unsigned key, int behind) {
        if (key >= bound && (key > bound || behind < limit - tile.first)) {
            const int place = atomicAdd(&candidates.count, 1);
            if (place < CANDIDATES) candidates.word[place] = make_word(key, tile.first + behind);
        }
    });
    __syncthreads();
    return candidates.count;
}

// The same for the K-th largest key itself. If more elements are equal to it than shared memory holds, those
// of the lowest index count: a binary search finds their limit, and counts the tile in each step.
template <int THREADS, typename Tile>
__device__ __forceinline__ int collect_exact(
    const Tile& tile, Candidates& candidates, unsigned bound, int N, int K) {
    const int count = collect(tile, candidates, bound, N);
    if (count <= CANDIDATES) return count;
    int low = 0, high = N;  // with limit `low` fewer than K elements, with `high` at least K
    while (high - low > 1) {
        const int limit = (low + high) / 2;
        int reached = 0;
        unsigned opaque =
            bound;  // else the comparisons with it would be kept, in a register for each element
        asm volatile("" : "+r"(opaque));
        tile.each([&](unsigned key, int behind) {
            reached += key > opaque || (key == opaque && behind < limit - tile.first);
        });
        reached = block_reduce<Sum, THREADS>(reached);
        __syncthreads();  // before the next reduction reuses its shared memory
        (reached < K ? low : high) = limit;
    }
    return collect(tile, candidates, bound, high);
}

// ---- a block's part of a row -----------------------------------------------------------------------------

template <typename T>
struct Part {
    const T* ptr;
    const index_t* columns;  // of a row made of parts' best: where these come from
    index_t first;           // output
    int begin, N, K;

    __device__ __forceinline__ Part(
        const T* x_ptr, const index_t* columns_ptr, int has_columns, int row_N, index_t stride_xm, int tiles,
        int K)
        : first(static_cast<index_t>(blockIdx.x) * K), K(K) {
        constexpr int VEC = 16 / sizeof(T);
        const index_t m = blockIdx.x / tiles, tile = blockIdx.x % tiles;
        const index_t vectors = (row_N + VEC - 1) / VEC;  // parts start at whole vectors, as rows may do
        begin = static_cast<int>(vectors * tile / tiles * VEC);
        N = min(row_N, static_cast<int>(vectors * (tile + 1) / tiles * VEC)) - begin;
        ptr = x_ptr + m * stride_xm + begin;
        columns = has_columns ? columns_ptr + m * row_N : nullptr;
    }

    // Rank sort: an element's place is the number of greater ones, as no two words are equal. No barrier is
    // needed, and few elements are left.
    template <int THREADS>
    __device__ __forceinline__ void store_sorted(
        const Candidates& candidates, int count, T* values_ptr, index_t* indices_ptr) const {
        for (int i = threadIdx.x; i < count; i += THREADS) {
            const word_t word = candidates.word[i];
            int rank = 0;
#pragma unroll 4
            for (int j = 0; j < count; ++j) rank += candidates.word[j] > word;
            if (rank < K) {
                const int n = begin + column_of_word(word);
                values_ptr[first + rank] = value_of<T>(key_of_word(word));
                indices_ptr[first + rank] = columns == nullptr ? n : columns[n];
            }
        }
    }
};
