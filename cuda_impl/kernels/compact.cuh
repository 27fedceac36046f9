// compact: x[N] -> y[N],  the x[n] > 0 in order, then NaN if there is room, then anything
//
// Where an element goes is how many before it are kept. The ladder, slow to fast, as in
// triton_impl/compact.py; what changes is how a block learns what the blocks before it keep:
//   twopass  one launch counts the kept of every tile, a second adds up the counts, a third reads x again
//            and writes: x is read twice
//   onepass  a tile is counted, and looks back at what the tiles before it have published: x is read once
//
// A tile is a block's: BLOCK_SIZE elements that are neighbours, and so is a warp's part of it. A warp's order
// is step by step, lane by lane, and element by element within a lane's pack.
// x's elements are stride_xn apart. VEC elements move at a time: 16 bytes' worth where they are neighbours.
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

// ---- twopass -------------------------------------------------------------------------------------------
// Grid of the first and the third launch: a block for a tile of THREADS * ITEMS elements. At every step a
// warp looks at 32 neighbours: one ballot tells each lane which of them are kept, and one popc how many of
// those are before its own.

template <typename T, int ITEMS, int THREADS>
struct Steps {
    T x[ITEMS];
    unsigned kept[ITEMS];  // a bit a lane
    int count = 0;         // of the warp

