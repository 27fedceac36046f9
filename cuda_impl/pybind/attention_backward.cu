// attention_backward from C++: checks and launches the kernels of kernels/attention_backward.cuh.
#include "attention_backward.cuh"

#include <cmath>
#include <string>
#include <type_traits>

#include "fresh.h"
#include "heads.h"
#include "product.h"

constexpr int THREADS = 256;
constexpr int BLOCK_M = 128, BLOCK_N = 128;  // queries (for dq) or keys (for dk, dv) of a block, 16 a warp
constexpr int BLOCK = 64;                    // rows of the tiles that its loop fetches

struct Backward {
    Tensor q, k, v, o, lse, d_o, lse2, delta, dq_sum, dq, dk, dv;
    Problem problem;
    int D;
    std::int64_t batches, rows;  // rows: of lse2 and delta, of all heads
    py::object gradients() const { return py::make_tuple(dq.object, dk.object, dv.object); }
    bool empty() const { return dq.numel() == 0 || dk.numel() == 0; }
    std::int64_t key_blocks() const { return ceil_div(problem.Skv, BLOCK_N) * batches * problem.Hk; }
};

// The same for types that tensor cores multiply.
template <typename Function>
static void dispatch_halves(const Backward& call, Function function) {
    dispatch_heads(call.q, [&](auto zero, auto D) {
        if constexpr (sizeof(zero) == 2) function(zero, D);
    });
}

// The arguments, new gradients, and memory for delta, lse2 and, if asked for, dq's sums, of heads padded to
// whole tiles. Raises compare.arguments' TypeError or ValueError for other arguments.
static Backward checked(const py::object& q, const py::object& k, const py::object& v, const py::object& o,
                        const py::object& lse, const py::object& d_o, bool causal, bool tensor_cores,
                        int (*tile_rows)(int D), bool with_sums = false) {
    const Torch& torch = Torch::get();
    Backward call;
    const auto taken = [&] {
        for (const py::object* x : {&q, &k, &v, &o, &lse, &d_o}) {
            if (!py::isinstance(*x, torch.tensor) || !get(*x, torch.layout).is(torch.strided)) return false;
        }
        call.q = Tensor(q), call.k = Tensor(k), call.v = Tensor(v), call.o = Tensor(o),
        call.lse = Tensor(lse);
        call.d_o = Tensor(d_o);
        for (const Tensor* x : {&call.q, &call.k, &call.v, &call.o, &call.d_o}) {
            if (x->element == Element::OTHER || x->element != call.q.element || x->ndim != 4) return false;
            if (x->device != call.q.device || get(x->object, torch.is_here).ptr() != Py_True) return false;
        }
        const Sizes &of_q = call.q.shape, &of_k = call.k.shape;
        const Sizes of_lse = {of_q[0], of_q[2], of_q[1]};
        return (of_q[3] == 64 || of_q[3] == 128) && of_k[0] == of_q[0] && of_k[3] == of_q[3] &&
               (of_k[2] > 0 ? of_q[2] % of_k[2] == 0 : of_q[2] == 0) && call.v.shape == of_k &&
               call.o.shape == of_q && call.d_o.shape == of_q && call.lse.element == Element::FP32 &&
               call.lse.ndim == 3 && call.lse.shape == of_lse && call.lse.device == call.q.device &&
               get(lse, torch.is_here).ptr() == Py_True;
    };
    if (!taken()) {
        py::module_::import("compare.arguments")
            .attr("check_gradients")("attention_backward", q, k, v, o, lse, d_o, py::make_tuple(64, 128));
        throw std::runtime_error("attention_backward: these arguments are not taken");
    }
    if (tensor_cores) check_tensor_cores(call.q);
    const Sizes &of_q = call.q.shape, &of_k = call.k.shape;
    constexpr std::int64_t LARGEST = (std::int64_t(1) << 31) - (1 << 16);  // positions are 32-bit
    if (of_q[1] + of_k[1] > LARGEST) {
        not_taken("Sq=" + std::to_string(of_q[1]) + ", Skv=" + std::to_string(of_k[1]) + ": at most " +
                  std::to_string(LARGEST) + " together");
    }
    constexpr std::int64_t MOST_SCORES = std::int64_t(1) << 28;  // of naive, which takes seconds for more
    const std::int64_t scores = of_q[0] * of_q[2] * of_q[1] * of_k[1];
    if (!tensor_cores && scores > MOST_SCORES) {
        not_taken("B*Hq*Sq*Skv=" + std::to_string(scores) + ": it takes at most " +
                  std::to_string(MOST_SCORES) + " scores");
    }
    call.dq = call.q.empty_like(), call.dk = call.k.empty_like(), call.dv = call.v.empty_like();
    for (Tensor* x : {&call.q, &call.k, &call.v, &call.o, &call.d_o}) *x = readable(*x, tensor_cores ? 8 : 1);
    call.lse = call.lse.contiguous();
    call.batches = of_q[0], call.D = int(of_q[3]);
    const auto strides = [](const Tensor& x) { return Strides{x.strides[0], x.strides[1], x.strides[2]}; };
    const int Sq = int(of_q[1]), Skv = int(of_k[1]), rows = tile_rows(call.D),
              pitch = int(ceil_div(Sq, rows)) * rows;
    call.problem = {strides(call.q),
                    strides(call.k),
                    strides(call.v),
                    strides(call.o),
                    strides(call.d_o),
                    Sq,
                    Skv,
                    int(of_q[2]),
                    int(of_k[2]),
                    causal ? Skv - Sq : Skv,
                    pitch,
                    float(1 / std::sqrt(double(call.D)))};
    call.rows = of_q[0] * of_q[2] * pitch;
    const std::int64_t sums = with_sums ? call.rows * call.D + 1 : 0;
    call.delta = call.lse2 = call.dq_sum = new_empty_fp32(call.q, {2 * call.rows + sums});
    call.lse2.address += std::uintptr_t(call.rows) * sizeof(float);
    call.dq_sum.address += std::uintptr_t(call.rows) * 2 * sizeof(float);
    return call;
}

