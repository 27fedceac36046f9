// What CUDA adds to C++ in device code: barriers, warp-level functions, atomics, cache hints, intrinsics. A
// function in which threads wait for each other switches fibers; the rest is plain C++.
//
// `-ftz` and the hardware's approximations (`__expf`) are not emulated: the host's results are more accurate.
#pragma once

#include <assert.h>
#include <float.h>
#include <math.h>
#include <vector_functions.h>

#include <type_traits>

#include "fibers.h"

#undef __shared__
#if defined(__SANITIZE_THREAD__) && __GNUC__ > 9
// Without __constinit g++ guards an array of __half by a variable beside it, whose accesses would be a race.
#define __shared__ static __constinit thread_local
#else
#define __shared__ static thread_local
#endif
#undef __launch_bounds__
#define __launch_bounds__(...)
#undef __maxnreg__
#define __maxnreg__(...)
#undef __cluster_dims__
#define __cluster_dims__(...)
#undef __grid_constant__
#define __grid_constant__
#undef __forceinline__
#define __forceinline__ inline  // always_inline is incompatible with the sanitizers

#define DYNAMIC_SHARED(type, name) type* name = static_cast<type*>(host::dynamic_shared())

// ---- barriers ----------------------------------------------------------------------------------------

inline void __syncthreads() {
    host::sync_threads(false, "__syncthreads");
}
inline int __syncthreads_count(int predicate) {
    return int(host::sync_threads(predicate != 0, "__syncthreads_count").nonzero);
}
inline int __syncthreads_or(int predicate) {
    return host::sync_threads(predicate != 0, "__syncthreads_or").nonzero != 0;
}
inline int __syncthreads_and(int predicate) {
    const auto votes = host::sync_threads(predicate != 0, "__syncthreads_and");
    return votes.nonzero == votes.threads;
}

// One thread runs at a time, and control passes through a mutex: memory is sequentially consistent.
inline void __threadfence_block() {}
inline void __threadfence() {
    host_synchronizes(nullptr, 0);
}
inline void __threadfence_system() {
    host_synchronizes(nullptr, 0);
}
// Flags of ranks, which are processes here: this processor keeps the order of their stores.
template <int>
void store_flag(unsigned* ptr, unsigned value) {
    host_synchronizes(nullptr, 0);
    *static_cast<volatile unsigned*>(ptr) = value;
}
template <int>
unsigned load_flag(const unsigned* ptr) {
    const unsigned value = *static_cast<const volatile unsigned*>(ptr);
    host_synchronizes(nullptr, 0);
    return value;
}
inline void __nanosleep(unsigned) {
    host::spin();
}

// ---- warp-level functions ----------------------------------------------------------------------------

namespace host {

template <typename T>
T shuffle(unsigned mask, T value, int source, const char* call) {
    static_assert(sizeof(T) <= sizeof(std::uint64_t) && std::is_trivially_copyable_v<T>);
    std::uint64_t bits = 0;
    std::memcpy(&bits, &value, sizeof(T));
    const Meeting meeting = meet(mask, bits, call);
    bits = meeting.values[source];
    // The value of a lane that did not take part is undefined: all ones is NaN in every floating-point type.
    if ((meeting.present >> source & 1) == 0) bits = ~std::uint64_t(0);
    std::memcpy(&value, &bits, sizeof(T));
    return value;
}

inline unsigned vote(unsigned mask, bool predicate, const char* call) {
    const Meeting meeting = meet(mask, predicate, call);
    unsigned votes = 0;
    for (unsigned lane = 0; lane < LANES; ++lane) {
        if (meeting.present >> lane & 1) votes |= unsigned(meeting.values[lane]) << lane;
    }
    return votes;
}

template <typename T, typename Op>
T reduce(unsigned mask, T value, Op op, const char* call) {
    const Meeting meeting = meet(mask, std::uint64_t(value), call);
    bool first = true;
    for (unsigned lane = 0; lane < LANES; ++lane) {
        if ((meeting.present >> lane & 1) == 0) continue;
        const T other = T(meeting.values[lane]);
        value = first ? other : op(value, other);
        first = false;
    }
    return value;
}

}  // namespace host

