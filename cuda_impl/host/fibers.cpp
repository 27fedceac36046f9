// The scheduler behind fibers.h: the state of a fiber, a warp, a block and a launch while they run.
#undef _FORTIFY_SOURCE  // its longjmp refuses to switch to another stack
#include "fibers.h"

#include <dlfcn.h>
#include <link.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

__thread uint3 threadIdx;
__thread uint3 blockIdx;
__thread dim3 blockDim;
__thread dim3 gridDim;

namespace host {
namespace {

constexpr std::size_t STACK_BYTES = 256 << 10;  // of address space; a page uses memory once touched
constexpr unsigned IDLE_TURNS = 1000;           // per live block, until a launch counts as deadlocked
const std::string POLLED =
    "deadlock: every block still running polls, in __nanosleep, memory that no block writes";

// ---- AddressSanitizer must know the current stack ----------------------------------------------------

struct Stack {
    const void* bottom = nullptr;
    std::size_t bytes = 0;
};

void before_switch([[maybe_unused]] void** fake_stack, [[maybe_unused]] const Stack& to) {
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_start_switch_fiber(fake_stack, to.bottom, to.bytes);
#endif
}

void after_switch([[maybe_unused]] void* fake_stack, [[maybe_unused]] Stack* from) {
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_finish_switch_fiber(
        fake_stack, from ? &from->bottom : nullptr, from ? &from->bytes : nullptr);
#endif
}

// ---- static __shared__ -------------------------------------------------------------------------------

struct Memory {
    void* start = nullptr;
    std::size_t bytes = 0;
};

// The calling thread's copy of the thread-local variables of the shared object that contains `address`: null
// until the thread has touched one of them, of 0 bytes where there are none.
Memory thread_locals(const void* address) {
    struct Search {
        std::uintptr_t address;
        Memory found;
    } search = {reinterpret_cast<std::uintptr_t>(address), {}};
    const auto visit = [](dl_phdr_info* info, std::size_t, void* data) {
        Search& search = *static_cast<Search*>(data);
        bool around = false;
        std::size_t bytes = 0;
        for (unsigned i = 0; i < info->dlpi_phnum; ++i) {
            const auto& header = info->dlpi_phdr[i];
            const std::uintptr_t start = info->dlpi_addr + header.p_vaddr;
            if (header.p_type == PT_LOAD) {
                around |= start <= search.address && search.address < start + header.p_memsz;
            } else if (header.p_type == PT_TLS) {
                bytes = header.p_memsz;
            }
        }
        if (around) search.found = {info->dlpi_tls_data, bytes};
        return around ? 1 : 0;
    };
    dl_iterate_phdr(visit, &search);
    return search.found;
}

// ---- one thread, one warp-level function, one block --------------------------------------------------

enum class State { ready, waiting, spinning, done };

struct Copy {
    void* to;
    const void* from;
    std::size_t bytes, size;
};

struct Fiber {
    jmp_buf context;  // swapcontext would make two system calls a switch, to keep the signal mask
    bool entered = false;
    unsigned arrivals = 0;  // at the cluster's barrier
    uint3 index;
    unsigned linear = 0;
    State state = State::ready;
    const char* call = "";
    unsigned met = 0;  // its warp's meetings when it last took part in one
    Stack stack;
    void* fake_stack = nullptr;
    const void* place = nullptr;  // what it waits on, of `wait_on`
    std::shared_ptr<void> unit_states[UNITS];
    std::vector<Copy> copies;              // started, not yet committed to a group
    std::deque<std::vector<Copy>> groups;  // committed, not yet waited for
};

// The synchronisation point of the lanes of one mask. Keeps the values of two rounds: a lane may enter the
// next round while another has not yet read the last one's.
struct MeetingPoint {
    unsigned mask = 0;
    unsigned arrived = 0;
    unsigned round = 0;
    unsigned present[2] = {};
    std::uint64_t values[2][LANES] = {};
};

struct Warp {
    unsigned alive = 0;
    unsigned meetings = 0;
    std::deque<MeetingPoint> points;  // a deque does not move its elements

