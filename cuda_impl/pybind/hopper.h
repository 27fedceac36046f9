// What Hopper launches need beyond tensor.h: tensor maps for TMA, which describe a matrix's layout in memory
// and the box that a copy moves (as cuda_impl/tensor_map.py makes them), and programmatic dependent launch.
#pragma once

#ifndef HOST_BUILD
#include <cuda.h>
#endif

#include <stdexcept>
#include <string>

#include "tensor.h"
#include "wgmma.cuh"

// The tensor map of a matrix of 16-bit elements whose rows (or columns) are contiguous, 16-byte aligned and
// ld elements apart. A copy moves `box_lines` of them, 64 elements of each.
inline TensorMap tensor_map(const Tensor& x, bool by_rows, std::int64_t ld, int box_lines) {
    TensorMap map = {};
#ifndef HOST_BUILD
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
    const std::int64_t lines = x.shape[by_rows ? 0 : 1], length = x.shape[by_rows ? 1 : 0];
    const cuuint64_t sizes[] = {cuuint64_t(length), cuuint64_t(lines)}, pitch[] = {cuuint64_t(ld * 2)};
    const cuuint32_t box[] = {64, cuuint32_t(box_lines)}, steps[] = {1, 1};
    const CUresult error = encode(reinterpret_cast<CUtensorMap*>(&map), type, 2, x.data<void>(), sizes, pitch,
                                  box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                  CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (error != CUDA_SUCCESS) {
        throw std::runtime_error("no tensor map for " + std::to_string(lines) + " lines of " +
                                 std::to_string(length) + ", " + std::to_string(ld * 2) +
                                 " bytes apart: error " + std::to_string(error));
    }
#endif
    return map;
}

// As `launch`, with programmatic dependent launch: the kernel may start while the previous one on the stream
// still runs, and itself waits for that one's output.
template <typename... Parameters, typename... Arguments>
void launch_overlapping(const Tensor& on, const LaunchShape& shape, void (*kernel)(Parameters...),
                        Arguments... arguments) {
#ifdef HOST_BUILD
    launch(on, shape, kernel, arguments...);
#else
    int current = on.device;
    check(cudaGetDevice(&current));
    if (current != on.device) check(cudaSetDevice(on.device));
    static std::map<std::pair<int, void (*)(Parameters...)>, int> allowed;
    int& allowed_here = allowed[{on.device, kernel}];
    if (allowed_here < shape.shared_bytes) {
        check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shape.shared_bytes));
        allowed_here = shape.shared_bytes;
    }
    cudaLaunchAttribute overlap = {};
    overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    overlap.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(unsigned(shape.blocks));
    config.blockDim = dim3(unsigned(shape.threads));
    config.dynamicSmemBytes = std::size_t(shape.shared_bytes);
    config.stream = current_stream(on.device);
    config.attrs = &overlap;
    config.numAttrs = 1;
    const cudaError_t error = cudaLaunchKernelEx(&config, kernel, arguments...);
    if (current != on.device) check(cudaSetDevice(current));
    check(error);
#endif
}
