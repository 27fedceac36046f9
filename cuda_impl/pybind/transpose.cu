// transpose from C++: checks and launches the kernels of kernels/transpose.cuh.
#include "transpose.cuh"

#include "fresh.h"
#include "tensor.h"

static std::int64_t tiles(std::int64_t M, std::int64_t N, int BLOCK) {
    return ceil_div(M, BLOCK) * ceil_div(N, BLOCK);
}

// Element by element, in tiles of 32 x 32: any x. `kernel_for` returns the kernel for elements of its
// argument's type.
template <typename KernelFor>
static py::object by_elements(const py::object& x_object, KernelFor kernel_for) {
    const Tensor x = check_same("transpose", 2, {{"x", x_object}})[0];
    const std::int64_t M = x.shape[0], N = x.shape[1];
    const Tensor y = new_empty(x, {N, M});
    if (y.numel() == 0) return y.object;
    dispatch(x, [&](auto zero) {
        using T = decltype(zero);
        constexpr int THREADS = 256;
        launch(x, {tiles(M, N, TILE), THREADS}, kernel_for(zero, std::integral_constant<int, THREADS>()),
               x.data<T>(), y.data<T>(), M, N, x.strides[0], x.strides[1]);
    });
    return y.object;
}

#define KERNEL_FOR(name) [](auto zero, auto THREADS) { return name<decltype(zero), THREADS>; }

// Coalesced loads, stores M elements apart: uncoalesced.
static py::object naive(py::object x) {
    return by_elements(x, KERNEL_FOR(transpose_naive_kernel));
}

// A tile in shared memory; bank conflicts when its columns are read.
static py::object shared(py::object x) {
    return by_elements(x, KERNEL_FOR(transpose_shared_kernel));
}

// Padding: rows of the tile are one element longer.
static py::object padded(py::object x) {
    return by_elements(x, KERNEL_FOR(transpose_padded_kernel));
}

// XOR swizzle of the tile's columns.
static py::object swizzled(py::object x) {
    return by_elements(x, KERNEL_FOR(transpose_swizzled_kernel));
}

// Rows of y split at 32-byte sectors; an x smaller than a tile uses `swizzled`.
static py::object windowed(const Tensor& x) {
    const std::int64_t M = x.shape[0], N = x.shape[1];
    if (M < 256 / x.element_size || N < 64) return swizzled(x.object);
    const Tensor y = new_empty(x, {N, M});
    dispatch(x, [&](auto zero) {
        using T = decltype(zero);
        constexpr int SECTOR = 32 / sizeof(T), ROWS = 256 / sizeof(T), COLUMNS = 64;
        constexpr int THREADS = 128 * sizeof(T);
        auto* const kernel = x.strides[0] < x.strides[1] ? transpose_windowed_kernel<T, true, THREADS>
                                                         : transpose_windowed_kernel<T, false, THREADS>;
        const std::int64_t grid = ceil_div(M + SECTOR - 1, (ROWS - SECTOR)) * ceil_div(N, COLUMNS);
        launch(x, {grid, THREADS}, kernel, x.data<T>(), y.data<T>(), M, N, x.strides[0], x.strides[1]);
    });
    return y.object;
}

// Whether x's rows are contiguous, whole 16-byte vectors, aligned, and y's rows whole 32-byte sectors.
static bool whole_packs(const Tensor& x) {
    const int VEC = 16 / x.element_size, SECTOR = 32 / x.element_size;
    const std::int64_t M = x.shape[0], N = x.shape[1];
    return (x.strides[1] == 1 || N == 1) && M % SECTOR == 0 && N % VEC == 0 && x.strides[0] % VEC == 0 &&
           x.address % 16 == 0;
}

// 16-byte vectorized accesses on both sides; an unaligned x or y uses `windowed`.
static py::object vectorized(py::object x_object) {
    const Tensor x = check_same("transpose", 2, {{"x", x_object}})[0];
    if (!whole_packs(x)) return windowed(x);
    const std::int64_t M = x.shape[0], N = x.shape[1];
    const Tensor y = new_empty(x, {N, M});
    if (y.numel() == 0) return y.object;
    dispatch(x, [&](auto zero) {
        using T = decltype(zero);
        constexpr int ROW_BYTES = 256, THREADS = 256, BLOCK = ROW_BYTES / sizeof(T);
        launch(x, {tiles(M, N, BLOCK), THREADS, BLOCK * ROW_BYTES},
               transpose_vectorized_kernel<T, BLOCK, THREADS>, x.data<T>(), y.data<T>(), M, N, x.strides[0]);
    });
    return y.object;
}

PYBIND11_MODULE(transpose, m) {
    m.def("naive", &naive);
    m.def("shared", &shared);
    m.def("padded", &padded);
    m.def("swizzled", &swizzled);
    m.def("vectorized", &vectorized);
}
