// compact: x[N] -> y[N],  the x[n] > 0 in order, then NaN if there is room, then anything
//
// Where an element goes is how many before it are kept. The ladder, slow to fast, the first two as in
// triton_impl/compact.py; what changes is how a block learns what the blocks before it keep:
//   twopass  one launch counts the kept of every tile, a second adds up the counts, a third reads x again
//            and writes: x is read twice
//   onepass  a tile is counted, and looks back at what the tiles before it have published: x is read once
//   ring     as onepass, but a block publishes the next tile's count before it looks back from this one
//            (Hopper: the copy engine brings tiles into a ring in shared memory)
//
// A tile is a block's: elements that are neighbours, and so is a warp's part of it. At every step a warp
// looks at 32 neighbours, an element a lane. x's elements are stride_xn apart, on any boundary.
#pragma once

#include "bulk.cuh"
#include "common.cuh"

// value > 0, which for NaN is false and for subnormals true. In C++ these are compared as 0, as all
// arithmetic here takes them (-ftz=true); in PTX that is said or not, instruction by instruction.
__device__ __forceinline__ bool is_kept(float value) {
#ifdef HOST_BUILD
    return value > 0.0f;
#else
    int kept;
    asm("{ .reg .pred p; setp.gt.f32 p, %1, 0f00000000; selp.s32 %0, 1, 0, p; }" : "=r"(kept) : "f"(value));
    return kept != 0;
#endif
}

// Lanes below this one.
__device__ __forceinline__ unsigned lanes_before() {
    return (1u << threadIdx.x % WARP) - 1;
}

template <typename T>
__device__ __forceinline__ T not_a_number() {
    return from_float<T>(__int_as_float(0x7fc00000));
}

// The sum over the lanes up to and including this one.
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

// What the warps before this one have, and what all of the block have. Between two calls there must be
// another barrier: of_warp is used again.
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

// A warp writes what it keeps of 32 neighbours: one ballot tells each lane which of them are kept, and one
// popc how many of those are before its own. What is kept lies side by side, so the stores of a step are too.
template <typename T>
__device__ __forceinline__ void store_kept(T*& place, T x, bool keep) {
    const unsigned kept = __ballot_sync(FULL_WARP, keep);
    if (keep) place[__popc(kept & lanes_before())] = x;
    place += __popc(kept);
}

// What ends y, if there is room.
template <typename T>
__device__ __forceinline__ void store_end(T* y_ptr, index_t count, index_t N) {
    if (threadIdx.x == 0 && count < N) y_ptr[count] = not_a_number<T>();
}

// A tile in registers: this thread's elements, and how many of the warp's are kept.
template <typename T, int ITEMS, int THREADS>
struct Tile {
    static_assert(ITEMS <= 32, "a bit a step");
    T x[ITEMS];
    unsigned kept = 0;  // of this thread's: comparing again would have the compiler keep all of x in fp32
    int count;

