// Hopper's units on the host: those functions of kernels/hopper.cuh and kernels/bulk.cuh that levels of the
// host build use, in plain C++. wgmma.h has those of kernels/wgmma.cuh.
//
// Asynchronous work is executed when it is waited for and not before, so that a missing wait shows: TMA loads
// in mbarrier_wait, TMA stores in bulk_wait_group_read. In reverse thread order TMA copies at once, so that a
// stage refilled too early shows. A wait that nothing ends is a deadlock error, and so is an access to a
// block of the cluster that has ended.
//
// Limit: a missing fence does not show.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <vector>

#include "device.h"

// ---- addresses -----------------------------------------------------------------------------------------
// Those of dynamic shared memory count from a base that is a multiple of 16 bytes and no more.

namespace host {
constexpr unsigned SHARED_BASE = 1024 + 16;

inline char* shared_pointer(unsigned address) {
    return static_cast<char*>(dynamic_shared()) + (address - SHARED_BASE);
}
}  // namespace host

inline unsigned shared_address(const void* ptr) {
    return unsigned(static_cast<const char*>(ptr) - static_cast<char*>(host::dynamic_shared())) +
           host::SHARED_BASE;
}

// ---- mbarrier --------------------------------------------------------------------------------------------

using mbarrier_t = unsigned long long;

namespace host {

// Accesses that units order, to mbarriers and to other blocks: watch.cpp, which knows barriers, sees none.
#define HOST_ATOMIC __attribute__((no_sanitize_thread, noinline)) inline

struct Mbarrier {
    int bytes;  // pending
    std::uint16_t pending, arrivals_and_parity;
};
static_assert(sizeof(Mbarrier) == sizeof(mbarrier_t));

inline Mbarrier& of(mbarrier_t* barrier) {
    return *reinterpret_cast<Mbarrier*>(barrier);
}

template <typename State>
State& kept(std::shared_ptr<void>& state) {
    if (state == nullptr) state = std::make_shared<State>();
    return *static_cast<State*>(state.get());
}

// Of a block of the cluster: TMA loads that have not been executed, by the mbarrier that they complete on.
using Work = std::function<void()>;
using Loads = std::map<const mbarrier_t*, std::vector<Work>>;

inline Loads& loads(unsigned rank = cluster_rank()) {
    return kept<Loads>(state_of_block(rank));
}

HOST_ATOMIC unsigned parity(const mbarrier_t* ptr) {
    return reinterpret_cast<const Mbarrier*>(ptr)->arrivals_and_parity >> 15;
}

HOST_ATOMIC void complete_phase(mbarrier_t* ptr) {
    Mbarrier& barrier = of(ptr);
    if (barrier.pending > 0 || barrier.bytes != 0) return;
    barrier.pending = barrier.arrivals_and_parity & 0x7fff;
    barrier.arrivals_and_parity ^= 0x8000;
    wake(ptr);
}

HOST_ATOMIC void arrive(mbarrier_t* ptr, int bytes) {
    Mbarrier& barrier = of(ptr);
    if (barrier.pending == 0) fail("mbarrier: more arrivals in a phase than it was initialised with");
    --barrier.pending;
    barrier.bytes += bytes;
    complete_phase(ptr);
}

HOST_ATOMIC void complete_bytes(mbarrier_t* ptr, int bytes) {
    of(ptr).bytes -= bytes;
    complete_phase(ptr);
}

// Starts a copy that completes so many bytes on the mbarrier `ptr` of that block of the cluster.
template <typename Copy>
void start_load(mbarrier_t* ptr, unsigned rank, int bytes, Copy copy) {
    const auto load = [=] {
        copy();
        complete_bytes(ptr, bytes);
    };
    if (reverse_order()) return load();
    loads(rank)[ptr].push_back(load);
    wake(ptr);
}

}  // namespace host