// As checked, and computes delta and lse2 if there is any row.
static Backward prepare(const py::object& q, const py::object& k, const py::object& v, const py::object& o,
                        const py::object& lse, const py::object& d_o, bool causal, bool tensor_cores = true) {
    const Backward call = checked(q, k, v, o, lse, d_o, causal, tensor_cores, [](int) { return BLOCK_M; });
    if (call.rows == 0) return call;
    dispatch_heads(call.q, [&](auto zero, auto D) {
        using T = decltype(zero);
        launch(call.q, {ceil_div(call.rows, THREADS / WARP), THREADS},
               attention_backward_delta_kernel<T, D, THREADS>, call.o.data<T>(), call.d_o.data<T>(),
               call.lse.data<float>(), call.delta.data<float>(), call.lse2.data<float>(), index_t(call.rows),
               call.problem);
    });
    return call;
}

// Launches a kernel with the inputs, `more` and the problem.
template <typename T, typename Kernel, typename... More>
static void launch_on(const Backward& call, const LaunchShape& shape, Kernel* kernel, More... more) {
    if (shape.blocks == 0) return;
    launch(call.q, shape, kernel, call.q.data<T>(), call.k.data<T>(), call.v.data<T>(), call.d_o.data<T>(),
           call.lse2.data<float>(), call.delta.data<float>(), more..., call.problem);
}

// A warp per row of dq, then one per row of dk and dv.
static py::object naive(py::object q, py::object k, py::object v, py::object o, py::object lse,
                        py::object d_o, bool causal) {
    const Backward call = prepare(q, k, v, o, lse, d_o, causal, false);
    const std::int64_t queries = call.dq.numel() / call.D, keys = call.dk.numel() / call.D;
    constexpr int ROWS = THREADS / WARP;
    dispatch_heads(call.q, [&](auto zero, auto D) {
        using T = decltype(zero);
        launch_on<T>(call, {ceil_div(queries, ROWS), THREADS},
                     attention_backward_naive_dq_kernel<T, D, THREADS>, call.dq.data<T>(), index_t(queries));
        launch_on<T>(call, {ceil_div(keys, ROWS), THREADS},
                     attention_backward_naive_dkdv_kernel<T, D, THREADS>, call.dk.data<T>(),
                     call.dv.data<T>(), index_t(keys));
    });
    return call.gradients();
}