    // All loads are on their way before the first is looked at: a condition on each could have the compiler
    // wait between, so only a tile that x's end cuts short has one.
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
// Grid of the first and the third launch: a block for a tile.

template <typename T, int ITEMS, int THREADS>
__global__ __launch_bounds__(THREADS) void compact_count_kernel(const T* __restrict__ x_ptr, index_t N,
                                                                index_t stride_xn,
                                                                index_t* __restrict__ of_tile) {
    const Tile<T, ITEMS, THREADS> tile(x_ptr, N, stride_xn, blockIdx.x);
    const Counted counted = among_warps<THREADS>(tile.count);
    if (threadIdx.x == 0) of_tile[blockIdx.x] = counted.all;
}

// A single block turns every tile's count into the sum of those before it; of_tile[tiles] is the sum of all.
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
// Grid: a block for a tile. After Merrill and Garland, "Single-pass Parallel Prefix Scan with Decoupled
// Look-back", 2016.
//
// Every tile has a word: what it knows, and the number. First it knows only what itself keeps; when it has
// added up the tiles before it, what all up to itself keep. Who comes later adds up the former until it meets
// one of the latter, so nobody waits for a chain of tiles. State and number are one word of 8 bytes, written
// and read by one instruction: no fence is needed, as nothing else is handed over.
//
// Blocks wait for tiles before theirs. They take tiles by ticket and not by blockIdx: whoever has a ticket is
// running, so all tiles before its own are someone's who runs, in whatever order the GPU starts blocks.
// words[0] counts tickets, words[1 + tile] are the tiles'; all start as 0.

using word_t = unsigned long long;
constexpr word_t UNKNOWN = 0, OWN = 1, ALL = 2;  // in the lowest two bits; the number is above

// An int, as tiles are. A counter of 2^31 tiles would be one of more memory than there is.
__device__ __forceinline__ int take_ticket(word_t* words) {
    return atomicAdd(reinterpret_cast<int*>(words), 1);
}

// Past the L1, which does not see what other blocks write.
__device__ __forceinline__ void publish(word_t* of_tile, word_t state, index_t count) {
    *static_cast<volatile word_t*>(of_tile) = static_cast<word_t>(count) << 2 | state;
}
__device__ __forceinline__ word_t look(const word_t* of_tile) {
    return *static_cast<const volatile word_t*>(of_tile);
}

// How many all tiles before this one keep. A whole warp looks, at 32 tiles at a time, the nearest first. Each
// time is a way to the L2 and back, while the GPU begins more tiles: tiles must be so large that these are
// fewer than 32. Looking at more at a time has the L2 answer for words that nobody needed.
__device__ __forceinline__ index_t look_back(const word_t* of_tile, int tile) {
    const int lane = threadIdx.x % WARP;
    index_t sum = 0;  // of what this lane has seen
    for (int nearest = tile - 1;;) {
        const int other = nearest - lane;
        const word_t word =
            other >= 0 ? look(of_tile + other) : ALL;  // before the first tile nothing is kept
        const unsigned knows_all = __ballot_sync(FULL_WARP, (word & 3) == ALL);
        // Lanes up to the first that knows all: its lowest bit, and those below. All lanes if none does.
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

// The same for a block: one warp looks and publishes, and all get to know. Between two calls there must be
// another barrier.
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
    __shared__ index_t shared_ticket;  // 8 bytes as the others have: no compiler leaves a gap between
    word_t* of_tile = words + 1;
    if (threadIdx.x == 0) shared_ticket = take_ticket(words);
    __syncthreads();
    const int ticket = static_cast<int>(shared_ticket);

    const Tile<T, ITEMS, THREADS> tile(x_ptr, N, stride_xn, ticket);
    const Counted counted = among_warps<THREADS>(tile.count);
    // Others wait for this, so it comes before all that only this block needs.
    if (threadIdx.x == 0) publish(of_tile + ticket, OWN, counted.all);
    const index_t before = block_look_back(of_tile, ticket, counted.all);
    tile.store(y_ptr + before + counted.before);
    if (ticket == static_cast<int>(gridDim.x) - 1) store_end(y_ptr, before + counted.all, N);
}

// ---- ring ----------------------------------------------------------------------------------------------
// Grid: a block a multiprocessor, or fewer; each takes tile after tile. x's elements are neighbours.
//
// In onepass a block waits three times and has nothing on its way meanwhile: for x, for the tiles before its
// own to be counted, and for its look at them. Here tiles come into a ring of STAGES places in shared memory,
// which needs no registers, so they are larger and fewer, and the next two are on their way all the time. And
// a tile is counted and published a whole tile's time before anyone in this block looks back from it: by then
// the tiles before it, which other blocks took at about the same time, have long been published as well.
//
// Blocks finish their tiles in the order of their tickets. So the first tile that is not finished is one that
// its block is at, and all that it waits for is finished.
//
// The copy engine moves whole packs of 16 bytes between 16-byte boundaries. So tile 0 begins `skew` elements
// before x, on such a boundary, and threads bring what they can of a tile that x does not fill.

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
    // How many of its part of the tile this warp keeps.
    const auto count_kept = [&](int tile, int stage, int phase) {
        T* x = ring + stage * SIZE + part;
        mbarrier_wait(&landed[stage], phase);
        if (!fills(tile)) {
            for (int i = lane; i < PART; i += WARP) {
                const index_t n = begin_of(tile) + part + i;
                x[i] = 0 <= n && n < N ? x_ptr[n] : from_float<T>(0.0f);  // 0 is not kept
            }
            fence_proxy_async();  // the copy engine writes here next
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