    MeetingPoint& point(unsigned mask) {
        for (MeetingPoint& known : points) {
            if (known.mask == mask) return known;
        }
        points.emplace_back().mask = mask;
        return points.back();
    }
};

// The synchronisation point of all threads of a block.
struct Barrier {
    unsigned arrived = 0;
    unsigned round = 0;
    Votes votes[2] = {};
};

struct NamedBarrier {
    unsigned arrived = 0, threads = 0;
};

// Bytes behind dynamic shared memory that no kernel may write. AddressSanitizer has its own.
#ifdef __SANITIZE_ADDRESS__
constexpr std::size_t GUARD_BYTES = 0;
#else
constexpr std::size_t GUARD_BYTES = 4096;
#endif

class Launch;

class Block {
  public:
    explicit Block(Launch& launch);
    ~Block();
    Block(const Block&) = delete;
    Block& operator=(const Block&) = delete;

    bool run(uint3 index, std::uint64_t linear);  // false: the launch has failed, here or elsewhere

    Votes sync_threads(bool predicate, const char* call);
    Meeting meet(unsigned mask, std::uint64_t value, const char* call);
    void start_copy(const Copy& copy) { running_->copies.push_back(copy); }
    void commit_copies();
    void wait_for_copies(std::size_t pending);
    void spin() { leave(State::spinning, "__nanosleep"); }
    unsigned lane() const { return running_->linear % LANES; }
    void* dynamic_shared();
    void wait_on(const void* place, const char* call);
    void wake(const void* place);
    unsigned cluster_rank() const;
    void cluster_arrive();
    void cluster_wait();
    Block& of_cluster(unsigned rank);
    void* in_block(void* shared, unsigned rank);
    void named_barrier(unsigned id, unsigned threads, bool waits, const char* call);
    [[noreturn]] void fail(const std::string& message);
    void stop(std::uintptr_t code);
    bool reverse_order() const;
    void moment(Moment& now);
    std::shared_ptr<void>& state_of_thread(Unit unit) { return running_->unit_states[unit]; }
    std::shared_ptr<void>& state_of_block() { return unit_state_; }

  private:
    static void enter();
    static bool spins(const Fiber& fiber) { return fiber.state == State::spinning; }
    void start(Fiber& fiber);
    void enter_on_own_stack(Fiber& fiber);
    bool step(std::size_t begin, std::size_t end, bool& progressed);
    std::size_t end_of_warp(std::size_t begin) const;
    void resume(Fiber& fiber);
    void leave(State state, const char* call);
    void wait(const char* call);
    void complete(Barrier& barrier);
    void complete(Warp& warp, MeetingPoint& point, unsigned first_thread);
    void exit_thread();
    std::string stuck() const;
    bool wrote_past_shared() const;
    static std::string place();

    Launch& launch_;
    jmp_buf scheduler_;
    ucontext_t entry_;  // not a local variable: AddressSanitizer would find it left on the scheduler's stack
    Stack scheduler_stack_;
    char* stacks_ = nullptr;
    std::vector<Fiber> fibers_;
    std::vector<Fiber*> order_;
    std::vector<Warp> warps_;
    Barrier barrier_;
    NamedBarrier named_barriers_[32] = {};  // the hardware's 16, and as many for units
    std::shared_ptr<void> unit_state_;
    unsigned alive_ = 0;
    std::uint64_t wakes_ = 0;
    std::uint64_t number_ = 0;
    std::uint64_t linear_ = 0;  // in the grid
    Fiber* running_ = nullptr;
    Memory static_shared_;
    std::unique_ptr<void, void (*)(void*)> shared_{nullptr, std::free};
};

thread_local Block* current_block = nullptr;
std::uint64_t blocks_run = 0, launches_run = 0;

// ---- one launch: which block runs --------------------------------------------------------------------

class Launch {
  public:
    Launch(
        dim3 grid, dim3 block, unsigned cluster, std::size_t shared_bytes, void (*thread)(void*), void* state,
        void (*allocate)(), bool overwrites)
        : grid(grid),
          block(block),
          cluster(cluster),
          shared_bytes(shared_bytes),
          thread(thread),
          state(state),
          allocate(allocate),
          overwrites(overwrites) {
        const char* order = std::getenv("HOST_THREAD_ORDER");
        reverse = order != nullptr && std::strstr(order, "reverse") != nullptr;
        apart = order != nullptr && std::strstr(order, "apart") != nullptr;
    }

    std::string run() {
        workers_.push_back(0);
        work(0);
        wait_for_turn(NOBODY);
        for (std::thread& helper : helpers_) helper.join();
        return error_;
    }

