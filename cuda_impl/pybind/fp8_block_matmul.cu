// fp8_block_matmul from C++: checks and launches the kernels of kernels/fp8_block_matmul/.
#include "fp8_block_matmul.cuh"

#include <algorithm>
#include <string>

#include "heads.h"
#include "quantized.h"

struct BlockProduct {
    Tensor a, b, scale_a, scale_b, c;
    std::int64_t M, N, K;
    bool empty() const { return M == 0 || N == 0 || K == 0; }
};

[[noreturn]] static void not_taken(const std::string& why) {
    PyErr_SetString(PyExc_NotImplementedError, why.c_str());
    throw py::error_already_set();
}

static bool is_matrix(const py::object& object) {
    const Torch& torch = Torch::get();
    return py::isinstance(object, torch.tensor) && get(object, torch.layout).is(torch.strided);
}

// The arguments, and an uninitialised c. Raises compare.arguments' TypeError or ValueError for others.
static BlockProduct checked(const py::object& a, const py::object& b, const py::object& scale_a,
                            const py::object& scale_b) {
    const py::object& e4m3 = QuantizedDtypes::get().e4m3;
    BlockProduct p;
    if (is_matrix(a) && is_matrix(b) && is_matrix(scale_a) && is_matrix(scale_b) &&
        read_bytes(a, e4m3, p.a) && read_bytes(b, e4m3, p.b)) {
        p.scale_a = Tensor(scale_a), p.scale_b = Tensor(scale_b);
        p.M = p.a.shape[0], p.N = p.b.shape[0], p.K = p.a.shape[1];
        const std::int64_t blocks = ceil_div(p.K, BLOCK_K);
        bool good = p.b.shape[1] == p.K && p.scale_a.shape[0] == p.M && p.scale_a.shape[1] == blocks &&
                    p.scale_b.shape[0] == ceil_div(p.N, BLOCK_K) && p.scale_b.shape[1] == blocks;
        for (const Tensor* x : {&p.a, &p.b, &p.scale_a, &p.scale_b}) good = good && x->ndim == 2;
        for (const Tensor* x : {&p.b, &p.scale_a, &p.scale_b}) {
            good = good && x->device == p.a.device && get(x->object, Torch::get().is_here).ptr() == Py_True;
        }
        for (const Tensor* x : {&p.scale_a, &p.scale_b}) good = good && x->element == Element::FP32;
        if (good) {
            constexpr std::int64_t MOST = (std::int64_t(1) << 31) - 512;  // coordinates are 32-bit
            if (std::max(p.M, p.N) > MOST) {
                not_taken("M=" + std::to_string(p.M) + ", N=" + std::to_string(p.N) + ": at most " +
                          std::to_string(MOST) + " of each");
            }
            p.c = new_empty_bf16(p.a, {p.M, p.N});
            return p;
        }
    }
    py::module_::import("compare.arguments")
        .attr("check_block_product")("fp8_block_matmul", a, b, scale_a, scale_b);
    throw std::runtime_error("fp8_block_matmul: these arguments are not taken");
}

// x if its rows are contiguous, 16-byte aligned and whole blocks of 128, else such a copy.
static Tensor operand(const Tensor& x) {
    const std::int64_t K = x.shape[1];
    const bool apart = x.strides[0] >= K && x.strides[0] % 16 == 0;
    if (x.strides[1] == 1 && apart && K % BLOCK_K == 0 && x.address % 16 == 0) return x;
    const py::object shape = py::make_tuple(x.shape[0], ceil_div(K, BLOCK_K) * BLOCK_K);
    const py::object padded = x.object.attr("new_zeros")(shape);
    padded.attr("narrow")(1, 0, K).attr("copy_")(x.object);
    return Tensor(padded);
}

