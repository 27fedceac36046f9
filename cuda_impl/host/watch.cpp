// Checks every access to memory of a kernel that was built with -fsanitize=thread, whose calls come here in
// place of ThreadSanitizer's: is it aligned, is it within a tensor, and is it ordered against the accesses
// of other threads to the same memory? The first problem ends the launch.
//
// Limits: a race needs a read, as threads may write equal values; of the threads that read since a write the
// last two are known; accesses between which a named barrier or an mbarrier was passed count as ordered.  In
// global memory a race is a read of what another thread wrote before; from a launch's first fence or atomic
// operation on, which may order its blocks, none is looked for there.  Two volatile accesses are no race, as
// two atomic ones: PTX has ld.volatile and st.volatile as relaxed operations.
#include <dlfcn.h>

#include <algorithm>
#include <string>
#include <unordered_map>
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
    bool atomic = false;
};
// The last accesses to each byte of shared memory: static, dynamic; reads of two threads.
std::vector<Access> writes[2], reads[2], other_reads[2];

// The last write to each byte of global memory in a launch; none is kept once its blocks communicate.
std::unordered_map<std::uintptr_t, Access> global_writes;
std::uint64_t global_launch = 0;
bool blocks_communicate = false;

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

bool is_shared(const Moment& now, unsigned kind, std::uintptr_t address) {
    const auto shared = reinterpret_cast<std::uintptr_t>(now.shared[kind]);
    return shared != 0 && shared <= address && address < shared + now.shared_bytes[kind];
}

void check_shared(
    const Moment& now, unsigned kind, std::size_t offset, std::size_t bytes, bool write, const void* code,
    bool atomic = false) {
    const std::size_t size = now.shared_bytes[kind];
    for (auto* accesses : {&writes[kind], &reads[kind], &other_reads[kind]}) {
        accesses->resize(std::max(accesses->size(), size));
    }
    const Access access = {now.block, now.wakes, now.thread, now.block_round, now.warp_round, code, atomic};
    for (std::size_t at = offset; at < std::min(offset + bytes, size); ++at) {
        Access &read = reads[kind][at], &other = other_reads[kind][at], &written = writes[kind][at];
        const auto check_after = [&](const Access& before, const char* did) {
            if (ordered(before, now) || (atomic && before.atomic)) return;
            fail(
                "race in shared memory: thread " + std::to_string(now.thread) +
                (write ? " writes" : " reads") + " at " + place(code) + " what thread " +
                std::to_string(before.thread) + did + " at " + place(before.code) +
                ", with no barrier between: is a __syncthreads() or an atomic missing?");
        };
        if (write) check_after(read, " reads");
        if (write) check_after(other, " reads");
        if (!write || atomic) check_after(written, " writes");
        if (!write && read.thread != now.thread) other = read;
        (write ? written : read) = access;
    }
}

void begin(const Moment& now) {
    if (now.launch == global_launch) return;
    global_launch = now.launch;
    global_writes.clear();
    blocks_communicate = false;
}

void check_global(
    const Moment& now, std::uintptr_t address, std::size_t bytes, bool write, const void* code, bool atomic) {
    const auto stacks = reinterpret_cast<std::uintptr_t>(now.stacks);
    begin(now);
    if (blocks_communicate || (stacks <= address && address < stacks + now.stack_bytes)) return;
    const Access access = {now.block, now.wakes, now.thread, now.block_round, now.warp_round, code, atomic};
    for (std::uintptr_t at = address; at < address + bytes; ++at) {
        if (write) {
            global_writes[at] = access;
            continue;
        }
        const auto before = global_writes.find(at);
        if (before == global_writes.end() || (atomic && before->second.atomic)) continue;
        const bool elsewhere = before->second.block != now.block;
        if (elsewhere || !ordered(before->second, now)) {
            fail(
                "race in global memory: thread " + std::to_string(now.thread) + " reads at " + place(code) +
                " what thread " + std::to_string(before->second.thread) +
                (elsewhere ? " of another block" : "") + " writes at " + place(before->second.code) +
                (elsewhere ? ": is an atomic missing?" : ": is a __syncthreads() or an atomic missing?"));
        }
    }
}

// What the first warp of a launch's first block accesses, for a picture: `cuda_impl.watch.recorded`.
struct Recorded {
    std::uint64_t address, code;
    std::uint32_t thread, bytes, write, shared;
};
constexpr std::uint32_t MOST_OF_THREAD = 64;
std::vector<Recorded> recorded;
std::uint64_t recorded_block = 0;
bool recording = false;

void record(const Moment& now, std::uintptr_t address, std::size_t bytes, bool write, const void* code) {
    const auto stacks = reinterpret_cast<std::uintptr_t>(now.stacks);
    if (recorded_block == 0) recorded_block = now.block;
    if (now.block != recorded_block || now.thread >= LANES) return;
    if (stacks <= address && address < stacks + now.stack_bytes) return;
    const auto of_thread = std::count_if(
        recorded.begin(), recorded.end(), [&](const Recorded& each) { return each.thread == now.thread; });
    if (of_thread >= MOST_OF_THREAD) return;
    const bool shared = is_shared(now, 0, address) || is_shared(now, 1, address);
    recorded.push_back({address, std::stoull(place(code)), now.thread, std::uint32_t(bytes), write, shared});
}