    __device__ __forceinline__ Steps(const T* x_ptr, index_t N, index_t stride_xn) {
        const index_t first = first_element();
#pragma unroll
        for (int i = 0; i < ITEMS; ++i) {
            const index_t n = first + i * WARP;
            x[i] = n < N ? x_ptr[n * stride_xn] : from_float<T>(0.0f);
        }
#pragma unroll
        for (int i = 0; i < ITEMS; ++i) {
            kept[i] = __ballot_sync(FULL_WARP, is_kept(to_float(x[i])));
            count += __popc(kept[i]);
        }
    }
    static __device__ __forceinline__ index_t first_element() {
        const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
        return index_t(blockIdx.x) * (THREADS * ITEMS) + warp * (WARP * ITEMS) + lane;
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
// Grid: a block for a tile of THREADS * PACKS packs. After Merrill and Garland, "Single-pass Parallel Prefix
// Scan with Decoupled Look-back", 2016.
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

// Past the L1, which does not see what other blocks write.
__device__ __forceinline__ void publish(word_t* of_tile, word_t state, index_t count) {
    *static_cast<volatile word_t*>(of_tile) = static_cast<word_t>(count) << 2 | state;
}
__device__ __forceinline__ word_t look(const word_t* of_tile) {
    return *static_cast<const volatile word_t*>(of_tile);
}

// How many all tiles before this one keep. A whole warp looks, at 32 tiles at a time, the nearest first.
__device__ __forceinline__ index_t look_back(const word_t* of_tile, index_t tile) {
    const int lane = threadIdx.x % WARP;
    index_t before = 0;
    for (index_t nearest = tile - 1;; nearest -= WARP) {
        const index_t other = nearest - lane;
        word_t word;
        unsigned knows_all, needed;
        for (;;) {
            word = other >= 0 ? look(of_tile + other) : ALL;  // before the first tile nothing is kept
            knows_all = __ballot_sync(FULL_WARP, (word & 3) == ALL);
            // Lanes up to the first that knows all: its lowest bit, and those below. All lanes if none does.
            needed = knows_all ^ (knows_all - 1);
            if ((__ballot_sync(FULL_WARP, (word & 3) == UNKNOWN) & needed) == 0) break;
            SPIN_WAIT();
        }
        index_t sum = needed >> lane & 1 ? static_cast<index_t>(word >> 2) : 0;
#pragma unroll
        for (int offset = WARP / 2; offset > 0; offset /= 2) sum += __shfl_xor_sync(FULL_WARP, sum, offset);
        before += sum;
        if (knows_all != 0) return before;
    }
}

// Element v of a pack as it is, not by way of fp32.
template <typename T>
__device__ __forceinline__ T element(const Pack<T, 1>& pack, int) {
    return pack.element;
}
template <typename T, int VEC>
__device__ __forceinline__ T element(const Pack<T, VEC>& pack, int v) {
    return reinterpret_cast<const T*>(pack.word)[v];
}

// Threads of a multiprocessor: with 64 bytes of x each, 64 KB are on their way. For more of them registers
// would have to be spilled; sm_75 holds no more than 1024, and takes more registers.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
constexpr int RESIDENT = 512;
#else
constexpr int RESIDENT = 1024;
#endif

template <typename T, int VEC, int PACKS, int THREADS>
__global__ __launch_bounds__(THREADS,
                             RESIDENT / THREADS) void compact_onepass_kernel(const T* __restrict__ x_ptr,
                                                                             T* __restrict__ y_ptr, index_t N,
                                                                             index_t stride_xn, index_t tiles,
                                                                             word_t* words) {
    constexpr int BLOCK_SIZE = THREADS * PACKS * VEC;
    constexpr int FIELD = 16;  // bits for the count of a step: 32 lanes keep 256 at most
    static_assert(PACKS * FIELD <= 64, "the counts of all steps share a word");
    __shared__ T staged[BLOCK_SIZE];
    __shared__ index_t shared_tile, shared_before;
    const int thread = threadIdx.x, warp = thread / WARP, lane = thread % WARP;
    word_t* of_tile = words + 1;

    if (thread == 0) shared_tile = static_cast<index_t>(atomicAdd(words, 1ull));
    __syncthreads();
    const index_t tile = shared_tile;
    const index_t begin = tile * BLOCK_SIZE, first = begin + (warp * PACKS * WARP + lane) * VEC;

    Pack<T, VEC> x[PACKS];
    // All loads are on their way before the first is looked at. A condition on each would have the compiler
    // wait between, so only the last tile has one.
    if (begin + BLOCK_SIZE <= N) {
#pragma unroll
        for (int p = 0; p < PACKS; ++p) x[p] = load<T, VEC>(x_ptr + (first + p * WARP * VEC) * stride_xn);
    } else {
#pragma unroll
        for (int p = 0; p < PACKS; ++p) {
            float value[VEC];
#pragma unroll
            for (int v = 0; v < VEC; ++v) {
                const index_t n = first + p * WARP * VEC + v;
                value[v] = n < N ? to_float(x_ptr[n * stride_xn]) : 0.0f;  // 0 is not kept
            }
            set(x[p], value);
        }
    }

    // A ballot an element would be eight ballots for a pack of 16-bit elements. So lanes count for
    // themselves, and one running sum over the warp is of all steps' counts, side by side in a word.
    word_t own = 0;
    unsigned kept = 0;  // a bit an element: comparing again later would keep all of them in fp32 till then
#pragma unroll
    for (int p = 0; p < PACKS; ++p) {
#pragma unroll
        for (int v = 0; v < VEC; ++v) kept |= static_cast<unsigned>(is_kept(get(x[p], v))) << (p * VEC + v);
        const int count = __popc(kept >> p * VEC & ((1u << VEC) - 1));
        own |= static_cast<word_t>(count) << p * FIELD;
    }
    const word_t up_to_lane = warp_running_sum(own);
    const word_t of_steps = __shfl_sync(FULL_WARP, up_to_lane, WARP - 1);
    const word_t before_lane = up_to_lane - own;
    const auto field = [](word_t counts, int p) { return static_cast<int>(counts >> p * FIELD & 0xffff); };
    int of_warp = 0;
#pragma unroll
    for (int p = 0; p < PACKS; ++p) of_warp += field(of_steps, p);
    const Counted counted = among_warps<THREADS>(of_warp);
    // Others wait for this, so it comes before all that only this block needs.
    if (thread == 0) publish(of_tile + tile, tile == 0 ? ALL : OWN, counted.all);

    // Gather the kept in shared memory, so that neighbouring threads write neighbours.
    int of_step = counted.before;
#pragma unroll
    for (int p = 0; p < PACKS; ++p) {
        int place = of_step + field(before_lane, p);
#pragma unroll
        for (int v = 0; v < VEC; ++v) {
            if (kept >> (p * VEC + v) & 1) staged[place++] = element(x[p], v);
        }
        of_step += field(of_steps, p);
    }

    if (warp == 0) {
        const index_t before = look_back(of_tile, tile);
        if (lane == 0) {
            publish(of_tile + tile, ALL, before + counted.all);
            shared_before = before;
        }
    }
    __syncthreads();
    const index_t before = shared_before;
    for (int i = thread; i < counted.all; i += THREADS) y_ptr[before + i] = staged[i];
    const index_t count = before + counted.all;
    if (tile == tiles - 1 && thread == 0 && count < N) y_ptr[count] = not_a_number<T>();
}
