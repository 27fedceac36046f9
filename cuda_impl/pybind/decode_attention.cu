// decode_attention from C++: checks and launches the kernels of kernels/decode_attention.cuh.
#include "decode_attention.cuh"

#include <algorithm>
#include <cmath>
#include <string>
#include <type_traits>

#include "fresh.h"
#include "product.h"
#include "readable.h"

struct Decoding {
    Tensor q, k, v, table, lengths, o;
    std::int64_t B, Hk, G, groups, pages;
    std::int64_t units() const { return B * Hk * groups; }
};

// Reads `object` into `x` if it is a strided tensor of int32 of `ndim` dimensions on this module's device.
static bool read_int32(const py::object& object, int ndim, Tensor& x) {
    const Torch& torch = Torch::get();
    static const py::object& int32 = *new py::object(torch.torch.attr("int32"));
    if (!py::isinstance(object, torch.tensor) || !get(object, torch.layout).is(torch.strided) ||
        !get(object, torch.dtype).is(int32)) {
        return false;
    }
    x.object = object;
    x.element_size = 4;
    x.address = call(object, torch.data_ptr).cast<std::uintptr_t>();
    x.device = call(object, torch.get_device).cast<int>();
    x.ndim = read(get(object, torch.shape), x.shape);
    read(call(object, torch.stride), x.strides);
    return x.ndim == ndim && get(object, torch.is_here).ptr() == Py_True;
}

#ifdef HOST_BUILD
// Whether lengths fit and name pages that exist. Not on a GPU: a launch does not wait for values.
static bool inside(const Decoding& d) {
    const std::int64_t PAGE = d.k.shape[1];
    for (std::int64_t b = 0; b < d.B; ++b) {
        const int length = d.lengths.data<int>()[b * d.lengths.strides[0]];
        if (length < 0 || length > d.pages * PAGE) return false;
        for (std::int64_t i = 0; i < ceil_div(length, PAGE); ++i) {
            const int page = d.table.data<int>()[b * d.table.strides[0] + i * d.table.strides[1]];
            if (page < 0 || page >= d.k.shape[0]) return false;
        }
    }
    return true;
}
#else
static bool inside(const Decoding&) {
    return true;
}
#endif

// The arguments and an uninitialised output. Raises compare.arguments' TypeError or ValueError for others.
static Decoding checked(const py::object& q, const py::object& k, const py::object& v,
                        const py::object& table, const py::object& lengths) {
    Decoding d;
    d.q = check_same("decode_attention", 4, {{"q", q}})[0];
    const auto pages = check_same("decode_attention", 4, {{"k_pages", k}, {"v_pages", v}});
    d.k = pages[0], d.v = pages[1];
    const Sizes &of_q = d.q.shape, &of_k = d.k.shape;
    d.B = of_q[0], d.Hk = of_k[2];
    bool good = read_int32(table, 2, d.table) && read_int32(lengths, 1, d.lengths);
    d.pages = d.table.shape[1];
    good = good && d.k.element == d.q.element && of_q[1] == 1 && (of_q[3] == 64 || of_q[3] == 128) &&
           (of_k[1] == 16 || of_k[1] == 64) && of_k[3] == of_q[3] &&
           (d.Hk == 0 ? of_q[2] == 0 : of_q[2] % d.Hk == 0) && d.table.shape[0] == d.B &&
           d.lengths.shape[0] == d.B && d.k.device == d.q.device && d.table.device == d.q.device &&
           d.lengths.device == d.q.device && get(k, Torch::get().is_here).ptr() == Py_True && inside(d);
    if (!good) {
        py::module_::import("compare.arguments")
            .attr("check_pages")("decode_attention", q, k, v, table, lengths);
        throw std::runtime_error("decode_attention: these arguments are not taken");
    }
    d.table = d.table.contiguous(), d.lengths = d.lengths.contiguous();
    d.G = d.Hk == 0 ? 0 : of_q[2] / d.Hk, d.groups = ceil_div(d.G, HEADS);
    d.o = d.q.empty_like();
    return d;
}

static void make_readable(Decoding& d, int alignment) {
    for (Tensor* x : {&d.q, &d.k, &d.v}) *x = readable(*x, alignment);
}

// Launches a kernel on the inputs, `outputs` and `sizes`, then page sizes, the scale and strides.
template <typename T, typename Kernel, typename Outputs, typename... Sizes>
static void launch_on(const Decoding& d, const LaunchShape& shape, Kernel kernel, Outputs outputs,
                      Sizes... sizes) {
    const ::Sizes &q = d.q.strides, &k = d.k.strides, &v = d.v.strides;
    const float scale_log2 = float(std::log2(std::exp(1.0)) / std::sqrt(double(d.q.shape[3])));
    std::apply(
        [&](auto... output) {
            launch(d.q, shape, kernel, d.q.data<T>(), d.k.data<T>(), d.v.data<T>(), d.table.data<int>(),
                   d.lengths.data<int>(), output..., int(sizes)..., int(d.pages), int(d.k.shape[1]),
                   scale_log2, q[0], q[2], k[0], k[1], k[2], v[0], v[1], v[2]);
        },
        outputs);
}

