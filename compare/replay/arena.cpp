// Hands out parts of a reserved range of device memory to PyTorch's caching allocator, in ascending order.
// PyTorch calls it under its own lock, and asks for few and large parts.

#include <sys/types.h>

#include <cstdint>

namespace {
uintptr_t next_part = 0, range_end = 0;
constexpr uintptr_t ALIGNMENT = 2 << 20;  // as cudaMalloc's large parts: PyTorch splits them further
}  // namespace

extern "C" void arena_set(uintptr_t begin, uintptr_t end) {
    next_part = begin;
    range_end = end;
}

extern "C" uintptr_t arena_next() {
    return next_part;
}

extern "C" void* arena_alloc(ssize_t size, int, void*) {
    const uintptr_t free_bytes = range_end - next_part;
    if (size < 0 || static_cast<uintptr_t>(size) > free_bytes)
        return nullptr;  // PyTorch raises OutOfMemoryError
    const uintptr_t taken = (static_cast<uintptr_t>(size) + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    const uintptr_t part = next_part;
    next_part += taken < free_bytes ? taken : free_bytes;
    return reinterpret_cast<void*>(part);
}

// A freed part is not handed out again: the pool lives as long as one recording.
extern "C" void arena_free(void*, ssize_t, int, void*) {}