template <typename T>
T __shfl_sync(unsigned mask, T value, int source, int width = warpSize) {
    const int lane = int(host::lane());
    return host::shuffle(mask, value, (lane & -width) + (source & (width - 1)), "__shfl_sync");
}
template <typename T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = warpSize) {
    const int lane = int(host::lane());
    const int source = lane - int(delta);
    return host::shuffle(mask, value, source < (lane & -width) ? lane : source, "__shfl_up_sync");
}
template <typename T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = warpSize) {
    const int lane = int(host::lane());
    const int source = lane + int(delta);
    return host::shuffle(mask, value, source > (lane | (width - 1)) ? lane : source, "__shfl_down_sync");
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = warpSize) {
    const int lane = int(host::lane());
    const int source = lane ^ lane_mask;
    return host::shuffle(mask, value, source > (lane | (width - 1)) ? lane : source, "__shfl_xor_sync");
}

inline void __syncwarp(unsigned mask = ~0u) {
    host::meet(mask, 0, "__syncwarp");
}
inline unsigned __ballot_sync(unsigned mask, int predicate) {
    return host::vote(mask, predicate != 0, "__ballot_sync");
}
inline int __any_sync(unsigned mask, int predicate) {
    return host::vote(mask, predicate != 0, "__any_sync") != 0;
}
inline int __all_sync(unsigned mask, int predicate) {
    return host::vote(mask, predicate == 0, "__all_sync") == 0;
}
template <typename T>
T __reduce_add_sync(unsigned mask, T value) {
    return host::reduce(mask, value, [](T a, T b) { return T(a + b); }, "__reduce_add_sync");
}
template <typename T>
T __reduce_max_sync(unsigned mask, T value) {
    return host::reduce(mask, value, [](T a, T b) { return a < b ? b : a; }, "__reduce_max_sync");
}
template <typename T>
T __reduce_min_sync(unsigned mask, T value) {
    return host::reduce(mask, value, [](T a, T b) { return b < a ? b : a; }, "__reduce_min_sync");
}

// ---- memory ------------------------------------------------------------------------------------------
// Cache hints have no effect here. Atomics need no synchronisation, because only one thread runs at a time.

template <typename T>
T __ldg(const T* ptr) {
    return *ptr;
}
template <typename T>
T __ldca(const T* ptr) {
    return *ptr;
}
template <typename T>
T __ldcg(const T* ptr) {
    return *ptr;
}
template <typename T>
T __ldcs(const T* ptr) {
    return *ptr;
}
template <typename T>
T __ldlu(const T* ptr) {
    return *ptr;
}
template <typename T>
T __ldcv(const T* ptr) {
    return *ptr;
}
template <typename T>
void __stwb(T* ptr, T value) {
    *ptr = value;
}
template <typename T>
void __stcg(T* ptr, T value) {
    *ptr = value;
}
template <typename T>
void __stcs(T* ptr, T value) {
    *ptr = value;
}
template <typename T>
void __stwt(T* ptr, T value) {
    *ptr = value;
}

namespace host {
template <typename T>
using Same = std::common_type_t<T>;  // only the pointer determines an atomic's type

// An atomic operation: `change` of the old value, which it returns. It is no access of `watch.cpp`'s.
template <typename T, typename Change>
__attribute__((no_sanitize_thread, noinline)) T exchange(T* ptr, Change change) {
    host_synchronizes(ptr, sizeof(T));
    const T old = *ptr;
    *ptr = change(old);
    return old;
}
}  // namespace host

