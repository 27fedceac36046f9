// The part of a launch that is the same for every kernel: validation of the request, with error messages.
#include "launch.h"

namespace host {
namespace {

constexpr unsigned MAX_BLOCK_THREADS = 1024;
constexpr std::size_t MAX_SHARED_BYTES = 227 << 10;  // of a block on sm_90, the maximum of any GPU

bool fits(const Parameter& parameter, const Argument& argument) {
    const bool alike = argument.kind == parameter.kind || (parameter.kind == 'i' && argument.kind == 'P');
    return argument.size == parameter.size && alike;
}

std::string described(const Parameter& parameter) {
    const char* kind = parameter.kind == 'P'   ? "a pointer"
                       : parameter.kind == 'i' ? "an integer"
                       : parameter.kind == 'f' ? "a floating-point number"
                                               : "a value";
    return std::string(kind) + " of " + std::to_string(parameter.size) + " bytes";
}

// Empty if the arguments are what the kernel takes, else an error message.
std::string unfit(const Parameter* parameters, std::size_t takes, const Argument* arguments,
                  std::size_t count) {
    if (count != takes) {
        return "takes " + std::to_string(takes) + " arguments, got " + std::to_string(count);
    }
    for (std::size_t i = 0; i < count; ++i) {
        if (fits(parameters[i], arguments[i])) continue;
        return "argument " + std::to_string(i) + " is " + described(parameters[i]) + ", got " +
               std::to_string(arguments[i].size) + " bytes of kind '" + arguments[i].kind + "'";
    }
    return "";
}

}  // namespace

std::string invalid(dim3 grid, dim3 block, std::size_t shared_bytes) {
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

int answer(const Request& request, const Parameter* parameters, std::size_t count, void (*thread)(void*),
           void* state) {
    const dim3 grid(request.grid[0], request.grid[1], request.grid[2]);
    const dim3 block(request.block[0], request.block[1], request.block[2]);
    std::string error = unfit(parameters, count, request.arguments, request.count);
    if (error.empty()) error = invalid(grid, block, request.shared_bytes);
    if (error.empty()) error = run(grid, block, request.shared_bytes, thread, state, request.object);
    request.error[error.copy(request.error, request.error_bytes - 1)] = '\0';
    return error.empty() ? 0 : 1;
}

}  // namespace host
