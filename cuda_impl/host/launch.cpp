// The part of a launch that is the same for every kernel: validation of the request, with error messages.
#include "launch.h"

#include <algorithm>

namespace host {
namespace {

constexpr unsigned MAX_BLOCK_THREADS = 1024, MAX_CLUSTER = 16;

bool fits(const Parameter& parameter, const Argument& argument) {
    if (argument.kind == 'd') return parameter.kind == 'f';
    const auto number = [&] { return unpack<std::int64_t>({argument.bytes, argument.size, 'i'}); };
    if (argument.kind == 'i' && parameter.kind == 'P') return argument.size == 8 && number() == 0;  // null
    if (argument.kind == 'P' && parameter.kind == 'i') {
        const std::int64_t value = number();
        const std::int64_t limit = std::int64_t(1) << 8 * std::min<std::size_t>(parameter.size, 7);
        return parameter.size == 8 || (-limit / 2 <= value && value < limit);
    }
    return argument.size == parameter.size && argument.kind == parameter.kind;
}

std::string described(std::size_t size, char kind) {
    if (kind == 'P') return "an address";
    if (kind == 'd') return "a plain number with a fraction";
    const char* name = kind == 'i' ? "an integer" : kind == 'f' ? "a floating-point number" : "a value";
    return std::string(name) + " of " + std::to_string(size) + " bytes";
}

// What Python passes for a parameter.
std::string in_python(const Parameter& parameter) {
    if (parameter.kind == 'P') return "x.data_ptr() of a tensor";
    if (parameter.kind == 'V') return "a numpy scalar of its size";
    const char* name = parameter.kind == 'i' ? "np.int" : "np.float";
    return name + std::to_string(8 * parameter.size) + "(number)";
}

// Empty if the arguments are what the kernel takes, else an error message.
std::string unfit(
    const Parameter* parameters, std::size_t takes, const Argument* arguments, std::size_t count) {
    if (count != takes) {
        return "takes " + std::to_string(takes) + " arguments, got " + std::to_string(count);
    }
    for (std::size_t i = 0; i < count; ++i) {
        if (fits(parameters[i], arguments[i])) continue;
        return "argument " + std::to_string(i) + " is " + described(parameters[i].size, parameters[i].kind) +
               ", got " + described(arguments[i].size, arguments[i].kind) + ": pass " +
               in_python(parameters[i]);
    }
    return "";
}

}  // namespace

std::string invalid(dim3 grid, dim3 block, unsigned cluster, std::size_t shared_bytes) {
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
    if (cluster == 0 || cluster > MAX_CLUSTER || grid.x % cluster != 0) {
        return "clusters of " + std::to_string(cluster) + " of " + std::to_string(grid.x) +
               " blocks: takes 1 to " + std::to_string(MAX_CLUSTER) + ", a divisor of the blocks along x";
    }
    if (shared_bytes > MAX_SHARED_BYTES) {
        return "shared memory of " + std::to_string(shared_bytes) + " bytes: a block has at most " +
               std::to_string(MAX_SHARED_BYTES);
    }
    return "";
}

int answer(
    const Request& request, const Parameter* parameters, std::size_t count, void (*thread)(void*),
    void* state) {
    const dim3 grid(request.grid[0], request.grid[1], request.grid[2]);
    const dim3 block(request.block[0], request.block[1], request.block[2]);
    std::string error = unfit(parameters, count, request.arguments, request.count);
    if (error.empty()) error = invalid(grid, block, request.cluster, request.shared_bytes);
    if (error.empty()) {
        error =
            run(grid, block, request.cluster, request.shared_bytes, thread, state, request.allocate, true);
    }
    request.error[error.copy(request.error, request.error_bytes - 1)] = '\0';
    return error.empty() ? 0 : 1;
}

}  // namespace host