void check(
    std::uintptr_t address, std::size_t bytes, bool write, const void* code, bool is_volatile = false) {
    Moment now;
    if (!moment(now)) return;
    if (recording) record(now, address, bytes, write, code);
    for (unsigned kind = 0; kind < 2; ++kind) {
        if (is_shared(now, kind, address)) {
            const auto shared = reinterpret_cast<std::uintptr_t>(now.shared[kind]);
            return check_shared(now, kind, address - shared, bytes, write, code);
        }
    }
    if (within(arenas, address, 1) && !within(tensors, address, bytes)) {
        fail(
            described(write, bytes) + " at " + place(code) + ", outside of every tensor: address " +
            std::to_string(address));
    }
    check_global(now, address, bytes, write, code, is_volatile);
}

}  // namespace
}  // namespace host

// Called by fences, and by atomic operations with what they change.
extern "C" void host_synchronizes(const void* changed, std::size_t bytes) {
    host::Moment now;
    const auto address = reinterpret_cast<std::uintptr_t>(changed);
    if (!host::moment(now)) return;
    for (unsigned kind = 0; kind < 2; ++kind) {
        if (!host::is_shared(now, kind, address)) continue;
        const auto offset = address - reinterpret_cast<std::uintptr_t>(now.shared[kind]);
        return host::check_shared(now, kind, offset, bytes, true, __builtin_return_address(0), true);
    }
    if (host::within(host::arenas, address, 1) && !host::within(host::tensors, address, bytes)) {
        host::fail("an atomic operation outside of every tensor: address " + std::to_string(address));
    }
    host::begin(now);
    host::blocks_communicate = true;
    host::global_writes.clear();
}

// Called from Python: pairs of addresses, first and last + 1.
extern "C" void host_watch(
    const std::uintptr_t* arenas, std::size_t arena_count, const std::uintptr_t* tensors,
    std::size_t tensor_count) {
    host::arenas.clear();
    host::tensors.clear();
    for (std::size_t i = 0; i < arena_count; ++i) host::arenas.push_back({arenas[2 * i], arenas[2 * i + 1]});
    for (std::size_t i = 0; i < tensor_count; ++i)
        host::tensors.push_back({tensors[2 * i], tensors[2 * i + 1]});
}

// Called from Python: record from now on, or no longer.
extern "C" void host_record(int on) {
    host::recording = on != 0;
    if (on == 0) return;
    host::recorded.clear();
    host::recorded_block = 0;
}
// Copies up to `count` records; returns how many there are.
extern "C" std::size_t host_recorded(host::Recorded* to, std::size_t count) {
    std::copy_n(host::recorded.begin(), std::min(count, host::recorded.size()), to);
    return host::recorded.size();
}

// What the compiler calls before each access.
#define WATCH(KIND, SIZE, WRITE, VOLATILE)                                        \
    extern "C" void __tsan_##KIND##SIZE(std::uintptr_t address) {                 \
        host::check(address, SIZE, WRITE, __builtin_return_address(0), VOLATILE); \
    }
#define WATCH_SIZE(SIZE)                      \
    WATCH(read, SIZE, false, false)           \
    WATCH(write, SIZE, true, false)           \
    WATCH(unaligned_read, SIZE, false, false) \
    WATCH(unaligned_write, SIZE, true, false) \
    WATCH(volatile_read, SIZE, false, true)   \
    WATCH(volatile_write, SIZE, true, true)
WATCH_SIZE(1)
WATCH_SIZE(2)
WATCH_SIZE(4)
WATCH_SIZE(8)
WATCH_SIZE(16)
extern "C" void __tsan_read_range(std::uintptr_t address, std::size_t bytes) {
    host::check(address, bytes, false, __builtin_return_address(0));
}
extern "C" void __tsan_write_range(std::uintptr_t address, std::size_t bytes) {
    host::check(address, bytes, true, __builtin_return_address(0));
}
extern "C" void __tsan_init() {}
extern "C" void __tsan_func_entry(void*) {}
extern "C" void __tsan_func_exit() {}
// Of std::function and std::shared_ptr, in which an emulated unit keeps its state.
extern "C" void __tsan_vptr_read(void**) {}
extern "C" void __tsan_vptr_update(void**, void*) {}
extern "C" int __tsan_atomic32_fetch_add(volatile int* address, int value, int) {
    return __atomic_fetch_add(address, value, __ATOMIC_SEQ_CST);
}

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
    refuse(
        record, "misaligned address: it accesses a type of alignment " + std::to_string(alignment) +
                    " at an address that is no multiple of that,");
}
extern "C" void __ubsan_handle_out_of_bounds(const void* record, std::uintptr_t index) {
    refuse(record, "index " + std::to_string(std::intptr_t(index)) + " is outside of its array");
}
extern "C" void __ubsan_handle_divrem_overflow(const void* record, std::uintptr_t, std::uintptr_t) {
    refuse(record, "division by zero");
}
