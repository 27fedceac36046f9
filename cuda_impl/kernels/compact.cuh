// compact: x[N] -> y[N],  the x[n] > 0 in order, then NaN if there is room; the rest unspecified
//
// An element's output index is the number of kept elements before it. Variants, slow to fast, the first two
// as in triton_impl/compact.py; they differ in how a block learns what the blocks before it keep:
//   twopass  three launches: count each tile, scan the counts, read x again and scatter: x is read twice
//   onepass  single-pass scan with decoupled look-back: a tile reads the counts that earlier tiles have
//            published: x is read once
//   ring     as onepass, and a block publishes the next tile's count before it looks back from this one
//            (Hopper: TMA prefetches tiles into a ring in shared memory)
//
// A block has one tile of consecutive elements, a warp a consecutive part of it. In each step a warp tests 32
// consecutive elements, one per lane. x's elements are stride_xn apart, at any alignment.
#pragma once

#include "bulk.cuh"
#include "common.cuh"

// value > 0: false for NaN, true for subnormals. Inline PTX, because in C++ -ftz=true flushes subnormals to 0
// in comparisons too; in PTX each instruction states it.
__device__ __forceinline__ bool is_kept(float value) {
#ifdef HOST_BUILD
    return value > 0.0f;
#else
    int kept;
    asm("{ .reg .pred p; setp.gt.f32 p, %1, 0f00000000; selp.s32 %0, 1, 0, p; }" : "=r"(kept) : "f"(value));
    return kept != 0;
#endif
}

// Mask of the lanes below this one.
__device__ __forceinline__ unsigned lanes_before() {
    return (1u << threadIdx.x % WARP) - 1;
}

template <typename T>
__device__ __forceinline__ T not_a_number() {
    return from_float<T>(__int_as_float(0x7fc00000));
}

// Inclusive scan over the warp's lanes.
template <typename Count>
__device__ __forceinline__ Count warp_running_sum(Count sum) {
    const int lane = threadIdx.x % WARP;
#pragma unroll
    for (int distance = 1; distance < WARP; distance *= 2) {
        const Count other = __shfl_up_sync(FULL_WARP, sum, distance);
        if (lane >= distance) sum += other;
    }
    return sum;
}

// Exclusive sum over the warps before this one, and the block's total. Needs another barrier between two
// calls: of_warp is reused.
struct Counted {
    int before;
    int all;
};
template <int THREADS>
__device__ __forceinline__ Counted among_warps(int count) {
    constexpr int WARPS = THREADS / WARP;
    __shared__ int of_warp[WARPS];
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    if (lane == 0) of_warp[warp] = count;
    __syncthreads();
    const int sum = warp_running_sum(lane < WARPS ? of_warp[lane] : 0);
    const int before = __shfl_sync(FULL_WARP, sum, warp == 0 ? 0 : warp - 1);
    return {warp == 0 ? 0 : before, __shfl_sync(FULL_WARP, sum, WARPS - 1)};
}

// Stream compaction of 32 consecutive elements by a warp: one ballot tells which lanes keep theirs, and one
// popc how many of those are before this lane. Kept elements are consecutive, so a step's stores are
// coalesced.
template <typename T>
__device__ __forceinline__ void store_kept(T*& place, T x, bool keep) {
    const unsigned kept = __ballot_sync(FULL_WARP, keep);
    if (keep) place[__popc(kept & lanes_before())] = x;
    place += __popc(kept);
}

// The NaN that ends y, if there is room.
template <typename T>
__device__ __forceinline__ void store_end(T* y_ptr, index_t count, index_t N) {
    if (threadIdx.x == 0 && count < N) y_ptr[count] = not_a_number<T>();
}

// A tile in registers: this thread's elements, and the number of elements that the warp keeps.
template <typename T, int ITEMS, int THREADS>
struct Tile {
    static_assert(ITEMS <= 32, "a bit a step");
    T x[ITEMS];
    unsigned kept = 0;  // a bit per element: comparing again would make the compiler keep all of x in fp32
    int count;

