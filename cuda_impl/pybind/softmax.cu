// softmax from C++: checks and launches the kernels of kernels/softmax.cuh.
#include "softmax.cuh"

#include <algorithm>
#include <string>
#include <tuple>

#include "tensor.h"

// x with contiguous rows; a copy if they are not.
static Tensor checked(const py::object& x_object) {
    const Tensor x = check_same("softmax", 2, {{"x", x_object}})[0];
    return x.stride(1) == 1 || x.shape(1) <= 1 ? x : x.contiguous();
}

// Whether all rows of x and y are whole 16-byte vectors.
static bool in_vectors(const Tensor& x) {
    const int pack = 16 / x.element_size();
    return x.address() % 16 == 0 && x.stride(0) % pack == 0 && x.shape(1) % pack == 0;
}

// Calls `function` with a value of x's type, and ALIGNED as a constant.
template <typename Function>
static void dispatch_aligned(const Tensor& x, Function function) {
    dispatch(x, [&](auto zero) {
        if (in_vectors(x)) {
            function(zero, std::true_type());
        } else {
            function(zero, std::false_type());
        }
    });
}

// A block reads its row twice: any row length.
static py::object online(py::object x_object) {
    const Tensor x = checked(x_object), y = x.empty_like();
    const std::int64_t M = x.shape(0), N = x.shape(1);
    if (y.numel() == 0) return y.object;
    dispatch_aligned(x, [&](auto zero, auto ALIGNED) {
        using T = decltype(zero);
        constexpr int VEC = ALIGNED ? 16 / sizeof(T) : 1, THREADS = 1024;
        launch(
            x, {M, THREADS}, softmax_online_kernel<T, VEC, THREADS>, x.data<T>(), y.data<T>(), N,
            x.stride(0));
    });
    return y.object;
}

constexpr std::int64_t ONEPASS_COLUMNS = 32768;
constexpr std::int64_t MANY_ROWS = 1024;  // enough to fill a GPU with one warp per row

template <typename T, bool ALIGNED, int VECTORS, int THREADS, int BLOCK_M>
static void launch_onepass(const Tensor& x, const Tensor& y) {
    launch(
        x, {ceil_div(x.shape(0), BLOCK_M), THREADS},
        softmax_onepass_kernel<T, ALIGNED, VECTORS, THREADS, BLOCK_M>, x.data<T>(), y.data<T>(), x.shape(0),
        x.shape(1), x.stride(0));
}

// The row stays in registers: up to 32768 columns. The smallest VECTORS and THREADS that hold it.
static py::object onepass(py::object x_object) {
    const Tensor x = checked(x_object), y = x.empty_like();
    const std::int64_t N = x.shape(1);
    if (y.numel() == 0) return y.object;
    if (N > ONEPASS_COLUMNS) {
        not_taken(
            "N=" + std::to_string(N) + ": registers hold rows of up to " + std::to_string(ONEPASS_COLUMNS) +
            " columns");
    }
    dispatch_aligned(x, [&](auto zero, auto ALIGNED_) {
        using T = decltype(zero);
        constexpr bool ALIGNED = ALIGNED_;
        constexpr int VEC = 16 / sizeof(T);
        const std::int64_t vectors = ceil_div(N, VEC);
        if (vectors <= 32) return launch_onepass<T, ALIGNED, 1, 128, 4>(x, y);  // one row per warp
        if (vectors <= 32 * 4) return launch_onepass<T, ALIGNED, 4, 128, 4>(x, y);
        if constexpr (VEC <= 4) {
            if (vectors <= 32 * 8 && x.shape(0) >= MANY_ROWS)
                return launch_onepass<T, ALIGNED, 8, 128, 4>(x, y);
        }
        constexpr int VECTORS = 4;
        if (vectors <= 64 * VECTORS) return launch_onepass<T, ALIGNED, VECTORS, 64, 1>(x, y);
        if (vectors <= 128 * VECTORS) return launch_onepass<T, ALIGNED, VECTORS, 128, 1>(x, y);
        if (vectors <= 256 * VECTORS) return launch_onepass<T, ALIGNED, VECTORS, 256, 1>(x, y);
        if (vectors <= 512 * VECTORS) return launch_onepass<T, ALIGNED, VECTORS, 512, 1>(x, y);
        if (vectors <= 1024 * VECTORS) return launch_onepass<T, ALIGNED, VECTORS, 1024, 1>(x, y);
        if constexpr (VEC * VECTORS * 1024 < ONEPASS_COLUMNS)
            launch_onepass<T, ALIGNED, 2 * VECTORS, 1024, 1>(x, y);
    });
    return y.object;
}