// `bytes`; raises NotImplementedError if a block needs more shared memory than this GPU allows.
static int check_shared(const Backward& call, int bytes) {
    if (call.q.device < 0) return bytes;
    int most = 0;
    check(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, call.q.device));
    if (bytes <= most) return bytes;
    not_taken("D=" + std::to_string(call.D) + ": " + std::to_string(bytes) +
              " bytes of shared memory a block, and this GPU has " + std::to_string(most) +
              "; torch.eager takes any");
}

// Of a block's own tiles, two stages, and two stages of lse2 and delta.
static int tiles_bytes(int D) {
    return (2 * BLOCK_N + 4 * BLOCK) * D * 2 + 4 * BLOCK * 4;
}

// No query or no key: gradients are 0.
static py::object zeros(const Backward& call) {
    for (const Tensor* x : {&call.dq, &call.dk, &call.dv}) x->object.attr("zero_")();
    return call.gradients();
}

// A kernel for dk and dv, and one for dq.
static py::object split(py::object q, py::object k, py::object v, py::object o, py::object lse,
                        py::object d_o, bool causal) {
    const Backward call = prepare(q, k, v, o, lse, d_o, causal);
    const int shared_bytes = check_shared(call, tiles_bytes(call.D));
    if (call.dq.numel() == 0) return zeros(call);
    const std::int64_t query_blocks = ceil_div(call.problem.Sq, BLOCK_M) * call.batches * call.problem.Hq;
    dispatch_halves(call, [&](auto zero, auto D) {
        using T = decltype(zero);
        launch_on<T>(call, {call.key_blocks(), THREADS, shared_bytes},
                     attention_backward_split_dkdv_kernel<T, D, BLOCK, BLOCK_N>, call.dk.data<T>(),
                     call.dv.data<T>());
        launch_on<T>(call, {query_blocks, THREADS, shared_bytes},
                     attention_backward_split_dq_kernel<T, D, BLOCK_M, BLOCK>, call.dq.data<T>());
    });
    return call.gradients();
}

// One kernel; dq is summed in fp32 by atomics and rounded by another.
static py::object fused(py::object q, py::object k, py::object v, py::object o, py::object lse,
                        py::object d_o, bool causal) {
    const Backward call = prepare(q, k, v, o, lse, d_o, causal);
    const int shared_bytes = check_shared(call, tiles_bytes(call.D) + BLOCK * BLOCK_N * 2);
    if (call.dq.numel() == 0) return zeros(call);
    const Sizes& of_q = call.q.shape;
    const Tensor dq_sum = new_zeros_fp32(call.q, {of_q[0], of_q[1], of_q[2], of_q[3]});
    dispatch_halves(call, [&](auto zero, auto D) {
        using T = decltype(zero);
        launch_on<T>(call, {call.key_blocks(), THREADS, shared_bytes},
                     attention_backward_fused_kernel<T, D, BLOCK, BLOCK_N>, dq_sum.data<float>(),
                     call.dk.data<T>(), call.dv.data<T>());
        launch(call.q, {ceil_div(call.dq.numel(), THREADS * 4), THREADS},
               attention_backward_round_kernel<T, THREADS>, dq_sum.data<float>(), call.dq.data<T>(),
               index_t(call.dq.numel()), call.problem.scale);
    });
    return call.gradients();
}