HOST_ATOMIC void mbarrier_init(mbarrier_t* ptr, unsigned arrivals) {
    host_synchronizes(nullptr, 0);  // from here on units work beside the threads, and keep state of their own
    host::of(ptr) = {0, std::uint16_t(arrivals), std::uint16_t(arrivals)};
}
inline void mbarrier_init_fence() {}
inline void mbarrier_arrive(mbarrier_t* ptr) {
    host::arrive(ptr, 0);
}
inline void mbarrier_arrive_expect_bytes(mbarrier_t* ptr, unsigned bytes) {
    host::arrive(ptr, int(bytes));
}
inline void mbarrier_wait(mbarrier_t* ptr, unsigned parity) {
    while (host::parity(ptr) == parity) {
        const auto started = host::loads().find(ptr);
        if (started == host::loads().end()) {
            host::wait_on(ptr, "mbarrier_wait");
            continue;
        }
        const auto work = std::move(started->second);
        host::loads().erase(started);
        for (const auto& load : work) load();
    }
}

// ---- bulk copies of contiguous bytes ---------------------------------------------------------------------

namespace host {

inline void check_bulk(const void* global, const void* shared, unsigned bytes) {
    if ((reinterpret_cast<std::uintptr_t>(global) | bytes | shared_address(shared)) % 16 != 0) {
        fail("cp.async.bulk: addresses and size must be multiples of 16 bytes");
    }
}

// Of a thread: work started since the last commit, and committed groups that were not waited for.
template <typename Item>
struct Groups {
    std::vector<Item> started;
    std::deque<std::vector<Item>> groups;

    void commit() {
        groups.push_back(std::move(started));
        started.clear();
    }
};

inline Groups<Work>& stores() {
    return kept<Groups<Work>>(state_of_thread(STORES));
}

template <typename Copy>
void start_store(Copy copy) {
    if (reverse_order()) return copy();
    stores().started.push_back(copy);
}

}  // namespace host

inline void bulk_copy_to_shared(void* to, const void* from, unsigned bytes, mbarrier_t* ptr) {
    host::check_bulk(from, to, bytes);
    host::start_load(ptr, host::cluster_rank(), int(bytes), [=] { std::memcpy(to, from, bytes); });
}

inline void bulk_copy_to_shared_once(void* to, const void* from, unsigned bytes, mbarrier_t* ptr) {
    bulk_copy_to_shared(to, from, bytes, ptr);
}
inline void fence_proxy_async() {}

inline void bulk_copy_to_global(void* to, const void* from, unsigned bytes) {
    host::check_bulk(to, from, bytes);
    host::start_store([=] { std::memcpy(to, from, bytes); });
}
inline void bulk_commit_group() {
    host::stores().commit();
}
template <int PENDING>
void bulk_wait_group_read() {
    auto& groups = host::stores().groups;
    for (; groups.size() > PENDING; groups.pop_front()) {
        for (const host::Work& store : groups.front()) store();
    }
}

// ---- clusters --------------------------------------------------------------------------------------------

inline int cluster_block_rank() {
    return int(host::cluster_rank());
}
inline void cluster_arrive_relaxed() {
    host::cluster_arrive();
}
inline void cluster_wait() {
    host::cluster_wait();
}
inline void cluster_sync() {
    host::cluster_arrive();
    host::cluster_wait();
}

template <typename T>
T* in_block(T* ptr, int rank) {
    return static_cast<T*>(host::in_block(ptr, unsigned(rank)));
}

namespace host {
template <typename T>
HOST_ATOMIC void put(T* ptr, const T& value) {
    *ptr = value;
}
}  // namespace host

inline void store_to_block(float4* ptr, int rank, const float4& value) {
    host::put(in_block(ptr, rank), value);
}
inline void store_async_to_block(
    unsigned long long* ptr, int rank, unsigned long long value, mbarrier_t* barrier) {
    auto* const to = in_block(ptr, rank);
    host::start_load(in_block(barrier, rank), unsigned(rank), sizeof(value), [=] { host::put(to, value); });
}