static Tensor dense(const Tensor& x) {
    return Tensor(x.object.attr("clone")(py::arg("memory_format") = Torch::get().dense));
}

// x if its rows start as far from 16-byte boundaries as y's; else a copy.
static Tensor as_output(const Tensor& x) {
    const bool fits = x.address() % 16 == 0 && (x.stride(0) - x.shape(1)) * x.element_size() % 16 == 0;
    return fits ? x : dense(x);
}

template <typename T, bool ALIGNED, int VECTORS, int THREADS>
static void launch_packed(const Tensor& x, const Tensor& y) {
    launch(
        x, {x.shape(0), THREADS}, softmax_packed_kernel<T, ALIGNED, VECTORS, THREADS>, x.data<T>(),
        y.data<T>(), x.shape(1), x.stride(0));
}

// The row stays in registers as loaded: up to 128 KB.
static py::object packed(py::object x_object) {
    const Tensor x = as_output(checked(x_object)), y = x.empty_like();
    const std::int64_t N = x.shape(1);
    if (y.numel() == 0) return y.object;
    dispatch_aligned(x, [&](auto zero, auto ALIGNED_) {
        using T = decltype(zero);
        constexpr bool ALIGNED = ALIGNED_;
        constexpr int VEC = 16 / sizeof(T), MOST = 8 * 1024 * VEC;
        const std::int64_t vectors = ceil_div(N, VEC);
        if (vectors <= 4 * 128) return launch_packed<T, ALIGNED, 4, 128>(x, y);
        if (vectors <= 8 * 128) return launch_packed<T, ALIGNED, 8, 128>(x, y);
        if (vectors <= 8 * 256) return launch_packed<T, ALIGNED, 8, 256>(x, y);
        if (vectors <= 8 * 512) return launch_packed<T, ALIGNED, 8, 512>(x, y);
        if (vectors <= 8 * 1024) return launch_packed<T, ALIGNED, 8, 1024>(x, y);
        not_taken(
            "N=" + std::to_string(N) + ": registers hold rows of up to " + std::to_string(MOST) +
            " such columns");
    });
    return y.object;
}

static void check_chunks(std::int64_t N, std::int64_t chunks, std::int64_t blocks, int BLOCK_N) {
    if (chunks <= blocks) return;
    not_taken(
        "N=" + std::to_string(N) + ": " + std::to_string(blocks) + " blocks hold rows of " +
        std::to_string(blocks * BLOCK_N) + " columns");
}

// Several blocks share a row: up to as long as all resident blocks can hold.
static py::object split(py::object x_object) {
    const Tensor x = checked(x_object), y = x.empty_like();
    const std::int64_t M = x.shape(0), N = x.shape(1);
    if (y.numel() == 0) return y.object;
    dispatch_aligned(x, [&](auto zero, auto ALIGNED) {
        using T = decltype(zero);
        constexpr int VECTORS = 4, THREADS = 128;
        constexpr int BLOCKS = 4;  // per multiprocessor, by __launch_bounds__: all must be resident
        constexpr int BLOCK_N = THREADS * VECTORS * 16 / sizeof(T);
        const std::int64_t chunks = ceil_div(N, BLOCK_N), blocks = BLOCKS * multiprocessors(x);
        check_chunks(N, chunks, blocks, BLOCK_N);
        const Tensor of_chunk = zeros(x, M * chunks, "int64");
        launch(
            x, {std::min(blocks, M * chunks), THREADS},
            softmax_split_kernel<T, ALIGNED, VECTORS, THREADS, BLOCKS>, x.data<T>(), y.data<T>(), M, N,
            x.stride(0), int(chunks), of_chunk.data<word_t>());
    });
    return y.object;
}

