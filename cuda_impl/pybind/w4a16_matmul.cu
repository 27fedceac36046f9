// w4a16_matmul from C++: checks and launches the kernels of kernels/w4a16_matmul/.
#include "w4a16_matmul.cuh"

#include <algorithm>
#include <string>
#include <type_traits>

#include "aligned_rows.h"
#include "fresh.h"
#include "matrix_map.h"
#include "quantized.h"

struct Linear {
    Tensor a, packed, scales, zeros, y;
    std::int64_t M, N, K, groups;
    bool empty() const { return y.numel() == 0 || K == 0; }
};

struct WholeDtypes {
    py::object int32 = Torch::get().torch.attr("int32");
    py::object uint8 = Torch::get().torch.attr("uint8");

    static const WholeDtypes& get() {
        static const WholeDtypes& dtypes = *new WholeDtypes();  // as `Torch::get`
        return dtypes;
    }
};

// Reads a strided matrix of that dtype; false if it is none.
static bool read_matrix(const py::object& object, const py::object& dtype, Tensor& x) {
    const Torch& torch = Torch::get();
    if (!py::isinstance(object, torch.tensor) || !get(object, torch.layout).is(torch.strided) ||
        !read_bytes(object, dtype, x)) {
        return false;
    }
    x.element_size = dtype.is(WholeDtypes::get().uint8) ? 1 : 4;
    return x.ndim == 2 && get(object, torch.is_here).ptr() == Py_True;
}

static bool read_narrow(const py::object& object, Tensor& x) {
    const Torch& torch = Torch::get();
    if (!py::isinstance(object, torch.tensor) || !get(object, torch.layout).is(torch.strided)) return false;
    x = Tensor(object);
    return x.ndim == 2 && x.element_size == 2 && x.element != Element::OTHER &&
           get(object, torch.is_here).ptr() == Py_True;
}

// The arguments, and an uninitialised y, or zeros if there is nothing to add. Raises compare.arguments'
// TypeError or ValueError for others.
static Linear checked(const py::object& a, const py::object& packed, const py::object& scales,
                      const py::object& zeros) {
    const WholeDtypes& dtypes = WholeDtypes::get();
    Linear p;
    bool good = read_narrow(a, p.a) && read_matrix(packed, dtypes.int32, p.packed) &&
                read_narrow(scales, p.scales) && read_matrix(zeros, dtypes.uint8, p.zeros);
    p.M = p.a.shape[0], p.K = p.a.shape[1], p.N = p.packed.shape[0], p.groups = ceil_div(p.K, GROUP);
    good = good && p.packed.shape[1] == ceil_div(p.K, NIBBLES) && p.scales.element == p.a.element;
    for (const Tensor* x : {&p.scales, &p.zeros}) {
        good = good && x->shape[0] == p.N && x->shape[1] == p.groups;
    }
    for (const Tensor* x : {&p.packed, &p.scales, &p.zeros}) good = good && x->device == p.a.device;
    if (!good) {
        py::module_::import("compare.arguments")
            .attr("check_quantized_linear")("w4a16_matmul", a, packed, scales, zeros);
        throw std::runtime_error("w4a16_matmul: these arguments are not taken");
    }
    p.y = new_empty(p.a, {p.M, p.N});
    if (p.K == 0) p.y.object.attr("zero_")();
    return p;
}

[[noreturn]] static void not_taken(const std::string& why) {
    PyErr_SetString(PyExc_NotImplementedError, why.c_str());
    throw py::error_already_set();
}

// x if its rows are contiguous and 16-byte aligned, else such a copy.
static Tensor operand(const Tensor& x) {
    if (has_aligned_rows(x)) return x;
    const std::int64_t rows = x.shape[0], columns = x.shape[1], vector = 16 / x.element_size;
    const py::object padded =
        x.object.attr("new_empty")(py::make_tuple(rows, ceil_div(columns, vector) * vector));
    const py::object copied = padded.attr("narrow")(1, 0, columns);
    copied.attr("copy_")(x.object);
    return Tensor(copied);
}

