// What the host code of layer_norm and rms_norm shares: their arguments and launches. `Norm` is a struct of
// the op with its kernels, HAS_BIAS, and `online`, `onepass` and `cluster`, which return an instance.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <string>
#include <type_traits>

#include "tensor.h"

struct Rows {
    Tensor x, weight, bias, y;
    std::int64_t M, N;
};

inline bool is_dense_tensor(py::handle object) {
    const Torch& torch = Torch::get();
    return py::isinstance(object, torch.tensor) && get(object, torch.layout).is(torch.strided);
}

inline bool is_parameter(const Tensor& parameter, const Tensor& x) {
    return parameter.ndim == 1 && parameter.element == x.element && parameter.shape[0] == x.shape[1] &&
           parameter.device == x.device && get(parameter.object, Torch::get().is_here).ptr() == Py_True;
}

// The vector if it is contiguous and 16-byte aligned, else such a copy.
inline Tensor packed(const Tensor& parameter) {
    if (parameter.strides[0] == 1 && parameter.address % 16 == 0) return parameter;
    return Tensor(parameter.object.attr("clone")(py::arg("memory_format") = Torch::get().dense));
}

// The arguments, copied where the kernels do not take their layout, and an output. Raises compare.arguments'
// TypeError or ValueError for other arguments. `parameters`: weight, and bias if there is one; otherwise the
// weight stands in for it, unread.
inline Rows checked(const char* op, const py::object& x, std::initializer_list<Named> parameters) {
    const bool has_bias = parameters.size() == 2;
    const Named *weight = parameters.begin(), *bias = parameters.end() - 1;
    const auto is_tensor = [](const Named& named) { return is_dense_tensor(named.object); };
    if (is_dense_tensor(x) && std::all_of(parameters.begin(), parameters.end(), is_tensor)) {
        Rows rows;
        rows.x = Tensor(x), rows.weight = Tensor(py::reinterpret_borrow<py::object>(weight->object));
        const bool is_other = bias->object.ptr() != weight->object.ptr();
        rows.bias = is_other ? Tensor(py::reinterpret_borrow<py::object>(bias->object)) : rows.weight;
        const bool good = rows.x.element != Element::OTHER && rows.x.ndim == 2 &&
                          is_parameter(rows.weight, rows.x) && (!has_bias || is_parameter(rows.bias, rows.x));
        if (good) {
            rows.M = rows.x.shape[0], rows.N = rows.x.shape[1];
            if (rows.x.strides[1] != 1 && rows.N > 1) rows.x = rows.x.contiguous();
            rows.weight = packed(rows.weight);
            rows.bias = has_bias ? packed(rows.bias) : rows.weight;
            rows.y = rows.x.empty_like();
            return rows;
        }
    }
    py::dict named;
    for (const auto& [name, object] : parameters) named[name] = object;
    py::module_::import("compare.arguments").attr("check_norm")(op, x, **named);
    throw std::runtime_error(std::string(op) + ": these arguments are not taken");
}

[[noreturn]] inline void not_taken(const std::string& why) {
    PyErr_SetString(PyExc_NotImplementedError, why.c_str());
    throw py::error_already_set();
}

// Elements per access: 16 bytes' worth if all rows of x and y are 16-byte aligned, else 1.
inline int vec(const Tensor& x) {
    const int pack = 16 / x.element_size;
    return x.address % 16 == 0 && x.strides[0] % pack == 0 && x.shape[1] % pack == 0 ? pack : 1;
}

// Calls `function` with a value of x's type, and VEC as a constant.
template <typename Function>
void dispatch_vec(const Tensor& x, Function function) {
    dispatch(x, [&](auto zero) {
        constexpr int PACK = 16 / sizeof(zero);
        if (vec(x) == PACK) {
            function(zero, std::integral_constant<int, PACK>());
        } else {
            function(zero, std::integral_constant<int, 1>());
        }
    });
}

// Launches a kernel with the op's tensors, then `more`.
template <typename Norm, typename T, typename Kernel, typename... More>
void launch_rows(const Rows& rows, const LaunchShape& shape, Kernel kernel, More... more) {
    const auto *x = rows.x.data<T>(), *weight = rows.weight.data<T>(), *bias = rows.bias.data<T>();
    auto* y = rows.y.data<T>();
    if constexpr (Norm::HAS_BIAS) {
        launch(rows.x, shape, kernel, x, weight, bias, y, more...);
    } else {
        launch(rows.x, shape, kernel, x, weight, y, more...);
    }
}

// A block reads its row twice: any row length.
template <typename Norm>
py::object launch_online(const Rows& rows, float eps) {
    if (rows.y.numel() == 0) return rows.y.object;
    dispatch_vec(rows.x, [&](auto zero, auto VEC) {
        using T = decltype(zero);
        constexpr int THREADS = 1024;
        launch_rows<Norm, T>(rows, {rows.M, THREADS}, Norm::template online<T, VEC, THREADS>(), rows.N,
                             rows.x.strides[0], eps);
    });
    return rows.y.object;
}

