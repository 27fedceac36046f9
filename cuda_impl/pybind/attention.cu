// attention from C++: checks and launches the kernels of kernels/attention.cuh.
#include "attention.cuh"

#include <algorithm>
#include <limits>
#include <string>
#include <type_traits>

#include "fresh.h"
#include "heads.h"

struct Attention {
    Tensor q, k, v, o, lse;
    std::int64_t B, Sq, Skv, Hq, Hk, D;

    py::object outputs() const { return py::make_tuple(o.object, lse.object); }
};

[[noreturn]] static void not_implemented(const std::string& message) {
    PyErr_SetString(PyExc_NotImplementedError, message.c_str());
    throw py::error_already_set();
}

// The inputs, and uninitialised outputs.
static Attention checked(const py::object& q, const py::object& k, const py::object& v) {
    Attention a;
    a.q = check_same("attention", 4, {{"q", q}})[0];
    const auto keys = check_same("attention", 4, {{"k", k}, {"v", v}});
    a.k = keys[0], a.v = keys[1];
    const Sizes &of_q = a.q.shape, &of_k = a.k.shape;
    a.B = of_q[0], a.Sq = of_q[1], a.Skv = of_k[1], a.Hq = of_q[2], a.Hk = of_k[2], a.D = of_q[3];
    const bool good = a.k.element == a.q.element && (a.D == 64 || a.D == 128) && of_k[0] == a.B &&
                      of_k[3] == a.D && (a.Hk == 0 ? a.Hq == 0 : a.Hq % a.Hk == 0) &&
                      a.k.device == a.q.device && get(k, Torch::get().is_here).ptr() == Py_True;
    if (!good) {
        py::module_::import("compare.arguments")
            .attr("check_queries")("attention", q, k, v, py::make_tuple(64, 128));
        throw std::runtime_error("attention: these arguments are not taken");
    }
    constexpr std::int64_t MOST = (std::int64_t(1) << 31) - (1 << 16);  // positions are 32-bit
    if (std::max(a.Sq, a.Skv) > MOST) {
        not_implemented("Sq=" + std::to_string(a.Sq) + ", Skv=" + std::to_string(a.Skv) + ": at most " +
                        std::to_string(MOST) + " of each");
    }
    a.o = a.q.empty_like();
    a.lse = new_empty_fp32(a.q, {a.B, a.Hq, a.Sq});
    return a;
}

static py::object without_keys(const Attention& a) {
    a.o.object.attr("zero_")();
    a.lse.object.attr("fill_")(-std::numeric_limits<double>::infinity());
    return a.outputs();
}

// ---- any GPU ---------------------------------------------------------------------------------------------

constexpr int THREADS = 256;

static Problem problem_of(const Tensor& q, const Tensor& k, const Tensor& v, bool causal) {
    const auto strides = [](const Tensor& x) { return Strides{x.strides[0], x.strides[1], x.strides[2]}; };
    return {strides(q),      strides(k),      strides(v),      int(q.shape[1]),
            int(k.shape[1]), int(q.shape[2]), int(k.shape[2]), int(causal)};
}

// Three kernels: scores, their softmax, and the weighted sum of v.
static py::object naive(py::object q_object, py::object k_object, py::object v_object, bool causal) {
    const Attention a = checked(q_object, k_object, v_object);
    if (a.o.numel() == 0 || a.Skv == 0) return without_keys(a);
    constexpr std::int64_t MOST_SCORES = std::int64_t(1) << 28;  // 1 GB in fp32
    const std::int64_t rows = a.B * a.Hq * a.Sq;
    if (rows * a.Skv > MOST_SCORES) {
        not_implemented("B*Hq*Sq*Skv=" + std::to_string(rows * a.Skv) + ": scores in memory, at most " +
                        std::to_string(MOST_SCORES));
    }
    const Tensor q = readable(a.q), k = readable(a.k), v = readable(a.v);
    const Tensor s = new_empty_fp32(k, {a.B, a.Hq, a.Sq, a.Skv});
    const Problem problem = problem_of(q, k, v, causal);
    dispatch_heads(a.q, [&](auto zero, auto D) {
        using T = decltype(zero);
        launch(q, {a.B * a.Hq * ceil_div(a.Sq, 16) * ceil_div(a.Skv, 16), THREADS},
               attention_scores_kernel<T, D>, q.data<const T>(), k.data<const T>(), s.data<float>(), problem);
        launch(q, {ceil_div(rows, THREADS / 32), THREADS}, attention_softmax_kernel<THREADS>, s.data<float>(),
               a.lse.data<float>(), index_t(rows), int(a.Skv));
        launch(q, {ceil_div(rows, THREADS / D), THREADS}, attention_values_kernel<T, D, THREADS>,
               s.data<const float>(), v.data<const T>(), a.o.data<T>(), index_t(rows), problem);
    });
    return a.outputs();
}

