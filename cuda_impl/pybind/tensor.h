// Torch tensors for C++ host code without torch's headers: the values that a launch needs are read from the
// Python objects. So a module builds in seconds and works with every version of torch.
//
// The same file compiles with nvcc, and with g++ against host/'s replacement of the CUDA runtime.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <pybind11/pybind11.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>

namespace py = pybind11;

// Attributes used in every call, created once: creating a string costs more than the lookup.
struct Torch {
    py::module_ torch = py::module_::import("torch");
    py::object tensor = torch.attr("Tensor");
    py::object strided = torch.attr("strided");
    py::object fp32 = torch.attr("float32");
    py::object fp16 = torch.attr("float16");
    py::object bf16 = torch.attr("bfloat16");
    py::object int64 = torch.attr("int64");
    py::object empty_like = torch.attr("empty_like");
    py::object dense = torch.attr("contiguous_format");
    py::object zeros = torch.attr("zeros");

    py::str contiguous = name("contiguous");
    py::str data_ptr = name("data_ptr");
    py::str device = name("device");
    py::str dtype = name("dtype");
    py::str element_size = name("element_size");
    py::str get_device = name("get_device");
    py::str layout = name("layout");
    py::str shape = name("shape");
    py::str stride = name("stride");
#ifdef HOST_BUILD
    py::str is_here = name("is_cpu");
#else
    py::str is_here = name("is_cuda");
#endif
    py::tuple of_empty_like = py::make_tuple(name("memory_format"));
    py::tuple of_zeros = py::make_tuple(name("dtype"), name("device"));

    static py::str name(const char* text) {
        return py::reinterpret_steal<py::str>(PyUnicode_InternFromString(text));
    }
    static const Torch& get() {
        static const Torch& names = *new Torch();  // never destroyed: Python ends before static objects do
        return names;
    }
};

// Takes ownership of a new reference from Python; throws Python's error if it is null.
inline py::object made(PyObject* object) {
    if (object == nullptr) throw py::error_already_set();
    return py::reinterpret_steal<py::object>(object);
}

inline py::object get(py::handle object, const py::str& attribute) {
    return made(PyObject_GetAttr(object.ptr(), attribute.ptr()));
}

inline py::object call(py::handle object, const py::str& method) {
    return made(PyObject_CallMethodNoArgs(object.ptr(), method.ptr()));
}

enum class Element { FP32, FP16, BF16, OTHER };

constexpr int MAX_DIMS = 8;
using Sizes = std::array<std::int64_t, MAX_DIMS>;  // 0 past the tensor's dimensions

// Reads the first MAX_DIMS numbers of a tuple of integers, and returns its length.
inline int read(const py::object& from, Sizes& sizes) {
    const auto numbers = py::reinterpret_borrow<py::tuple>(from);
    const std::size_t count = std::min(numbers.size(), sizes.size());
    for (std::size_t i = 0; i < count; ++i) sizes[i] = numbers[i].cast<std::int64_t>();
    return int(numbers.size());
}

struct Tensor {
    py::object object;
    std::uintptr_t address = 0;
    int device = -1;  // -1: the CPU
    Element element = Element::OTHER;
    int element_size = 0;
    int ndim = 0;
    Sizes shape{};
    Sizes strides{};  // in elements

    Tensor() = default;
    explicit Tensor(py::object from) : object(std::move(from)) {
        const Torch& torch = Torch::get();
        const py::object dtype = get(object, torch.dtype);
        element = dtype.is(torch.fp32)   ? Element::FP32
                  : dtype.is(torch.fp16) ? Element::FP16
                  : dtype.is(torch.bf16) ? Element::BF16
                                         : Element::OTHER;
        element_size = element == Element::FP32    ? 4
                       : element != Element::OTHER ? 2
                                                   : call(object, torch.element_size).cast<int>();
        address = call(object, torch.data_ptr).cast<std::uintptr_t>();
        device = call(object, torch.get_device).cast<int>();
        ndim = read(get(object, torch.shape), shape);
        read(call(object, torch.stride), strides);
    }

