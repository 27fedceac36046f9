// Torch tensors for C++ host code, without torch's headers: what a launch needs is asked of the Python
// objects, so that a module builds in seconds and serves every version of torch.
//
// The same file compiles with nvcc, and with g++ against host/'s stand-in for the CUDA runtime.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <pybind11/pybind11.h>

#include <cstdint>
#include <initializer_list>
#include <map>
#include <stdexcept>
#include <utility>
#include <vector>

namespace py = pybind11;

// Looked up once: a name in a module costs more than a launch.
struct Torch {
    py::module_ torch = py::module_::import("torch");
    py::object tensor = torch.attr("Tensor");
    py::object strided = torch.attr("strided");
    py::object fp32 = torch.attr("float32");
    py::object fp16 = torch.attr("float16");
    py::object bf16 = torch.attr("bfloat16");
    py::object empty_like = torch.attr("empty_like");
    py::object dense = torch.attr("contiguous_format");
    py::object zeros = torch.attr("zeros");

    static const Torch& get() {
        static const Torch& names = *new Torch();  // never destroyed: Python ends before static objects do
        return names;
    }
};

struct Tensor {
    py::object object;
    std::uintptr_t address = 0;
    int device = -1;  // -1: the CPU
    int element_size = 0;
    std::vector<std::int64_t> shape;
    std::vector<std::int64_t> strides;  // in elements

    Tensor() = default;
    explicit Tensor(py::object from) : object(std::move(from)) {
        address = object.attr("data_ptr")().cast<std::uintptr_t>();
        device = object.attr("get_device")().cast<int>();
        element_size = object.attr("element_size")().cast<int>();
        for (py::handle size : object.attr("shape")) shape.push_back(size.cast<std::int64_t>());
        for (py::handle step : object.attr("stride")()) strides.push_back(step.cast<std::int64_t>());
    }

    std::int64_t numel() const {
        std::int64_t count = 1;
        for (std::int64_t size : shape) count *= size;
        return count;
    }
    template <typename T>
    T* data() const {
        return reinterpret_cast<T*>(address);
    }
    Tensor contiguous() const { return Tensor(object.attr("contiguous")()); }
    // A fresh, dense tensor of the same shape, dtype and device.
    Tensor empty_like() const {
        const Torch& torch = Torch::get();
        return Tensor(torch.empty_like(object, py::arg("memory_format") = torch.dense));
    }
};

using Named = std::pair<const char*, py::object>;

// The arguments as tensors, all of one dtype, shape and device, and of `ndim` dimensions; a TypeError or
// ValueError that names the argument otherwise. compare.arguments, which the Python ways use, words it.
inline std::vector<Tensor> check_same(const char* op, int ndim, std::initializer_list<Named> arguments) {
    const Torch& torch = Torch::get();
    std::vector<Tensor> tensors;
    py::object dtype;
    bool good = true;
    for (const auto& [name, object] : arguments) {
        good = py::isinstance(object, torch.tensor);
        if (!good) break;
        const py::object layout = object.attr("layout"), own = object.attr("dtype");
        if (tensors.empty()) dtype = own;
        good = layout.is(torch.strided) && own.is(dtype) &&
               (own.is(torch.fp32) || own.is(torch.fp16) || own.is(torch.bf16));
        if (!good) break;
        const Tensor& tensor = tensors.emplace_back(object);
        const Tensor& first = tensors.front();
        good = int(tensor.shape.size()) == ndim && tensor.shape == first.shape &&
               object.attr("device").equal(first.object.attr("device"));
        if (!good) break;
    }
    if (!good) {
        py::dict named;
        for (const auto& [name, object] : arguments) named[name] = object;
        py::module_::import("compare.arguments").attr("check_same")(op, ndim, **named);
        throw std::runtime_error(std::string(op) + ": these arguments are not taken");
    }
    return tensors;
}

// Calls `function` with a value of the tensor's element type: `[&](auto zero) { using T = decltype(zero); }`.
template <typename Function>
void dispatch(const Tensor& tensor, Function function) {
    const Torch& torch = Torch::get();
    const py::object dtype = tensor.object.attr("dtype");
    if (dtype.is(torch.fp32)) {
        function(float());
    } else if (dtype.is(torch.fp16)) {
        function(__half());
    } else {
        function(__nv_bfloat16());
    }
}

inline void check(cudaError_t error) {
    if (error != cudaSuccess) throw std::runtime_error(cudaGetErrorString(error));
}

inline int multiprocessors(const Tensor& tensor) {
    static std::map<int, int> known;
    const auto found = known.find(tensor.device);
    if (found != known.end()) return found->second;
    int count = 0;
    check(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, tensor.device));
    return known[tensor.device] = count;
}

inline cudaStream_t current_stream(int device) {
    if (device < 0) return nullptr;
    static const py::object& ask =
        *new py::object(py::module_::import("torch._C").attr("_cuda_getCurrentRawStream"));
    return reinterpret_cast<cudaStream_t>(ask(device).cast<std::uintptr_t>());
}

inline std::int64_t ceil_div(std::int64_t a, std::int64_t b) {
    return (a + b - 1) / b;
}

struct LaunchShape {
    std::int64_t blocks;
    int threads;
    int shared_bytes = 0;
    int cluster = 1;  // more than 8 blocks are not portable: the kernel is told
};

// Launches on torch's current stream of the device that `on` lies on.
template <typename... Parameters, typename... Arguments>
void launch(const Tensor& on, const LaunchShape& shape, void (*kernel)(Parameters...),
            Arguments... arguments) {
    int current = on.device;
    if (on.device >= 0) check(cudaGetDevice(&current));
    if (current != on.device) check(cudaSetDevice(on.device));
    constexpr int ALWAYS_ALLOWED = 48 << 10;
    static std::map<std::pair<int, void (*)(Parameters...)>, int> allowed;
    if (shape.shared_bytes > ALWAYS_ALLOWED && allowed[{on.device, kernel}] < shape.shared_bytes) {
        check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shape.shared_bytes));
        allowed[{on.device, kernel}] = shape.shared_bytes;
    }
    if (shape.cluster > 8)
        check(cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(unsigned(shape.blocks));
    config.blockDim = dim3(unsigned(shape.threads));
    config.dynamicSmemBytes = std::size_t(shape.shared_bytes);
    config.stream = current_stream(on.device);
    const cudaError_t error = cudaLaunchKernelEx(&config, kernel, arguments...);
    if (current != on.device) check(cudaSetDevice(current));
    check(error);
}
