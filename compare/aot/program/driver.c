// The CUDA driver, opened when it is first called: the program builds where there is none, and says what is
// missing where it is run without one.  Every function below only passes its arguments on.
#include "driver.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

static void* find(const char* name) {
    static void* library;
    if (!library) library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library) {
        fprintf(stderr, "no libcuda.so.1: running needs a machine with an NVIDIA GPU and its driver\n");
        exit(3);
    }
    void* found = dlsym(library, name);
    if (!found) {
        fprintf(stderr, "libcuda.so.1 has no %s: the driver is too old for this program\n", name);
        exit(3);
    }
    return found;
}

#define TEXT_OF(name) #name
#define TEXT(name) TEXT_OF(name)  // cuda.h has macros for some: cuMemAlloc stands for cuMemAlloc_v2
#define PASS_ON(name, parameters, arguments)            \
    CUresult CUDAAPI name parameters {                  \
        static CUresult(CUDAAPI * real) parameters;     \
        if (!real) *(void**)(&real) = find(TEXT(name)); \
        return real arguments;                          \
    }

PASS_ON(cuInit, (unsigned flags), (flags))
PASS_ON(cuGetErrorString, (CUresult error, const char** text), (error, text))
PASS_ON(cuDeviceGet, (CUdevice * device, int ordinal), (device, ordinal))
PASS_ON(cuDevicePrimaryCtxRetain, (CUcontext * context, CUdevice device), (context, device))
PASS_ON(cuCtxSetCurrent, (CUcontext context), (context))
PASS_ON(cuModuleLoadData, (CUmodule * module, const void* image), (module, image))
PASS_ON(
    cuModuleGetFunction, (CUfunction * function, CUmodule module, const char* name), (function, module, name))
PASS_ON(
    cuFuncSetAttribute, (CUfunction function, CUfunction_attribute attribute, int value),
    (function, attribute, value))
PASS_ON(cuMemAlloc, (CUdeviceptr * address, size_t bytes), (address, bytes))
PASS_ON(cuMemsetD16, (CUdeviceptr address, unsigned short value, size_t count), (address, value, count))
PASS_ON(cuMemcpyHtoD, (CUdeviceptr to, const void* from, size_t bytes), (to, from, bytes))
PASS_ON(cuMemcpyDtoH, (void* to, CUdeviceptr from, size_t bytes), (to, from, bytes))
PASS_ON(cuStreamCreate, (CUstream * stream, unsigned flags), (stream, flags))
PASS_ON(cuStreamSynchronize, (CUstream stream), (stream))
PASS_ON(cuStreamBeginCapture, (CUstream stream, CUstreamCaptureMode mode), (stream, mode))
PASS_ON(cuStreamEndCapture, (CUstream stream, CUgraph* graph), (stream, graph))
PASS_ON(
    cuGraphInstantiateWithFlags, (CUgraphExec * executable, CUgraph graph, unsigned long long flags),
    (executable, graph, flags))
PASS_ON(cuGraphLaunch, (CUgraphExec executable, CUstream stream), (executable, stream))
PASS_ON(
    cuLaunchKernel,
    (CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
     unsigned block_y, unsigned block_z, unsigned shared_bytes, CUstream stream, void** arguments,
     void** extra),
    (function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, stream, arguments, extra))

void check(CUresult result, const char* call) {
    if (result == CUDA_SUCCESS) return;
    const char* text = "unknown error";
    cuGetErrorString(result, &text);
    fprintf(stderr, "%s: %s\n", call, text);
    exit(1);
}
