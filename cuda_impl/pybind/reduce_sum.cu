// reduce_sum from C++: checks and launches the kernels of kernels/reduce_sum.cuh.
#include "reduce_sum.cuh"

#include <algorithm>

#include "fresh.h"
#include "tensor.h"

// A vector of `count` fp32 elements; for 1 a scalar.
static Tensor sums(const Tensor& x, std::int64_t count) {
    return count > 1 ? new_empty_fp32(x, {count}) : new_empty_fp32(x, {});
}

// Calls `function` with an element of x. After the first launch x is fp32 sums, in a module for one dtype
// too.
template <typename Function>
static void dispatch_sums_too(const Tensor& x, Function function) {
    if (x.element == Element::FP32) return function(0.0f);
    dispatch(x, function);
}

// One element per thread; relaunched on the blocks' sums until one is left. `kernel_for` returns the kernel
// for elements of its argument's type.
template <typename KernelFor>
static py::object by_elements(const py::object& x_object, KernelFor kernel_for) {
    constexpr int THREADS = 256;
    Tensor x = check_same("reduce_sum", 1, {{"x", x_object}})[0];
    for (;;) {
        const std::int64_t N = x.shape[0], blocks = std::max<std::int64_t>(1, ceil_div(N, THREADS));
        const Tensor y = sums(x, blocks);
        dispatch_sums_too(x, [&](auto zero) {
            using T = decltype(zero);
            launch(x, {blocks, THREADS}, kernel_for(zero, std::integral_constant<int, THREADS>()),
                   x.data<T>(), y.data<float>(), N, x.strides[0]);
        });
        if (blocks == 1) return y.object;
        x = y;
    }
}

#define KERNEL_FOR(name) [](auto zero, auto THREADS) { return name<decltype(zero), THREADS>; }

// Tree reduction in shared memory.
static py::object tree(py::object x) {
    return by_elements(x, KERNEL_FOR(reduce_sum_tree_kernel));
}

// Warp shuffles reduce in registers.
static py::object shuffle(py::object x) {
    return by_elements(x, KERNEL_FOR(reduce_sum_shuffle_kernel));
}

constexpr int PACKS = 16;  // 16-byte loads per thread in flight: 64 registers
constexpr int THREADS = 256;
constexpr int BLOCKS = 3;  // per multiprocessor

// The partition of a vector: chunks of THREADS * PACKS vectors, for as many blocks as a GPU holds, at most
// one per chunk.
struct Chunks {
    std::int64_t blocks;
    int head;
};

static Chunks chunks_of(const Tensor& x) {
    const std::int64_t N = x.shape[0];
    const int VEC = 16 / x.element_size;
    const int head = int(std::min(N, std::int64_t(-x.address % 16) / x.element_size));
    const std::int64_t chunks = ceil_div((N - head) / VEC, THREADS * PACKS);
    const std::int64_t most = BLOCKS * std::int64_t(multiprocessors(x));
    return {std::max<std::int64_t>(1, std::min(chunks, most)), head};
}

static bool is_strided(const Tensor& x) {
    return x.shape[0] > 1 && x.strides[0] != 1;
}

// 16 16-byte loads per thread in flight; relaunched on the blocks' sums until one is left. A strided x uses
// `shuffle`, here and below.
static py::object vectorized(py::object x_object) {
    Tensor x = check_same("reduce_sum", 1, {{"x", x_object}})[0];
    if (is_strided(x)) return shuffle(x_object);
    for (;;) {
        const Chunks of = chunks_of(x);
        const Tensor y = sums(x, of.blocks);
        dispatch_sums_too(x, [&](auto zero) {
            using T = decltype(zero);
            launch(x, {of.blocks, THREADS}, reduce_sum_vectorized_kernel<T, PACKS, THREADS, BLOCKS>,
                   x.data<T>(), y.data<float>(), x.shape[0], of.head);
        });
        if (of.blocks == 1) return y.object;
        x = y;
    }
}

// Each block adds its sum to y, in the order of completion.
static py::object atomic(py::object x_object) {
    const Tensor x = check_same("reduce_sum", 1, {{"x", x_object}})[0];
    if (is_strided(x)) return shuffle(x_object);
    const Tensor y = new_zeros_fp32(x, {});
    const Chunks of = chunks_of(x);
    dispatch(x, [&](auto zero) {
        using T = decltype(zero);
        launch(x, {of.blocks, THREADS}, reduce_sum_atomic_kernel<T, PACKS, THREADS, BLOCKS>, x.data<T>(),
               y.data<float>(), x.shape[0], of.head);
    });
    return y.object;
}

// The last block to finish adds all blocks' sums, in block order.
static py::object last_block(py::object x_object) {
    const Tensor x = check_same("reduce_sum", 1, {{"x", x_object}})[0];
    if (is_strided(x)) return shuffle(x_object);
    const Chunks of = chunks_of(x);
    const Tensor blocks_done = x.zeros(1);
    // Two allocations: in a single one y would be a view.
    const Tensor y = new_empty_fp32(x, {}), of_block = new_empty_fp32(blocks_done, {of.blocks});
    dispatch(x, [&](auto zero) {
        using T = decltype(zero);
        launch(x, {of.blocks, THREADS}, reduce_sum_last_block_kernel<T, PACKS, THREADS, BLOCKS>, x.data<T>(),
               y.data<float>(), x.shape[0], of.head, of_block.data<float>(),
               blocks_done.data<unsigned long long>());
    });
    return y.object;
}

PYBIND11_MODULE(reduce_sum, m) {
    m.def("tree", &tree);
    m.def("shuffle", &shuffle);
    m.def("vectorized", &vectorized);
    m.def("atomic", &atomic);
    m.def("last_block", &last_block);
}