template <typename T>
T atomicAdd(T* ptr, host::Same<T> value) {
    return host::exchange(ptr, [=](T old) { return T(old + value); });
}
template <typename T>
T atomicSub(T* ptr, host::Same<T> value) {
    return host::exchange(ptr, [=](T old) { return T(old - value); });
}
template <typename T>
T atomicExch(T* ptr, host::Same<T> value) {
    return host::exchange(ptr, [=](T) { return T(value); });
}
template <typename T>
T atomicMax(T* ptr, host::Same<T> value) {
    return host::exchange(ptr, [=](T old) { return old < value ? T(value) : old; });
}
template <typename T>
T atomicMin(T* ptr, host::Same<T> value) {
    return host::exchange(ptr, [=](T old) { return value < old ? T(value) : old; });
}
template <typename T>
T atomicAnd(T* ptr, host::Same<T> value) {
    return host::exchange(ptr, [=](T old) { return T(old & value); });
}
template <typename T>
T atomicOr(T* ptr, host::Same<T> value) {
    return host::exchange(ptr, [=](T old) { return T(old | value); });
}
template <typename T>
T atomicCAS(T* ptr, host::Same<T> expected, host::Same<T> value) {
    return host::exchange(ptr, [=](T old) { return old == expected ? T(value) : old; });
}
inline unsigned atomicInc(unsigned* ptr, unsigned limit) {
    return host::exchange(ptr, [=](unsigned old) { return old >= limit ? 0u : old + 1; });
}

// ---- arithmetic --------------------------------------------------------------------------------------
// Macros, because the C library declares __expf and similar names for itself.

#define __expf(x) expf(x)
#define __exp10f(x) exp10f(x)
#define __logf(x) logf(x)
#define __log2f(x) log2f(x)
#define __log10f(x) log10f(x)
#define __powf(x, y) powf(x, y)
#define __sinf(x) sinf(x)
#define __cosf(x) cosf(x)
#define __tanf(x) tanf(x)

inline float rsqrtf(float x) {
    return 1.0f / sqrtf(x);
}
inline float __fdividef(float x, float y) {
    return x / y;
}
inline float __fdiv_rn(float x, float y) {
    return x / y;
}
inline float __frcp_rn(float x) {
    return 1.0f / x;
}
inline float __fadd_rn(float x, float y) {
    return x + y;
}
inline float __fsub_rn(float x, float y) {
    return x - y;
}
inline float __fmul_rn(float x, float y) {
    return x * y;
}
inline float __fmaf_rn(float x, float y, float z) {
    return fmaf(x, y, z);
}
inline float __fsqrt_rn(float x) {
    return sqrtf(x);
}
inline float __int2float_rn(int x) {
    return float(x);
}
inline int __float2int_rn(float x) {
    return int(lrintf(x));
}
inline int __float2int_rz(float x) {
    return int(x);
}
inline float __saturatef(float x) {
    return fminf(fmaxf(x, 0.0f), 1.0f);
}

template <typename A, typename B>
constexpr std::common_type_t<A, B> min(A a, B b) {
    return b < a ? b : a;
}
template <typename A, typename B>
constexpr std::common_type_t<A, B> max(A a, B b) {
    return a < b ? b : a;
}

inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
    const unsigned long long bytes = (unsigned long long)y << 32 | x;
    unsigned chosen = 0;
    for (int i = 0; i < 32; i += 8) chosen |= unsigned(bytes >> (selector >> i / 2 & 7) * 8 & 255) << i;
    return chosen;
}
inline int __popc(unsigned x) {
    return __builtin_popcount(x);
}
inline int __popcll(unsigned long long x) {
    return __builtin_popcountll(x);
}
inline int __ffs(int x) {
    return __builtin_ffs(x);
}
inline int __ffsll(long long x) {
    return __builtin_ffsll(x);
}
inline int __clz(int x) {
    return x == 0 ? 32 : __builtin_clz(unsigned(x));
}
inline int __clzll(long long x) {
    return x == 0 ? 64 : __builtin_clzll((unsigned long long)x);
}

namespace host {
template <typename To, typename From>
To bits(From from) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    std::memcpy(&to, &from, sizeof(To));
    return to;
}
}  // namespace host

inline int __float_as_int(float x) {
    return host::bits<int>(x);
}
inline unsigned __float_as_uint(float x) {
    return host::bits<unsigned>(x);
}
inline float __int_as_float(int x) {
    return host::bits<float>(x);
}
inline float __uint_as_float(unsigned x) {
    return host::bits<float>(x);
}
inline long long __double_as_longlong(double x) {
    return host::bits<long long>(x);
}
inline double __longlong_as_double(long long x) {
    return host::bits<double>(x);
}