// One pass over the keys, without tensor cores.
static py::object online(py::object q_object, py::object k_object, py::object v_object, bool causal) {
    const Attention a = checked(q_object, k_object, v_object);
    if (a.o.numel() == 0 || a.Skv == 0) return without_keys(a);
    const Tensor q = readable(a.q), k = readable(a.k), v = readable(a.v);
    dispatch_heads(a.q, [&](auto zero, auto D) {
        using T = decltype(zero);
        constexpr int BLOCK_M = 64, BLOCK_N = 32, shared_bytes = (BLOCK_M + BLOCK_N) * (D + 4) * 4;
        launch(q, {a.B * a.Hq * ceil_div(a.Sq, BLOCK_M), BLOCK_M * 4, shared_bytes},
               attention_online_kernel<T, D, BLOCK_M, BLOCK_N>, q.data<const T>(), k.data<const T>(),
               v.data<const T>(), a.o.data<T>(), a.lse.data<float>(), problem_of(q, k, v, causal));
    });
    return a.outputs();
}

// ---- tensor cores ----------------------------------------------------------------------------------------

// Runs `launch` unless there is nothing to compute.
template <typename Launch>
static py::object on_tensor_cores(const py::object& q, const py::object& k, const py::object& v,
                                  Launch launch) {
    const Attention a = checked(q, k, v);
    if (a.q.element == Element::FP32) {
        not_implemented("fp32: tensor cores would multiply it as TF32");
    }
    if (a.o.numel() == 0 || a.Skv == 0) return without_keys(a);
    dispatch_heads(a.q, [&](auto zero, auto D) {
        if constexpr (sizeof(zero) == 2) launch(a, zero, D);
    });
    return a.outputs();
}

// Both products by mma.sync, probabilities in registers.
static py::object tensor_core(py::object q_object, py::object k_object, py::object v_object, bool causal) {
    return on_tensor_cores(q_object, k_object, v_object, [&](const Attention& a, auto zero, auto D) {
        using T = decltype(zero);
        constexpr int BLOCK_M = 128, BLOCK_N = 64, shared_bytes = (BLOCK_M + 4 * BLOCK_N) * D * 2;
        const Tensor q = readable(a.q, 8), k = readable(a.k, 8), v = readable(a.v, 8);
        launch(q, {a.B * a.Hq * ceil_div(a.Sq, BLOCK_M), BLOCK_M, shared_bytes},
               attention_tensor_core_kernel<T, D, BLOCK_N>, q.data<const T>(), k.data<const T>(),
               v.data<const T>(), a.o.data<T>(), a.lse.data<float>(), problem_of(q, k, v, causal));
    });
}

// ---- Hopper's own units ----------------------------------------------------------------------------------

constexpr int SWIZZLED_BYTES = 1024;  // alignment of swizzled tiles; dynamic shared memory may lack it

// Shared memory holds `rows` rows of D, of q and of the tiles in flight.
template <typename T, typename Kernel, typename... More>
static void launch_hopper(const Attention& a, Kernel kernel, bool causal, int BLOCK_M, int BLOCK_N, int rows,
                          std::int64_t blocks, int threads, More... more) {
    const Tensor q = for_tma(a.q), k = for_tma(a.k), v = for_tma(a.v);
    const LaunchShape shape = {blocks, threads, rows * int(a.D) * 2 + SWIZZLED_BYTES};
    launch(a.q, shape, kernel, heads_map(q, BLOCK_M), heads_map(k, BLOCK_N), heads_map(v, BLOCK_N),
           a.o.data<T>(), a.lse.data<float>(), more..., int(a.Sq), int(a.Skv), int(a.Hq), int(a.Hk),
           int(causal));
}

