// quantize_fp8 from C++: checks and launches the kernels of kernels/quantize_fp8.cuh.
#include "quantize_fp8.cuh"

#include <algorithm>
#include <string>

#include "fresh.h"
#include "quantized.h"

struct Groups {
    Tensor x, values, scales;
    std::int64_t count, columns, of_row;  // groups in all, columns of a group, groups of a row
};

[[noreturn]] static void not_taken(const std::string& why) {
    PyErr_SetString(PyExc_NotImplementedError, why.c_str());
    throw py::error_already_set();
}

// The arguments, copied where rows are not contiguous, and uninitialised outputs.
static Groups checked(const py::object& x_object, const py::object& group_object) {
    Groups g;
    g.x = check_same("quantize_fp8", 2, {{"x", x_object}})[0];
    if (!PyLong_CheckExact(group_object.ptr()) || group_object.cast<std::int64_t>() < 0) {
        py::module_::import("compare.arguments").attr("check_groups")("quantize_fp8", x_object, group_object);
    }
    const std::int64_t M = g.x.shape[0], K = g.x.shape[1], group = group_object.cast<std::int64_t>();
    if (g.x.strides[1] != 1 && K > 1) g.x = g.x.contiguous();
    g.columns = std::min(group == 0 ? K : group, K);
    g.of_row = group == 0 ? 1 : ceil_div(K, std::max<std::int64_t>(g.columns, 1));
    g.count = M * g.of_row;
    if (g.count >= std::int64_t(1) << 31) {
        not_taken(std::to_string(g.count) + " groups: they are counted in 32 bits");
    }
    g.values = empty_like_e4m3(g.x);
    g.scales = group == 0 ? new_empty_fp32(g.x, {M}) : new_empty_fp32(g.x, {M, g.of_row});
    return g;
}

static void check_columns(const Groups& g, std::int64_t most) {
    if (g.columns <= most) return;
    not_taken("groups of " + std::to_string(g.columns) + " columns: registers hold up to " +
              std::to_string(most));
}

template <typename Kernel>
static void launch_groups(const Groups& g, int THREADS, int BLOCK_M, Kernel kernel) {
    dispatch(g.x, [&](auto zero) {
        using T = decltype(zero);
        launch(g.x, {ceil_div(g.count, BLOCK_M), THREADS}, kernel(zero), g.x.data<T>(),
               g.values.data<unsigned char>(), g.scales.data<float>(), unsigned(g.count), g.x.shape[1],
               g.x.strides[0], int(g.columns), unsigned(g.of_row));
    });
}

template <int PACKS, int THREADS, int BLOCK_M>
static void launch_onepass(const Groups& g) {
    launch_groups(g, THREADS, BLOCK_M, [](auto zero) {
        return quantize_fp8_onepass_kernel<decltype(zero), PACKS, THREADS, BLOCK_M>;
    });
}

template <int PACKS, int THREADS, int BLOCK_M>
static void launch_vectorized(const Groups& g) {
    launch_groups(g, THREADS, BLOCK_M, [](auto zero) {
        return quantize_fp8_vectorized_kernel<decltype(zero), PACKS, THREADS, BLOCK_M>;
    });
}

static py::object onepass_groups(const Groups& g) {
    check_columns(g, 32768);
    if (g.count == 0) return py::make_tuple(g.values.object, g.scales.object);
    if (g.columns <= 256) {
        launch_onepass<8, 128, 4>(g);  // one group per warp
    } else if (g.columns <= 2048) {
        launch_onepass<8, 256, 1>(g);
    } else if (g.columns <= 8192) {
        launch_onepass<8, 1024, 1>(g);
    } else {
        launch_onepass<32, 1024, 1>(g);
    }
    return py::make_tuple(g.values.object, g.scales.object);
}

// A group stays in registers: up to 32768 columns.
static py::object onepass(py::object x, py::object group) {
    return onepass_groups(checked(x, group));
}

// Groups of whole 16-byte vectors, up to 64 KB; others as onepass.
static py::object vectorized(py::object x, py::object group) {
    const Groups g = checked(x, group);
    const int VEC = 16 / g.x.element_size;
    const bool whole = g.columns % VEC == 0 && g.x.shape[1] % VEC == 0 && g.x.strides[0] % VEC == 0;
    if (!whole || g.x.address % 16 != 0) return onepass_groups(g);
    check_columns(g, (1 << 16) / g.x.element_size);
    const std::int64_t packs = g.columns / VEC;
    if (g.count == 0) return py::make_tuple(g.values.object, g.scales.object);
    if (packs <= 16) {
        launch_vectorized<2, 128, 16>(g);
    } else if (packs <= 32) {
        launch_vectorized<1, 128, 4>(g);  // one group per warp
    } else if (packs <= 128) {
        launch_vectorized<4, 128, 4>(g);
    } else if (packs <= 512) {
        launch_vectorized<4, 128, 1>(g);
    } else if (packs <= 1024) {
        launch_vectorized<4, 256, 1>(g);
    } else if (packs <= 2048) {
        launch_vectorized<4, 512, 1>(g);
    } else {
        launch_vectorized<4, 1024, 1>(g);
    }
    return py::make_tuple(g.values.object, g.scales.object);
}

PYBIND11_MODULE(quantize_fp8, m) {
    const py::arg x("x"), group("group");
    const py::kw_only only;
    m.def("onepass", &onepass, x, only, group);
    m.def("vectorized", &vectorized, x, only, group);
}
