// Reductions over a tile on the host.
#pragma once

#include "../cooperative_groups.h"

namespace cooperative_groups {

template <typename T>
struct plus {
    T operator()(T a, T b) const { return a + b; }
};
template <typename T>
struct greater {
    T operator()(T a, T b) const { return a > b ? a : b; }
};
template <typename T>
struct less {
    T operator()(T a, T b) const { return a < b ? a : b; }
};

template <unsigned Size, typename Parent, typename T, typename Op>
T reduce(const thread_block_tile<Size, Parent>& tile, T value, Op op) {
    for (unsigned distance = Size / 2; distance > 0; distance /= 2) {
        value = op(value, tile.shfl_xor(value, int(distance)));
    }
    return value;
}

}  // namespace cooperative_groups
