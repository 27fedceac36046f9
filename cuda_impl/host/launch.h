// Launches a kernel on the host with arguments that come as raw bytes, as the driver API takes them.
#pragma once

#include <cstddef>
#include <string>
#include <tuple>
#include <utility>

#include "device.h"
#include "tensor_core.h"

namespace host {

constexpr unsigned MAX_BLOCK_THREADS = 1024;
constexpr std::size_t MAX_SHARED_BYTES = 227 << 10;  // of a block on sm_90, the most there is

// Empty if the GPU would take this launch, else why it would not.
inline std::string invalid(dim3 grid, dim3 block, std::size_t shared_bytes) {
    const std::uint64_t threads = std::uint64_t(block.x) * block.y * block.z;
    const auto triple = [](dim3 d) {
        return "(" + std::to_string(d.x) + ", " + std::to_string(d.y) + ", " + std::to_string(d.z) + ")";
    };
    if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.x > 0x7fffffff || grid.y > 65535 ||
        grid.z > 65535) {
        return "grid " + triple(grid) + ": takes 1 to (2147483647, 65535, 65535) blocks";
    }
    if (threads == 0 || threads > MAX_BLOCK_THREADS || block.z > 64) {
        return "block " + triple(block) + ": takes 1 to 1024 threads, at most 64 along z";
    }
    if (shared_bytes > MAX_SHARED_BYTES) {
        return "shared memory of " + std::to_string(shared_bytes) + " bytes: a block has at most " +
               std::to_string(MAX_SHARED_BYTES);
    }
    return "";
}

template <typename... Parameters>
std::string launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, std::size_t shared_bytes,
                   const std::tuple<Parameters...>& arguments, const void* object = nullptr) {
    const std::string error = invalid(grid, block, shared_bytes);
    if (!error.empty()) return error;
    auto thread = [&] { std::apply(kernel, arguments); };
    const auto one = [](void* state) { (*static_cast<decltype(thread)*>(state))(); };
    return run(grid, block, shared_bytes, one, &thread, object);
}

// How one argument came: a letter of Python's `struct` module for numbers, 'P' for an address or another
// plain integer of 64 bits, 'V' for anything else by value.
struct Argument {
    const void* bytes;
    std::size_t size;
    char kind;
};

template <typename T>
bool fits(const Argument& argument) {
    if (argument.size != sizeof(T)) return false;
    if (std::is_pointer_v<T>) return argument.kind == 'P';
    if (std::is_integral_v<T>) return argument.kind == 'i' || argument.kind == 'P';
    if (std::is_floating_point_v<T>) return argument.kind == 'f';
    return argument.kind == 'V';
}

template <typename T>
std::string described() {
    const char* kind = std::is_pointer_v<T>          ? "a pointer"
                       : std::is_integral_v<T>       ? "an integer"
                       : std::is_floating_point_v<T> ? "a floating-point number"
                                                     : "a value";
    return std::string(kind) + " of " + std::to_string(sizeof(T)) + " bytes";
}

template <typename T>
T unpack(const Argument& argument) {
    T value;
    std::memcpy(&value, argument.bytes, sizeof(T));
    return value;
}

template <typename... Parameters, std::size_t... Index>
std::string launch_packed(void (*kernel)(Parameters...), dim3 grid, dim3 block, std::size_t shared_bytes,
                          const Argument* arguments, std::size_t count, const void* object,
                          std::index_sequence<Index...>) {
    if (count != sizeof...(Parameters)) {
        return "takes " + std::to_string(sizeof...(Parameters)) + " arguments, got " + std::to_string(count);
    }
    std::string error;
    const auto check = [&](bool fit, std::size_t index, const std::string& takes) {
        if (fit || !error.empty()) return;
        error = "argument " + std::to_string(index) + " is " + takes + ", got " +
                std::to_string(arguments[index].size) + " bytes of kind '" + arguments[index].kind + "'";
    };
    (check(fits<std::remove_cv_t<Parameters>>(arguments[Index]), Index,
           described<std::remove_cv_t<Parameters>>()),
     ...);
    if (!error.empty()) return error;
    return launch(kernel, grid, block, shared_bytes,
                  std::tuple<Parameters...>(unpack<std::remove_cv_t<Parameters>>(arguments[Index])...),
                  object);
}

template <typename... Parameters>
std::string launch_packed(void (*kernel)(Parameters...), dim3 grid, dim3 block, std::size_t shared_bytes,
                          const Argument* arguments, std::size_t count, const void* object) {
    return launch_packed(kernel, grid, block, shared_bytes, arguments, count, object,
                         std::index_sequence_for<Parameters...>{});
}

}  // namespace host

// The one function that a shared object made for Python exports: `error` takes what went wrong.
#define HOST_ENTRY(...)                                                                                      \
    extern "C" int host_launch(const unsigned* grid, const unsigned* block, std::size_t shared_bytes,        \
                               const host::Argument* arguments, std::size_t count, char* error,              \
                               std::size_t error_bytes) {                                                    \
        const std::string text = host::launch_packed(                                                        \
            &__VA_ARGS__, dim3(grid[0], grid[1], grid[2]), dim3(block[0], block[1], block[2]), shared_bytes, \
            arguments, count, reinterpret_cast<const void*>(&host_launch));                                  \
        error[text.copy(error, error_bytes - 1)] = '\0';                                                     \
        return text.empty() ? 0 : 1;                                                                         \
    }