    // The running block can only spin, or wait for others of its cluster: let others run first, and start
    // blocks before `end`. False: the launch has failed, with that message if no block has anything to do.
    bool pass_turn(bool progressed, std::uint64_t end, const std::function<std::string()>& message) {
        const unsigned self = turn_;
        idle_turns_ = progressed ? 0 : idle_turns_ + 1;
        if (next_block_ < end) {
            hand_to(hire());
        } else if (idle_turns_ > IDLE_TURNS * workers_.size()) {
            fail(message());
        } else {
            hand_to(after(self));
        }
        wait_for_turn(self);
        return !failed();
    }

    void fail(const std::string& message) {
        if (error_.empty()) error_ = message;
    }
    bool failed() const { return !error_.empty(); }
    const void* object() const { return reinterpret_cast<const void*>(allocate); }  // an address within it
    unsigned threads() const { return block.x * block.y * block.z; }
    std::uint64_t blocks() const { return std::uint64_t(grid.x) * grid.y * grid.z; }

    std::map<std::uint64_t, Block*> live;  // by linear index
    std::map<std::uint64_t, Barrier> cluster_barriers;

    const dim3 grid, block;
    const unsigned cluster;
    const std::size_t shared_bytes;
    void (*const thread)(void*);
    void* const state;
    void (*const allocate)();
    const bool overwrites;
    bool reverse;  // the last thread of a block first
    bool apart;    // a warp runs to its next barrier before the next warp runs
    const std::uint64_t number = ++launches_run;

  private:
    static constexpr unsigned NOBODY = ~0u;

    // Runs one block after another, as a multiprocessor does, until none is left.
    void work(unsigned self) {
        wait_for_turn(self);
        {
            Block slot(*this);
            while (!failed() && next_block_ < blocks()) {
                const std::uint64_t linear = next_block_++;
                const std::uint64_t plane = std::uint64_t(grid.x) * grid.y;
                const uint3 index = {
                    unsigned(linear % grid.x), unsigned(linear % plane / grid.x), unsigned(linear / plane)};
                if (!slot.run(index, linear)) break;
                idle_turns_ = 0;
            }
        }
        const unsigned next = after(self);
        for (std::size_t i = 0; i < workers_.size(); ++i) {
            if (workers_[i] == self) workers_.erase(workers_.begin() + std::ptrdiff_t(i));
        }
        hand_to(workers_.empty() ? NOBODY : next);
    }

    unsigned hire() {
        const unsigned worker = unsigned(helpers_.size()) + 1;
        workers_.push_back(worker);
        helpers_.emplace_back([this, worker] { work(worker); });
        return worker;
    }

    unsigned after(unsigned self) const {
        for (std::size_t i = 0; i < workers_.size(); ++i) {
            if (workers_[i] == self) return workers_[(i + 1) % workers_.size()];
        }
        return self;
    }

    void hand_to(unsigned worker) {
        {
            std::lock_guard<std::mutex> lock(mutex_);
            turn_ = worker;
        }
        changed_.notify_all();
    }

    void wait_for_turn(unsigned self) {
        std::unique_lock<std::mutex> lock(mutex_);
        changed_.wait(lock, [&] { return turn_ == self; });
    }

