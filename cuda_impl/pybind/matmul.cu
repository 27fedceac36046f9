// matmul from C++: checks and launches the kernels of kernels/matmul.cuh.
#include "matmul.cuh"

#include <algorithm>
#include <string>
#include <type_traits>

#include "hopper.h"
#include "tensor.h"

struct Product {
    Tensor a, b, c;
    std::int64_t M, N, K;
    bool empty() const { return M == 0 || N == 0; }
};

// A fresh, dense matrix of the dtype and on the device of `like`.
static Tensor empty(std::int64_t rows, std::int64_t columns, const Tensor& like) {
    const Torch& torch = Torch::get();
    static const py::object& torch_empty = *new py::object(torch.torch.attr("empty"));
    const py::object& dtype = like.element == Element::FP32   ? torch.fp32
                              : like.element == Element::FP16 ? torch.fp16
                                                              : torch.bf16;
    const py::tuple shape = py::make_tuple(rows, columns);
    const py::object on = get(like.object, torch.device);
    PyObject* arguments[] = {shape.ptr(), dtype.ptr(), on.ptr()};
    Tensor fresh = like;  // all that is known of it already
    fresh.object = made(PyObject_Vectorcall(torch_empty.ptr(), arguments, 1, torch.of_zeros.ptr()));
    fresh.address = call(fresh.object, torch.data_ptr).cast<std::uintptr_t>();
    fresh.shape[0] = rows, fresh.shape[1] = columns;
    fresh.strides[0] = std::max<std::int64_t>(columns, 1), fresh.strides[1] = 1;
    return fresh;
}

static bool is_matrix(const py::object& object) {
    const Torch& torch = Torch::get();
    return py::isinstance(object, torch.tensor) && get(object, torch.layout).is(torch.strided);
}

static bool is_taken(const Tensor& x) {
    return x.element != Element::OTHER && x.ndim == 2;
}

// a, b and an empty c; a TypeError or ValueError, which compare.arguments words, if they are no product.
static Product checked(const py::object& a, const py::object& b) {
    if (is_matrix(a) && is_matrix(b)) {
        Product p;
        p.a = Tensor(a);
        p.b = a.is(b) ? p.a : Tensor(b);
        const bool same_device = p.a.device == p.b.device && get(b, Torch::get().is_here).ptr() == Py_True;
        if (is_taken(p.a) && is_taken(p.b) && p.a.element == p.b.element && same_device &&
            p.a.shape[1] == p.b.shape[0]) {
            p.M = p.a.shape[0], p.K = p.a.shape[1], p.N = p.b.shape[1];
            p.c = empty(p.M, p.N, p.a);
            return p;
        }
    }
    py::module_::import("compare.arguments").attr("check_product")("matmul", a, b);
    throw std::runtime_error("matmul: these arguments are not taken");
}

[[noreturn]] static void not_taken(const std::string& why) {
    PyErr_SetString(PyExc_NotImplementedError, why.c_str());
    throw py::error_already_set();
}

// ---- any strides, element by element ---------------------------------------------------------------------

constexpr std::int64_t MOST_PRODUCTS = std::int64_t(1) << 37;

static void check_slow(const Product& p) {
    const std::int64_t products = p.M * p.N * p.K;
    if (products <= MOST_PRODUCTS) return;
    not_taken("M*N*K=" + std::to_string(products) + ": it would take seconds, at most " +
              std::to_string(MOST_PRODUCTS));
}

template <typename T>
static void launch_strided(const Product& p, std::int64_t BLOCK_M, std::int64_t BLOCK_N, int threads,
                           void (*kernel)(const T*, const T*, T*, index_t, index_t, index_t, index_t, index_t,
                                          index_t, index_t)) {
    const std::int64_t blocks = ceil_div(p.M, BLOCK_M) * ceil_div(p.N, BLOCK_N);
    launch(p.a, {blocks, threads}, kernel, p.a.data<T>(), p.b.data<T>(), p.c.data<T>(), p.M, p.N, p.K,
           p.a.strides[0], p.a.strides[1], p.b.strides[0], p.b.strides[1]);
}

