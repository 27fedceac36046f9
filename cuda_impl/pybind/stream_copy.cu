// stream_copy from C++: checks and launches the kernels of kernels/stream_copy.cuh.
#include "stream_copy.cuh"

#include "tensor.h"

// Calls `function` with an unsigned integer of the elements' size: a copy needs only the size.
template <typename Function>
static void dispatch_size(const Tensor& x, Function function) {
    if (x.element_size == 4) {
        function(0u);
    } else {
        function(static_cast<unsigned short>(0));
    }
}

static Tensor checked(const py::object& x_object) {
    return check_same("stream_copy", 1, {{"x", x_object}})[0];
}

// One element per thread: any x.
static py::object naive(py::object x_object) {
    const Tensor x = checked(x_object), y = x.empty_like();
    const std::int64_t N = x.shape[0];
    if (N == 0) return y.object;
    dispatch_size(x, [&](auto zero) {
        using T = decltype(zero);
        constexpr int THREADS = 256;
        launch(x, {ceil_div(N, THREADS), THREADS}, stream_copy_naive_kernel<T>, x.data<T>(), y.data<T>(), N,
               x.strides[0]);
    });
    return y.object;
}

// Whether x is contiguous and 16-byte aligned, as y is.
static bool whole_packs(const Tensor& x) {
    return (x.strides[0] == 1 || x.shape[0] <= 1) && x.address % 16 == 0;
}

// The partition of a vector: the grid, and the bytes of dynamic shared memory.
struct Chunks {
    std::int64_t blocks;
    int shared_bytes = 0;
};

// BLOCKS per multiprocessor, at most one per chunk; at least one, for the tail.
static std::int64_t blocks_for(const Tensor& x, std::int64_t chunks, int BLOCKS) {
    return std::max<std::int64_t>(1, std::min(chunks, BLOCKS * std::int64_t(multiprocessors(x))));
}

// 16-byte vectorized accesses, PACKS per thread; a strided or unaligned x is read element by element.
static py::object vectorized(py::object x_object) {
    constexpr int PACKS = 1, THREADS = 128;
    const Tensor x = checked(x_object), y = x.empty_like();
    const std::int64_t N = x.shape[0];
    if (N == 0) return y.object;
    dispatch_size(x, [&](auto zero) {
        using T = decltype(zero);
        const std::int64_t vectors = ceil_div(N * x.element_size, 16);
        if (whole_packs(x)) {
            launch(x, {ceil_div(vectors, PACKS * THREADS), THREADS},
                   stream_copy_vectorized_kernel<T, PACKS, THREADS>, x.data<T>(), y.data<T>(), N);
        } else {
            launch(x, {ceil_div(vectors, THREADS), THREADS}, stream_copy_gathered_kernel<T, THREADS>,
                   x.data<T>(), y.data<T>(), N, x.strides[0]);
        }
    });
    return y.object;
}

// `kernel_for` returns the kernel for elements of its argument's type, `chunks_of` the partition for a number
// of bytes. A strided or unaligned x uses `vectorized`.
template <int THREADS, typename KernelFor, typename ChunksOf>
static py::object by_chunks(const py::object& x_object, KernelFor kernel_for, ChunksOf chunks_of) {
    const Tensor x = checked(x_object);
    if (!whole_packs(x)) return vectorized(x_object);
    const Tensor y = x.empty_like();
    const std::int64_t N = x.shape[0];
    if (N == 0) return y.object;
    const Chunks chunks = chunks_of(x, N * x.element_size);
    dispatch_size(x, [&](auto zero) {
        using T = decltype(zero);
        launch(x, {chunks.blocks, THREADS, chunks.shared_bytes}, kernel_for(zero), x.data<T>(), y.data<T>(),
               N);
    });
    return y.object;
}

#define KERNEL_FOR(name, ...) [](auto zero) { return name<decltype(zero), __VA_ARGS__>; }

// As `vectorized`, with cache hints.
static py::object hinted(py::object x) {
    constexpr int PACKS = 1, THREADS = 128;
    return by_chunks<THREADS>(
        x, KERNEL_FOR(stream_copy_hinted_kernel, PACKS, THREADS, L2_ONLY, NO_HINT),
        [](const Tensor&, std::int64_t bytes) { return Chunks{ceil_div(bytes, PACKS * THREADS * 16)}; });
}

// Persistent; STAGES chunks per block are prefetched into registers.
static py::object prefetch(py::object x) {
    constexpr int PACKS = 4, THREADS = 256, STAGES = 2, BLOCKS = 1;
    return by_chunks<THREADS>(x, KERNEL_FOR(stream_copy_prefetch_kernel, PACKS, THREADS, STAGES, BLOCKS),
                              [](const Tensor& x, std::int64_t bytes) {
                                  return Chunks{blocks_for(x, bytes / (PACKS * THREADS * 16), BLOCKS)};
                              });
}

// Persistent; STAGES chunks per block are prefetched into shared memory by cp.async.
static py::object cp_async(py::object x) {
    constexpr int PACKS = 4, THREADS = 256, STAGES = 4, BLOCKS = 1, CHUNK_BYTES = PACKS * THREADS * 16;
    return by_chunks<THREADS>(x, KERNEL_FOR(stream_copy_cp_async_kernel, PACKS, THREADS, STAGES, BLOCKS),
                              [](const Tensor& x, std::int64_t bytes) {
                                  return Chunks{blocks_for(x, bytes / CHUNK_BYTES, BLOCKS),
                                                STAGES * CHUNK_BYTES};
                              });
}

// One chunk per block, moved by TMA.
static py::object tma(py::object x) {
    constexpr int CHUNK_BYTES = 4096, BARRIER_BYTES = 8;
    return by_chunks<WARP>(
        x, KERNEL_FOR(stream_copy_tma_kernel, CHUNK_BYTES), [](const Tensor&, std::int64_t bytes) {
            // At least one block, for the tail.
            return Chunks{std::max<std::int64_t>(1, ceil_div(bytes / 16 * 16, CHUNK_BYTES)),
                          CHUNK_BYTES + BARRIER_BYTES};
        });
}

PYBIND11_MODULE(stream_copy, m) {
    m.def("naive", &naive);
    m.def("vectorized", &vectorized);
    m.def("hinted", &hinted);
    m.def("prefetch", &prefetch);
    m.def("cp_async", &cp_async);
    m.def("tma", &tma);
}