    std::uint64_t next_block_ = 0;
    std::uint64_t idle_turns_ = 0;
    std::string error_;
    std::vector<unsigned> workers_;  // live ones, in round-robin order
    std::deque<std::thread> helpers_;
    std::mutex mutex_;
    std::condition_variable changed_;
    unsigned turn_ = 0;
};

// ---- the block's scheduler ---------------------------------------------------------------------------

Block::Block(Launch& launch) : launch_(launch), fibers_(launch.threads()) {
    const unsigned threads = launch.threads();
    void* memory = mmap(
        nullptr, STACK_BYTES * threads, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
        -1, 0);
    if (memory == MAP_FAILED) {
        launch_.fail("no address space for the stacks of " + std::to_string(threads) + " threads");
        return;
    }
    stacks_ = static_cast<char*>(memory);
    for (unsigned i = 0; i < threads; ++i) {
        fibers_[i].linear = i;
        fibers_[i].index = {
            i % launch.block.x, i / launch.block.x % launch.block.y, i / (launch.block.x * launch.block.y)};
        fibers_[i].stack = {stacks_ + STACK_BYTES * i, STACK_BYTES};
        order_.push_back(&fibers_[launch.reverse ? threads - 1 - i : i]);
    }
}

Block::~Block() {
    if (current_block == this) current_block = nullptr;
    if (stacks_ == nullptr) return;
    const std::size_t bytes = STACK_BYTES * fibers_.size();
#ifdef __SANITIZE_ADDRESS__
    __asan_unpoison_memory_region(stacks_, bytes);  // the next mapping at this address starts clean
#endif
    munmap(stacks_, bytes);
}

bool Block::run(uint3 index, std::uint64_t linear) {
    current_block = this;
    linear_ = linear;
    launch_.live[linear] = this;
    number_ = ++blocks_run;
    blockIdx = index;
    blockDim = launch_.block;
    gridDim = launch_.grid;
    alive_ = launch_.threads();
    barrier_ = {};
    std::fill(std::begin(named_barriers_), std::end(named_barriers_), NamedBarrier{});
    unit_state_.reset();
    warps_.assign((alive_ + LANES - 1) / LANES, {});
    // Shared memory is not initialised to zeros: all ones is NaN.
    if (static_shared_.start == nullptr) {
        launch_.allocate();
        static_shared_ = thread_locals(launch_.object());
    }
    if (launch_.overwrites && static_shared_.start != nullptr) {
        std::memset(static_shared_.start, 0xff, static_shared_.bytes);
    }
    shared_.reset();
    for (Fiber& fiber : fibers_) start(fiber);

    bool progressed = false;  // since the block last let others run
    while (alive_ > 0) {
        bool moved = false;
        for (std::size_t begin = 0; begin < order_.size();) {
            const std::size_t end = launch_.apart ? end_of_warp(begin) : order_.size();
            while (step(begin, end, progressed)) moved = true;
            if (launch_.failed()) return false;
            begin = end;
        }
        if (moved) continue;
        const bool none_spins = std::none_of(fibers_.begin(), fibers_.end(), spins);
        if (none_spins && launch_.cluster == 1) {
            launch_.fail(stuck());
            return false;
        }
        const std::uint64_t end =
            none_spins ? linear - linear % launch_.cluster + launch_.cluster : launch_.blocks();
        const auto message = [&] { return none_spins ? stuck() : POLLED; };
        if (!launch_.pass_turn(progressed, end, message)) return false;
        progressed = false;
        for (Fiber& fiber : fibers_) {
            if (spins(fiber)) fiber.state = State::ready;
        }
    }
    launch_.live.erase(linear);
    if (wrote_past_shared()) {
        launch_.fail(
            place() + " wrote past its " + std::to_string(launch_.shared_bytes) +
            " bytes of dynamic shared memory: launch with shared_mem=BYTES");
        return false;
    }
    return true;
}

void* Block::dynamic_shared() {
    void* shared = nullptr;
    const std::size_t bytes = launch_.shared_bytes + GUARD_BYTES;
    if (shared_ == nullptr && posix_memalign(&shared, 128, bytes) == 0) {
        shared_.reset(std::memset(shared, 0xff, bytes));
    }
    return shared_.get();
}

bool Block::wrote_past_shared() const {
    if (shared_ == nullptr) return false;
    const auto* guard = static_cast<const unsigned char*>(shared_.get()) + launch_.shared_bytes;
    return std::any_of(guard, guard + GUARD_BYTES, [](unsigned char byte) { return byte != 0xff; });
}

std::string Block::place() {
    return "block (" + std::to_string(blockIdx.x) + ", " + std::to_string(blockIdx.y) + ", " +
           std::to_string(blockIdx.z) + ")";
}

// The end, in `order_`, of the warp whose first thread is at `begin`.
std::size_t Block::end_of_warp(std::size_t begin) const {
    const unsigned warp = order_[begin]->linear / LANES;
    std::size_t end = begin;
    while (end < order_.size() && order_[end]->linear / LANES == warp) ++end;
    return end;
}

// Runs every ready thread of that part of `order_` to its next wait. False: none was ready, or the launch has
// failed.
bool Block::step(std::size_t begin, std::size_t end, bool& progressed) {
    bool moved = false;
    for (std::size_t i = begin; i < end; ++i) {
        if (order_[i]->state != State::ready) continue;
        resume(*order_[i]);
        if (launch_.failed()) return false;
        moved = true;
        progressed |= !spins(*order_[i]);
    }
    return moved;
}

void Block::start(Fiber& fiber) {
    warps_[fiber.linear / LANES].alive |= 1u << fiber.linear % LANES;
    fiber.state = State::ready;
    fiber.met = 0;
    fiber.arrivals = 0;
    for (std::shared_ptr<void>& state : fiber.unit_states) state.reset();
    fiber.copies.clear();
    fiber.groups.clear();
}

void Block::enter_on_own_stack(Fiber& fiber) {
    fiber.entered = true;
    getcontext(&entry_);
    entry_.uc_stack.ss_sp = const_cast<void*>(fiber.stack.bottom);
    entry_.uc_stack.ss_size = fiber.stack.bytes;
    entry_.uc_link = nullptr;
    makecontext(&entry_, &Block::enter, 0);
    setcontext(&entry_);
}

// A fiber's whole life: the same thread of one block after another.
void Block::enter() {
    Block& block = *current_block;
    after_switch(nullptr, &block.scheduler_stack_);
    for (;;) {
        block.launch_.thread(block.launch_.state);
        block.exit_thread();
    }
}

void Block::resume(Fiber& fiber) {
    running_ = &fiber;
    threadIdx = fiber.index;
    void* fake_stack = nullptr;
    before_switch(&fake_stack, fiber.stack);
    if (_setjmp(scheduler_) == 0) {
        if (fiber.entered) _longjmp(fiber.context, 1);
        enter_on_own_stack(fiber);
    }
    after_switch(fake_stack, nullptr);
}

void Block::leave(State state, const char* call) {
    Fiber& fiber = *running_;
    fiber.state = state;
    fiber.call = call;
    before_switch(&fiber.fake_stack, scheduler_stack_);
    if (_setjmp(fiber.context) == 0) _longjmp(scheduler_, 1);
    after_switch(fiber.fake_stack, &scheduler_stack_);
}

// `complete` has made the last thread to arrive ready: it continues without a switch.
void Block::wait(const char* call) {
    if (running_->state == State::waiting) leave(State::waiting, call);
}

Votes Block::sync_threads(bool predicate, const char* call) {
    const unsigned slot = barrier_.round % 2;
    if (barrier_.arrived == 0) barrier_.votes[slot] = {};
    ++barrier_.arrived;
    ++barrier_.votes[slot].threads;
    barrier_.votes[slot].nonzero += predicate;
    running_->state = State::waiting;
    complete(barrier_);
    wait(call);
    return barrier_.votes[slot];
}

void Block::complete(Barrier& barrier) {
    if (barrier.arrived == 0 || barrier.arrived < alive_) return;
    barrier.arrived = 0;
    ++barrier.round;
    for (Fiber& fiber : fibers_) {
        if (fiber.state == State::waiting) fiber.state = State::ready;
    }
}

Meeting Block::meet(unsigned mask, std::uint64_t value, const char* call) {
    const unsigned lane = running_->linear % LANES;
    Warp& warp = warps_[running_->linear / LANES];
    if ((mask >> lane & 1) == 0) {
        launch_.fail(std::string(call) + ": lane " + std::to_string(lane) + " is not in its own mask");
        leave(State::waiting, call);  // never resumed: the launch ends
    }
    MeetingPoint& point = warp.point(mask);
    const unsigned slot = point.round % 2;
    point.values[slot][lane] = value;
    point.arrived |= 1u << lane;
    running_->state = State::waiting;
    complete(warp, point, running_->linear - lane);
    wait(call);
    return {point.values[slot], point.present[slot]};
}

void Block::complete(Warp& warp, MeetingPoint& point, unsigned first_thread) {
    if (point.arrived == 0 || point.arrived != (point.mask & warp.alive)) return;
    ++warp.meetings;
    for (unsigned lane = 0; lane < LANES; ++lane) {
        if ((point.arrived >> lane & 1) == 0) continue;
        fibers_[first_thread + lane].state = State::ready;
        fibers_[first_thread + lane].met = warp.meetings;
    }
    point.present[point.round % 2] = point.arrived;
    point.arrived = 0;
    ++point.round;
}

void Block::commit_copies() {
    running_->groups.push_back(std::move(running_->copies));
    running_->copies.clear();
}

void Block::wait_for_copies(std::size_t pending) {
    std::deque<std::vector<Copy>>& groups = running_->groups;
    for (; groups.size() > pending; groups.pop_front()) {
        for (const Copy& copy : groups.front()) {
            std::memset(copy.to, 0, copy.size);
            std::memcpy(copy.to, copy.from, copy.bytes);
        }
    }
}

void Block::wait_on(const void* place, const char* call) {
    Fiber& fiber = *running_;
    fiber.place = place;
    leave(State::waiting, call);
    fiber.place = nullptr;
}

void Block::wake(const void* place) {
    ++wakes_;
    for (const auto& [linear, block] : launch_.live) {
        for (Fiber& fiber : block->fibers_) {
            if (fiber.state == State::waiting && fiber.place == place) fiber.state = State::ready;
        }
    }
}

unsigned Block::cluster_rank() const {
    return unsigned(linear_ % launch_.cluster);
}

void Block::cluster_arrive() {
    Barrier& barrier = launch_.cluster_barriers[linear_ / launch_.cluster];
    running_->arrivals = barrier.round + 1;
    if (++barrier.arrived < launch_.cluster * launch_.threads()) return;
    barrier.arrived = 0;
    ++barrier.round;
    wake(&barrier);
}

void Block::cluster_wait() {
    Barrier& barrier = launch_.cluster_barriers[linear_ / launch_.cluster];
    while (barrier.round < running_->arrivals) wait_on(&barrier, "barrier.cluster.wait");
}

Block& Block::of_cluster(unsigned rank) {
    const auto found = launch_.live.find(linear_ - cluster_rank() + rank);
    if (rank >= launch_.cluster || found == launch_.live.end()) {
        fail("block " + std::to_string(rank) + " of the cluster has not started, or has ended");
    }
    return *found->second;
}

void* Block::in_block(void* shared, unsigned rank) {
    Block& other = of_cluster(rank);
    const auto same = [&](const Memory& own, void* start) -> void* {
        const std::ptrdiff_t offset = static_cast<char*>(shared) - static_cast<char*>(own.start);
        const bool inside = start != nullptr && offset >= 0 && std::size_t(offset) < own.bytes;
        return inside ? static_cast<char*>(start) + offset : nullptr;
    };
    void* place = same(static_shared_, other.static_shared_.start);
    if (place == nullptr) place = same({dynamic_shared(), launch_.shared_bytes}, other.dynamic_shared());
    if (place == nullptr) fail("mapa: the address is not in shared memory");
    return place;
}

void Block::named_barrier(unsigned id, unsigned threads, bool waits, const char* call) {
    NamedBarrier& barrier = named_barriers_[id];
    if (barrier.arrived == 0) barrier.threads = threads;
    if (barrier.threads != threads) {
        fail(
            std::string(call) + ": barrier " + std::to_string(id) + " is one of " +
            std::to_string(barrier.threads) + " threads, got " + std::to_string(threads));
    }
    if (++barrier.arrived == threads) {
        barrier.arrived = 0;
        wake(&barrier);
    } else if (waits) {
        wait_on(&barrier, call);
    }
}

void Block::fail(const std::string& message) {
    launch_.fail(place() + ": " + message);
    leave(State::waiting, "");  // never resumed: the launch ends
    std::abort();
}

// Ends the launch if `code`, where a signal came, is in the kernel itself: other code may hold a lock.
void Block::stop(std::uintptr_t code) {
    Dl_info running, kernel;
    if (dladdr(reinterpret_cast<void*>(code), &running) == 0 || dladdr(launch_.object(), &kernel) == 0)
        return;
    if (running.dli_fbase != kernel.dli_fbase) return;
    signal(SIGUSR1, SIG_IGN);
    fail("stopped at +" + std::to_string(code - reinterpret_cast<std::uintptr_t>(kernel.dli_fbase)));
}

bool Block::reverse_order() const {
    return launch_.reverse;
}

void Block::moment(Moment& now) {
    now = {
        running_->linear,
        barrier_.round,
        running_->met,
        wakes_,
        number_,
        launch_.number,
        static_cast<const char*>(stacks_),
        STACK_BYTES * fibers_.size(),
        {static_cast<const char*>(static_shared_.start), static_cast<const char*>(shared_.get())},
        {static_shared_.bytes, launch_.shared_bytes}};
}

// A thread that has returned no longer counts in barriers.
void Block::exit_thread() {
    const unsigned lane = running_->linear % LANES;
    Warp& warp = warps_[running_->linear / LANES];
    --alive_;
    warp.alive &= ~(1u << lane);
    complete(barrier_);
    for (MeetingPoint& point : warp.points) complete(warp, point, running_->linear - lane);
    leave(State::done, "");
}

std::string Block::stuck() const {
    std::string text = "deadlock in " + place() + ": ";
    std::vector<const Fiber*> told;
    for (const Fiber& first : fibers_) {
        if (first.state != State::waiting) continue;
        bool known = false;
        for (const Fiber* other : told) known |= std::strcmp(other->call, first.call) == 0;
        if (known) continue;
        told.push_back(&first);
        unsigned count = 0;
        for (const Fiber& fiber : fibers_) {
            count += fiber.state == State::waiting && std::strcmp(fiber.call, first.call) == 0;
        }
        text += std::to_string(count) + " threads wait in " + first.call + " (the first is thread " +
                std::to_string(first.linear) + "), ";
    }
    return text + std::to_string(fibers_.size() - alive_) + " have returned";
}

}  // namespace

// SIGUSR1 ends a launch whose time is over, and its error says where it was: `compare.worker.late`. Elsewhere
// the process handles the signal itself, or ignores it.
class Stoppable {
  public:
    Stoppable() {
        struct sigaction action = {};
        action.sa_sigaction = [](int, siginfo_t*, void* context) {
            const mcontext_t& machine = static_cast<ucontext_t*>(context)->uc_mcontext;
#ifdef __aarch64__
            const auto code = std::uintptr_t(machine.pc);
#else
            const auto code = std::uintptr_t(machine.gregs[REG_RIP]);
#endif
            if (current_block != nullptr) current_block->stop(code);
        };
        action.sa_flags = SA_SIGINFO | SA_NODEFER | SA_RESTART;
        sigaction(SIGUSR1, nullptr, &before_);
        if (before_.sa_handler != SIG_DFL && before_.sa_handler != SIG_IGN) {
            sigaction(SIGUSR1, &action, nullptr);
        }
    }
    ~Stoppable() {
        struct sigaction now;
        sigaction(SIGUSR1, nullptr, &now);
        if (now.sa_handler != SIG_IGN) sigaction(SIGUSR1, &before_, nullptr);
    }

