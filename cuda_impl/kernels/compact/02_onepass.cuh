// compact, level 2, onepass. Change: one launch. A tile learns by look-back what the tiles before it keep,
// and x stays in registers meanwhile: it is read once.
#pragma once

#include "compact/look_back.cuh"
#include "compact/tile.cuh"

// Grid: one block per tile.
template <typename T, int ITEMS, int THREADS, int BLOCKS>
__global__ __launch_bounds__(THREADS, BLOCKS) void compact_onepass_kernel(
    const T* __restrict__ x_ptr, T* __restrict__ y_ptr, index_t N, index_t stride_xn, word_t* words) {
    __shared__ index_t shared_ticket;  // 8 bytes like the other variables: no compiler-dependent padding
    word_t* tile_words = words + 1;
    if (threadIdx.x == 0) shared_ticket = take_ticket(words);
    __syncthreads();
    const int ticket = int(shared_ticket);

    T x[ITEMS];
    const unsigned kept = load_tile<THREADS>(x, x_ptr, N, stride_xn, ticket);
    const Counted counted = scan_warps<THREADS>(warp_reduce<Sum>(__popc(kept)));
    // Published first, because later tiles wait for it.
    if (threadIdx.x == 0) publish(tile_words + ticket, OWN, counted.all);
    const index_t before = block_look_back(tile_words, ticket, counted.all);
    T* place = y_ptr + before + counted.before;
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) store_kept(place, x[i], kept >> i & 1);
    if (ticket == int(gridDim.x) - 1) store_end(y_ptr, before + counted.all, N);
}
