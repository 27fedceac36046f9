// compact: x[N] -> y[N],  the x[n] > 0 in order, then NaN if there is room, then anything
//
// Where an element goes is how many before it are kept. The ladder, slow to fast, as in
// triton_impl/compact.py; what changes is how a block learns what the blocks before it keep:
//   twopass  one launch counts the kept of every tile, a second adds up the counts, a third reads x again
//            and writes: x is read twice
//   onepass  a tile is counted, and looks back at what the tiles before it have published: x is read once
//
// A tile is a block's: THREADS * ITEMS elements that are neighbours, and so is a warp's part of it. At every
// step a warp looks at 32 neighbours, an element a lane. x's elements are stride_xn apart, on any boundary.
#pragma once

#include "common.cuh"

// A comparison with NaN is false: none is kept.
__device__ __forceinline__ bool is_kept(float value) {
    return value > 0.0f;
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

// This thread's elements of a tile. All loads are on their way before the first is looked at: a condition on
// each could have the compiler wait between, so only a tile that x's end cuts short has one.
template <typename T, int ITEMS, int THREADS>
__device__ __forceinline__ void load_tile(T (&x)[ITEMS], const T* x_ptr, index_t N, index_t stride_xn,
                                          int tile) {
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const index_t begin = index_t(tile) * (THREADS * ITEMS), first = begin + warp * (WARP * ITEMS) + lane;
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
}

// ---- twopass -------------------------------------------------------------------------------------------
// Grid of the first and the third launch: a block for a tile. One ballot a step tells each lane which of the
// warp's 32 neighbours are kept, and one popc how many of those are before its own.

template <typename T, int ITEMS, int THREADS>
struct Steps {
    T x[ITEMS];
    unsigned kept[ITEMS];  // a bit a lane
    int count = 0;         // of the warp

    __device__ __forceinline__ Steps(const T* x_ptr, index_t N, index_t stride_xn) {
        load_tile<T, ITEMS, THREADS>(x, x_ptr, N, stride_xn, blockIdx.x);
#pragma unroll
        for (int i = 0; i < ITEMS; ++i) {
            kept[i] = __ballot_sync(FULL_WARP, is_kept(to_float(x[i])));
            count += __popc(kept[i]);
        }
    }
};

template <typename T, int ITEMS, int THREADS>
__global__ __launch_bounds__(THREADS) void compact_count_kernel(const T* __restrict__ x_ptr, index_t N,
                                                                index_t stride_xn,
                                                                index_t* __restrict__ of_tile) {
    const Steps<T, ITEMS, THREADS> steps(x_ptr, N, stride_xn);
    const Counted counted = among_warps<THREADS>(steps.count);
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
    const Steps<T, ITEMS, THREADS> steps(x_ptr, N, stride_xn);
    index_t place = of_tile[blockIdx.x] + among_warps<THREADS>(steps.count).before;
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
        const unsigned kept = steps.kept[i];
        if (kept >> threadIdx.x % WARP & 1) y_ptr[place + __popc(kept & lanes_before())] = steps.x[i];
        place += __popc(kept);
    }
    const index_t count = of_tile[gridDim.x];
    if (blockIdx.x == 0 && threadIdx.x == 0 && count < N) y_ptr[count] = not_a_number<T>();
}

// ---- onepass -------------------------------------------------------------------------------------------
// Grid: BLOCKS a multiprocessor, or fewer; each takes tile after tile. After Merrill and Garland,
// "Single-pass Parallel Prefix Scan with Decoupled Look-back", 2016.
//
// Every tile has a word: what it knows, and the number. First it knows only what itself keeps; when it has
// added up the tiles before it, what all up to itself keep. Who comes later adds up the former until it meets
// one of the latter, so nobody waits for a chain of tiles. State and number are one word of 8 bytes, written
// and read by one instruction: no fence is needed, as nothing else is handed over.
//
// Blocks wait for tiles before theirs. They take tiles by ticket and not by blockIdx: whoever has a ticket is
// running. A block holds up to three, and finishes them in order; so the first tile that is not finished is
// one that its block is at, and all that it waits for is finished.
// words[0] counts tickets, words[1 + tile] are the tiles'; all start as 0.

using word_t = unsigned long long;
constexpr word_t UNKNOWN = 0, OWN = 1, ALL = 2;  // in the lowest two bits; the number is above

// Past the L1, which does not see what other blocks write.
__device__ __forceinline__ void publish(word_t* of_tile, word_t state, index_t count) {
    *static_cast<volatile word_t*>(of_tile) = static_cast<word_t>(count) << 2 | state;
}
__device__ __forceinline__ word_t look(const word_t* of_tile) {
    return *static_cast<const volatile word_t*>(of_tile);
}