template <typename Norm, typename T, int VEC, int PACKS, int THREADS, int BLOCK_M>
void launch_onepass_shape(const Rows& rows, float eps) {
    launch_rows<Norm, T>(rows, {ceil_div(rows.M, BLOCK_M), THREADS},
                         Norm::template onepass<T, VEC, PACKS, THREADS, BLOCK_M>(), rows.M, rows.N,
                         rows.x.strides[0], eps);
}

// The row stays in registers: up to 64 KB. The smallest PACKS and THREADS that hold it.
template <typename Norm>
py::object launch_onepass(const Rows& rows, float eps) {
    if (rows.y.numel() == 0) return rows.y.object;
    dispatch_vec(rows.x, [&](auto zero, auto VEC_) {
        using T = decltype(zero);
        constexpr int VEC = VEC_, PACKS = VEC > 1 ? 4 : 8;  // single elements need more loads in flight
        const std::int64_t packs = ceil_div(rows.N, VEC);
        if (packs <= 16) return launch_onepass_shape<Norm, T, VEC, 1, 128, 8>(rows, eps);
        if (packs <= 32) return launch_onepass_shape<Norm, T, VEC, 1, 128, 4>(rows, eps);  // one row per warp
        if (packs <= 32 * PACKS) return launch_onepass_shape<Norm, T, VEC, PACKS, 128, 4>(rows, eps);
        if (packs <= 64 * PACKS) return launch_onepass_shape<Norm, T, VEC, PACKS, 64, 1>(rows, eps);
        // Twice the threads with half the vectors need fewer registers each: 1.5 times as many are resident.
        constexpr int SHARE = VEC > 1 ? 2 : 1, FEWER = PACKS / SHARE;
        if (packs <= 128 * PACKS) return launch_onepass_shape<Norm, T, VEC, FEWER, 128 * SHARE, 1>(rows, eps);
        if (packs <= 256 * PACKS) return launch_onepass_shape<Norm, T, VEC, FEWER, 256 * SHARE, 1>(rows, eps);
        if (packs <= 512 * PACKS) return launch_onepass_shape<Norm, T, VEC, PACKS, 512, 1>(rows, eps);
        if (packs <= 1024 * PACKS) return launch_onepass_shape<Norm, T, VEC, PACKS, 1024, 1>(rows, eps);
        not_taken("N=" + std::to_string(rows.N) + ": registers hold rows of up to " +
                  std::to_string(1024 * PACKS * VEC) + " such columns");
    });
    return rows.y.object;
}

constexpr std::int64_t FEW_ROWS = 256;  // from here on, one cluster per row keeps a GPU busy

// The blocks of a cluster share rows: up to 512 KB each.
template <typename Norm>
py::object launch_cluster(Rows& rows, float eps) {
    if (rows.y.numel() == 0) return rows.y.object;
    const int pack = 16 / rows.x.element_size;
    if (rows.N % pack != 0) {
        not_taken("N=" + std::to_string(rows.N) + ": TMA copies 16 bytes, " + std::to_string(pack) +
                  " columns, at a time");
    }
    if (vec(rows.x) == 1) {
        rows.x = Tensor(rows.x.object.attr("clone")(py::arg("memory_format") = Torch::get().dense));
    }
    dispatch(rows.x, [&](auto zero) {
        using T = decltype(zero);
        constexpr int VEC = 16 / sizeof(T), PACKS = 4;
        const std::int64_t packs = rows.N / VEC;
        const auto launch_blocks = [&](auto CLUSTER, auto THREADS) {
            const std::int64_t slice_packs = ceil_div(packs, CLUSTER);
            // Several rows per cluster reuse the weights; few, so that the last clusters finish together.
            const int BLOCK_M = rows.M < FEW_ROWS ? 1 : slice_packs <= 512 ? 4 : 2;
            launch_rows<Norm, T>(
                rows,
                {ceil_div(rows.M, BLOCK_M) * CLUSTER, THREADS, int(BLOCK_M * slice_packs * 16), CLUSTER},
                Norm::template cluster<T, PACKS, THREADS, CLUSTER>(), rows.M, rows.N, rows.x.strides[0],
                int(slice_packs * VEC), BLOCK_M, eps);
        };
        const std::int64_t of_128 = ceil_div(packs, 128 * PACKS);  // blocks of 128 threads needed
        using std::integral_constant;
        if (of_128 <= 4) return launch_blocks(integral_constant<int, 4>(), integral_constant<int, 128>());
        if (of_128 <= 8) return launch_blocks(integral_constant<int, 4>(), integral_constant<int, 256>());
        if (of_128 <= 16) return launch_blocks(integral_constant<int, 8>(), integral_constant<int, 256>());
        if (of_128 <= 32) return launch_blocks(integral_constant<int, 16>(), integral_constant<int, 256>());
        if (of_128 <= 64) return launch_blocks(integral_constant<int, 16>(), integral_constant<int, 512>());
        not_taken("N=" + std::to_string(rows.N) + ": 16 blocks hold rows of " +
                  std::to_string(16 * 512 * PACKS * VEC) + " columns");
    });
    return rows.y.object;
}