// A thread an element; a warp's threads below each other.
static py::object naive(py::object a, py::object b) {
    const Product p = checked(a, b);
    check_slow(p);
    if (p.empty()) return p.c.object;
    dispatch(p.a, [&](auto zero) {
        constexpr int THREADS = 256;
        launch_strided(p, WARP, THREADS / WARP, THREADS, matmul_naive_kernel<decltype(zero), THREADS>);
    });
    return p.c.object;
}

// A thread an element; a warp's threads beside each other.
static py::object coalesced(py::object a, py::object b) {
    const Product p = checked(a, b);
    check_slow(p);
    if (p.empty()) return p.c.object;
    dispatch(p.a, [&](auto zero) {
        constexpr int THREADS = 256;
        launch_strided(p, THREADS / WARP, WARP, THREADS, matmul_coalesced_kernel<decltype(zero), THREADS>);
    });
    return p.c.object;
}

// A block a tile, from tiles in shared memory.
static py::object shared(py::object a, py::object b) {
    const Product p = checked(a, b);
    check_slow(p);
    if (p.empty()) return p.c.object;
    dispatch(p.a, [&](auto zero) {
        constexpr int BLOCK = 32;
        launch_strided(p, BLOCK, BLOCK, BLOCK * BLOCK, matmul_shared_kernel<decltype(zero), BLOCK>);
    });
    return p.c.object;
}

// ---- 16 bytes at a time ----------------------------------------------------------------------------------

struct Operand {
    Tensor tensor;
    bool by_rows;
    std::int64_t ld;  // elements between rows (columns)
};

// The tensor if its rows, or columns, are dense and start on 16-byte boundaries, else a copy whose do.
static Operand aligned(const Tensor& x) {
    const int pack = 16 / x.element_size;
    const bool by_rows = x.strides[1] == 1 || x.strides[0] != 1;
    const int line = by_rows ? 0 : 1;  // the dimension that lines follow each other in
    const std::int64_t ld = x.strides[line], length = x.shape[1 - line];
    if (x.strides[1 - line] == 1 && ld >= length && ld % pack == 0 && x.address % 16 == 0) {
        return {x, by_rows, ld};
    }
    const std::int64_t pitch = ceil_div(length, pack) * pack;
    Tensor padded = empty(x.shape[line], pitch, x);
    const py::object lines = by_rows ? x.object : x.object.attr("t")();
    padded.object.attr("narrow")(1, 0, length).attr("copy_")(lines);
    padded.shape = x.shape;
    return {padded, by_rows, pitch};
}

// Calls `function` with how two operands lie as constants.
template <typename Function>
static void dispatch_layouts(const Operand& a, const Operand& b, Function function) {
    const auto with_b = [&](auto A_BY_ROWS) {
        if (b.by_rows) {
            function(A_BY_ROWS, std::true_type());
        } else {
            function(A_BY_ROWS, std::false_type());
        }
    };
    if (a.by_rows) {
        with_b(std::true_type());
    } else {
        with_b(std::false_type());
    }
}

// Whether the GPU that a tensor is on is older than sm_80.
static bool is_turing(const Tensor& x) {
    if (x.device < 0) return false;
    int major = 0;
    check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, x.device));
    return major < 8;
}

template <typename T, bool A_BY_ROWS, bool B_BY_ROWS, int STAGES>
static void launch_register(const Product& p, const Operand& a, const Operand& b) {
    // 16-bit elements are read along K where they lie so, a pack of every row: that leaves fewer registers.
    constexpr int BLOCK_M = 128, BLOCK_K = 16, THREAD_M = 8;
    constexpr int BLOCK_N = sizeof(T) == 4 ? 256 : 128, THREAD_N = sizeof(T) == 4 ? 16 : 8;
    constexpr int a_tile = PaddedTile<T, A_BY_ROWS, BLOCK_M, BLOCK_K>::ELEMENTS;
    constexpr int b_tile = PaddedTile<T, !B_BY_ROWS, BLOCK_N, BLOCK_K>::ELEMENTS;
    constexpr int threads = BLOCK_M * BLOCK_N / (THREAD_M * THREAD_N);
    constexpr int shared_bytes = STAGES * (a_tile + b_tile) * sizeof(T);
    launch(p.a, {ceil_div(p.M, BLOCK_M) * ceil_div(p.N, BLOCK_N), threads, shared_bytes},
           matmul_register_kernel<T, A_BY_ROWS, B_BY_ROWS, BLOCK_M, BLOCK_N, BLOCK_K, THREAD_M, THREAD_N,
                                  STAGES>,
           a.tensor.data<T>(), b.tensor.data<T>(), p.c.data<T>(), p.M, p.N, p.K, a.ld, b.ld);
}

