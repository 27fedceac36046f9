// Launches a kernel on the host with arguments as raw bytes, as the driver API takes them. The part that is
// the same for every kernel is in launch.cpp, compiled once.
#pragma once

#include <cstddef>
#include <string>
#include <tuple>
#include <utility>

#include "device.h"
#include "tensor_core.h"

namespace host {

constexpr int MAX_SHARED_BYTES = 227 << 10;  // of a block on sm_90, the maximum of any GPU

// Gives the calling operating-system thread its copy of the object's __shared__ variables.
static __thread char of_object;
static void allocate_static_shared() {
    asm volatile("" : : "r"(&of_object));
}

// Empty if the GPU would take this launch, else the reason why not.
std::string invalid(dim3 grid, dim3 block, unsigned cluster, std::size_t shared_bytes);

template <typename... Parameters>
std::string launch(
    void (*kernel)(Parameters...), dim3 grid, dim3 block, unsigned cluster, std::size_t shared_bytes,
    const std::tuple<Parameters...>& arguments) {
    const std::string error = invalid(grid, block, cluster, shared_bytes);
    if (!error.empty()) return error;
    auto thread = [&] { std::apply(kernel, arguments); };
    const auto one = [](void* state) { (*static_cast<decltype(thread)*>(state))(); };
    return run(grid, block, cluster, shared_bytes, one, &thread, &allocate_static_shared, false);
}

// The kind of one argument: 'i' or 'f' for a number of stated size, 'P' for an address or a plain integer of
// 64 bits, 'd' for a plain number with a fraction, 'V' for anything else by value.
struct Argument {
    const void* bytes;
    std::size_t size;
    char kind;
};

// The kernel's parameters, in the same letters.
struct Parameter {
    std::size_t size;
    char kind;
};

template <typename T>
constexpr Parameter parameter() {
    const char kind = std::is_pointer_v<T>          ? 'P'
                      : std::is_integral_v<T>       ? 'i'
                      : std::is_floating_point_v<T> ? 'f'
                                                    : 'V';
    return {sizeof(T), kind};
}

template <typename T>
T unpack(const Argument& argument) {
    if constexpr (std::is_integral_v<T>) {
        if (argument.kind == 'P') return T(unpack<std::int64_t>({argument.bytes, argument.size, 'i'}));
    } else if constexpr (std::is_floating_point_v<T>) {
        if (argument.kind == 'd') return T(unpack<double>({argument.bytes, argument.size, 'f'}));
    }
    T value;
    std::memcpy(&value, argument.bytes, sizeof(T));
    return value;
}

// The arguments of `host_launch`.
struct Request {
    const unsigned* grid;
    const unsigned* block;
    unsigned cluster;
    std::size_t shared_bytes;
    const Argument* arguments;
    std::size_t count;
    char* error;  // receives the error message
    std::size_t error_bytes;
    void (*allocate)();  // as for `run`
};

// Validates the request and runs thread(state) for every thread. Returns 1 on error.
int answer(
    const Request& request, const Parameter* parameters, std::size_t count, void (*thread)(void*),
    void* state);

template <typename... Parameters, std::size_t... Index>
int launch_packed(void (*kernel)(Parameters...), const Request& request, std::index_sequence<Index...>) {
    static constexpr Parameter parameters[] = {parameter<std::remove_cv_t<Parameters>>()..., {}};
    auto thread = [&] { kernel(unpack<std::remove_cv_t<Parameters>>(request.arguments[Index])...); };
    const auto one = [](void* state) { (*static_cast<decltype(thread)*>(state))(); };
    return answer(request, parameters, sizeof...(Parameters), one, &thread);
}

template <typename... Parameters>
int launch_packed(void (*kernel)(Parameters...), const Request& request) {
    return launch_packed(kernel, request, std::index_sequence_for<Parameters...>{});
}

}  // namespace host

// The only export of a shared object made for Python: `error` receives the error message.
// The kernel is named outside of the function, whose parameters may have the kernel's name.
#define HOST_ENTRY(...)                                                                             \
    static const auto host_kernel = &__VA_ARGS__;                                                   \
    extern "C" int host_launch(                                                                     \
        const unsigned* grid, const unsigned* block, unsigned cluster, std::size_t shared_bytes,    \
        const host::Argument* arguments, std::size_t count, char* error, std::size_t error_bytes) { \
        const host::Request request = {grid,         block,       cluster,                          \
                                       shared_bytes, arguments,   count,                            \
                                       error,        error_bytes, &host::allocate_static_shared};   \
        return host::launch_packed(host_kernel, request);                                           \
    }
