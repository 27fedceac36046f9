// compact from C++: checks and launches the kernels of kernels/compact.cuh.
#include "compact.cuh"

#include "tensor.h"

// Count every tile, add up the counts, read x again and write.
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

// Tiles look back at what those before them have published, while the next one is loaded.
static py::object onepass(py::object x_object) {
    const Tensor x = check_same("compact", 1, {{"x", x_object}})[0], y = x.empty_like();
    const std::int64_t N = x.numel();
    if (N == 0) return y.object;
    constexpr int ITEMS = 24, THREADS = 256, BLOCKS = 4;
    const std::int64_t tiles = ceil_div(N, THREADS * ITEMS);
    const Tensor words = x.zeros(1 + tiles);
    const std::int64_t blocks = std::min<std::int64_t>(tiles, std::int64_t(BLOCKS) * multiprocessors(x));
    dispatch(x, [&](auto zero) {
        using T = decltype(zero);
        launch(x, {blocks, THREADS}, compact_onepass_kernel<T, ITEMS, THREADS, BLOCKS>, x.data<T>(),
               y.data<T>(), N, x.strides[0], static_cast<int>(tiles), words.data<word_t>());
    });
    return y.object;
}

PYBIND11_MODULE(compact, m) {
    m.def("twopass", &twopass);
    m.def("onepass", &onepass);
}