template <typename Function>
static void dispatch_narrow(const Linear& p, Function function) {
    if (p.a.element == Element::FP16) return function(__half());
    function(__nv_bfloat16());
}

// One element per thread.
static py::object naive(py::object a, py::object packed, py::object scales, py::object zeros) {
    const Linear p = checked(a, packed, scales, zeros);
    constexpr std::int64_t MOST_PRODUCTS = std::int64_t(1) << 37;
    if (p.M * p.N * p.K > MOST_PRODUCTS) {
        not_taken("M*N*K=" + std::to_string(p.M * p.N * p.K) + ": it would take seconds, at most " +
                  std::to_string(MOST_PRODUCTS));
    }
    if (p.empty()) return p.y.object;
    constexpr int THREADS = 256;
    dispatch_narrow(p, [&](auto zero) {
        using T = decltype(zero);
        const Sizes &of_a = p.a.strides, &of_packed = p.packed.strides;
        const Sizes &of_scales = p.scales.strides, &of_zeros = p.zeros.strides;
        launch(p.a, {ceil_div(p.M, THREADS / WARP) * ceil_div(p.N, WARP), THREADS},
               w4a16_matmul_naive_kernel<T, THREADS>, p.a.data<T>(), p.packed.data<unsigned>(),
               p.scales.data<T>(), p.zeros.data<unsigned char>(), p.y.data<T>(), p.M, p.N, p.K, of_a[0],
               of_a[1], of_packed[0], of_packed[1], of_scales[0], of_scales[1], of_zeros[0], of_zeros[1]);
    });
    return p.y.object;
}

// Calls `function` with a value of a's element type and the least tile that has all rows, up to 64.
template <typename Function>
static void dispatch_tile(const Linear& p, Function function) {
    dispatch_narrow(p, [&](auto zero) {
        if (p.M <= 16) return function(zero, std::integral_constant<int, 16>());
        if (p.M <= 32) return function(zero, std::integral_constant<int, 32>());
        function(zero, std::integral_constant<int, 64>());
    });
}

// One tile per block, on tensor cores.
static py::object tensor_core(py::object a_object, py::object packed_object, py::object scales,
                              py::object zeros) {
    const Linear p = checked(a_object, packed_object, scales, zeros);
    if (p.empty()) return p.y.object;
    const Tensor a = operand(p.a), packed = operand(p.packed);
    dispatch_tile(p, [&](auto zero, auto block_m) {
        using T = decltype(zero);
        constexpr int BLOCK_M = block_m, BLOCK_N = 64, WARPS = 4, STAGES = 4;
        constexpr int shared_bytes = STAGES * (BLOCK_M * 2 * GROUP + BLOCK_N * GROUP / 2);
        launch(p.a, {ceil_div(p.M, BLOCK_M) * ceil_div(p.N, BLOCK_N), WARPS * WARP, shared_bytes},
               w4a16_matmul_tensor_core_kernel<T, BLOCK_M, BLOCK_N, WARPS, STAGES>, a.data<T>(),
               packed.data<unsigned>(), p.scales.data<T>(), p.zeros.data<unsigned char>(), p.y.data<T>(), p.M,
               p.N, p.K, a.strides[0], packed.strides[0], p.scales.strides[0], p.scales.strides[1],
               p.zeros.strides[0], p.zeros.strides[1]);
    });
    return p.y.object;
}

struct Prepared {
    Tensor weights, scale_words, ready;
};

static Tensor new_int32(const Tensor& like, std::initializer_list<std::int64_t> shape) {
    return new_empty_of(WholeDtypes::get().int32, Element::OTHER, 4, like, shape);
}

static Prepared repacked(const Tensor& packed, const Tensor& scales, const Tensor& zeros) {
    const std::int64_t N = scales.shape[0], groups = scales.shape[1], matrices = ceil_div(N, 8);
    Prepared w;
    w.weights = new_int32(packed, {matrices, groups, WARP, 4});
    w.scale_words = new_int32(w.weights, {groups, matrices * 8});
    w.ready = new_int32(w.scale_words, {multiprocessors(packed)});
    w.ready.object.attr("zero_")();
    if (w.weights.numel() == 0) return w;
    constexpr int THREADS = 256;
    launch(packed, {ceil_div(matrices * groups * WARP, THREADS), THREADS},
           w4a16_matmul_repack_kernel<THREADS>, packed.data<unsigned>(), scales.data<unsigned short>(),
           zeros.data<unsigned char>(), w.weights.data<uint4>(), w.scale_words.data<unsigned>(), N,
           packed.shape[1] * NIBBLES, packed.strides[0], packed.strides[1], scales.strides[0],
           scales.strides[1], zeros.strides[0], zeros.strides[1]);
    return w;
}