// How many all tiles before this one keep. A whole warp looks, at 32 tiles at a time, the nearest first. The
// next 96 are on their way meanwhile: while a look is, the GPU begins more than 32 tiles, of which few know
// all by then.
__device__ __forceinline__ index_t look_back(const word_t* of_tile, int tile) {
    constexpr int LOOKS = 4;
    const int lane = threadIdx.x % WARP;
    index_t sum = 0;  // of what this lane has seen
    unsigned knows_all = 0;
    for (int nearest = tile - 1; knows_all == 0;) {
        word_t word[LOOKS];
#pragma unroll
        for (int i = 0; i < LOOKS; ++i) {
            const int other = nearest - i * WARP - lane;
            word[i] = other >= 0 ? look(of_tile + other) : ALL;  // before the first tile nothing is kept
        }
#pragma unroll
        for (int i = 0; i < LOOKS; ++i) {
            knows_all = __ballot_sync(FULL_WARP, (word[i] & 3) == ALL);
            // Lanes up to the first that knows all: its lowest bit, and those below. All lanes if none does.
            const unsigned needed = knows_all ^ (knows_all - 1);
            if ((__ballot_sync(FULL_WARP, (word[i] & 3) == UNKNOWN) & needed) != 0) {
                knows_all = 0;
                SPIN_WAIT();
                break;  // look again, from here on
            }
            if (needed >> lane & 1) sum += static_cast<index_t>(word[i] >> 2);
            if (knows_all != 0) break;
            nearest -= WARP;
        }
    }
#pragma unroll
    for (int offset = WARP / 2; offset > 0; offset /= 2) sum += __shfl_xor_sync(FULL_WARP, sum, offset);
    return sum;
}

// A tile's time is its loads' in part: a block counts, looks back and writes as well. So it loads the next
// one as soon as this one is in shared memory, into the registers that this leaves.
template <typename T, int ITEMS, int THREADS, int BLOCKS>
__global__ __launch_bounds__(THREADS, BLOCKS) void compact_onepass_kernel(const T* __restrict__ x_ptr,
                                                                          T* __restrict__ y_ptr, index_t N,
                                                                          index_t stride_xn, int tiles,
                                                                          word_t* words) {
    static_assert(ITEMS <= 32, "a bit a step");
    __shared__ T staged[THREADS * ITEMS];
    __shared__ int shared_tile;
    __shared__ index_t shared_before;
    const int thread = threadIdx.x, warp = thread / WARP, lane = thread % WARP;
    word_t* of_tile = words + 1;

    int* tickets = reinterpret_cast<int*>(words);  // int as tiles are: a conversion would wait for a ticket
    if (thread == 0) shared_tile = atomicAdd(tickets, 1);
    __syncthreads();
    int tile = shared_tile, ticket = 0;
    if (thread == 0) ticket = atomicAdd(tickets, 1);
    __syncthreads();  // all have read the first
    T x[ITEMS];
    load_tile<T, ITEMS, THREADS>(x, x_ptr, N, stride_xn, tile);

    while (tile < tiles) {
        // Comparing again when it is staged would have the compiler keep all of x in fp32 till then.
        unsigned kept = 0;
#pragma unroll
        for (int i = 0; i < ITEMS; ++i) kept |= static_cast<unsigned>(is_kept(to_float(x[i]))) << i;
        const int of_warp = __shfl_sync(FULL_WARP, warp_running_sum(__popc(kept)), WARP - 1);
        if (thread == 0) shared_tile = ticket;
        const Counted counted = among_warps<THREADS>(of_warp);
        // Others wait for this, so it comes before all that only this block needs.
        if (thread == 0) publish(of_tile + tile, tile == 0 ? ALL : OWN, counted.all);

        // Gather the kept in shared memory, so that neighbouring threads write neighbours.
        int place = counted.before;
#pragma unroll
        for (int i = 0; i < ITEMS; ++i) {
            const unsigned of_step = __ballot_sync(FULL_WARP, kept >> i & 1);
            if (kept >> i & 1) staged[place + __popc(of_step & lanes_before())] = x[i];
            place += __popc(of_step);
        }
        const int next = shared_tile;
        if (warp == 0) {
            const index_t before = look_back(of_tile, tile);
            if (lane == 0) {
                publish(of_tile + tile, ALL, before + counted.all);
                shared_before = before;
            }
        }
        // The other warps do this while the first one looks. With loads on its way it would wait for them.
        load_tile<T, ITEMS, THREADS>(x, x_ptr, N, stride_xn, next);
        __syncthreads();
        if (thread == 0) ticket = atomicAdd(tickets, 1);  // looked at in the next round only
        const index_t before = shared_before;
        // A warp's stores begin at a multiple of 32 elements, so that they are whole sectors.
        for (int i = thread - static_cast<int>(before % WARP); i < counted.all; i += THREADS) {
            if (i >= 0) y_ptr[before + i] = staged[i];
        }
        const index_t count = before + counted.all;
        if (tile == tiles - 1 && thread == 0 && count < N) y_ptr[count] = not_a_number<T>();
        tile = next;
    }
}
