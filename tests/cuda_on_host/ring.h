// What the ring kernels need of a GPU, for kernels that run whole on host fibers: barriers, bulk copies and all.
//
// A bulk copy spoils its stage at once and lands at a time that the seed chooses, whole and in any order, while
// threads wait. So do the copies of 16 bytes of one thread, as far as it arrived for them, in its order alone. A barrier is
// its pending arrivals, its outstanding bytes and its phase, as PTX defines them. A wait that nothing can end any more (or
// that takes too long) ends the run with an error instead of hanging.
//
// Blocks run one after another, in order or, for seeds above 1, shuffled: a kernel in which one waits for another that has
// not run yet hangs. Or all run at once, each a step now and then.
#pragma once

#include "cuda_runtime.h"

#include <array>
#include <map>
#include <numeric>
#include <utility>

#define __CUDACC__
#define PROBES_FIBERS

namespace host {

enum Fault { kNone, kHang, kDoubleInit, kUnknownBarrier, kTooManyArrivals, kBadCopy, kCopyLeftOver, kWrongArguments };

struct State {
    int arrivals, pending;
    int64_t bytes;
    uint32_t phase;
};
struct Copy {
    uint8_t* to;
    const uint8_t* from;
    uint32_t bytes;
    void* barrier;
};

// What one thread copied by 16 bytes up to one arrival.
struct Batch {
    int thread;
    std::vector<std::array<const uint8_t*, 2>> pieces;  // to, from
    void* barrier;
};

inline int grid, threads, fault;
inline std::vector<int> met;                     // by block, as memory
inline size_t memory_size;
inline std::vector<std::vector<uint8_t>> memory;
inline std::map<void*, State> barriers;
inline std::vector<Copy> copies;
inline std::vector<Batch> batches;
inline std::map<int, std::vector<std::array<const uint8_t*, 2>>> pieces;  // by thread: not arrived for yet
inline std::mt19937 chance;
inline int64_t most_copies, prefetches, made;

inline ucontext_t outside;

inline void fail(Fault why) {
    if (!fault) fault = why;
}

// Leave the run from within a fiber: no other fiber goes on.
[[noreturn]] inline void give_up() {
    setcontext(&outside);
    std::abort();
}

// In a wait, between two looks.
inline void pause_or_hang() {
    if (idle_rounds > 3000) fail(kHang), give_up();
    pause();
}

inline State& state(void* b) {
    auto found = barriers.find(b);
    if (found == barriers.end()) fail(kUnknownBarrier), give_up();
    return found->second;
}

inline void settle(State& s) {
    if (s.pending < 0) fail(kTooManyArrivals);
    if (s.pending == 0 && s.bytes == 0) s.pending = s.arrivals, ++s.phase, ++progress;
}

inline void land_batch(size_t k) {
    k = std::find_if(batches.begin(), batches.end(), [k](const Batch& b) { return b.thread == batches[k].thread; }) -
        batches.begin();
    const Batch b = batches[k];
    batches.erase(batches.begin() + k);
    for (const auto& [to, from] : b.pieces) std::memcpy(const_cast<uint8_t*>(to), from, 16);
    State& s = state(b.barrier);
    --s.pending, ++progress;
    settle(s);
}

inline void land_one() {
    if (copies.empty() && batches.empty()) return;
    const size_t k = chance() % (copies.size() + batches.size());
    if (k >= copies.size()) return land_batch(k - copies.size());
    const Copy c = copies[k];
    copies.erase(copies.begin() + k);
    std::memcpy(c.to, c.from, c.bytes);
    State& s = state(c.barrier);
    s.bytes -= c.bytes;
    ++progress;
    settle(s);
}

}  // namespace host

