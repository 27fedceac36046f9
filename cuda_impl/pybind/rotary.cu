// rotary from C++: checks and launches the kernels of kernels/rotary.cuh.
#include "rotary.cuh"

#include <algorithm>

#include "fresh.h"

struct Rotary {
    Tensor q, k, cos, sin, out;
    std::int64_t S, H, heads, half;
};

// The inputs, copied if heads or rows are not contiguous, and an uninitialised output.
static Rotary checked(const py::object& q, const py::object& k, const py::object& cos,
                      const py::object& sin) {
    Rotary r;
    r.q = check_same("rotary", 4, {{"q", q}})[0];
    r.k = check_same("rotary", 4, {{"k", k}})[0];
    const auto table = check_same("rotary", 2, {{"cos", cos}, {"sin", sin}});
    r.cos = table[0], r.sin = table[1];
    const Sizes &of_q = r.q.shape, &of_k = r.k.shape;
    const py::str& is_here = Torch::get().is_here;
    const bool good = of_q[3] % 2 == 0 && of_k[0] == of_q[0] && of_k[1] == of_q[1] && of_k[3] == of_q[3] &&
                      r.cos.shape[0] == of_q[1] && r.cos.shape[1] == of_q[3] / 2 &&
                      r.k.element == r.q.element && r.cos.element == r.q.element &&
                      r.k.device == r.q.device && r.cos.device == r.q.device &&
                      get(k, is_here).ptr() == Py_True && get(cos, is_here).ptr() == Py_True;
    if (!good) {
        py::module_::import("compare.arguments").attr("check_heads")("rotary", q, k, cos, sin);
        throw std::runtime_error("rotary: these arguments are not taken");
    }
    for (Tensor* x : {&r.q, &r.k, &r.cos, &r.sin}) {
        if (x->strides[x->ndim - 1] != 1 && x->shape[x->ndim - 1] > 1) *x = x->contiguous();
    }
    r.S = of_q[1], r.H = of_q[2], r.heads = of_q[2] + of_k[2], r.half = of_q[3] / 2;
    r.out = new_empty(r.q, {of_q[0], r.S, r.heads, of_q[3]});
    return r;
}

// Launches a kernel on the inputs: `count` tokens or pairs, then the other arguments.
template <typename T, typename Kernel, typename... More>
static void launch_on(const Rotary& r, const LaunchShape& shape, Kernel kernel, std::int64_t count,
                      More... more) {
    const Sizes &q = r.q.strides, &k = r.k.strides;
    launch(r.q, shape, kernel, r.q.data<T>(), r.k.data<T>(), r.cos.data<T>(), r.sin.data<T>(),
           r.out.data<T>(), count, r.S, r.H, r.heads, r.half, q[0], q[1], q[2], k[0], k[1], k[2],
           r.cos.strides[0], r.sin.strides[0], more...);
}

// A thread rotates one pair of elements.
static py::object pairs(py::object q, py::object k, py::object cos, py::object sin) {
    const Rotary r = checked(q, k, cos, sin);
    const std::int64_t count = r.out.numel() / 2;
    if (count == 0) return r.out.object;
    constexpr int THREADS = 256;
    dispatch(r.q, [&](auto zero) {
        using T = decltype(zero);
        launch_on<T>(r, {ceil_div(count, THREADS), THREADS}, rotary_pairs_kernel<T>, count);
    });
    return r.out.object;
}

// Elements per access: 16 bytes' worth if every half of a head is 16-byte aligned, else 1.
static int vec(const Rotary& r) {
    const int pack = 16 / r.q.element_size;
    bool aligned = r.half % pack == 0;
    for (const Tensor* x : {&r.q, &r.k, &r.cos, &r.sin}) {
        aligned = aligned && x->address % 16 == 0;
        for (int i = 0; i + 1 < x->ndim; ++i) aligned = aligned && x->strides[i] % pack == 0;
    }
    return aligned ? pack : 1;
}

// Threads share the heads of a token and reuse its cosines and sines for all of them.
static py::object token(py::object q, py::object k, py::object cos, py::object sin) {
    const Rotary r = checked(q, k, cos, sin);
    if (r.out.numel() == 0) return r.out.object;
    constexpr int HEADS = 4, THREADS = 128;
    const std::int64_t tokens = r.out.shape[0] * r.S;
    const int VEC = vec(r);
    const std::int64_t packs = ceil_div(r.half, VEC);
    const int lanes = int(std::min<std::int64_t>(packs, THREADS)), pieces = int(ceil_div(packs, lanes));
    // Heads processed concurrently: so many that a thread has HEADS query heads, or key heads if these are
    // more.
    const std::int64_t most_heads = std::max(r.H, r.heads - r.H);
    const int groups = int(std::min<std::int64_t>(ceil_div(most_heads, HEADS), THREADS / lanes));
    const int token_threads = lanes * groups, block_tokens = THREADS / token_threads;
    const LaunchShape shape = {ceil_div(tokens, block_tokens) * pieces, THREADS};
    dispatch(r.q, [&](auto zero) {
        using T = decltype(zero);
        constexpr int PACK = 16 / sizeof(T);
        const auto kernel =
            VEC == PACK ? rotary_token_kernel<T, PACK, HEADS> : rotary_token_kernel<T, 1, HEADS>;
        launch_on<T>(r, shape, kernel, tokens, lanes, pieces, token_threads, block_tokens);
    });
    return r.out.object;
}

PYBIND11_MODULE(rotary, m) {
    m.def("pairs", &pairs);
    m.def("token", &token);
}