    std::int64_t numel() const {
        std::int64_t count = 1;
        for (int i = 0; i < ndim; ++i) count *= shape[i];
        return count;
    }
    Sizes dense_strides() const {
        Sizes found{};
        std::int64_t step = 1;
        for (int i = ndim - 1; i >= 0; --i) {
            found[i] = step;
            step *= std::max<std::int64_t>(shape[i], 1);
        }
        return found;
    }
    template <typename T>
    T* data() const {
        return reinterpret_cast<T*>(address);
    }
    // This tensor if it is contiguous, else a contiguous copy.
    Tensor contiguous() const {
        return strides == dense_strides() ? *this : Tensor(call(object, Torch::get().contiguous));
    }
    // A new contiguous tensor of the same shape, dtype and device.
    Tensor empty_like() const {
        const Torch& torch = Torch::get();
        Tensor fresh = *this;  // copies shape, dtype and device
        fresh.strides = dense_strides();
        if (strides == fresh.strides) {
            // Contiguous by default: the keyword argument would cost a tenth of a call.
            fresh.object = made(PyObject_CallOneArg(torch.empty_like.ptr(), object.ptr()));
        } else {
            PyObject* arguments[] = {object.ptr(), torch.dense.ptr()};
            PyObject* keywords = torch.of_empty_like.ptr();
            fresh.object = made(PyObject_Vectorcall(torch.empty_like.ptr(), arguments, 1, keywords));
        }
        fresh.address = call(fresh.object, torch.data_ptr).cast<std::uintptr_t>();
        return fresh;
    }
    // `count` new 64-bit integers on the same device, all 0.
    Tensor zeros(std::int64_t count) const {
        const Torch& torch = Torch::get();
        const py::int_ size(count);
        const py::object on = get(object, torch.device);
        PyObject* arguments[] = {size.ptr(), torch.int64.ptr(), on.ptr()};
        Tensor fresh;
        fresh.object = made(PyObject_Vectorcall(torch.zeros.ptr(), arguments, 1, torch.of_zeros.ptr()));
        fresh.address = call(fresh.object, torch.data_ptr).cast<std::uintptr_t>();
        fresh.device = device;
        fresh.element_size = 8;
        fresh.ndim = 1;
        fresh.shape[0] = count;
        fresh.strides[0] = 1;
        return fresh;
    }
};

struct Named {
    const char* name;
    py::handle object;
};

// Raises compare.arguments' error for these arguments, the same as the Python implementations raise.
template <std::size_t COUNT>
[[noreturn]] void refuse(const char* op, int ndim, const Named (&arguments)[COUNT]) {
    py::dict named;
    for (const auto& [name, object] : arguments) named[name] = object;
    py::module_::import("compare.arguments").attr("check_same")(op, ndim, **named);
    throw std::runtime_error(std::string(op) + ": these arguments are not taken");
}

// The arguments as tensors, all of one dtype, shape and device, with `ndim` dimensions. Otherwise raises a
// TypeError or ValueError that names the argument. The first one's device has selected this module.
template <std::size_t COUNT>
std::array<Tensor, COUNT> check_same(const char* op, int ndim, const Named (&arguments)[COUNT]) {
    const Torch& torch = Torch::get();
    std::array<Tensor, COUNT> tensors;
    const Tensor& first = tensors[0];
    for (std::size_t i = 0; i < COUNT; ++i) {
        const py::handle object = arguments[i].object;
        if (!py::isinstance(object, torch.tensor) || !get(object, torch.layout).is(torch.strided)) {
            refuse(op, ndim, arguments);
        }
        tensors[i] = Tensor(py::reinterpret_borrow<py::object>(object));
        const Tensor& tensor = tensors[i];
        const bool good = tensor.element != Element::OTHER && tensor.ndim == ndim &&
                          tensor.element == first.element && tensor.shape == first.shape &&
                          tensor.device == first.device &&
                          (i == 0 || get(object, torch.is_here).ptr() == Py_True);
        if (!good) refuse(op, ndim, arguments);
    }
    return tensors;
}

// Calls `function` with a value of the tensor's element type: `[&](auto zero) { using T = decltype(zero); }`.
template <typename Function>
void dispatch(const Tensor& tensor, Function function) {
    switch (tensor.element) {
        case Element::FP32:
            return function(float());
        case Element::FP16:
            return function(__half());
        case Element::BF16:
            return function(__nv_bfloat16());
        case Element::OTHER:
            throw std::runtime_error("a tensor of a dtype that no kernel takes");
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
    int cluster = 1;  // sizes above 8 are not portable and need a kernel attribute
};

// Launches on torch's current stream of `on`'s device.
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