// What streamk takes as prepared: weights in the order of mma operands, scales and zero points of
// neighbouring columns side by side, and a flag for each block.
static py::tuple repack(py::object packed, py::object scales, py::object zeros) {
    const Prepared w = repacked(Tensor(packed), Tensor(scales), Tensor(zeros));
    return py::make_tuple(w.weights.object, w.scale_words.object, w.ready.object);
}

static Prepared prepared_for(const Linear& p, const py::object& prepared) {
    if (prepared.is_none()) return repacked(p.packed, p.scales, p.zeros);
    const auto given = prepared.cast<py::tuple>();
    const Prepared w = {Tensor(given[0]), Tensor(given[1]), Tensor(given[2])};
    const Sizes& shape = w.weights.shape;
    if (shape[0] != ceil_div(p.N, 8) || shape[1] != p.groups || w.weights.ndim != 4) {
        throw py::value_error("w4a16_matmul: prepared has another shape; it takes what repack returns");
    }
    return w;
}

// The groups of all tiles. Raises NotImplementedError if there are too many to count.
static std::int64_t units_of(const Linear& p, int BLOCK_M, int BLOCK_N) {
    constexpr std::int64_t MOST_UNITS = std::int64_t(1) << 31;
    const std::int64_t units = ceil_div(p.M, BLOCK_M) * ceil_div(p.N, BLOCK_N) * p.groups;
    if (units >= MOST_UNITS) {
        not_taken("M=" + std::to_string(p.M) + ", N=" + std::to_string(p.N) + ", K=" + std::to_string(p.K) +
                  ": " + std::to_string(units) + " groups in all tiles, at most " +
                  std::to_string(MOST_UNITS));
    }
    return units;
}

// Repacked weights; each block has an equal share of all tiles' groups.
static py::object streamk(py::object a_object, py::object packed, py::object scales, py::object zeros,
                          py::object prepared) {
    const Linear p = checked(a_object, packed, scales, zeros);
    if (p.empty()) return p.y.object;
    const Prepared w = prepared_for(p, prepared);
    const Tensor a = operand(p.a);
    dispatch_tile(p, [&](auto zero, auto block_m) {
        using T = decltype(zero);
        constexpr int BLOCK_M = block_m, BLOCK_N = 256, WARPS = 8, STAGES = BLOCK_M == 16 ? 4 : 3;
        constexpr int shared_bytes = STAGES * (BLOCK_M * 2 * GROUP + BLOCK_N * GROUP / 2 + BLOCK_N * 4);
        const std::int64_t units = units_of(p, BLOCK_M, BLOCK_N);
        const std::int64_t blocks = std::min(w.ready.numel(), units);
        const Tensor parts = new_empty_fp32(w.ready, {blocks, BLOCK_M, BLOCK_N});
        launch(p.a, {blocks, WARPS * WARP, shared_bytes},
               w4a16_matmul_streamk_kernel<T, BLOCK_M, BLOCK_N, WARPS, STAGES>, a.data<T>(),
               w.weights.data<uint4>(), w.scale_words.data<unsigned>(), p.y.data<T>(), parts.data<float>(),
               w.ready.data<unsigned>(), p.M, p.N, p.K, a.strides[0]);
    });
    return p.y.object;
}

constexpr int READY_FLAGS = 32;  // for each multiprocessor: of all warps of its blocks

struct Pieces {
    Tensor pieces, ready;
};

