// A CUDA driver without a GPU, for programs that open libcuda.so.1: device memory is the host's, and a launch
// runs the kernel's host build, or plays an output back.  The environment says which:
//
// - FAKE_CUDA_ARGUMENTS: a word for each of the kernel's arguments: P (an address), i4, i8, f4 ... (by value)
//
// - FAKE_CUDA_KERNEL: a shared object with host_launch (cuda_impl/host/launch.h), launched in clusters of
//   FAKE_CUDA_CLUSTER blocks
//
// - FAKE_CUDA_OUTPUT: FILE:ARGUMENT, the file's bytes are copied to where that argument points
//
// - FAKE_CUDA_LOG: a file to which a line is added for each launch
//
// - FAKE_CUDA_ONCE: only the first launch of a process does any work, as host builds take long
//
// - FAKE_CUDA_FAILS: the name of a function that fails
#include <cuda.h>
#include <dlfcn.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_ARGUMENTS = 32 };

typedef struct {
    const void* bytes;
    size_t size;
    char kind;
} Argument;

typedef int (*HostLaunch)(
    const unsigned*, const unsigned*, unsigned, size_t, const Argument*, size_t, char*, size_t);

static char kernel_name[512];
static int capturing;

static int kept;  // stands for whatever a handle stands for
// What a graph launches: grid, block and shared memory, and the values of the arguments.
static unsigned kept_sizes[7];
static int64_t kept_values[MOST_ARGUMENTS];

static CUresult result_of(const char* name) {
    const char* fails = getenv("FAKE_CUDA_FAILS");
    return fails && strcmp(fails, name) == 0 ? CUDA_ERROR_NO_BINARY_FOR_GPU : CUDA_SUCCESS;
}

CUresult cuInit(unsigned flags) {
    return flags ? CUDA_ERROR_INVALID_VALUE : result_of("cuInit");
}
CUresult cuGetErrorString(CUresult error, const char** text) {
    *text = error == CUDA_SUCCESS ? "no error" : "no kernel image is available for execution on the device";
    return CUDA_SUCCESS;
}
CUresult cuDeviceGet(CUdevice* device, int ordinal) {
    *device = ordinal;
    return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
    (void)device;
    *context = (CUcontext)&kept;
    return CUDA_SUCCESS;
}
CUresult cuCtxSetCurrent(CUcontext context) {
    return context ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}
CUresult cuModuleLoadData(CUmodule* module, const void* image) {
    // A fat binary begins with its magic number, a cubin as every ELF file does.
    const uint32_t magic = *(const uint32_t*)image;
    if (magic != 0xba55ed50u && memcmp(image, "\177ELF", 4) != 0) return CUDA_ERROR_INVALID_IMAGE;
    *module = (CUmodule)image;
    return result_of("cuModuleLoadData");
}
CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
    (void)module;
    snprintf(kernel_name, sizeof kernel_name, "%s", name);
    *function = (CUfunction)kernel_name;
    return CUDA_SUCCESS;
}
CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) {
    (void)attribute, (void)value;
    return function ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}
