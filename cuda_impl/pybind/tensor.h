// Torch tensors for C++ host code without torch's headers: their layout comes through DLPack's C exchange
// API, at a twentieth of the cost of Python attributes.  So a module builds in seconds and works with every
// version of torch that has it.
//
// The same file compiles with nvcc, and with g++ against host/'s replacement of the CUDA runtime.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <pybind11/gil_safe_call_once.h>
#include <pybind11/pybind11.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "dlpack.h"

namespace py = pybind11;

// Looked up once: an attribute of a module costs more than what is done with it.
struct Torch {
    py::module_ torch = py::module_::import("torch");
    py::object tensor = torch.attr("Tensor");
    py::object strided = torch.attr("strided");
    py::object empty_like = torch.attr("empty_like");
    py::tuple memory_format = py::make_tuple("memory_format");
    py::object dense = torch.attr("contiguous_format");
    const DLPackExchangeAPI* dlpack = static_cast<const DLPackExchangeAPI*>(
        PyCapsule_GetPointer(tensor.attr("__dlpack_c_exchange_api__").ptr(), "dlpack_exchange_api"));

    // Never destroyed: Python ends before static objects do. An import may release Python's lock (GIL): a
    // thread that takes it and waits for a plain static object would never let the import go on.
    static const Torch& get() {
        PYBIND11_CONSTINIT static py::gil_safe_call_once_and_store<Torch> names;
        return names.call_once_and_store_result([] { return Torch(); }).get_stored();
    }
};

// Takes ownership of a new reference from Python; throws Python's error if it is null.
inline py::object made(PyObject* object) {
    if (object == nullptr) throw py::error_already_set();
    return py::reinterpret_steal<py::object>(object);
}

enum class Element { FP32, FP16, BF16, OTHER };

#ifdef HOST_BUILD
constexpr DLDeviceType HERE = kDLCPU;
#else
constexpr DLDeviceType HERE = kDLCUDA;
#endif

struct Tensor {
    py::object object;
    DLTensor view{};  // points to the sizes and strides that the object holds

    Tensor() = default;
    explicit Tensor(py::object from) : object(std::move(from)) {
        if (Torch::get().dlpack->dltensor_from_py_object_no_sync(object.ptr(), &view) != 0) {
            throw py::error_already_set();
        }
    }

