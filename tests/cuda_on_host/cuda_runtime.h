// As much CUDA as the kernels here use, on the host: one fiber per thread, one block after another or all at once.
//
// A block's threads run until they meet at a barrier or a shuffle, in an order that the test chooses, so that
// a kernel which depends on the order gives another answer. Arithmetic is the host's own path of common.cuh.
#pragma once

#undef _FORTIFY_SOURCE  // its longjmp refuses to leave one stack for another, which is what fibers do
#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <vector>

#define __host__
#define __device__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __shared__ static

using cudaError_t = int;
using cudaKernel_t = void*;
constexpr int cudaErrorSymbolNotFound = 500;
inline int cudaGetKernel(cudaKernel_t*, const void*) { return 0; }
inline const char* cudaGetErrorString(int) { return ""; }

struct Dim {
    int x = 0;
};
inline Dim threadIdx, blockIdx, gridDim, blockDim;

template <class T>
T __ldg(const T* p) {
    return *p;
}
template <class T>
void atomicMin(T* p, T value) {
    *p = std::min(*p, value);
}
template <class T>
void atomicMax(T* p, T value) {
    *p = std::max(*p, value);
}

namespace host {

constexpr size_t kStack = 64 << 10;

struct Fiber {
    ucontext_t context;  // of its start; from then on it is left and entered by jumps, which are far cheaper
    jmp_buf place;
    bool started, done;
};
inline std::vector<Fiber> fibers;
inline std::vector<std::vector<char>> stacks;  // kept from block to block
inline std::vector<int64_t> block_turn, warp_turn;  // per thread: barriers and exchanges that it has reached
inline std::vector<uint32_t> mailbox[2];
inline jmp_buf scheduler;
inline int current, block_threads;
inline int64_t progress, idle_rounds;  // deeds that others may wait for; rounds since the last of them
inline const std::function<void()>* body;

inline void pause() {
    if (!_setjmp(fibers[current].place)) _longjmp(scheduler, 1);
}

inline void resume(int k) {
    Fiber& f = fibers[k];
    if (_setjmp(scheduler)) return;
    if (f.started) _longjmp(f.place, 1);
    f.started = true;
    setcontext(&f.context);
}

inline void wait_for(const std::vector<int64_t>& turns, int first, int last, int64_t turn) {
    auto behind = [&] {
        for (int k = first; k < last; ++k)
            if (!fibers[k].done && turns[k] < turn) return true;
        return false;
    };
    while (behind()) pause();
}

inline void start() {
    (*body)();
    fibers[current].done = true;
    pause();
}

// For seeds above 1 a warp stands still for a while, then another; or one of every block, for as long as the others get
// on without it, which may be several times round a ring.
class Starving {
public:
    Starving(bool any, int block, int all, std::mt19937& random) : any(any), block(block), all(all), random(random) {}

    void begin_round() {
        if (!any || (--rounds > 0 && idle_rounds < 100)) return;
        everywhere = random() % 2 == 0;
        warp = random() % (everywhere ? block / 32 : all / 32 + 1), rounds = everywhere ? 5000 : 50 + random() % 400;
    }

    bool holds(int thread) const { return any && (everywhere ? thread % block : thread) / 32 == warp; }

private:
    bool any, everywhere = false;
    int block, all, warp = -1, rounds = 0;
    std::mt19937& random;
};

// Run `grid` blocks of `block` threads, so many of them at once; seed 0 takes the threads in order, 1 backwards, any other
// shuffles them. at_once divides grid; lowest: the first block's number.
inline void launch(int grid, int block, unsigned seed, const std::function<void()>& kernel, int at_once = 1,
                   int lowest = 0) {
    body = &kernel, block_threads = blockDim.x = block;
    std::mt19937 random(seed);
    const int all = at_once * block;
    std::vector<int> order(all);
    stacks.resize(std::max<size_t>(stacks.size(), all));
    for (int b = 0; b < grid; b += at_once) {
        fibers.assign(all, {});
        block_turn.assign(all, 0), warp_turn.assign(all, 0);
        mailbox[0].assign(all, 0), mailbox[1].assign(all, 0);
        for (int k = 0; k < all; ++k) {
            Fiber& f = fibers[k];
            stacks[k].resize(kStack);
            getcontext(&f.context);
            f.context.uc_stack.ss_sp = stacks[k].data();
            f.context.uc_stack.ss_size = kStack;
            f.context.uc_link = nullptr;
            makecontext(&f.context, start, 0);
            order[k] = seed == 1 ? all - 1 - k : k;
        }
        Starving starving(seed > 1, block, all, random);
        idle_rounds = 0;
        for (int64_t left = all, seen = progress; left; seen = progress) {
            starving.begin_round();
            if (seed > 1) std::shuffle(order.begin(), order.end(), random);
            for (int k : order) {
                if (fibers[k].done || starving.holds(k)) continue;
                current = k, threadIdx.x = k % block, blockIdx.x = lowest + b + k / block;
                resume(k);
                left -= fibers[k].done;
            }
            idle_rounds = seen == progress ? idle_rounds + 1 : 0;
        }
    }
}

template <class T>
T exchange(T value, int source) {
    static_assert(sizeof(T) == 4, "shuffles move four bytes");
    const int first = current & ~31;
    auto& box = mailbox[warp_turn[current]++ & 1];
    std::memcpy(&box[current], &value, 4);
    wait_for(warp_turn, first, first + 32, warp_turn[current]);
    T out;
    std::memcpy(&out, &box[first + source], 4);
    return out;
}

}  // namespace host

inline void __syncthreads() {
    const int64_t turn = ++host::block_turn[host::current];
    ++host::progress;
    const int first = host::current / host::block_threads * host::block_threads;
    host::wait_for(host::block_turn, first, first + host::block_threads, turn);
}

template <class T>
T __shfl_xor_sync(unsigned, T value, int mask) {
    return host::exchange(value, (threadIdx.x & 31) ^ mask);
}

template <class T>
T __shfl_down_sync(unsigned, T value, int delta) {
    const int lane = threadIdx.x & 31;
    return host::exchange(value, lane + delta < 32 ? lane + delta : lane);
}