    // All loads are in flight before the first is used. A condition on each could make the compiler wait in
    // between, so only the partial tile at x's end has one.
    __device__ __forceinline__ Tile(const T* x_ptr, index_t N, index_t stride_xn, index_t tile) {
        const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
        const index_t begin = tile * (THREADS * ITEMS), first = begin + warp * (WARP * ITEMS) + lane;
        if (begin + THREADS * ITEMS <= N) {
#pragma unroll
            for (int i = 0; i < ITEMS; ++i) x[i] = x_ptr[(first + i * WARP) * stride_xn];
        } else {
#pragma unroll
            for (int i = 0; i < ITEMS; ++i) {
                const index_t n = first + i * WARP;
                x[i] = n < N ? x_ptr[n * stride_xn] : from_float<T>(0.0f);  // 0 is not kept
            }
        }
#pragma unroll
        for (int i = 0; i < ITEMS; ++i) kept |= static_cast<unsigned>(is_kept(to_float(x[i]))) << i;
        count = __shfl_sync(FULL_WARP, warp_running_sum(__popc(kept)), WARP - 1);
    }

    __device__ __forceinline__ void store(T* place) const {
#pragma unroll
        for (int i = 0; i < ITEMS; ++i) store_kept(place, x[i], kept >> i & 1);
    }
};

// ---- twopass -------------------------------------------------------------------------------------------
// Grid of the first and the third launch: one block per tile.

template <typename T, int ITEMS, int THREADS>
__global__ __launch_bounds__(THREADS) void compact_count_kernel(const T* __restrict__ x_ptr, index_t N,
                                                                index_t stride_xn,
                                                                index_t* __restrict__ of_tile) {
    const Tile<T, ITEMS, THREADS> tile(x_ptr, N, stride_xn, blockIdx.x);
    const Counted counted = among_warps<THREADS>(tile.count);
    if (threadIdx.x == 0) of_tile[blockIdx.x] = counted.all;
}

// Grid: one block. Exclusive scan of the tiles' counts, in place; of_tile[tiles] gets the total.
template <int THREADS>
__global__ __launch_bounds__(THREADS) void compact_scan_kernel(index_t* of_tile, index_t tiles) {
    index_t before = 0;
    for (index_t begin = 0; begin < tiles; begin += THREADS) {
        const index_t tile = begin + threadIdx.x;
        const int count = tile < tiles ? int(of_tile[tile]) : 0;
        const int in_warp = warp_running_sum(count);
        const int of_warp = __shfl_sync(FULL_WARP, in_warp, WARP - 1);
        const Counted counted = among_warps<THREADS>(of_warp);
        if (tile < tiles) of_tile[tile] = before + counted.before + in_warp - count;
        before += counted.all;
        __syncthreads();  // all have read what among_warps shared
    }
    if (threadIdx.x == 0) of_tile[tiles] = before;
}

template <typename T, int ITEMS, int THREADS>
__global__ __launch_bounds__(THREADS) void compact_scatter_kernel(const T* __restrict__ x_ptr,
                                                                  T* __restrict__ y_ptr, index_t N,
                                                                  index_t stride_xn,
                                                                  const index_t* __restrict__ of_tile) {
    const Tile<T, ITEMS, THREADS> tile(x_ptr, N, stride_xn, blockIdx.x);
    tile.store(y_ptr + of_tile[blockIdx.x] + among_warps<THREADS>(tile.count).before);
    if (blockIdx.x == 0) store_end(y_ptr, of_tile[gridDim.x], N);
}

// ---- onepass -------------------------------------------------------------------------------------------
// Grid: one block per tile. Source: Merrill and Garland, "Single-pass Parallel Prefix Scan with Decoupled
// Look-back", 2016.
//
// Every tile has a word of state and count. First it publishes its own count (OWN). When it has added the
// counts of all tiles before it, it publishes the inclusive sum (ALL). A later tile adds OWN counts backwards
// until it meets an ALL, so no tile waits for a chain of tiles. State and count are one 8-byte word, written
// and read by one instruction. No fence is needed, because no other data is handed over.
//
// Blocks wait for earlier tiles. They take tiles by ticket and not by blockIdx: a block with a ticket is
// running, so all earlier tiles belong to running blocks, in whatever order the GPU starts blocks. words[0]
// counts tickets, words[1 + tile] is the tile's; all start as 0.

using word_t = unsigned long long;
constexpr word_t UNKNOWN = 0, OWN = 1, ALL = 2;  // the lowest two bits; the count is above

// int, as tile indices are: 2^31 tiles would need more memory than any GPU has.
__device__ __forceinline__ int take_ticket(word_t* words) {
    return atomicAdd(reinterpret_cast<int*>(words), 1);
}