    std::uintptr_t address() const { return reinterpret_cast<std::uintptr_t>(view.data) + view.byte_offset; }
    template <typename T>
    T* data() const {
        return reinterpret_cast<T*>(address());
    }
    int device() const { return HERE == kDLCUDA ? view.device.device_id : -1; }
    int element_size() const { return view.dtype.bits / 8; }
    std::int64_t shape(int dim) const { return view.shape[dim]; }
    std::int64_t stride(int dim) const { return view.strides[dim]; }  // in elements
    Element element() const {
        if (view.dtype.code == kDLFloat && view.dtype.bits == 32) return Element::FP32;
        if (view.dtype.code == kDLFloat && view.dtype.bits == 16) return Element::FP16;
        return view.dtype.code == kDLBfloat ? Element::BF16 : Element::OTHER;
    }
    std::int64_t numel() const {
        std::int64_t count = 1;
        for (int i = 0; i < view.ndim; ++i) count *= view.shape[i];
        return count;
    }
    bool is_contiguous() const {
        std::int64_t step = 1;
        for (int i = view.ndim - 1; i >= 0; --i) {
            if (view.shape[i] != 1 && view.strides[i] != step) return false;
            step *= std::max<std::int64_t>(view.shape[i], 1);
        }
        return true;
    }
    // This tensor if it is contiguous, else a contiguous copy.
    Tensor contiguous() const { return is_contiguous() ? *this : Tensor(object.attr("contiguous")()); }
    // A new contiguous tensor of the same shape, dtype and device.
    Tensor empty_like() const {
        const Torch& torch = Torch::get();
        // Contiguous by default: the keyword argument would cost a tenth of a call.
        if (is_contiguous()) return Tensor(made(PyObject_CallOneArg(torch.empty_like.ptr(), object.ptr())));
        PyObject* arguments[] = {object.ptr(), torch.dense.ptr()};
        return Tensor(
            made(PyObject_Vectorcall(torch.empty_like.ptr(), arguments, 1, torch.memory_format.ptr())));
    }
    // A new tensor of this shape and dtype on the same device.
    Tensor empty(const py::tuple& shape, const char* dtype) const {
        return Tensor(object.attr("new_empty")(shape, py::arg("dtype") = Torch::get().torch.attr(dtype)));
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

inline bool are_alike(const Tensor& x, const Tensor& y) {
    return x.element() == y.element() && x.view.device.device_id == y.view.device.device_id &&
           std::equal(x.view.shape, x.view.shape + x.view.ndim, y.view.shape, y.view.shape + y.view.ndim);
}

// The arguments as tensors, all of one dtype, shape and device, with `ndim` dimensions. Otherwise raises a
// TypeError or ValueError that names the argument. The first one's device has selected this module.
template <std::size_t COUNT>
std::array<Tensor, COUNT> check_same(const char* op, int ndim, const Named (&arguments)[COUNT]) {
    std::array<Tensor, COUNT> tensors;
    for (std::size_t i = 0; i < COUNT; ++i) {
        try {
            tensors[i] = Tensor(py::reinterpret_borrow<py::object>(arguments[i].object));
        } catch (py::error_already_set&) {  // no tensor, none with strides, or none in memory
            refuse(op, ndim, arguments);
        }
        const Tensor& tensor = tensors[i];
        const bool good = tensor.element() != Element::OTHER && tensor.view.ndim == ndim &&
                          tensor.view.device.device_type == HERE && are_alike(tensor, tensors[0]);
        if (!good) refuse(op, ndim, arguments);
    }
    return tensors;
}

// Calls `function` with a value of the tensor's element type: `[&](auto zero) { using T = decltype(zero); }`.
template <typename Function>
void dispatch(const Tensor& tensor, Function function) {
    switch (tensor.element()) {
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

[[noreturn]] inline void not_taken(const std::string& why) {
    PyErr_SetString(PyExc_NotImplementedError, why.c_str());
    throw py::error_already_set();
}

inline void check(cudaError_t error) {
    if (error != cudaSuccess) throw std::runtime_error(cudaGetErrorString(error));
}

inline int multiprocessors(const Tensor& tensor) {
    static std::map<int, int> known;  // under Python's lock (GIL), which nothing here releases
    const auto found = known.find(tensor.device());
    if (found != known.end()) return found->second;
    int count = 0;
    check(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, tensor.device()));
    return known[tensor.device()] = count;
}

// Torch's current stream of the tensor's device.
inline cudaStream_t current_stream(const Tensor& tensor) {
    void* stream = nullptr;
    if (HERE == kDLCUDA && Torch::get().dlpack->current_work_stream(kDLCUDA, tensor.device(), &stream) != 0) {
        throw py::error_already_set();
    }
    return static_cast<cudaStream_t>(stream);
}

// `count` new elements of a dtype on the device of `on`, all 0.
inline Tensor zeros(const Tensor& on, std::int64_t count, const char* dtype) {
    const Tensor fresh = on.empty(py::make_tuple(count), dtype);
    const std::size_t bytes = std::size_t(count) * std::size_t(fresh.element_size());
    if (bytes > 0) check(cudaMemsetAsync(fresh.data<void>(), 0, bytes, current_stream(on)));
    return fresh;
}

// Makes a device the current one for as long as it lives.
class OnDevice {
  public:
    explicit OnDevice(int device) : device_(device), before_(device) {
        if (device_ >= 0) check(cudaGetDevice(&before_));
        if (before_ != device_) check(cudaSetDevice(device_));
    }
    ~OnDevice() {
        if (before_ != device_) cudaSetDevice(before_);
    }

  private:
    int device_, before_;
};

inline std::int64_t ceil_div(std::int64_t a, std::int64_t b) {
    return (a + b - 1) / b;
}

struct LaunchShape {
    std::int64_t blocks;
    int threads;
    int shared_bytes = 0;
    int cluster = 1;  // sizes above 8 are not portable and need a kernel attribute
};

// Lets a kernel have so much dynamic shared memory and such clusters on the current device, which is
// `device`.
inline void allow([[maybe_unused]] const void* kernel, int device, int shared_bytes, int cluster) {
#ifndef HOST_BUILD
    constexpr int ALWAYS_ALLOWED = 32 << 10;  // and what a kernel declares itself, up to 16 KB
    static std::map<std::pair<int, const void*>, int> allowed;  // under Python's lock (GIL), as above
    if (shared_bytes > ALWAYS_ALLOWED && allowed[{device, kernel}] < shared_bytes) {
        check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes));
        allowed[{device, kernel}] = shared_bytes;
    }
    if (cluster > 8) check(cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
#else
    (void)device, (void)shared_bytes, (void)cluster;
#endif
}

// Launches on torch's current stream of `on`'s device.
template <typename... Parameters, typename... Arguments>
void launch(
    const Tensor& on, const LaunchShape& shape, void (*kernel)(Parameters...), Arguments... arguments) {
    const OnDevice guard(on.device());
    if (shape.shared_bytes > 0 || shape.cluster > 1) {
        allow(reinterpret_cast<const void*>(kernel), on.device(), shape.shared_bytes, shape.cluster);
    }
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(unsigned(shape.blocks));
    config.blockDim = dim3(unsigned(shape.threads));
    config.dynamicSmemBytes = std::size_t(shape.shared_bytes);
    config.stream = current_stream(on);
#ifdef HOST_BUILD  // nvcc compiles the size into the kernel
    cudaLaunchAttribute attribute = {};
    attribute.val.clusterDim.x = unsigned(shape.cluster);
    config.attrs = &attribute, config.numAttrs = 1;
#endif
    check(cudaLaunchKernelEx(&config, kernel, arguments...));
}