// x with 16-byte aligned rows; a copy if they are not.
static Tensor checked_for_tma(const py::object& x_object) {
    const Tensor x = checked(x_object);
    const int pack = 16 / x.element_size();
    if (x.shape(1) % pack != 0) {
        not_taken(
            "N=" + std::to_string(x.shape(1)) + ": TMA copies 16 bytes, " + std::to_string(pack) +
            " columns, at a time");
    }
    return in_vectors(x) ? x : dense(x);
}

template <typename T, bool ALIGNED, int VECTORS, int THREADS, int CLUSTER>
static void launch_cluster(const Tensor& x, const Tensor& y) {
    constexpr std::int64_t MOST_BYTES = 208 * 1024;
    const std::int64_t M = x.shape(0), N = x.shape(1), size = sizeof(T);
    const std::int64_t slice_bytes = ceil_div(N * size, CLUSTER * LINE_BYTES) * LINE_BYTES;
    if (slice_bytes > MOST_BYTES) {
        not_taken(
            "N=" + std::to_string(N) + ": the shared memory of " + std::to_string(CLUSTER) +
            " blocks holds " + std::to_string(CLUSTER * MOST_BYTES / size) + " columns");
    }
    // An unaligned slice starts as far from a line in shared memory as in global memory.
    launch(
        x, {M * CLUSTER, THREADS, int(slice_bytes + LINE_BYTES), CLUSTER},
        softmax_cluster_kernel<T, ALIGNED, VECTORS, THREADS, CLUSTER>, x.data<T>(), y.data<T>(), N,
        x.stride(0), slice_bytes / size);
}

// The blocks of a cluster share a row: up to 16 x 208 KB.
static py::object cluster(py::object x_object) {
    const Tensor x = as_output(checked(x_object)), y = x.empty_like();
    if (y.numel() == 0) return y.object;
    dispatch_aligned(x, [&](auto zero, auto ALIGNED_) {
        using T = decltype(zero);
        constexpr bool ALIGNED = ALIGNED_;
        const std::int64_t vectors = ceil_div(x.shape(1), 16 / sizeof(T));
        // As few blocks as leave room for four slices on a multiprocessor.
        if (vectors <= 3072) return launch_cluster<T, ALIGNED, 8, 64, 2>(x, y);
        if (vectors <= 7168) return launch_cluster<T, ALIGNED, 4, 256, 2>(x, y);
        if (vectors <= 12288) return launch_cluster<T, ALIGNED, 4, 256, 4>(x, y);
        if (vectors <= 28672) return launch_cluster<T, ALIGNED, 4, 128, 8>(x, y);
        launch_cluster<T, ALIGNED, 4, 64, 16>(x, y);
    });
    return y.object;
}

// As split, with TMA prefetch into a ring in shared memory.
static py::object ring(py::object x_object) {
    const Tensor x = checked_for_tma(x_object), y = x.empty_like();
    const std::int64_t M = x.shape(0), N = x.shape(1);
    if (y.numel() == 0) return y.object;
    dispatch(x, [&](auto zero) {
        using T = decltype(zero);
        constexpr int VECTORS = 8, THREADS = 256, SLOTS = 3, LAG = 2;
        constexpr int BLOCKS = 2;  // per multiprocessor, at most: all must be resident
        constexpr int BLOCK_N = THREADS * VECTORS * 16 / sizeof(T),
                      SHARED_BYTES = SLOTS * BLOCK_N * sizeof(T);
        const std::int64_t chunks = ceil_div(N, BLOCK_N);
        int most = 0;
        check(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, x.device()));
        const int resident = std::min(BLOCKS, most / SHARED_BYTES);
        const std::int64_t blocks = resident * multiprocessors(x);
        check_chunks(N, chunks, (LAG - 1) * blocks, BLOCK_N);
        const Tensor of_chunk = zeros(x, M * chunks, "int64");
        launch(
            x, {std::min(blocks, M * chunks), THREADS, SHARED_BYTES},
            softmax_ring_kernel<T, VECTORS, THREADS, SLOTS, LAG, BLOCKS>, x.data<T>(), y.data<T>(), M, N,
            x.stride(0), int(chunks), of_chunk.data<word_t>());
    });
    return y.object;
}

PYBIND11_MODULE(softmax, m) {
    m.def("online", &online);
    m.def("onepass", &onepass);
    m.def("packed", &packed);
    m.def("split", &split);
    m.def("cluster", &cluster);
    m.def("ring", &ring);
}
