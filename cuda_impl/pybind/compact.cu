// compact from C++: checks and launches the kernels of kernels/compact.cuh.
#include "compact.cuh"

#include "tensor.h"

// Count each tile, scan the counts, read x again and scatter.
static py::object twopass(py::object x_object) {
    const Tensor x = check_same("compact", 1, {{"x", x_object}})[0], y = x.empty_like();
    const std::int64_t N = x.numel();
    if (N == 0) return y.object;
    constexpr int ITEMS = 16, THREADS = 256, SCAN_THREADS = 1024;
    const std::int64_t tiles = ceil_div(N, THREADS * ITEMS);
    const Tensor of_tile = x.zeros(tiles + 1);
    dispatch(x, [&](auto zero) {
        using T = decltype(zero);
        launch(x, {tiles, THREADS}, compact_count_kernel<T, ITEMS, THREADS>, x.data<T>(), N, x.strides[0],
               of_tile.data<index_t>());
        launch(x, {1, SCAN_THREADS}, compact_scan_kernel<SCAN_THREADS>, of_tile.data<index_t>(), tiles);
        launch(x, {tiles, THREADS}, compact_scatter_kernel<T, ITEMS, THREADS>, x.data<T>(), y.data<T>(), N,
               x.strides[0], of_tile.data<index_t>());
    });
    return y.object;
}

// Single-pass scan: tiles look back at the counts that earlier tiles have published.
static py::object onepass(py::object x_object) {
    const Tensor x = check_same("compact", 1, {{"x", x_object}})[0], y = x.empty_like();
    const std::int64_t N = x.numel();
    if (N == 0) return y.object;
    constexpr int ITEMS = 24, THREADS = 512, BLOCKS = 2;
    const std::int64_t tiles = ceil_div(N, THREADS * ITEMS);
    const Tensor words = x.zeros(1 + tiles);
    dispatch(x, [&](auto zero) {
        using T = decltype(zero);
        launch(x, {tiles, THREADS}, compact_onepass_kernel<T, ITEMS, THREADS, BLOCKS>, x.data<T>(),
               y.data<T>(), N, x.strides[0], words.data<word_t>());
    });
    return y.object;
}

// TMA prefetches tiles; a tile's count is published one iteration ahead. A strided x uses `onepass`.
static py::object ring(py::object x_object) {
    const Tensor x = check_same("compact", 1, {{"x", x_object}})[0];
    const std::int64_t N = x.numel();
    if (N > 1 && x.strides[0] != 1) return onepass(x_object);
    const Tensor y = x.empty_like();
    if (N == 0) return y.object;
    constexpr int STAGES = 3, TILE_BYTES = 73728, THREADS = 576;
    dispatch(x, [&](auto zero) {
        using T = decltype(zero);
        const int skew = static_cast<int>(reinterpret_cast<std::uintptr_t>(x.data<T>()) % 16 / sizeof(T));
        const std::int64_t tiles = ceil_div(N + skew, TILE_BYTES / sizeof(T));
        const Tensor words = x.zeros(1 + tiles);
        const auto blocks = std::min<std::int64_t>(tiles, multiprocessors(x));
        launch(x, {blocks, THREADS, STAGES * TILE_BYTES}, compact_ring_kernel<T, STAGES, TILE_BYTES, THREADS>,
               x.data<T>(), y.data<T>(), N, skew, static_cast<int>(tiles), words.data<word_t>());
    });
    return y.object;
}

PYBIND11_MODULE(compact, m) {
    m.def("twopass", &twopass);
    m.def("onepass", &onepass);
    m.def("ring", &ring);
}
