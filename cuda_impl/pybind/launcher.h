// Executes launch tables from C++ (cuda_impl/launch.py): a call's plan is made in Python, once for each
// layout of its arguments, and kept here. Later calls read the layouts, allocate, and launch.
#pragma once

#include <cstring>
#include <memory>
#include <unordered_map>

#include "tensor.h"

using Key = std::vector<std::int64_t>;
using Kernels = std::map<std::string, const void*>;  // of this module, by their C++ expressions

// The tensors among a call's arguments, and what a plan may depend on.
struct Call {
    std::vector<Tensor> tensors;
    Key key;
    bool is_known = true;  // false: the key lacks something

    // `names`: of the arguments after the first `count`; null: there are none.
    Call(PyObject* const* arguments, Py_ssize_t count, PyObject* names) {
        tensors.reserve(16);
        key.reserve(64);
        for (Py_ssize_t i = 0; i < count; ++i) add(arguments[i]);
        for (Py_ssize_t i = 0; names != nullptr && i < PyTuple_GET_SIZE(names); ++i) {
            key.push_back(reinterpret_cast<std::intptr_t>(PyTuple_GET_ITEM(names, i)));
            add(arguments[count + i]);
        }
    }

  private:
    void add(PyObject* value) {
        if (PyTuple_Check(value)) {
            key.push_back(PyTuple_GET_SIZE(value));
            for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(value); ++i) add(PyTuple_GET_ITEM(value, i));
        } else if (value == Py_None || PyBool_Check(value)) {
            key.push_back(reinterpret_cast<std::intptr_t>(value));
        } else if (PyLong_CheckExact(value)) {
            int overflow = 0;
            key.push_back(PyLong_AsLongLongAndOverflow(value, &overflow));
            is_known = is_known && overflow == 0;
        } else if (PyFloat_CheckExact(value)) {
            std::int64_t bits;
            const double number = PyFloat_AS_DOUBLE(value);
            std::memcpy(&bits, &number, sizeof(bits));
            key.push_back(bits);
        } else {
            add_tensor(value);
        }
    }

    void add_tensor(PyObject* value) {
        Tensor x;
        x.object = py::reinterpret_borrow<py::object>(value);
        if (Torch::get().dlpack->dltensor_from_py_object_no_sync(value, &x.view) != 0) {
            PyErr_Clear();  // planning says what is wrong with it
            is_known = false;
            return;
        }
        const DLTensor& view = x.view;
        key.push_back(view.dtype.code | view.dtype.bits << 8 | view.ndim << 16);
        key.push_back(
            view.device.device_type | std::int64_t(view.device.device_id) << 8 | x.address() % 16 << 40);
        key.insert(key.end(), view.shape, view.shape + view.ndim);
        key.insert(key.end(), view.strides, view.strides + view.ndim);
        tensors.push_back(std::move(x));
    }
};

struct HashOfKey {
    std::size_t operator()(const Key& key) const {
        std::size_t hash = 0;
        for (const std::int64_t word : key) hash = hash * 1000003 ^ std::size_t(word);
        return hash;
    }
};

// Memory that a call allocates: like a tensor, of its own shape and dtype, or a copy.
struct Make {
    int from;          // the number of the tensor that it is made of
    py::object shape;  // null: as `from`, contiguous
    py::object dtype;
    py::object copy;  // a function of `from`; null: no copy
    std::size_t zeroed_bytes;

    Tensor operator()(const Tensor& x) const {
        if (copy) return Tensor(copy(x.object));
        if (!shape) return x.empty_like();
        static const py::str& new_empty = *new py::str("new_empty");
        static const py::tuple& keyword = *new py::tuple(py::make_tuple("dtype"));
        PyObject* arguments[] = {x.object.ptr(), shape.ptr(), dtype.ptr()};
        return Tensor(made(PyObject_VectorcallMethod(new_empty.ptr(), arguments, 2, keyword.ptr())));
    }
};

// An argument of a kernel: an address, a tensor map of it, or a value.
struct Argument {
    int tensor = -1;
    std::int64_t offset_bytes = 0;
    py::object object;  // a function from the address to the 128 bytes of a map; or the value
    std::string bytes;  // of the value
    std::map<std::uintptr_t, std::string> maps;

    std::uintptr_t address(const std::vector<Tensor>& tensors) const {
        return tensors[std::size_t(tensor)].address() + std::uintptr_t(offset_bytes);
    }
    const std::string& map_of(std::uintptr_t address) {
        auto found = maps.find(address);
        if (found == maps.end()) {
            auto map = object(address).attr("tobytes")().cast<std::string>();
            found = maps.emplace(address, std::move(map)).first;  // unless another thread has added it
        }
        return found->second;
    }
};