// A thread a tile, copies on their way meanwhile.
static py::object register_(py::object a_object, py::object b_object) {
    const Product p = checked(a_object, b_object);
    if (p.empty()) return p.c.object;
    const Operand a = aligned(p.a), b = aligned(p.b);
    dispatch(p.a, [&](auto zero) {
        dispatch_layouts(a, b, [&](auto A_BY_ROWS, auto B_BY_ROWS) {
            using T = decltype(zero);
            // Turing's shared memory holds no third tile of fp32, nor are its copies asynchronous.
            if constexpr (sizeof(T) == 4) {
                if (is_turing(p.a)) return launch_register<T, A_BY_ROWS, B_BY_ROWS, 2>(p, a, b);
            }
            launch_register<T, A_BY_ROWS, B_BY_ROWS, 3>(p, a, b);
        });
    });
    return p.c.object;
}

// Refuses what the tensor cores of this GPU cannot multiply.
static void check_tensor_cores(const Tensor& x) {
    if (x.element == Element::FP32) not_taken("fp32: tensor cores would multiply it as TF32");
    if (x.element != Element::BF16 || x.device < 0) return;
    int major = 0, minor = 0;
    check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, x.device));
    check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, x.device));
    if (major < 8) {
        not_taken("bf16: tensor cores multiply it from sm_80 on, this is sm_" +
                  std::to_string(10 * major + minor));
    }
}

// A warp a tile, by tensor cores.
static py::object tensor_core(py::object a_object, py::object b_object) {
    const Product p = checked(a_object, b_object);
    check_tensor_cores(p.a);
    if (p.empty()) return p.c.object;
    const Operand a = aligned(p.a), b = aligned(p.b);
    dispatch(p.a, [&](auto zero) {
        using T = decltype(zero);
        if constexpr (sizeof(T) == 2) {
            dispatch_layouts(a, b, [&](auto A_BY_ROWS, auto B_BY_ROWS) {
                constexpr int BLOCK_M = 128, BLOCK_N = 128, BLOCK_K = 32;
                constexpr int WARPS_M = 2, WARPS_N = 2, STAGES = 4, BLOCKS = 2;
                constexpr int shared_bytes = STAGES * (BLOCK_M + BLOCK_N) * BLOCK_K * sizeof(T);
                launch(
                    p.a,
                    {ceil_div(p.M, BLOCK_M) * ceil_div(p.N, BLOCK_N), WARPS_M * WARPS_N * WARP, shared_bytes},
                    matmul_tensor_core_kernel<T, A_BY_ROWS, B_BY_ROWS, BLOCK_M, BLOCK_N, BLOCK_K, WARPS_M,
                                              WARPS_N, STAGES, BLOCKS>,
                    a.tensor.data<T>(), b.tensor.data<T>(), p.c.data<T>(), p.M, p.N, p.K, a.ld, b.ld);
            });
        }
    });
    return p.c.object;
}

// ---- Hopper's own units ----------------------------------------------------------------------------------

constexpr int PERMUTED_BYTES = 1024;  // tiles begin at a multiple of it; dynamic shared memory need not
constexpr std::int64_t MOST = (std::int64_t(1) << 31) - 512;  // rows and columns are counted in 32 bits

static void check_copy_engine(const Product& p) {
    if (std::max({p.M, p.N, p.K}) <= MOST) return;
    not_taken("M=" + std::to_string(p.M) + ", N=" + std::to_string(p.N) + ", K=" + std::to_string(p.K) +
              ": at most " + std::to_string(MOST) + " of each");
}

// The map of an operand whose tiles are BLOCK of M or N by 64 of K.
static TensorMap operand_map(const Operand& x, bool along_k, int BLOCK) {
    return tensor_map(x.tensor, x.by_rows, x.ld, along_k ? BLOCK : PIECE);
}

static constexpr int tile_ring_bytes(int BLOCK_M, int BLOCK_N, int STAGES) {
    return STAGES * (BLOCK_M + BLOCK_N) * PIECE * 2 + PERMUTED_BYTES;
}

