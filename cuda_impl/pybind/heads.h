// Tensor maps for TMA of x[B,S,H,D], as cuda_impl/heads_map.py makes them: its layout in memory, and the box
// of one head that a copy moves.
#pragma once

#ifndef HOST_BUILD
#include <cuda.h>
#endif

#include <stdexcept>
#include <string>

#include "readable.h"
#include "wgmma.cuh"

// x if its rows of D are contiguous, 16-byte aligned and apart, as TMA requires, else a contiguous copy.
inline Tensor for_tma(const Tensor& x) {
    bool good = x.address % 16 == 0 && x.strides[3] == 1;
    for (int i = 0; i < 3; ++i) {
        const bool apart = x.strides[i] > 0 && x.strides[i] * x.element_size % 16 == 0;
        good = good && (apart || x.shape[i] <= 1);
    }
    return good ? x : contiguous_copy(x);
}

// The map's dimensions are D % 64, S, D / 64, H and B. A copy moves a box of 64, `rows`, D / 64, 1 and 1:
// rows of one head, as D / 64 pieces with 128-byte swizzle.
inline TensorMap heads_map(const Tensor& x, int rows) {
    constexpr std::int64_t PIECE = 64;
    const Sizes& shape = x.shape;
    // The stride of a dimension of one element is never used; any multiple of 16 bytes will do.
    const auto stride = [&](int i) { return shape[i] > 1 ? x.strides[i] * 2 : PIECE * 2; };
    TensorMap map = {};
#ifdef HOST_BUILD
    const host::Box box = {x.data<char>(),
                           {PIECE, shape[1], shape[3] / PIECE, shape[2], shape[0]},
                           {stride(1), PIECE * 2, stride(2), stride(0)},
                           rows,
                           shape[3] / PIECE};
    std::memcpy(&map, &box, sizeof(box));
#else
    // The driver's function, looked up through the runtime, so that the module does not link with the driver.
    static const auto encode = [] {
        void* function = nullptr;
        cudaDriverEntryPointQueryResult found;
        check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault,
                                               &found));
        if (found != cudaDriverEntryPointSuccess) throw std::runtime_error("no cuTensorMapEncodeTiled");
        return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function);
    }();
    static_assert(sizeof(TensorMap) == sizeof(CUtensorMap));
    const auto type =
        x.element == Element::BF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
    const cuuint64_t sizes[] = {PIECE, cuuint64_t(shape[1]), cuuint64_t(shape[3] / PIECE),
                                cuuint64_t(shape[2]), cuuint64_t(shape[0])};
    const cuuint64_t strides[] = {cuuint64_t(stride(1)), PIECE * 2, cuuint64_t(stride(2)),
                                  cuuint64_t(stride(0))};
    const cuuint32_t box[] = {PIECE, cuuint32_t(rows), cuuint32_t(shape[3] / PIECE), 1, 1};
    const cuuint32_t steps[] = {1, 1, 1, 1, 1};
    const CUresult error =
        encode(reinterpret_cast<CUtensorMap*>(&map), type, 5, x.data<void>(), sizes, strides, box, steps,
               CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
               CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (error != CUDA_SUCCESS) {
        throw std::runtime_error("no tensor map of heads: error " + std::to_string(error));
    }
#endif
    return map;
}
