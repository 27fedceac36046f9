// cross_entropy from C++: checks and launches the kernels of kernels/cross_entropy.cuh.
#include "cross_entropy.cuh"

#include <algorithm>

#include "fresh.h"
#include "whole.h"

struct Rows {
    Tensor logits, targets, loss;
    std::int64_t M, V;
};

// The arguments, with logits' rows contiguous, and an output for the loss.
static Rows checked(const py::object& logits_object, const py::object& targets_object) {
    Rows rows;
    rows.logits = check_same("cross_entropy", 2, {{"logits", logits_object}})[0];
    const Tensor& logits = rows.logits;
    rows.M = logits.shape[0], rows.V = logits.shape[1];
    const bool good = read_whole(targets_object, Torch::get().int64, 8, rows.targets) &&
                      rows.targets.shape[0] == rows.M && rows.targets.device == logits.device;
    if (!good) {
        py::module_::import("compare.arguments")
            .attr("check_targets")("cross_entropy", logits_object, targets_object);
        throw std::runtime_error("cross_entropy: these arguments are not taken");
    }
    if (logits.strides[1] != 1 && rows.V > 1) rows.logits = logits.contiguous();
    rows.loss = new_empty_fp32(rows.logits, {rows.M});
    return rows;
}

constexpr int PACKS = 8, THREADS = 256;
constexpr int TILE_PACKS = PACKS * THREADS;  // 16-byte vectors of a block in flight: 32 KB

// A row is read once, tile by tile: any row length.
static py::object online(py::object logits_object, py::object targets_object) {
    const Rows rows = checked(logits_object, targets_object);
    if (rows.M == 0) return rows.loss.object;
    const bool warp_a_row = rows.V * rows.logits.element_size <= 16 * 1024;
    dispatch(rows.logits, [&](auto zero) {
        using T = decltype(zero);
        const auto launch_online = [&](auto ROW_THREADS, auto BLOCK_M) {
            launch(rows.logits, {ceil_div(rows.M, BLOCK_M), ROW_THREADS},
                   cross_entropy_online_kernel<T, PACKS, ROW_THREADS, BLOCK_M>, rows.logits.data<T>(),
                   rows.targets.data<index_t>(), rows.loss.data<float>(), rows.M, rows.V,
                   rows.logits.strides[0], rows.targets.strides[0]);
        };
        if (warp_a_row) {
            launch_online(std::integral_constant<int, 128>(), std::integral_constant<int, 4>());
        } else {
            launch_online(std::integral_constant<int, THREADS>(), std::integral_constant<int, 1>());
        }
    });
    return rows.loss.object;
}

// Columns of a block's slice in `split`: slices of so many tiles that every multiprocessor has 16 blocks.
static std::int64_t slice_columns(std::int64_t tiles, const Rows& rows, int TILE) {
    return std::max<std::int64_t>(1, tiles * rows.M / (16 * multiprocessors(rows.logits))) * TILE;
}

// Several blocks share a row: few rows, of any length.
static py::object split(py::object logits_object, py::object targets_object) {
    const Rows rows = checked(logits_object, targets_object);
    if (rows.M == 0) return rows.loss.object;
    const int TILE = TILE_PACKS * 16 / rows.logits.element_size;
    const std::int64_t slice = slice_columns(ceil_div(rows.V, TILE), rows, TILE);
    const std::int64_t splits = std::max<std::int64_t>(1, ceil_div(rows.V, slice));
    // Partial results, and arrival counters per row. Only the counters must be 0, but one allocation is one
    // launch.
    const Tensor workspace = rows.logits.zeros(rows.M * splits + rows.M);
    dispatch(rows.logits, [&](auto zero) {
        using T = decltype(zero);
        launch(rows.logits, {rows.M * splits, THREADS}, cross_entropy_split_kernel<T, PACKS, THREADS>,
               rows.logits.data<T>(), rows.targets.data<index_t>(), rows.loss.data<float>(), rows.V,
               rows.logits.strides[0], rows.targets.strides[0], slice, int(splits), workspace.data<word_t>(),
               workspace.data<word_t>() + rows.M * splits);
    });
    return rows.loss.object;
}

// The blocks of a cluster share a row and exchange partial results in distributed shared memory.
static py::object cluster(py::object logits_object, py::object targets_object) {
    const Rows rows = checked(logits_object, targets_object);
    if (rows.M == 0) return rows.loss.object;
    const int TILE = TILE_PACKS * 16 / rows.logits.element_size;
    const std::int64_t tiles = ceil_div(rows.V, TILE);
    dispatch(rows.logits, [&](auto zero) {
        using T = decltype(zero);
        const auto launch_cluster = [&](auto CLUSTER) {
            // Slices are whole 16-byte vectors, so that they have the row's alignment.
            const std::int64_t slice = ceil_div(ceil_div(rows.V, CLUSTER), 64) * 64;
            launch(rows.logits, {rows.M * CLUSTER, THREADS},
                   cross_entropy_cluster_kernel<T, PACKS, THREADS, CLUSTER>, rows.logits.data<T>(),
                   rows.targets.data<index_t>(), rows.loss.data<float>(), rows.V, rows.logits.strides[0],
                   rows.targets.strides[0], slice);
        };
        if (tiles <= 2 * 2) return launch_cluster(std::integral_constant<int, 2>());  // two tiles per block
        if (tiles <= 4 * 2) return launch_cluster(std::integral_constant<int, 4>());
        return launch_cluster(std::integral_constant<int, 8>());  // or more
    });
    return rows.loss.object;
}

PYBIND11_MODULE(cross_entropy, m) {
    m.def("online", &online);
    m.def("split", &split);
    m.def("cluster", &cluster);
}