  private:
    struct sigaction before_;
};

std::string run(
    dim3 grid, dim3 block, unsigned cluster, std::size_t shared_bytes, void (*thread)(void*), void* state,
    void (*allocate)(), bool overwrites) {
    const Stoppable stoppable;
    return Launch(grid, block, cluster, shared_bytes, thread, state, allocate, overwrites).run();
}

Votes sync_threads(bool predicate, const char* call) {
    return current_block->sync_threads(predicate, call);
}
Meeting meet(unsigned mask, std::uint64_t value, const char* call) {
    return current_block->meet(mask, value, call);
}
void start_copy(void* to, const void* from, std::size_t bytes, std::size_t size) {
    current_block->start_copy({to, from, bytes, size});
}
void commit_copies() {
    current_block->commit_copies();
}
void wait_for_copies(std::size_t pending) {
    current_block->wait_for_copies(pending);
}
void wait_on(const void* place, const char* call) {
    current_block->wait_on(place, call);
}
void wake(const void* place) {
    current_block->wake(place);
}
unsigned cluster_rank() {
    return current_block->cluster_rank();
}
void cluster_arrive() {
    current_block->cluster_arrive();
}
void cluster_wait() {
    current_block->cluster_wait();
}
void* in_block(void* shared, unsigned rank) {
    return current_block->in_block(shared, rank);
}
void named_barrier(unsigned id, unsigned threads, bool waits, const char* call) {
    current_block->named_barrier(id, threads, waits, call);
}
std::shared_ptr<void>& state_of_thread(Unit unit) {
    return current_block->state_of_thread(unit);
}
std::shared_ptr<void>& state_of_block(unsigned rank) {
    return current_block->of_cluster(rank).state_of_block();
}
void fail(const std::string& message) {
    current_block->fail(message);
}
bool moment(Moment& now) {
    if (current_block == nullptr) return false;
    current_block->moment(now);
    return true;
}
bool reverse_order() {
    return current_block->reverse_order();
}
void spin() {
    current_block->spin();
}
unsigned lane() {
    return current_block->lane();
}
void* dynamic_shared() {
    return current_block->dynamic_shared();
}

}  // namespace host