// A block per query head.
static py::object naive(py::object q, py::object k, py::object v, py::object table, py::object lengths) {
    Decoding d = checked(q, k, v, table, lengths);
    if (d.o.numel() == 0) return d.o.object;
    make_readable(d, 1);
    dispatch_heads(d.q, [&](auto zero, auto D) {
        using T = decltype(zero);
        launch_on<T>(d, {d.B * d.q.shape[2], THREADS}, decode_attention_naive_kernel<T, D>,
                     std::make_tuple(d.o.data<T>()), d.q.shape[2], d.G);
    });
    return d.o.object;
}

// A tile of keys and values for each warp and stage.
constexpr int bytes_of_tiles(int D, int STAGES) {
    return WARPS * STAGES * 2 * TOKENS * D * 2;
}

// Calls `function` with a value of the 16-bit element type and D as a constant, if there is any output.
template <typename Function>
static py::object with_tensor_cores(Decoding d, Function function) {
    check_tensor_cores(d.q);
    if (d.o.numel() == 0) return d.o.object;
    make_readable(d, 8);
    dispatch_heads(d.q, [&](auto zero, auto D) {
        if constexpr (sizeof(zero) == 2) function(d, zero, D);
    });
    return d.o.object;
}

// A block per key head: its query heads are the rows of one tile.
static py::object grouped(py::object q, py::object k, py::object v, py::object table, py::object lengths) {
    return with_tensor_cores(checked(q, k, v, table, lengths), [](const Decoding& d, auto zero, auto D) {
        using T = decltype(zero);
        launch_on<T>(d, {d.units(), THREADS, bytes_of_tiles(D, 1)}, decode_attention_grouped_kernel<T, D>,
                     std::make_tuple(d.o.data<T>()), d.Hk, d.G, d.groups);
    });
}

// How many blocks share a unit's tiles, where `resident` blocks run at once: the fewest with which the last
// wave is nearly full. Of several sequences, each has its own length: four waves, of 16 tiles or more each,
// balance them. Chosen from shapes alone: lengths are on the GPU, and the launch does not wait for them.
static std::int64_t splits_of(std::int64_t units, std::int64_t tiles, std::int64_t resident,
                              std::int64_t sequences) {
    const auto efficiency = [&](std::int64_t splits) {
        return double(units * splits) / double(ceil_div(units * splits, resident) * resident);
    };
    const std::int64_t balanced = sequences > 1 ? std::min(ceil_div(4 * resident, units), tiles / 16) : 1;
    const std::int64_t least = std::max<std::int64_t>(1, balanced);
    const std::int64_t most = std::max(least, std::min(tiles, 4 * ceil_div(resident, units)));
    double best = 0;
    for (std::int64_t splits = least; splits <= most; ++splits) best = std::max(best, efficiency(splits));
    std::int64_t splits = least;
    while (efficiency(splits) < 0.95 * best) ++splits;
    return splits;
}

// Launches a kernel, and the one that combines its parts.
template <typename T, int D, typename Kernel>
static void split_and_combine(const Decoding& d, Kernel kernel, int STAGES) {
    const std::int64_t Hq = d.q.shape[2], tiles = ceil_div(d.pages * d.k.shape[1], BLOCK_N);
    const std::int64_t splits = splits_of(d.units(), tiles, BLOCKS<D> * multiprocessors(d.q), d.B);
    // o_part[B,Hq,splits,D] and lse_part[B,Hq,splits] in one allocation.
    const std::int64_t rows = d.B * Hq * splits;
    const Tensor workspace = new_empty_fp32(d.q, {rows * (D + 1)});
    float *o_part = workspace.data<float>(), *lse_part = o_part + rows * D;
    launch_on<T>(d, {d.units() * splits, THREADS, bytes_of_tiles(D, STAGES)}, kernel,
                 std::make_tuple(o_part, lse_part), splits, d.Hk, d.G, d.groups);
    launch(d.q, {d.B * Hq, D}, decode_attention_combine_kernel<T, D>, o_part, lse_part, d.o.data<T>(),
           int(splits));
}

// Several blocks share a key head's tokens; a second kernel combines their results.
static py::object split(py::object q, py::object k, py::object v, py::object table, py::object lengths) {
    return with_tensor_cores(checked(q, k, v, table, lengths), [](const Decoding& d, auto zero, auto D) {
        using T = decltype(zero);
        split_and_combine<T, D>(d, decode_attention_split_kernel<T, D>, 1);
    });
}

// As split, and each warp keeps the next STAGES - 1 tiles in flight.
static py::object pipelined(py::object q, py::object k, py::object v, py::object table, py::object lengths) {
    return with_tensor_cores(checked(q, k, v, table, lengths), [](const Decoding& d, auto zero, auto D) {
        using T = decltype(zero);
        constexpr int STAGES = 2;
        split_and_combine<T, D>(d, decode_attention_pipelined_kernel<T, D, STAGES>, STAGES);
    });
}

PYBIND11_MODULE(decode_attention, m) {
    m.def("naive", &naive);
    m.def("grouped", &grouped);
    m.def("split", &split);
    m.def("pipelined", &pipelined);
}