static Pieces repacked_pieces(const Tensor& packed, const Tensor& scales, const Tensor& zeros) {
    const std::int64_t N = scales.shape[0], groups = scales.shape[1], tiles = ceil_div(N, PIECE_N);
    Pieces w;
    w.pieces = new_int32(packed, {tiles, groups, PIECE_BYTES / 4});
    w.ready = new_int32(w.pieces, {multiprocessors(packed) * READY_FLAGS});
    w.ready.object.attr("zero_")();
    if (w.pieces.numel() == 0) return w;
    constexpr int THREADS = 256;
    launch(packed, {ceil_div(tiles * groups * PIECE_VECTORS, THREADS), THREADS},
           w4a16_matmul_repack_pieces_kernel<THREADS>, packed.data<unsigned>(), scales.data<unsigned short>(),
           zeros.data<unsigned char>(), w.pieces.data<unsigned char>(), N, packed.shape[1] * NIBBLES,
           packed.strides[0], packed.strides[1], scales.strides[0], scales.strides[1], zeros.strides[0],
           zeros.strides[1]);
    return w;
}

// What transposed takes as prepared: pieces of a group of 64 rows in the order of wgmma operands, and a flag
// for each warp.
static py::tuple repack_pieces(py::object packed, py::object scales, py::object zeros) {
    const Pieces w = repacked_pieces(Tensor(packed), Tensor(scales), Tensor(zeros));
    return py::make_tuple(w.pieces.object, w.ready.object);
}

static Pieces pieces_for(const Linear& p, const py::object& prepared) {
    if (prepared.is_none()) return repacked_pieces(p.packed, p.scales, p.zeros);
    const auto given = prepared.cast<py::tuple>();
    const Pieces w = {Tensor(given[0]), Tensor(given[1])};
    const Sizes& shape = w.pieces.shape;
    if (shape[0] != ceil_div(p.N, PIECE_N) || shape[1] != p.groups || shape[2] != PIECE_BYTES / 4) {
        throw py::value_error(
            "w4a16_matmul: prepared has another shape; it takes what repack_pieces returns");
    }
    return w;
}

// Raises NotImplementedError for sizes that TMA's 32-bit coordinates do not cover.
static void check_coordinates(const Linear& p) {
    constexpr std::int64_t MOST = (std::int64_t(1) << 31) - 512;
    if (std::max(p.M, p.K) > MOST) {
        not_taken("M=" + std::to_string(p.M) + ", K=" + std::to_string(p.K) + ": at most " +
                  std::to_string(MOST) + " of each");
    }
}

constexpr int ALIGNMENT = 1024;  // of swizzled tiles; dynamic shared memory may lack it

// Pipeline stages that fit into a multiprocessor's shared memory.
constexpr int stages_of(int stage_bytes, int blocks, int most) {
    const int fitting = (226 * 1024 / blocks - ALIGNMENT) / stage_bytes;
    return fitting < most ? fitting : most;
}

// Calls `function` with a value of a's element type and the least tile that has all rows, up to 128.
template <typename Function>
static void dispatch_rows(const Linear& p, Function function) {
    dispatch_narrow(p, [&](auto zero) {
        if (p.M <= 8) return function(zero, std::integral_constant<int, 8>());
        if (p.M <= 16) return function(zero, std::integral_constant<int, 16>());
        if (p.M <= 32) return function(zero, std::integral_constant<int, 32>());
        if (p.M <= 64) return function(zero, std::integral_constant<int, 64>());
        function(zero, std::integral_constant<int, 128>());
    });
}