// TMA and wgmma; two warpgroups per block.
static py::object wgmma_(py::object q, py::object k, py::object v, bool causal) {
    return on_tensor_cores(q, k, v, [&](const Attention& a, auto zero, auto D) {
        using T = decltype(zero);
        constexpr int BLOCK_M = 128, BLOCK_N = D == 64 ? 64 : 128, STAGES = 2;
        launch_hopper<T>(a, attention_wgmma_kernel<T, D, BLOCK_N, STAGES>, causal, BLOCK_M, BLOCK_N,
                         BLOCK_M + 2 * STAGES * BLOCK_N, a.B * a.Hq * ceil_div(a.Sq, BLOCK_M), 2 * WARPGROUP);
    });
}

// As specialized's, with two or three consumer warpgroups: registers hold three times 64 rows of D=64.
template <int D>
constexpr int CONSUMERS = D == 64 ? 3 : 2;
constexpr int BLOCK_N = 128;
template <int D>
constexpr int STAGES = 4 * (128 / D);

// A producer warpgroup, and consumers that multiply in turn.
static py::object specialized(py::object q, py::object k, py::object v, bool causal) {
    return on_tensor_cores(q, k, v, [&](const Attention& a, auto zero, auto D) {
        using T = decltype(zero);
        constexpr int BLOCK_M = CONSUMERS<D> * GROUP_M;
        launch_hopper<T>(a, attention_specialized_kernel<T, D, CONSUMERS<D>, BLOCK_N, STAGES<D>>, causal,
                         BLOCK_M, BLOCK_N, BLOCK_M + STAGES<D> * BLOCK_N,
                         a.B * a.Hq * ceil_div(a.Sq, BLOCK_M), (1 + CONSUMERS<D>)*WARPGROUP);
    });
}

// Softmax of a tile runs while the previous tile's p @ v does.
static py::object overlapped(py::object q, py::object k, py::object v, bool causal) {
    return on_tensor_cores(q, k, v, [&](const Attention& a, auto zero, auto D) {
        using T = decltype(zero);
        constexpr int BLOCK_M = CONSUMERS<D> * GROUP_M;
        launch_hopper<T>(a, attention_overlapped_kernel<T, D, CONSUMERS<D>, BLOCK_N, STAGES<D>>, causal,
                         BLOCK_M, BLOCK_N, BLOCK_M + STAGES<D> * BLOCK_N,
                         a.B * a.Hq * ceil_div(a.Sq, BLOCK_M), (1 + CONSUMERS<D>)*WARPGROUP);
    });
}

// One block per multiprocessor; longest tiles first.
static py::object persistent(py::object q, py::object k, py::object v, bool causal) {
    return on_tensor_cores(q, k, v, [&](const Attention& a, auto zero, auto D) {
        using T = decltype(zero);
        constexpr int BLOCK_M = CONSUMERS<D> * GROUP_M, STAGES = 5 * (128 / D);
        const std::int64_t tiles = a.B * a.Hq * ceil_div(a.Sq, BLOCK_M);
        const Tensor next_tile = a.q.zeros(1);
        launch_hopper<T>(a, attention_persistent_kernel<T, D, CONSUMERS<D>, BLOCK_N, STAGES>, causal, BLOCK_M,
                         BLOCK_N, 2 * BLOCK_M + STAGES * BLOCK_N,
                         std::min(tiles, std::int64_t(multiprocessors(a.q))), (1 + CONSUMERS<D>)*WARPGROUP,
                         next_tile.data<unsigned long long>(), int(a.B));
    });
}

PYBIND11_MODULE(attention, m) {
    const py::arg q("q"), k("k"), v("v"), causal("causal");
    const py::kw_only only;
    m.def("naive", &naive, q, k, v, only, causal);
    m.def("online", &online, q, k, v, only, causal);
    m.def("tensor_core", &tensor_core, q, k, v, only, causal);
    m.def("wgmma", &wgmma_, q, k, v, only, causal);
    m.def("specialized", &specialized, q, k, v, only, causal);
    m.def("overlapped", &overlapped, q, k, v, only, causal);
    m.def("persistent", &persistent, q, k, v, only, causal);
}