// volatile bypasses the L1, which is not coherent with other blocks' writes.
__device__ __forceinline__ void publish(word_t* of_tile, word_t state, index_t count) {
    *static_cast<volatile word_t*>(of_tile) = static_cast<word_t>(count) << 2 | state;
}
__device__ __forceinline__ word_t look(const word_t* of_tile) {
    return *static_cast<const volatile word_t*>(of_tile);
}

// How many elements all tiles before this one keep. A warp reads 32 tiles per iteration, the nearest first.
// An iteration takes one L2 round trip, during which the GPU starts more tiles: tiles must be large enough
// that these are fewer than 32. Reading more tiles per iteration would load the L2 with words that are not
// needed.
__device__ __forceinline__ index_t look_back(const word_t* of_tile, int tile) {
    const int lane = threadIdx.x % WARP;
    index_t sum = 0;  // per lane
    for (int nearest = tile - 1;;) {
        const int other = nearest - lane;
        const word_t word =
            other >= 0 ? look(of_tile + other) : ALL;  // before the first tile nothing is kept
        const unsigned knows_all = __ballot_sync(FULL_WARP, (word & 3) == ALL);
        // Lanes up to the first with ALL: its lowest bit, and those below. All lanes if there is none.
        const unsigned needed = knows_all ^ (knows_all - 1);
        if ((__ballot_sync(FULL_WARP, (word & 3) == UNKNOWN) & needed) != 0) {
            SPIN_WAIT();
            continue;
        }
        if (needed >> lane & 1) sum += static_cast<index_t>(word >> 2);
        if (knows_all != 0) break;
        nearest -= WARP;
    }
#pragma unroll
    for (int offset = WARP / 2; offset > 0; offset /= 2) sum += __shfl_xor_sync(FULL_WARP, sum, offset);
    return sum;
}

// look_back for a block: one warp looks back and publishes, then the result is broadcast. Needs another
// barrier between two calls.
__device__ __forceinline__ index_t block_look_back(word_t* of_tile, int tile, int count) {
    __shared__ index_t shared_before;
    if (threadIdx.x < WARP) {
        const index_t before = look_back(of_tile, tile);
        if (threadIdx.x == 0) {
            publish(of_tile + tile, ALL, before + count);
            shared_before = before;
        }
    }
    __syncthreads();
    return shared_before;
}

template <typename T, int ITEMS, int THREADS, int BLOCKS>
__global__ __launch_bounds__(THREADS, BLOCKS) void compact_onepass_kernel(const T* __restrict__ x_ptr,
                                                                          T* __restrict__ y_ptr, index_t N,
                                                                          index_t stride_xn, word_t* words) {
    __shared__ index_t shared_ticket;  // 8 bytes like the other variables: no compiler-dependent padding
    word_t* of_tile = words + 1;
    if (threadIdx.x == 0) shared_ticket = take_ticket(words);
    __syncthreads();
    const int ticket = static_cast<int>(shared_ticket);

    const Tile<T, ITEMS, THREADS> tile(x_ptr, N, stride_xn, ticket);
    const Counted counted = among_warps<THREADS>(tile.count);
    // Published first, because later tiles wait for it.
    if (threadIdx.x == 0) publish(of_tile + ticket, OWN, counted.all);
    const index_t before = block_look_back(of_tile, ticket, counted.all);
    tile.store(y_ptr + before + counted.before);
    if (ticket == static_cast<int>(gridDim.x) - 1) store_end(y_ptr, before + counted.all, N);
}

// ---- ring ----------------------------------------------------------------------------------------------
// Grid: persistent, at most one block per multiprocessor; tiles are taken by ticket. x is contiguous.
//
// In onepass a block has nothing in flight while it waits, three times: for x, for the earlier tiles' counts,
// and for its own look-back. Here TMA prefetches tiles into a ring of STAGES stages in shared memory. That
// needs no registers, so tiles are larger and fewer, and the next two are always in flight. A tile's count is
// published one whole iteration before its block looks back from it. By then other blocks have published the
// tiles before it.
//
// Invariant: blocks finish their tiles in ticket order. So the block of the first unfinished tile is working
// on it, and all that it waits for is finished: no deadlock.
//
// TMA copies whole 16-byte vectors between aligned addresses. So tile 0 starts `skew` elements before x, at
// such an address, and threads copy the tiles that x does not fill.