// Calls `function` with an element of the operands' 16-bit type, and with how they lie as constants.
template <typename Function>
static void dispatch_operands(const Operand& a, const Operand& b, Function function) {
    dispatch(a.tensor, [&](auto zero) {
        if constexpr (sizeof(zero) == 2) {
            dispatch_layouts(a, b,
                             [&](auto A_BY_ROWS, auto B_BY_ROWS) { function(zero, A_BY_ROWS, B_BY_ROWS); });
        }
    });
}

// Checks, and calls `launch_kernel` with the product and its operands; c is zeros where there is nothing to
// add.
template <typename Launch>
static py::object multiplied(const py::object& a, const py::object& b, Launch launch_kernel) {
    const Product p = checked(a, b);
    check_tensor_cores(p.a);
    check_copy_engine(p);
    if (p.empty() || p.K == 0) return p.c.object.attr("zero_")();
    launch_kernel(p, aligned(p.a), aligned(p.b));
    return p.c.object;
}

// A warpgroup a tile, which the copy engine fetches.
static py::object wgmma_(py::object a_object, py::object b_object) {
    return multiplied(a_object, b_object, [](const Product& p, const Operand& a, const Operand& b) {
        constexpr int BLOCK_M = 128, BLOCK_N = 128, STAGES = 3;
        const TensorMap a_map = operand_map(a, a.by_rows, BLOCK_M);
        const TensorMap b_map = operand_map(b, !b.by_rows, BLOCK_N);
        const std::int64_t blocks = ceil_div(p.M, BLOCK_M) * ceil_div(p.N, BLOCK_N);
        dispatch_operands(a, b, [&](auto zero, auto A_BY_ROWS, auto B_BY_ROWS) {
            using T = decltype(zero);
            launch(p.a, {blocks, WARPGROUP, tile_ring_bytes(BLOCK_M, BLOCK_N, STAGES)},
                   matmul_wgmma_kernel<T, A_BY_ROWS, B_BY_ROWS, STAGES>, a_map, b_map, p.c.data<T>(),
                   int(p.M), int(p.N), int(p.K));
        });
    });
}

// A producer and two consumers a block: `kernel_of` gives the kernel. PERSISTENT: a block for every
// multiprocessor, else for every tile. CLUSTER: blocks below each other that share a tile of b.
template <bool PERSISTENT, int CLUSTER, typename KernelOf>
static void launch_specialized(const Product& p, const Operand& a, const Operand& b, KernelOf kernel_of) {
    constexpr int BLOCK_M = 128, BLOCK_N = 256, STAGES = 4, THREADS = (1 + CONSUMERS) * WARPGROUP;
    const TensorMap a_map = operand_map(a, a.by_rows, BLOCK_M);
    const TensorMap b_map = operand_map(b, !b.by_rows, BLOCK_N / CLUSTER);
    std::int64_t blocks = CLUSTER * ceil_div(p.M, CLUSTER * BLOCK_M) * ceil_div(p.N, BLOCK_N);
    if (PERSISTENT) blocks = std::min<std::int64_t>(blocks, multiprocessors(p.a) / CLUSTER * CLUSTER);
    dispatch_operands(a, b, [&](auto zero, auto A_BY_ROWS, auto B_BY_ROWS) {
        using T = decltype(zero);
        const auto kernel = kernel_of(zero, A_BY_ROWS, B_BY_ROWS, std::integral_constant<int, BLOCK_N>(),
                                      std::integral_constant<int, STAGES>());
        launch(p.a, {blocks, THREADS, tile_ring_bytes(BLOCK_M, BLOCK_N, STAGES)}, kernel, a_map, b_map,
               p.c.data<T>(), int(p.M), int(p.N), int(p.K));
    });
}

// A warp fetches, eight others multiply.
static py::object specialized(py::object a_object, py::object b_object) {
    return multiplied(a_object, b_object, [](const Product& p, const Operand& a, const Operand& b) {
        launch_specialized<false, 1>(p, a, b, [](auto zero, auto A, auto B, auto BLOCK_N, auto STAGES) {
            return matmul_specialized_kernel<decltype(zero), A, B, BLOCK_N, STAGES>;
        });
    });
}