// As fused, with TMA, a producer warp and two consumer warpgroups.
static py::object wgmma_level(py::object q, py::object k, py::object v, py::object o, py::object lse,
                              py::object d_o, bool causal) {
    const Backward call = prepare(q, k, v, o, lse, d_o, causal);
    if (call.empty()) return zeros(call);
    const Tensor held[] = {for_tma(call.q), for_tma(call.k), for_tma(call.v), for_tma(call.d_o)};
    const Tensor dq_sum = new_zeros_fp32(call.q, {call.rows * call.D});
    dispatch_halves(call, [&](auto zero, auto D) {
        using T = decltype(zero);
        // Beside the tiles of fused two of ds, one of dq in fp32, and five mbarriers; swizzled tiles are
        // aligned.
        const int shared_bytes =
            tiles_bytes(D) + 2 * BLOCK * BLOCK_N * 2 + BLOCK * D * 4 + 5 * 8 + PERMUTED_BYTES;
        launch(call.q, {call.key_blocks(), 3 * WARPGROUP, check_shared(call, shared_bytes)},
               attention_backward_wgmma_kernel<T, D>, heads_map(held[0], BLOCK), heads_map(held[1], BLOCK_N),
               heads_map(held[2], BLOCK_N), heads_map(held[3], BLOCK), call.lse2.data<float>(),
               call.delta.data<float>(), dq_sum.data<float>(), call.dk.data<T>(), call.dv.data<T>(),
               call.problem);
        launch(call.q, {call.rows / BLOCK * 2, WARPGROUP}, attention_backward_place_kernel<T, D>,
               dq_sum.data<float>(), call.dq.data<T>(), call.problem);
    });
    return call.gradients();
}

// Queries of a tile: with D = 64 the gradients of keys take half the registers.
static constexpr int overlapped_rows(int D) {
    return D == 64 ? 128 : 80;
}

// As wgmma, persistent; dq's product of a tile runs under the exponentials of the next one.
static py::object overlapped(py::object q, py::object k, py::object v, py::object o, py::object lse,
                             py::object d_o, bool causal) {
    const Backward call = checked(q, k, v, o, lse, d_o, causal, true, overlapped_rows, true);
    if (call.empty()) return zeros(call);
    const Tensor held[] = {for_tma(call.q), for_tma(call.k), for_tma(call.v), for_tma(call.d_o)};
    float* const dq_sum = call.dq_sum.data<float>();
    int* const taken = reinterpret_cast<int*>(dq_sum + call.rows * call.D);
    dispatch_halves(call, [&](auto zero, auto D) {
        using T = decltype(zero);
        constexpr int rows = overlapped_rows(D);
        launch(call.q, {ceil_div(call.rows * (D / 8), THREADS), THREADS},
               attention_backward_prepare_kernel<T, D, THREADS>, call.o.data<T>(), call.d_o.data<T>(),
               call.lse.data<float>(), call.delta.data<float>(), call.lse2.data<float>(), dq_sum, taken,
               index_t(call.rows), call.problem);
        // Beside the tiles two of ds, one of dq in fp32, lse2 and delta; mbarriers, and which keys are taken.
        constexpr int shared_bytes = (2 * BLOCK_N + 4 * rows) * D * 2 + 2 * rows * BLOCK_N * 2 +
                                     rows * D * 4 + 4 * rows * 4 + 8 * 8 + 8 + PERMUTED_BYTES;
        const std::int64_t blocks = std::min(call.key_blocks(), std::int64_t(multiprocessors(call.q)));
        launch(call.q, {blocks, 3 * WARPGROUP, check_shared(call, shared_bytes)},
               attention_backward_overlapped_kernel<T, D, rows>, heads_map(held[0], rows),
               heads_map(held[1], BLOCK_N), heads_map(held[2], BLOCK_N), heads_map(held[3], rows),
               call.lse2.data<float>(), call.delta.data<float>(), dq_sum, call.dk.data<T>(),
               call.dv.data<T>(), taken, int(call.batches * call.problem.Hk), call.problem);
        launch(call.q, {call.rows / rows * 2, WARPGROUP}, attention_backward_transpose_kernel<T, D, rows>,
               dq_sum, call.dq.data<T>(), call.problem);
    });
    return call.gradients();
}

#define ARGUMENTS                                                                                         \
    py::arg("q"), py::arg("k"), py::arg("v"), py::arg("o"), py::arg("lse"), py::arg("do"), py::kw_only(), \
        py::arg("causal") = false

PYBIND11_MODULE(attention_backward, m) {
    m.def("naive", &naive, ARGUMENTS);
    m.def("split", &split, ARGUMENTS);
    m.def("fused", &fused, ARGUMENTS);
    m.def("wgmma", &wgmma_level, ARGUMENTS);
    m.def("overlapped", &overlapped, ARGUMENTS);
}
