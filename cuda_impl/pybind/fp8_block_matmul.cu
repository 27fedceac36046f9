// fp8_block_matmul from C++: checks and launches the kernels of kernels/fp8_block_matmul/.
#include "fp8_block_matmul.cuh"

#include <algorithm>
#include <string>

#include "matrix_map.h"
#include "quantized.h"

struct BlockProduct {
    Tensor a, b, scale_a, scale_b, c;
    std::int64_t M, N, K;
    bool empty() const { return M == 0 || N == 0 || K == 0; }
    bool c_aligned() const { return N % 8 == 0; }  // rows of c are 16-byte aligned
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

// x if its rows are contiguous, 16-byte aligned and of whole pairs, else such a copy, with zeros behind K.
static Tensor operand(const Tensor& x) {
    const std::int64_t rows = x.shape[0], K = x.shape[1];
    if (K % 2 == 0 && has_aligned_rows(x)) return x;
    const py::object padded = x.object.attr("new_zeros")(py::make_tuple(rows, ceil_div(K, 16) * 16));
    padded.attr("narrow")(1, 0, K).attr("copy_")(x.object);
    Tensor copied(padded);
    copied.shape[1] = K + K % 2;
    return copied;
}

constexpr int GROUP_M = 8;  // tiles of a group, from prefetched on

template <int BLOCK_N_, int WAVES_, int STAGES_>
struct Tile {
    static constexpr int BLOCK_M = ROWS<WAVES_>, BLOCK_N = BLOCK_N_, WAVES = WAVES_, STAGES = STAGES_;
    static std::int64_t count(const BlockProduct& p) {
        return ceil_div(p.M, BLOCK_M) * ceil_div(p.N, BLOCK_N);
    }
    // A tile costs its width times its waves plus about 96 columns for prologue and epilogue, times the
    // number of tiles that a block processes in sequence.
    static std::int64_t columns(const BlockProduct& p, int blocks) {
        return ceil_div(count(p), blocks) * (BLOCK_N * WAVES + 96);
    }
};

// Calls `function` with the tile with which the last of so many resident blocks finishes first.
template <typename Function>
static py::object with_tile(const BlockProduct& p, Function function) {
    if (p.empty()) {
        p.c.object.attr("zero_")();
        return p.c.object;
    }
    using Large = Tile<128, 2, 4>;
    using Middle = Tile<128, 1, 6>;
    using Small = Tile<64, 1, 8>;
    const int processors = multiprocessors(p.a);
    const std::int64_t large = Large::columns(p, processors), middle = Middle::columns(p, processors);
    const std::int64_t small = Small::columns(p, processors);
    if (large <= std::min(middle, small)) {
        function(Large());
    } else if (middle <= small) {
        function(Middle());
    } else {
        function(Small());
    }
    return p.c.object;
}

// Launches a kernel of so many blocks; `c_map` is empty or a map of c, which takes buffers for pieces of it.
// `parts_a`: copies per tile of a.
template <typename Of, typename Kernel, typename... CMap>
static void launch_tile(const BlockProduct& p, std::int64_t blocks, int parts_a, Kernel kernel,
                        CMap... c_map) {
    constexpr int PERMUTED_BYTES = 1024;  // alignment of swizzled tiles; dynamic shared memory may lack it
    constexpr int places_bytes = sizeof...(CMap) * 4 * CONSUMERS * C_PLACES<Of::BLOCK_N> * PIECE_BYTES;
    const Tensor a = operand(p.a), b = operand(p.b);
    const Tensor scale_a = p.scale_a.contiguous(), scale_b = p.scale_b.contiguous();
    const int shared_bytes = Of::STAGES * (Of::BLOCK_M + Of::BLOCK_N) * BLOCK_K + PERMUTED_BYTES;
    const int lines_of_a = int(std::min<std::int64_t>(Of::BLOCK_M, ceil_div(p.M, 16) * 16));
    launch(p.a, {blocks, (1 + CONSUMERS) * WARPGROUP, shared_bytes + places_bytes}, kernel,
           matrix_map(a, lines_of_a / parts_a), matrix_map(b, Of::BLOCK_N), c_map..., scale_a.data<float>(),
           scale_b.data<float>(), p.c.data<__nv_bfloat16>(), int(p.M), int(p.N), int(ceil_div(p.K, BLOCK_K)));
}

static TensorMap map_of_c(const BlockProduct& p) {
    return p.c_aligned() ? matrix_map(p.c, 16) : TensorMap{};
}

// A producer and two consumer warpgroups; one block per tile.
static py::object specialized(py::object a, py::object b, py::object scale_a, py::object scale_b) {
    const BlockProduct p = checked(a, b, scale_a, scale_b);
    return with_tile(p, [&](auto tile) {
        using Of = decltype(tile);
        launch_tile<Of>(p, Of::count(p), 1,
                        fp8_block_matmul_specialized_kernel<Of::BLOCK_N, Of::WAVES, Of::STAGES>);
    });
}

static std::int64_t resident(const BlockProduct& p, std::int64_t tiles) {
    return std::min<std::int64_t>(tiles, multiprocessors(p.a));
}

// One block per multiprocessor; the producer prefetches the next tile.
static py::object persistent(py::object a, py::object b, py::object scale_a, py::object scale_b) {
    const BlockProduct p = checked(a, b, scale_a, scale_b);
    return with_tile(p, [&](auto tile) {
        using Of = decltype(tile);
        launch_tile<Of>(p, resident(p, Of::count(p)), 1,
                        fp8_block_matmul_persistent_kernel<Of::BLOCK_N, Of::WAVES, Of::STAGES>);
    });
}

// Scales are loaded four blocks of K ahead; TMA stores c.
static py::object prefetched(py::object a, py::object b, py::object scale_a, py::object scale_b) {
    const BlockProduct p = checked(a, b, scale_a, scale_b);
    return with_tile(p, [&](auto tile) {
        using Of = decltype(tile);
        const auto kernel =
            p.c_aligned()
                ? fp8_block_matmul_prefetched_kernel<Of::BLOCK_N, Of::WAVES, Of::STAGES, GROUP_M, true>
                : fp8_block_matmul_prefetched_kernel<Of::BLOCK_N, Of::WAVES, Of::STAGES, GROUP_M, false>;
        launch_tile<Of>(p, resident(p, Of::count(p)), 1, kernel, map_of_c(p));
    });
}

// TMA multicast: the two blocks of a cluster share their loads of a.
static py::object multicast(py::object a, py::object b, py::object scale_a, py::object scale_b) {
    constexpr int CLUSTER = 2;
    const BlockProduct p = checked(a, b, scale_a, scale_b);
    return with_tile(p, [&](auto tile) {
        using Of = decltype(tile);
        const std::int64_t tiles =
            CLUSTER * ceil_div(p.M, Of::BLOCK_M) * ceil_div(p.N, CLUSTER * Of::BLOCK_N);
        const std::int64_t most = multiprocessors(p.a) / CLUSTER * CLUSTER;
        const auto kernel =
            p.c_aligned()
                ? fp8_block_matmul_multicast_kernel<Of::BLOCK_N, Of::WAVES, Of::STAGES, GROUP_M, true>
                : fp8_block_matmul_multicast_kernel<Of::BLOCK_N, Of::WAVES, Of::STAGES, GROUP_M, false>;
        launch_tile<Of>(p, std::min(most, tiles), CLUSTER, kernel, map_of_c(p));
    });
}

PYBIND11_MODULE(fp8_block_matmul, m) {
    const py::arg a("a"), b("b"), scale_a("scale_a"), scale_b("scale_b");
    m.def("specialized", &specialized, a, b, scale_a, scale_b);
    m.def("persistent", &persistent, a, b, scale_a, scale_b);
    m.def("prefetched", &prefetched, a, b, scale_a, scale_b);
    m.def("multicast", &multicast, a, b, scale_a, scale_b);
}