template <typename T, int STAGES, int TILE_BYTES, int THREADS>
__global__ __launch_bounds__(THREADS, 1) void compact_ring_kernel(const T* __restrict__ x_ptr,
                                                                  T* __restrict__ y_ptr, index_t N, int skew,
                                                                  int tiles, word_t* words) {
#if HAS_HOPPER_UNITS
    static_assert(STAGES >= 3, "tile_of is read while the one before it is written");
    constexpr int VEC = 16 / sizeof(T), SIZE = TILE_BYTES / sizeof(T), PART = SIZE / (THREADS / WARP);
    static_assert(PART % (WARP * VEC) == 0, "a warp counts whole packs of all lanes");
    DYNAMIC_SHARED(T, ring);
    __shared__ mbarrier_t landed[STAGES];
    __shared__ int tile_of[STAGES];
    const int thread = threadIdx.x, lane = thread % WARP, part = thread / WARP * PART;
    word_t* of_tile = words + 1;

    const auto begin_of = [&](int tile) { return static_cast<index_t>(tile) * SIZE - skew; };
    const auto fills = [&](int tile) { return begin_of(tile) >= 0 && begin_of(tile) + SIZE <= N; };
    const auto fetch = [&](int stage) {
        const int tile = tile_of[stage] = take_ticket(words);
        const unsigned bytes = tile < tiles && fills(tile) ? TILE_BYTES : 0;
        mbarrier_arrive_expect_bytes(&landed[stage], bytes);
        if (bytes > 0)
            bulk_copy_to_shared(ring + stage * SIZE, x_ptr + begin_of(tile), bytes, &landed[stage]);
    };
    // Number of elements that this warp keeps of its part of the tile.
    const auto count_kept = [&](int tile, int stage, int phase) {
        T* x = ring + stage * SIZE + part;
        mbarrier_wait(&landed[stage], phase);
        if (!fills(tile)) {
            for (int i = lane; i < PART; i += WARP) {
                const index_t n = begin_of(tile) + part + i;
                x[i] = 0 <= n && n < N ? x_ptr[n] : from_float<T>(0.0f);  // 0 is not kept
            }
            fence_proxy_async();  // TMA overwrites this stage next
            __syncwarp();
        }
        int count = 0;
#pragma unroll 4
        for (int i = lane * VEC; i < PART; i += WARP * VEC) {
            const Pack<T, VEC> pack = load<T, VEC>(x + i);
#pragma unroll
            for (int v = 0; v < VEC; ++v) count += is_kept(get(pack, v));
        }
        return __reduce_add_sync(FULL_WARP, count);
    };

    if (thread == 0) {
        for (int stage = 0; stage < STAGES; ++stage) mbarrier_init(&landed[stage], 1);
        mbarrier_init_fence();
        for (int stage = 0; stage < STAGES; ++stage) fetch(stage);
    }
    __syncthreads();
    int tile = tile_of[0], stage = 0, phase = 0;
    if (tile >= tiles) return;
    Counted counted = among_warps<THREADS>(count_kept(tile, stage, phase));
    if (thread == 0) publish(of_tile + tile, OWN, counted.all);
    __syncthreads();  // all have read what among_warps shared

    while (tile < tiles) {
        const int next_stage = stage + 1 < STAGES ? stage + 1 : 0,
                  next_phase = next_stage > 0 ? phase : phase ^ 1;
        const int next = tile_of[next_stage];
        const int next_count = next < tiles ? count_kept(next, next_stage, next_phase) : 0;
        const Counted next_counted = among_warps<THREADS>(next_count);
        if (thread == 0 && next < tiles) publish(of_tile + next, OWN, next_counted.all);

        const index_t before = block_look_back(of_tile, tile, counted.all);
        T* place = y_ptr + before + counted.before;
        const T* x = ring + stage * SIZE + part + lane;
#pragma unroll 8
        for (int i = 0; i < PART; i += WARP) store_kept(place, x[i], is_kept(to_float(x[i])));
        if (tile == tiles - 1) store_end(y_ptr, before + counted.all, N);
        __syncthreads();  // all have read the tile
        if (thread == 0) fetch(stage);
        tile = next, stage = next_stage, phase = next_phase, counted = next_counted;
    }
#endif
}
