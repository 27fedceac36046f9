// Runs a CUDA kernel on the CPU, with g++ and without a GPU: a block's threads are fibers (ucontext), and
// blocks run one after another in launch order.
//
// A block whose threads poll memory written by another block (with __nanosleep) cannot simply run to its end.
// So every live block has its own operating-system thread, and `__shared__` is thread-local. A block that can
// only spin yields to the next live block, or to one that has not started. One thread runs at a time, in a
// fixed order, so every run is the same.
//
// Limit: nothing runs in parallel. This finds out-of-bounds accesses, undefined arithmetic, deadlocks and
// missing barriers, but it is no proof against every race. A missing barrier shows only in a thread order
// that it should have prevented, so run with every value of HOST_THREAD_ORDER:
//   forward (the default), reverse   all threads run to their next barrier or shuffle, first or last first
//   apart, reverse-apart             a warp runs to its next barrier before the next warp runs
#pragma once

#include <vector_types.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>

// CUDA's built-in variables, set whenever a thread resumes.
extern __thread uint3 threadIdx;
extern __thread uint3 blockIdx;
extern __thread dim3 blockDim;
extern __thread dim3 gridDim;
constexpr int warpSize = 32;

namespace host {

constexpr unsigned LANES = 32;

// Runs thread(state) for every thread of every block. Returns an empty string, or an error message.
// `allocate` is a function of the shared object whose thread-local variables are __shared__: called on the
// thread of a block, it allocates them. If no others are thread-local, they are overwritten before every
// block: on a GPU too, no block finds zeros there. `cluster`: so many blocks next to each other form one.
std::string run(
    dim3 grid, dim3 block, unsigned cluster, std::size_t shared_bytes, void (*thread)(void*), void* state,
    void (*allocate)(), bool overwrites);

// ---- functions for the running thread; `call` is the CUDA function's name for the deadlock message ----

struct Votes {
    unsigned threads, nonzero;
};
// Waits for all threads of the block that have not returned.
Votes sync_threads(bool predicate, const char* call);

struct Meeting {
    const std::uint64_t* values;  // by lane, until the thread's next call of `meet`
    unsigned present;             // the lanes that gave one
};
// Waits for all lanes in `mask` that have not returned.
Meeting meet(unsigned mask, std::uint64_t value, const char* call);

// An asynchronous copy of `size` bytes: the first `bytes` are read, the others become 0. It is executed when
// its group is waited for and not before, so that a missing wait shows.
void start_copy(void* to, const void* from, std::size_t bytes, std::size_t size);
void commit_copies();                       // commits the copies started since the last commit as one group
void wait_for_copies(std::size_t pending);  // for all but the latest `pending` groups

// Waits until another thread, of any block, wakes that place.
void wait_on(const void* place, const char* call);
void wake(const void* place);
// Clusters: the block's rank, the barrier of all their threads, and the same variable in another block.
unsigned cluster_rank();
void cluster_arrive();
void cluster_wait();
void* in_block(void* shared, unsigned rank);
// Hardware barrier `id` of a block: `threads` threads, of which some only arrive.
void named_barrier(unsigned id, unsigned threads, bool waits, const char* call);
// State that units keep per thread and per block of a cluster; null when the thread or block starts.
enum Unit { STORES, PRODUCTS, UNITS };
std::shared_ptr<void>& state_of_thread(Unit unit);
std::shared_ptr<void>& state_of_block(unsigned rank);
// The running thread, and what has ordered its accesses against those of others: for `watch.cpp`.
struct Moment {
    unsigned thread;       // its linear index in the block
    unsigned block_round;  // completed barriers of the block
    unsigned warp_round;   // meetings of its warp when it last took part in one
    std::uint64_t wakes;   // of threads that waited on a place: named barriers, mbarriers
    std::uint64_t block;   // differs between blocks, and between launches
    std::uint64_t launch;
    const char* stacks;  // memory of the block's threads
    std::size_t stack_bytes;
    const char* shared[2];  // static and dynamic shared memory
    std::size_t shared_bytes[2];
};
// False outside of a kernel.
bool moment(Moment& now);

// Ends the launch with an error.
[[noreturn]] void fail(const std::string& message);
bool reverse_order();

}  // namespace host
extern "C" void host_synchronizes(const void* changed, std::size_t bytes);  // in watch.cpp
namespace host {
void spin();  // lets every other thread of every block run first
unsigned lane();
void* dynamic_shared();

}  // namespace host