// The tensor map of an operand: a copy moves a block of 128 of K of so many rows. TMA moves bytes: as 64
// elements of 16 bits a block is what heads_map calls a head.
static TensorMap block_map(const Tensor& x, int rows) {
    Tensor blocks = x;
    blocks.element = Element::FP16;
    blocks.ndim = 4;
    blocks.shape = {1, x.shape[0], x.shape[1] / BLOCK_K, BLOCK_K / 2};
    blocks.strides = {x.shape[0] * x.strides[0] / 2, x.strides[0] / 2, BLOCK_K / 2, 1};
    return heads_map(blocks, rows);
}

template <int BLOCK_N_, int WAVES_, int STAGES_>
struct Tile {
    static constexpr int BLOCK_M = CONSUMERS * GROUP_M * WAVES_, BLOCK_N = BLOCK_N_, WAVES = WAVES_,
                         STAGES = STAGES_;
    static std::int64_t count(const BlockProduct& p) {
        return ceil_div(p.M, BLOCK_M) * ceil_div(p.N, BLOCK_N);
    }
};

// Launches the kernel that `kernel_of` returns for a tile. PERSISTENT: at most one block per multiprocessor.
template <bool PERSISTENT, typename Of, typename KernelOf>
static void launch_tile(const BlockProduct& p, Of tile, KernelOf kernel_of) {
    constexpr int PERMUTED_BYTES = 1024;  // alignment of swizzled tiles; dynamic shared memory may lack it
    const Tensor a = operand(p.a), b = operand(p.b);
    const Tensor scale_a = p.scale_a.contiguous(), scale_b = p.scale_b.contiguous();
    const std::int64_t tiles = Of::count(p);
    const std::int64_t blocks = PERSISTENT ? std::min<std::int64_t>(tiles, multiprocessors(p.a)) : tiles;
    const int shared_bytes = Of::STAGES * (Of::BLOCK_M + Of::BLOCK_N) * BLOCK_K + PERMUTED_BYTES;
    launch(p.a, {blocks, (1 + CONSUMERS) * WARPGROUP, shared_bytes}, kernel_of(tile),
           block_map(a, Of::BLOCK_M), block_map(b, Of::BLOCK_N), scale_a.data<float>(), scale_b.data<float>(),
           p.c.data<__nv_bfloat16>(), int(p.M), int(p.N), int(ceil_div(p.K, BLOCK_K)));
}

// With the largest tile of which there is one for each multiprocessor, else the smallest.
template <bool PERSISTENT, typename KernelOf>
static py::object launch_product(const BlockProduct& p, KernelOf kernel_of) {
    if (p.empty()) {
        p.c.object.attr("zero_")();
        return p.c.object;
    }
    using Large = Tile<128, 2, 4>;
    using Middle = Tile<128, 1, 6>;
    const int processors = multiprocessors(p.a);
    if (Large::count(p) >= processors) {
        launch_tile<PERSISTENT>(p, Large(), kernel_of);
    } else if (Middle::count(p) >= processors) {
        launch_tile<PERSISTENT>(p, Middle(), kernel_of);
    } else {
        launch_tile<PERSISTENT>(p, Tile<64, 1, 8>(), kernel_of);
    }
    return p.c.object;
}

// A producer and two consumer warpgroups; one block per tile.
static py::object specialized(py::object a, py::object b, py::object scale_a, py::object scale_b) {
    return launch_product<false>(checked(a, b, scale_a, scale_b), [](auto tile) {
        using Of = decltype(tile);
        return fp8_block_matmul_specialized_kernel<Of::BLOCK_N, Of::WAVES, Of::STAGES>;
    });
}

// One block per multiprocessor; the producer prefetches the next tile.
static py::object persistent(py::object a, py::object b, py::object scale_a, py::object scale_b) {
    return launch_product<true>(checked(a, b, scale_a, scale_b), [](auto tile) {
        using Of = decltype(tile);
        return fp8_block_matmul_persistent_kernel<Of::BLOCK_N, Of::WAVES, Of::STAGES>;
    });
}

PYBIND11_MODULE(fp8_block_matmul, m) {
    const py::arg a("a"), b("b"), scale_a("scale_a"), scale_b("scale_b");
    m.def("specialized", &specialized, a, b, scale_a, scale_b);
    m.def("persistent", &persistent, a, b, scale_a, scale_b);
}
