// Tensor maps for TMA of a row-major matrix of 8-bit or 16-bit elements, as cuda_impl/matrix_map.py makes
// them: its layout in memory, and the box that a copy moves.
#pragma once

#ifndef HOST_BUILD
#include <cuda.h>
#endif

#include <stdexcept>
#include <string>

#include "aligned_rows.h"
#include "wgmma.cuh"

// A copy moves a box of 128 bytes of `box_rows` rows, with 128-byte swizzle.
inline TensorMap matrix_map(const Tensor& x, int box_rows) {
    TensorMap map = {};
    const std::int64_t rows = x.shape[0], columns = x.shape[1], pitch_bytes = x.strides[0] * x.element_size;
#ifdef HOST_BUILD
    const host::Matrix matrix = {x.data<char>(), x.element_size, columns, rows, pitch_bytes, box_rows};
    std::memcpy(&map, &matrix, sizeof(matrix));
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
    const auto type = x.element_size == 1 ? CU_TENSOR_MAP_DATA_TYPE_UINT8 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    const cuuint64_t sizes[] = {cuuint64_t(columns), cuuint64_t(rows)}, pitch[] = {cuuint64_t(pitch_bytes)};
    const cuuint32_t box[] = {cuuint32_t(128 / x.element_size), cuuint32_t(box_rows)}, steps[] = {1, 1};
    const CUresult error = encode(reinterpret_cast<CUtensorMap*>(&map), type, 2, x.data<void>(), sizes, pitch,
                                  box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                  CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (error != CUDA_SUCCESS) {
        throw std::runtime_error("no tensor map of " + std::to_string(rows) + " rows of " +
                                 std::to_string(columns) + ", " + std::to_string(pitch_bytes) +
                                 " bytes apart: error " + std::to_string(error));
    }
#endif
    return map;
}
