// Runs a CUDA kernel on the CPU, with g++ and no GPU: a block's threads are fibers (ucontext), and
// blocks run one after another in launch order.
//
// A block whose threads poll memory that another block writes (SPIN_WAIT) cannot simply run to its end.
// So every block has an operating-system thread to itself while it lives, and `__shared__` is
// thread-local: a block that can only spin hands the turn to the next live block, or to one that has not
// begun. One thread runs at a time and the turn moves in a fixed order, so every run is the same.
//
// Nothing here is parallel, and that is its limit: it finds out-of-bounds accesses, undefined
// arithmetic, deadlocks and missing barriers, but it is no proof against every race. A missing barrier shows
// in an order of threads that it was to prevent, so run in each that HOST_THREAD_ORDER knows:
//   forward (the default), reverse   all threads go on to their next barrier or shuffle, first or last first
//   apart, reverse-apart             a warp goes on to its next barrier before the next warp moves
#pragma once

#include <vector_types.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

// CUDA's built-in variables, set whenever a thread resumes.
extern __thread uint3 threadIdx;
extern __thread uint3 blockIdx;
extern __thread dim3 blockDim;
extern __thread dim3 gridDim;
constexpr int warpSize = 32;

namespace host {

constexpr unsigned LANES = 32;

// Runs thread(state) for every thread of every block. Empty if all went well, else what went wrong.
// `object` is any address within the shared object whose thread-local variables are all __shared__: they are
// overwritten before every block, lest one finds there what a former block left. Null leaves them.
std::string run(dim3 grid, dim3 block, std::size_t shared_bytes, void (*thread)(void*), void* state,
                const void* object);

// ---- what the running thread may ask; `call` names the CUDA function for the message of a deadlock ----

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

// A copy of `size` bytes, of which only the first `bytes` are read and the others become 0. It happens when
// its group is waited for and not before: a wait that is missing shows.
void start_copy(void* to, const void* from, std::size_t bytes, std::size_t size);
void commit_copies();                       // makes a group of the copies started since the last one
void wait_for_copies(std::size_t pending);  // for all groups but the last `pending`

void spin();  // lets every other thread of every block go first
unsigned lane();
void* dynamic_shared();

}  // namespace host
