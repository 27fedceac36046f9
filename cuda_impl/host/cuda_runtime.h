// Replaces CUDA's runtime when g++ compiles a file that launches kernels: the same types (from CUDA's own
// headers) and the same functions. The kernel runs on the CPU before the launch returns.
#pragma once

#include <driver_types.h>

#include <cstring>
#include <string>
#include <tuple>
#include <utility>

#include "launch.h"

namespace host {
constexpr int MULTIPROCESSORS = 4;  // equals compare.device.CPU_MULTIPROCESSORS
inline thread_local std::string last_error;
}  // namespace host

template <typename... Parameters, typename... Arguments>
cudaError_t cudaLaunchKernelEx(
    const cudaLaunchConfig_t* config, void (*kernel)(Parameters...), Arguments&&... arguments) {
    const unsigned cluster = config->numAttrs > 0 ? config->attrs->val.clusterDim.x : 1;
    host::last_error = host::launch(
        kernel, config->gridDim, config->blockDim, cluster, config->dynamicSmemBytes,
        std::tuple<Parameters...>(std::forward<Arguments>(arguments)...));
    return host::last_error.empty() ? cudaSuccess : cudaErrorLaunchFailure;
}

template <typename Kernel>
cudaError_t cudaFuncSetAttribute(Kernel*, cudaFuncAttribute, int) {
    return cudaSuccess;
}

inline cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t) {
    std::memset(to, value, bytes);
    return cudaSuccess;
}

inline cudaError_t cudaGetDevice(int* device) {
    *device = 0;
    return cudaSuccess;
}
inline cudaError_t cudaSetDevice(int) {
    return cudaSuccess;
}
inline cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
    if (attribute == cudaDevAttrMultiProcessorCount) {
        *value = host::MULTIPROCESSORS;
    } else if (attribute == cudaDevAttrMaxSharedMemoryPerBlockOptin) {
        *value = host::MAX_SHARED_BYTES;
    } else {
        return cudaErrorInvalidValue;
    }
    return cudaSuccess;
}
inline const char* cudaGetErrorString(cudaError_t error) {
    return error == cudaErrorLaunchFailure ? host::last_error.c_str() : "invalid value";
}
