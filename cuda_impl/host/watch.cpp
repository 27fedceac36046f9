// Checks every access to memory of a kernel that was built with -fsanitize=kernel-address, whose calls come
// here in place of the kernel's: is it aligned, is it within a tensor, and is it ordered against the accesses
// of other threads to the same shared memory? The first problem ends the launch.
//
// Limits: a race needs a read, as threads may write equal values; of the reads since a write the last one is
// known; accesses between which a named barrier or an mbarrier was passed count as ordered.
#include <dlfcn.h>

#include <algorithm>
#include <string>
#include <vector>

#include "fibers.h"

namespace host {
namespace {

struct Span {
    std::uintptr_t begin, end;
};
std::vector<Span> arenas;   // memory that holds tensors, with gaps between them
std::vector<Span> tensors;  // within the arenas

bool within(const std::vector<Span>& spans, std::uintptr_t address, std::size_t bytes) {
    return std::any_of(spans.begin(), spans.end(), [&](const Span& span) {
        return span.begin <= address && address + bytes <= span.end;
    });
}

struct Access {
    std::uint64_t block = 0;  // 0: none
    std::uint64_t wakes;
    unsigned thread, block_round, warp_round;
    const void* code;
};
// The last accesses to each byte of shared memory: static, dynamic.
std::vector<Access> writes[2], reads[2];

bool ordered(const Access& before, const Moment& now) {
    if (before.block != now.block || before.thread == now.thread) return true;
    if (before.block_round != now.block_round || before.wakes != now.wakes) return true;
    return before.thread / LANES == now.thread / LANES && before.warp_round < now.warp_round;
}

// ``+0x1a3f``: an address within the kernel's shared object, which Python turns into a line.
std::string place(const void* code) {
    Dl_info info;
    const auto address = reinterpret_cast<std::uintptr_t>(code);
    const auto base = dladdr(code, &info) != 0 ? reinterpret_cast<std::uintptr_t>(info.dli_fbase) : 0;
    return "+" + std::to_string(address - base - 1);  // of the call, not of what follows it
}

std::string described(bool write, std::size_t bytes) {
    return std::string(write ? "writes " : "reads ") + std::to_string(bytes) + " bytes";
}

void check_shared(const Moment& now, unsigned kind, std::size_t offset, std::size_t bytes, bool write,
                  const void* code) {
    const std::size_t size = now.shared_bytes[kind];
    writes[kind].resize(std::max(writes[kind].size(), size));
    reads[kind].resize(std::max(reads[kind].size(), size));
    const Access access = {now.block, now.wakes, now.thread, now.block_round, now.warp_round, code};
    for (std::size_t at = offset; at < std::min(offset + bytes, size); ++at) {
        const Access& before = write ? reads[kind][at] : writes[kind][at];
        if (!ordered(before, now)) {
            fail("race in shared memory: thread " + std::to_string(now.thread) +
                 (write ? " writes" : " reads") + " at " + place(code) + " what thread " +
                 std::to_string(before.thread) + (write ? " reads" : " writes") + " at " +
                 place(before.code) + ", with no barrier between");
        }
        (write ? writes : reads)[kind][at] = access;
    }
}

void check(std::uintptr_t address, std::size_t bytes, bool write, const void* code) {
    Moment now;
    if (!moment(now)) return;
    for (unsigned kind = 0; kind < 2; ++kind) {
        const auto shared = reinterpret_cast<std::uintptr_t>(now.shared[kind]);
        if (shared != 0 && shared <= address && address < shared + now.shared_bytes[kind]) {
            return check_shared(now, kind, address - shared, bytes, write, code);
        }
    }
    if (within(arenas, address, 1) && !within(tensors, address, bytes)) {
        fail(described(write, bytes) + " at " + place(code) + ", outside of every tensor: address " +
             std::to_string(address));
    }
}

}  // namespace
}  // namespace host

// Called from Python: pairs of addresses, first and last + 1.
extern "C" void host_watch(const std::uintptr_t* arenas, std::size_t arena_count,
                           const std::uintptr_t* tensors, std::size_t tensor_count) {
    host::arenas.clear();
    host::tensors.clear();
    for (std::size_t i = 0; i < arena_count; ++i) host::arenas.push_back({arenas[2 * i], arenas[2 * i + 1]});
    for (std::size_t i = 0; i < tensor_count; ++i)
        host::tensors.push_back({tensors[2 * i], tensors[2 * i + 1]});
}

// What the compiler calls before each access.
#define WATCH(SIZE)                                                        \
    extern "C" void __asan_load##SIZE##_noabort(std::uintptr_t address) {  \
        host::check(address, SIZE, false, __builtin_return_address(0));    \
    }                                                                      \
    extern "C" void __asan_store##SIZE##_noabort(std::uintptr_t address) { \
        host::check(address, SIZE, true, __builtin_return_address(0));     \
    }
WATCH(1)
WATCH(2)
WATCH(4)
WATCH(8)
WATCH(16)
extern "C" void __asan_loadN_noabort(std::uintptr_t address, std::size_t bytes) {
    host::check(address, bytes, false, __builtin_return_address(0));
}
extern "C" void __asan_storeN_noabort(std::uintptr_t address, std::size_t bytes) {
    host::check(address, bytes, true, __builtin_return_address(0));
}
extern "C" void __asan_handle_no_return() {}

// ---- what -fsanitize=alignment,bounds,integer-divide-by-zero finds, in place of its own library --------

namespace {

// The first member of every record that the compiler passes.
struct SourceLocation {
    const char* file;
    std::uint32_t line, column;
};

void refuse(const void* record, const std::string& problem) {
    host::Moment now;
    if (!host::moment(now)) return;
    const auto& location = *static_cast<const SourceLocation*>(record);
    host::fail(problem + " at line " + std::to_string(location.line));
}

struct TypeMismatch {
    SourceLocation location;
    const void* type;
    unsigned char log_alignment, kind;
};

}  // namespace

extern "C" void __ubsan_handle_type_mismatch_v1(const TypeMismatch* record, std::uintptr_t address) {
    const unsigned alignment = 1u << record->log_alignment;
    if (address % alignment == 0) return;
    refuse(record, "misaligned address: it accesses a type of alignment " + std::to_string(alignment) +
                       " at an address that is no multiple of that,");
}
extern "C" void __ubsan_handle_out_of_bounds(const void* record, std::uintptr_t index) {
    refuse(record, "index " + std::to_string(std::intptr_t(index)) + " is outside of its array");
}
extern "C" void __ubsan_handle_divrem_overflow(const void* record, std::uintptr_t, std::uintptr_t) {
    refuse(record, "division by zero");
}