namespace probes {
using Barrier = unsigned long long;
inline uint8_t* ring_memory() {
    uint8_t* start = host::memory[blockIdx.x].data();
    return start + (16 - reinterpret_cast<uintptr_t>(start) % 16) % 16;
}
inline uint32_t shared_address(const void* p) { return static_cast<const uint8_t*>(p) - ring_memory(); }
template <class T>
T* at_shared(uint32_t address) {
    return reinterpret_cast<T*>(ring_memory() + address);
}
inline int ring_blocks() { return host::grid; }
inline int ring_warps() { return host::threads / 32; }
inline void block_arrive() { ++host::met[blockIdx.x]; }
inline void block_join() {
    ++host::met[blockIdx.x];
    while (host::met[blockIdx.x] < host::threads) {
        host::pause_or_hang();
    }
}
inline void barrier_init(Barrier* b, int arrivals) {
    if (host::barriers.count(b)) host::fail(host::kDoubleInit);
    host::barriers[b] = {arrivals, arrivals, 0, 0};
}
inline void barriers_ready() {}
inline void barrier_arrive(Barrier* b) {
    auto& s = host::state(b);
    --s.pending, ++host::progress;
    host::settle(s);
}
inline void barrier_arrive_if(Barrier* b, bool arrive) {
    if (arrive) barrier_arrive(b), host::pause();  // whoever waited may go on before this thread does
}
inline void barrier_expect(Barrier* b, uint32_t bytes) {
    host::state(b).bytes += bytes;
}
inline void barrier_wait(Barrier* b, uint32_t parity) {
    const host::State& s = host::state(b);  // looked up once: a wait looks thousands of times
    while ((s.phase & 1) == parity) {
        if (host::chance() % 4 == 0) host::land_one();
        if ((s.phase & 1) != parity) break;
        host::pause_or_hang();
    }
}
inline void bulk_copy(uint8_t* to, const uint8_t* from, uint32_t bytes, Barrier* b) {
    const uint8_t* start = ring_memory();
    const auto bad = [](const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 != 0; };
    if (bytes == 0 || bytes % 16 || bad(to) || bad(from) || to < start || to + bytes > start + host::memory_size)
        host::fail(host::kBadCopy);
    if (++host::made > 200000) host::fail(host::kHang), host::give_up();  // fills without end are a hang too
    std::memset(to, 0xA5, bytes);
    host::copies.push_back({to, from, bytes, b});
    host::most_copies = std::max<int64_t>(host::most_copies, host::copies.size());
}
inline void copy_16(uint8_t* to, const uint8_t* from) {
    const uint8_t* start = ring_memory();
    const auto bad = [](const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 != 0; };
    if (bad(to) || bad(from) || to < start || to + 16 > start + host::memory_size) host::fail(host::kBadCopy);
    std::memset(to, 0xA5, 16);
    host::pieces[host::current].push_back({to, from});
}
inline void barrier_arrive_copied(Barrier* b) {
    if (++host::made > 200000) host::fail(host::kHang), host::give_up();
    auto& mine = host::pieces[host::current];
    host::batches.push_back({host::current, std::move(mine), b});
    mine.clear();
}
inline void bulk_prefetch(const uint8_t* from, uint32_t bytes) {
    if (bytes == 0 || bytes % 16 || reinterpret_cast<uintptr_t>(from) % 16) host::fail(host::kBadCopy);
    ++host::prefetches;
}

template <class W>
void hand_over(W* at, bool up, uint32_t sum) {
    (up ? at->up : at->gate) = sum;
    ++host::progress;
}
template <class W>
W handed_over(const W* at) {
    const W words = *at;
    if (!words.gate || !words.up) host::pause_or_hang();
    return words;
}
template <class W>
void take_back(W* at) {
    *at = {};
}
}  // namespace probes

inline void __syncwarp() { __shfl_xor_sync(0xffffffffu, 0, 0); }
template <class T>
T __shfl_sync(unsigned, T value, int source) {
    return host::exchange(value, source);
}
inline int __all_sync(unsigned, bool value) {
    int count = value;
    for (int offset = 16; offset; offset >>= 1) count += __shfl_xor_sync(0xffffffffu, count, offset);
    return count == 32;
}
inline uint32_t atomicInc(uint32_t* p, uint32_t limit) {
    const uint32_t old = *p;
    *p = old >= limit ? 0 : old + 1;
    return old;
}

namespace host {
// The fault of a run of one ring kernel; 0 is none.
inline int ring_launch(int grid, int block, size_t smem, unsigned seed, const std::function<void()>& kernel,
                       bool at_once = false) {
    host::grid = grid, host::threads = block, host::fault = host::kNone, host::memory_size = smem;
    host::chance.seed(seed), host::most_copies = 0, host::prefetches = 0, host::made = 0;
    getcontext(&host::outside);
    if (host::fault) return host::fault;
    memory.assign(grid, std::vector<uint8_t>(smem + 16, 0xFF)), met.assign(grid, 0);
    const auto launch_some = [&](int lowest, int count) {
        host::barriers.clear(), host::copies.clear(), host::batches.clear(), host::pieces.clear();
        host::launch(count, block, seed, kernel, count, lowest);
        if (!host::copies.empty() || !host::batches.empty()) host::fail(host::kCopyLeftOver);
        for (const auto& [thread, open] : host::pieces)
            if (!open.empty()) host::fail(host::kCopyLeftOver);
    };
    if (at_once) {
        launch_some(0, grid);
        return host::fault;
    }
    std::vector<int> blocks(grid);
    std::iota(blocks.begin(), blocks.end(), 0);
    if (seed > 1) std::shuffle(blocks.begin(), blocks.end(), host::chance);
    for (int b : blocks) {
        launch_some(b, 1);
        if (host::fault) break;
    }
    return host::fault;
}

// One of a kernel's arguments out of the lowest bytes of a word.
template <class T>
T argument(uint64_t word) {
    T out;
    std::memcpy(&out, &word, sizeof out);
    return out;
}

template <class... P, size_t... I>
int run(void (*kernel)(P...), std::index_sequence<I...>, const uint64_t* words, int grid, int block, int64_t smem,
        unsigned seed, bool at_once) {
    gridDim.x = grid;
    return ring_launch(grid, block, smem, seed, [=] { kernel(argument<P>(words[I])...); }, at_once);
}
template <class... P>
constexpr int arguments(void (*)(P...)) {
    return sizeof...(P);
}
}  // namespace host

// run_KERNEL(arguments as words, how many, grid, block, shared memory, order, whether all blocks run at once): its
// fault, 0 for none.
#define RUN(kernel)                                                                                                     \
    extern "C" int run_##kernel(const uint64_t* words, int count, int grid, int block, int64_t smem, unsigned seed,     \
                                bool at_once) {                                                                         \
        constexpr int wanted = host::arguments(kernel);                                                                 \
        return count == wanted ? host::run(kernel, std::make_index_sequence<wanted>(), words, grid, block, smem, seed,  \
                                           at_once)                                                                     \
                               : host::kWrongArguments;                                                                 \
    }
extern "C" int64_t most_copies() { return host::most_copies; }
extern "C" int64_t prefetches() { return host::prefetches; }