// A block a multiprocessor takes tile after tile.
static py::object persistent(py::object a_object, py::object b_object) {
    return multiplied(a_object, b_object, [](const Product& p, const Operand& a, const Operand& b) {
        launch_specialized<true, 1>(p, a, b, [](auto zero, auto A, auto B, auto BLOCK_N, auto STAGES) {
            return matmul_persistent_kernel<decltype(zero), A, B, BLOCK_N, STAGES>;
        });
    });
}

static void launch_multicast(const Product& p, const Operand& a, const Operand& b) {
    launch_specialized<true, 2>(p, a, b, [](auto zero, auto A, auto B, auto BLOCK_N, auto STAGES) {
        return matmul_multicast_kernel<decltype(zero), A, B, BLOCK_N, STAGES>;
    });
}

// Two blocks share what they fetch of b.
static py::object multicast(py::object a_object, py::object b_object) {
    return multiplied(a_object, b_object, launch_multicast);
}

template <int BLOCK_N, int STAGES>
static void launch_tma_store(const Product& p, const Operand& a, const Operand& b) {
    constexpr int BLOCK_M = 128, CLUSTER = 2, THREADS = (1 + CONSUMERS) * WARPGROUP;
    constexpr int CLUSTER_M = SHARES_B<BLOCK_N> ? CLUSTER : 1, CLUSTER_N = CLUSTER / CLUSTER_M;
    constexpr int places_bytes = 4 * CONSUMERS * C_PLACES<BLOCK_N> * 16 * PIECE * 2;
    constexpr int shared_bytes = tile_ring_bytes(BLOCK_M, BLOCK_N, STAGES) + places_bytes;
    const TensorMap a_map = operand_map(a, a.by_rows, BLOCK_M / CLUSTER_N);
    const TensorMap b_map = operand_map(b, !b.by_rows, BLOCK_N / CLUSTER_M);
    const TensorMap c_map = tensor_map(p.c, true, p.N, 16);
    const std::int64_t tiles = ceil_div(p.M, CLUSTER_M * BLOCK_M) * ceil_div(p.N, CLUSTER_N * BLOCK_N);
    const std::int64_t clusters = std::max(multiprocessors(p.a) / CLUSTER, 1);
    dispatch_operands(a, b, [&](auto zero, auto A_BY_ROWS, auto B_BY_ROWS) {
        using T = decltype(zero);
        launch_overlapping(p.a, {CLUSTER * std::min(tiles, clusters), THREADS, shared_bytes},
                           matmul_tma_store_kernel<T, A_BY_ROWS, B_BY_ROWS, BLOCK_N, STAGES>, a_map, b_map,
                           c_map, int(p.M), int(p.N), int(p.K));
    });
}

// c leaves by the copy engine; as multicast where rows of c do not start on 16-byte boundaries.
static py::object tma_store(py::object a_object, py::object b_object) {
    return multiplied(a_object, b_object, [](const Product& p, const Operand& a, const Operand& b) {
        if (p.N * p.c.element_size % 16 != 0) return launch_multicast(p, a, b);
        // The tile with which the last multiprocessor is done first: a tile takes as long as it is wide, and
        // about 96 columns more to begin and to end; a cluster takes so many one after another.
        const std::int64_t clusters = std::max(multiprocessors(p.a) / 2, 1);
        const auto columns = [&](int CLUSTER_M, int CLUSTER_N, int BLOCK_N) {
            const std::int64_t tiles = ceil_div(p.M, CLUSTER_M * 128) * ceil_div(p.N, CLUSTER_N * BLOCK_N);
            return ceil_div(tiles, clusters) * (BLOCK_N + 96);
        };
        const std::int64_t of_256 = columns(2, 1, 256), of_192 = columns(1, 2, 192),
                           of_64 = columns(1, 2, 64);
        if (of_256 <= std::min(of_192, of_64)) return launch_tma_store<256, 4>(p, a, b);
        if (of_192 <= of_64) return launch_tma_store<192, 4>(p, a, b);
        launch_tma_store<64, 8>(p, a, b);
    });
}

PYBIND11_MODULE(matmul, m) {
    m.def("naive", &naive);
    m.def("coalesced", &coalesced);
    m.def("shared", &shared);
    m.def("register", &register_);
    m.def("tensor_core", &tensor_core);
    m.def("wgmma", &wgmma_);
    m.def("specialized", &specialized);
    m.def("persistent", &persistent);
    m.def("multicast", &multicast);
    m.def("tma_store", &tma_store);
}