struct Launch {
    py::object kernel;  // an expression; on the CPU a function that launches
    const void* function = nullptr;
    std::int64_t grid;
    int block, shared_bytes;
    bool overlap, cooperative;
    std::vector<Argument> arguments;
    std::vector<std::uintptr_t> addresses;  // of one call
    std::vector<void*> parameters;          // point into the two above

    Launch() = default;
    Launch(Launch&&) noexcept = default;  // vectors keep their elements where they are
    Launch(const Launch&) = delete;

#ifdef HOST_BUILD
    void operator()(const std::vector<Tensor>& tensors, cudaStream_t) {
        py::tuple given(arguments.size());
        for (std::size_t i = 0; i < arguments.size(); ++i) {
            const Argument& argument = arguments[i];
            given[i] = argument.tensor < 0 ? argument.object : py::int_(argument.address(tensors));
            if (argument.tensor >= 0 && argument.object) given[i] = argument.object(given[i]);
        }
        kernel(py::make_tuple(grid), py::make_tuple(block), given, shared_bytes);
    }
#else
    void operator()(const std::vector<Tensor>& tensors, cudaStream_t stream) {
        // Python encodes a new map, and may let another thread launch this plan meanwhile: all maps come
        // first. From then on this thread keeps the interpreter's lock until the kernel is launched.
        for (Argument& argument : arguments) {
            if (argument.tensor >= 0 && argument.object) argument.map_of(argument.address(tensors));
        }
        for (std::size_t i = 0; i < arguments.size(); ++i) {
            Argument& argument = arguments[i];
            if (argument.tensor < 0) continue;
            addresses[i] = argument.address(tensors);
            if (argument.object) parameters[i] = const_cast<char*>(argument.map_of(addresses[i]).data());
        }
        cudaLaunchAttribute attributes[2] = {};
        int count = 0;
        if (overlap) {
            attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
            attributes[count++].val.programmaticStreamSerializationAllowed = 1;
        }
        if (cooperative) {
            attributes[count].id = cudaLaunchAttributeCooperative;
            attributes[count++].val.cooperative = 1;
        }
        cudaLaunchConfig_t config = {};
        config.gridDim = dim3(unsigned(grid));
        config.blockDim = dim3(unsigned(block));
        config.dynamicSmemBytes = std::size_t(shared_bytes);
        config.stream = stream;
        config.attrs = attributes;
        config.numAttrs = unsigned(count);
        check(cudaLaunchKernelExC(&config, function, parameters.data()));
    }
#endif
};

struct Plan {
    std::vector<Make> makes;
    std::vector<Launch> launches;
    std::vector<int> results;
    bool is_tuple;
    py::object names;  // of options: the key has their addresses

    py::object operator()(std::vector<Tensor>& tensors) {
        const OnDevice guard(tensors[0].device());
        const cudaStream_t stream = current_stream(tensors[0]);
        for (const Make& make : makes) {
            tensors.push_back(make(tensors[std::size_t(make.from)]));
            if (make.zeroed_bytes > 0) {
                check(cudaMemsetAsync(tensors.back().data<void>(), 0, make.zeroed_bytes, stream));
            }
        }
        for (Launch& launch : launches) launch(tensors, stream);
        if (!is_tuple) return std::move(tensors[std::size_t(results[0])].object);
        py::tuple outputs(results.size());
        for (std::size_t i = 0; i < results.size(); ++i) outputs[i] = tensors[std::size_t(results[i])].object;
        return outputs;
    }
};

// The plans of one variant.
class Launcher {
  public:
    explicit Launcher(std::shared_ptr<Kernels> kernels) : kernels_(std::move(kernels)) {}

    // The outputs, or None where no plan is known for these arguments.
    py::object launch(Call call) {
        const auto found = call.is_known ? plans_.find(call.key) : plans_.end();
        return found == plans_.end() ? py::object(py::none()) : found->second(call.tensors);
    }

    // Keeps the plan of these arguments.
    void add(const Call& call, const py::object& encoded, const py::object& names) {
        if (!call.is_known) throw std::runtime_error("an argument that DLPack cannot describe");
        Plan plan = parsed(encoded, call.tensors);
        plan.names = names;
        // Another thread may have added it meanwhile, and be launching it: that one stays.
        plans_.try_emplace(call.key, std::move(plan));
    }

  private:
    std::shared_ptr<Kernels> kernels_;
    std::unordered_map<Key, Plan, HashOfKey> plans_;

