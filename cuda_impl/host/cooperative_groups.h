// Cooperative groups on the host: a block, and tiles of up to a warp. CUDA's own header is inline PTX.
#pragma once

#include "device.h"

namespace cooperative_groups {

class thread_block {
  public:
    static void sync() { __syncthreads(); }
    static unsigned thread_rank() {
        return (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    }
    static unsigned num_threads() { return blockDim.x * blockDim.y * blockDim.z; }
    static unsigned size() { return num_threads(); }
    static dim3 group_index() { return dim3(blockIdx.x, blockIdx.y, blockIdx.z); }
    static dim3 thread_index() { return dim3(threadIdx.x, threadIdx.y, threadIdx.z); }
    static dim3 group_dim() { return dim3(blockDim.x, blockDim.y, blockDim.z); }
    static dim3 dim_threads() { return group_dim(); }
};

inline thread_block this_thread_block() {
    return {};
}

template <unsigned Size, typename Parent = thread_block>
class thread_block_tile {
    static_assert(Size <= 32 && (Size & (Size - 1)) == 0, "the CPU build has tiles of 1 to 32 threads");

    // The lanes of this thread's tile: its warp may hold several.
    static unsigned mask() {
        return Size == 32 ? ~0u : ((1u << Size % 32) - 1) << (thread_block::thread_rank() % 32 / Size * Size);
    }

  public:
    static void sync() { __syncwarp(mask()); }
    static unsigned thread_rank() { return thread_block::thread_rank() % Size; }
    static constexpr unsigned num_threads() { return Size; }
    static constexpr unsigned size() { return Size; }
    static unsigned meta_group_rank() { return thread_block::thread_rank() / Size; }
    static unsigned meta_group_size() { return (thread_block::num_threads() + Size - 1) / Size; }

    template <typename T>
    static T shfl(T value, int source) {
        return __shfl_sync(mask(), value, source, Size);
    }
    template <typename T>
    static T shfl_up(T value, unsigned delta) {
        return __shfl_up_sync(mask(), value, delta, Size);
    }
    template <typename T>
    static T shfl_down(T value, unsigned delta) {
        return __shfl_down_sync(mask(), value, delta, Size);
    }
    template <typename T>
    static T shfl_xor(T value, int lane_mask) {
        return __shfl_xor_sync(mask(), value, lane_mask, Size);
    }
    static bool any(int predicate) { return __any_sync(mask(), predicate); }
    static bool all(int predicate) { return __all_sync(mask(), predicate); }
    static unsigned ballot(int predicate) {
        return __ballot_sync(mask(), predicate) >> (thread_block::thread_rank() % 32 / Size * Size);
    }
};

template <unsigned Size, typename Parent>
thread_block_tile<Size, Parent> tiled_partition(const Parent&) {
    return {};
}

template <typename Group>
void sync(const Group& group) {
    group.sync();
}

}  // namespace cooperative_groups
