// compact, level 3, ring. Change: TMA prefetches tiles into a ring in shared memory, and a tile's count is
// published one whole iteration before its block looks back from it. Hopper only.
//
// Grid: persistent, at most one block per multiprocessor; tiles are taken by ticket. x is contiguous.
//
// In onepass a block has nothing in flight while it waits, three times: for x, for the earlier tiles' counts,
// and for its own look-back. The ring's STAGES stages need no registers, so tiles are larger and fewer, and
// the next two are always in flight. By the time of a tile's look-back, other blocks have published the tiles
// before it.
//
// Invariant: blocks finish their tiles in ticket order. So the block of the first unfinished tile is working
// on it, and all that it waits for is finished: no deadlock.
//
// TMA copies whole 16-byte vectors between aligned addresses. So tile 0 starts `skew` elements before x, at
// such an address, and threads copy the tiles that x does not fill.
#pragma once

#include "bulk.cuh"
#include "compact/look_back.cuh"
#include "compact/tile.cuh"

template <typename T, int STAGES, int TILE_BYTES, int THREADS>
__global__ __launch_bounds__(THREADS, 1) void compact_ring_kernel(
    const T* __restrict__ x_ptr, T* __restrict__ y_ptr, index_t N, int skew, int tiles, word_t* words) {
#if HAS_HOPPER_LEVELS
    static_assert(STAGES >= 3, "stage_tiles is read while the one before it is written");
    constexpr int VEC = 16 / sizeof(T), SIZE = TILE_BYTES / sizeof(T), PART = SIZE / (THREADS / WARP);
    static_assert(PART % (WARP * VEC) == 0, "a warp counts whole vectors of all lanes");
    DYNAMIC_SHARED(T, ring);
    __shared__ mbarrier_t full[STAGES];
    __shared__ int stage_tiles[STAGES];
    const int thread = threadIdx.x, lane = thread % WARP, part = thread / WARP * PART;
    word_t* tile_words = words + 1;

    const auto begin_of = [&](int tile) { return index_t(tile) * SIZE - skew; };
    const auto fills = [&](int tile) { return begin_of(tile) >= 0 && begin_of(tile) + SIZE <= N; };
    const auto fetch = [&](int stage) {
        const int tile = stage_tiles[stage] = take_ticket(words);
        const unsigned bytes = tile < tiles && fills(tile) ? TILE_BYTES : 0;
        fence_proxy_async();  // orders the block's reads of the stage before TMA overwrites it
        mbarrier_arrive_expect_bytes(&full[stage], bytes);
        if (bytes > 0) bulk_copy_to_shared(ring + stage * SIZE, x_ptr + begin_of(tile), bytes, &full[stage]);
    };
    // Number of elements that this warp keeps of its part of the tile.
    const auto count_kept = [&](int tile, int stage, int phase) {
        T* x = ring + stage * SIZE + part;
        mbarrier_wait(&full[stage], phase);
        if (!fills(tile)) {
            for (int i = lane; i < PART; i += WARP) {
                const index_t n = begin_of(tile) + part + i;
                x[i] = 0 <= n && n < N ? x_ptr[n] : T(0.0f);  // 0 is not kept
            }
            fence_proxy_async();  // TMA overwrites this stage next
            __syncwarp();
        }
        int count = 0;
#pragma unroll 4
        for (int i = lane * VEC; i < PART; i += WARP * VEC) {
            const Vec<T, VEC> vector = load_vec<VEC>(x + i);
#pragma unroll
            for (int v = 0; v < VEC; ++v) count += is_kept(to_float(vector, v));
        }
        return __reduce_add_sync(FULL_WARP, count);
    };

    if (thread == 0) {
        for (int stage = 0; stage < STAGES; ++stage) mbarrier_init(&full[stage], 1);
        mbarrier_init_fence();
        for (int stage = 0; stage < STAGES; ++stage) fetch(stage);
    }
    __syncthreads();
    int tile = stage_tiles[0], stage = 0, phase = 0;
    if (tile >= tiles) return;
    Counted counted = scan_warps<THREADS>(count_kept(tile, stage, phase));
    if (thread == 0) publish(tile_words + tile, OWN, counted.all);
    __syncthreads();  // all have read what scan_warps shared

    while (tile < tiles) {
        const int next_stage = stage + 1 < STAGES ? stage + 1 : 0,
                  next_phase = next_stage > 0 ? phase : phase ^ 1;
        const int next = stage_tiles[next_stage];
        const int next_count = next < tiles ? count_kept(next, next_stage, next_phase) : 0;
        const Counted next_counted = scan_warps<THREADS>(next_count);
        if (thread == 0 && next < tiles) publish(tile_words + next, OWN, next_counted.all);

        const index_t before = block_look_back(tile_words, tile, counted.all);
        T* place = y_ptr + before + counted.before;
        const T* x = ring + stage * SIZE + part + lane;
#pragma unroll 8
        for (int i = 0; i < PART; i += WARP) store_kept(place, x[i], is_kept(float(x[i])));
        if (tile == tiles - 1) store_end(y_ptr, before + counted.all, N);
        __syncthreads();  // all have read the tile
        if (thread == 0) fetch(stage);
        tile = next, stage = next_stage, phase = next_phase, counted = next_counted;
    }
#endif
}