    // A plan in the form that cuda_impl/launch.py's `encoded` gives it.
    Plan parsed(const py::object& encoded, const std::vector<Tensor>& tensors) const {
        const auto [makes, launches, results] = encoded.cast<std::tuple<py::list, py::list, py::object>>();
        Plan plan;
        for (const py::handle make : makes) {
            const auto [from, shape, dtype, copy, zeroed_bytes] =
                make.cast<std::tuple<int, py::object, py::object, py::object, std::size_t>>();
            const auto unless_none = [](const py::object& x) { return x.is_none() ? py::object() : x; };
            plan.makes.push_back({from, unless_none(shape), dtype, unless_none(copy), zeroed_bytes});
        }
        for (const py::handle each : launches)
            plan.launches.push_back(launch_of(py::reinterpret_borrow<py::tuple>(each), tensors));
        plan.is_tuple = py::isinstance<py::tuple>(results);
        for (const py::handle result : plan.is_tuple ? py::tuple(results) : py::make_tuple(results)) {
            plan.results.push_back(result.cast<int>());
        }
        return plan;
    }

    Launch launch_of(const py::tuple& encoded, const std::vector<Tensor>& tensors) const {
        Launch launch;
        launch.kernel = encoded[0];
        launch.grid = encoded[1].cast<std::int64_t>();
        launch.block = encoded[2].cast<int>();
        launch.shared_bytes = encoded[4].cast<int>();
        launch.overlap = encoded[6].cast<bool>();
        launch.cooperative = encoded[7].cast<bool>();
        for (const py::handle each : encoded[3]) {
            const auto [tensor, offset_bytes, object] =
                each.cast<std::tuple<int, std::int64_t, py::object>>();
            Argument argument;
            argument.tensor = tensor;
            argument.offset_bytes = offset_bytes;
            if (!object.is_none()) argument.object = object;
            if (tensor < 0) argument.bytes = object.attr("tobytes")().cast<std::string>();
            launch.arguments.push_back(std::move(argument));
        }
        launch.addresses.resize(launch.arguments.size());
        for (std::size_t i = 0; i < launch.arguments.size(); ++i) {
            Argument& argument = launch.arguments[i];
            launch.parameters.push_back(
                argument.tensor < 0 ? static_cast<void*>(argument.bytes.data()) : &launch.addresses[i]);
        }
#ifndef HOST_BUILD
        const auto name = encoded[0].cast<std::string>();
        const auto found = kernels_->find(name);
        if (found == kernels_->end())
            throw std::runtime_error(name + " is not among the kernels of this module");
        launch.function = found->second;
        const OnDevice guard(tensors[0].device());
        allow(launch.function, tensors[0].device(), launch.shared_bytes, encoded[5].cast<int>());
#else
        (void)tensors;
#endif
        return launch;
    }
};

// Called by Python without a tuple and a dict of the arguments, which pybind11 would make.
template <PyObject* (*FUNCTION)(Launcher&, PyObject* const*, Py_ssize_t, PyObject*)>
PyObject* fast_call(PyObject* self, PyObject* const* arguments, Py_ssize_t count, PyObject* names) {
    try {
        auto* const launcher = static_cast<Launcher*>(PyCapsule_GetPointer(self, nullptr));
        return FUNCTION(*launcher, arguments, count, names);
    } catch (py::error_already_set& error) {
        error.restore();
    } catch (const std::exception& error) {
        PyErr_SetString(PyExc_RuntimeError, error.what());
    }
    return nullptr;
}

// `launch(*tensors, **options)`
inline PyObject* launch(Launcher& launcher, PyObject* const* arguments, Py_ssize_t count, PyObject* names) {
    return launcher.launch(Call(arguments, count, names)).release().ptr();
}

// `add(plan, *tensors, **options)`
inline PyObject* add(Launcher& launcher, PyObject* const* arguments, Py_ssize_t count, PyObject* names) {
    launcher.add(
        Call(arguments + 1, count - 1, names), py::reinterpret_borrow<py::object>(arguments[0]),
        py::reinterpret_borrow<py::object>(names));
    Py_RETURN_NONE;
}

// Adds `launcher()` to a module: the functions `launch` and `add` of a new Launcher of its kernels.
inline void define_launcher(py::module_& m, Kernels kernels) {
    const auto all = std::make_shared<Kernels>(std::move(kernels));
    m.def("launcher", [all] {
        static PyMethodDef functions[] = {
            {"launch", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(fast_call<launch>)),
             METH_FASTCALL | METH_KEYWORDS, nullptr},
            {"add", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(fast_call<add>)),
             METH_FASTCALL | METH_KEYWORDS, nullptr},
        };
        const py::capsule self(
            new Launcher(all), [](void* launcher) { delete static_cast<Launcher*>(launcher); });
        return py::make_tuple(
            made(PyCFunction_New(&functions[0], self.ptr())),
            made(PyCFunction_New(&functions[1], self.ptr())));
    });
}