CUresult cuMemAlloc(CUdeviceptr* address, size_t bytes) {
    *address = (CUdeviceptr)aligned_alloc(256, (bytes + 255) / 256 * 256);
    return *address ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
CUresult cuMemsetD16(CUdeviceptr address, unsigned short value, size_t count) {
    for (size_t i = 0; i < count; ++i) ((unsigned short*)address)[i] = value;
    return CUDA_SUCCESS;
}
CUresult cuMemcpyHtoD(CUdeviceptr to, const void* from, size_t bytes) {
    memcpy((void*)to, from, bytes);
    return CUDA_SUCCESS;
}
CUresult cuMemcpyDtoH(void* to, CUdeviceptr from, size_t bytes) {
    memcpy(to, (const void*)from, bytes);
    return CUDA_SUCCESS;
}
CUresult cuStreamCreate(CUstream* stream, unsigned flags) {
    (void)flags;
    *stream = (CUstream)&kept;
    return CUDA_SUCCESS;
}
CUresult cuStreamSynchronize(CUstream stream) {
    (void)stream;
    return CUDA_SUCCESS;
}
CUresult cuStreamBeginCapture(CUstream stream, CUstreamCaptureMode mode) {
    (void)mode;
    capturing = stream != NULL;
    return CUDA_SUCCESS;
}
CUresult cuStreamEndCapture(CUstream stream, CUgraph* graph) {
    (void)stream;
    capturing = 0;
    *graph = (CUgraph)&kept;
    return CUDA_SUCCESS;
}
CUresult cuGraphInstantiateWithFlags(CUgraphExec* executable, CUgraph graph, unsigned long long flags) {
    (void)flags;
    *executable = (CUgraphExec)graph;
    return CUDA_SUCCESS;
}

static int64_t value_of(const char* kind, const void* argument) {
    int64_t value = 0;
    memcpy(&value, argument, kind[0] == 'P' ? 8 : (size_t)(kind[1] - '0'));
    if (strcmp(kind, "i4") == 0) value = (int32_t)value;
    return value;
}

static CUresult run(const unsigned* sizes, const int64_t* values) {
    char words[256];
    Argument given[MOST_ARGUMENTS];
    const char* kinds[MOST_ARGUMENTS];
    size_t count = 0;
    snprintf(words, sizeof words, "%s", getenv("FAKE_CUDA_ARGUMENTS"));
    for (char* word = strtok(words, " "); word; word = strtok(NULL, " ")) {
        kinds[count] = word;
        given[count].bytes = &values[count];
        given[count].size = word[0] == 'P' ? 8 : (size_t)(word[1] - '0');
        given[count].kind = word[0];
        ++count;
    }
    const char* log_name = getenv("FAKE_CUDA_LOG");
    if (log_name) {
        FILE* log = fopen(log_name, "a");
        fprintf(log, "%s", kernel_name);
        for (int i = 0; i < 7; ++i) fprintf(log, " %u", sizes[i]);
        for (size_t i = 0; i < count; ++i) {
            if (kinds[i][0] != 'P') fprintf(log, " %" PRId64, values[i]);
        }
        fprintf(log, "\n");
        fclose(log);
    }
    static int launches;
    if (launches++ > 0 && getenv("FAKE_CUDA_ONCE")) return CUDA_SUCCESS;
    const char* object = getenv("FAKE_CUDA_KERNEL");
    if (object) {
        char error[512] = "";
        void* library = dlopen(object, RTLD_NOW);
        HostLaunch host_launch = NULL;
        if (library) *(void**)(&host_launch) = dlsym(library, "host_launch");
        if (!host_launch) return CUDA_ERROR_NOT_FOUND;
        if (host_launch(
                sizes, sizes + 3, (unsigned)atoi(getenv("FAKE_CUDA_CLUSTER")), sizes[6], given, count, error,
                sizeof error)) {
            fprintf(stderr, "%s\n", error);
            return CUDA_ERROR_LAUNCH_FAILED;
        }
    }
    const char* output = getenv("FAKE_CUDA_OUTPUT");
    if (output) {
        char name[1024];
        snprintf(name, sizeof name, "%s", output);
        char* colon = strrchr(name, ':');
        *colon = 0;
        unsigned char* to = (unsigned char*)values[atoi(colon + 1)];
        FILE* file = fopen(name, "rb");
        if (!file) return CUDA_ERROR_FILE_NOT_FOUND;
        for (int byte; (byte = fgetc(file)) != EOF; ++to) *to = (unsigned char)byte;
        fclose(file);
    }
    return CUDA_SUCCESS;
}

CUresult cuGraphLaunch(CUgraphExec executable, CUstream stream) {
    (void)executable, (void)stream;
    return run(kept_sizes, kept_values);
}
CUresult cuLaunchKernel(
    CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
    unsigned block_y, unsigned block_z, unsigned shared_bytes, CUstream stream, void** arguments,
    void** extra) {
    (void)function, (void)stream, (void)extra;
    const unsigned sizes[7] = {grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes};
    int64_t values[MOST_ARGUMENTS] = {0};
    char words[256];
    size_t count = 0;
    snprintf(words, sizeof words, "%s", getenv("FAKE_CUDA_ARGUMENTS"));
    for (char* word = strtok(words, " "); word; word = strtok(NULL, " "), ++count) {
        values[count] = value_of(word, arguments[count]);
    }
    memcpy(kept_sizes, sizes, sizeof sizes);
    memcpy(kept_values, values, sizeof values);
    return capturing ? CUDA_SUCCESS : run(sizes, values);
}