// wgmma with dequantized weights in registers; TMA fetches, each block an equal share of the groups.
static py::object transposed(py::object a_object, py::object packed, py::object scales, py::object zeros,
                             py::object prepared) {
    const Linear p = checked(a_object, packed, scales, zeros);
    if (p.empty()) return p.y.object;
    check_coordinates(p);
    const Pieces w = pieces_for(p, prepared);
    const Tensor a = operand(p.a);
    dispatch_rows(p, [&](auto zero, auto block_m) {
        using T = decltype(zero);
        constexpr int BLOCK_M = block_m, WARPGROUPS = 2, BLOCKS = BLOCK_M < 64 ? 2 : 1;
        constexpr int stage_bytes = BLOCK_M * 2 * GROUP + WARPGROUPS * PIECE_BYTES;
        constexpr int STAGES = stages_of(stage_bytes, BLOCKS, BLOCKS == 2 ? 6 : 10);
        const std::int64_t units = units_of(p, BLOCK_M, WARPGROUPS * PIECE_N);
        const std::int64_t blocks = std::min(BLOCKS * (w.ready.numel() / READY_FLAGS), units);
        const Tensor parts = new_empty_fp32(w.ready, {blocks, BLOCK_M, WARPGROUPS * PIECE_N});
        launch(p.a, {blocks, (WARPGROUPS + 1) * WARPGROUP, STAGES * stage_bytes + ALIGNMENT},
               w4a16_matmul_transposed_kernel<T, BLOCK_M, WARPGROUPS, STAGES, BLOCKS>, matrix_map(a, BLOCK_M),
               w.pieces.data<unsigned char>(), p.y.data<T>(), parts.data<float>(), w.ready.data<unsigned>(),
               p.M, p.N, p.K, int(p.M <= BLOCK_M));
    });
    return p.y.object;
}

// Blocks of a grid, one per multiprocessor: of a multiple of the tiles if few stay idle, as then fewer blocks
// share a tile.
static std::int64_t even_blocks(std::int64_t processors, std::int64_t units, std::int64_t groups) {
    const std::int64_t tiles = units / groups, even = processors / tiles * tiles;
    return std::min(even >= 0.95 * processors ? even : processors, units);
}

// Scaled weights in registers: one set of sums for all groups, tiles of 256 columns.
static py::object wide(py::object a_object, py::object packed, py::object scales, py::object zeros,
                       py::object prepared) {
    const Linear p = checked(a_object, packed, scales, zeros);
    if (p.empty()) return p.y.object;
    check_coordinates(p);
    const Pieces w = pieces_for(p, prepared);
    const Tensor a = operand(p.a);
    const auto run = [&](auto zero, auto block_m) {
        using T = decltype(zero);
        constexpr int BLOCK_M = block_m, WARPGROUPS = 2, BLOCK_N = WARPGROUPS * 2 * PIECE_N;
        constexpr int stage_bytes = BLOCK_M * 2 * GROUP + WARPGROUPS * 2 * PIECE_BYTES;
        constexpr int STAGES = stages_of(stage_bytes, 1, 6);
        const std::int64_t units = units_of(p, BLOCK_M, BLOCK_N);
        const std::int64_t blocks = even_blocks(w.ready.numel() / READY_FLAGS, units, p.groups);
        const Tensor parts = new_empty_fp32(w.ready, {blocks, BLOCK_M, BLOCK_N});
        launch(p.a, {blocks, (WARPGROUPS + 1) * WARPGROUP, STAGES * stage_bytes + ALIGNMENT},
               w4a16_matmul_wide_kernel<T, BLOCK_M, WARPGROUPS, STAGES>, matrix_map(a, BLOCK_M),
               w.pieces.data<unsigned char>(), p.y.data<T>(), parts.data<float>(), w.ready.data<unsigned>(),
               p.M, p.N, p.K, int(p.M <= BLOCK_M));
    };
    dispatch_narrow(p, [&](auto zero) {
        if (p.M <= 64) return run(zero, std::integral_constant<int, 64>());
        run(zero, std::integral_constant<int, 128>());
    });
    return p.y.object;
}

PYBIND11_MODULE(w4a16_matmul, m) {
    const py::arg a("a"), packed("packed"), scales("scales"), zeros("zeros");
    m.def("naive", &naive, a, packed, scales, zeros);
    m.def("tensor_core", &tensor_core, a, packed, scales, zeros);
    m.def("repack", &repack, packed, scales, zeros);
    m.def("streamk", &streamk, a, packed, scales, zeros, py::kw_only(), py::arg("prepared") = py::none());
    m.def("repack_pieces", &repack_pieces, packed, scales, zeros);
    m.def("transposed", &transposed, a, packed, scales, zeros, py::kw_only(),
          py::arg("prepared") = py::none());
    m.def("wide", &wide, a, packed, scales, zeros, py::kw_only(), py::arg("prepared") = py::none());
}
