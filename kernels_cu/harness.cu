// The harness' own kernels: the read ceiling, the SM clock, and an empty launch.
#include "common.cuh"
#include "exports.cuh"

namespace probes {
constexpr int kReadUnroll = 4;  // 16-byte loads in flight per thread: one block reads 16 KiB
}

// A read-only stream of `vectors` 16-byte words: block b reads one 16 KiB tile and stores the XOR of its words.
extern "C" __global__ void __launch_bounds__(256) harness_read(const uint8_t* __restrict__ src, uint32_t* __restrict__ out,
                                                               long long vectors) {
    const long long first = static_cast<long long>(blockIdx.x) * (256 * probes::kReadUnroll) + threadIdx.x;
    probes::Words4 v[probes::kReadUnroll];
#pragma unroll
    for (int k = 0; k < probes::kReadUnroll; ++k) {
        const long long i = first + k * 256;
        if (i < vectors) {
            v[k] = probes::load16(src + i * 16);
        } else {
            v[k].w[0] = v[k].w[1] = v[k].w[2] = v[k].w[3] = 0;
        }
    }
    __shared__ uint32_t sums[8];
    const uint32_t x = probes::xor_warps(v, sums);
    if (threadIdx.x == 0) out[blockIdx.x] = probes::xor_rest(x, sums);
}

// {SM cycles, nanoseconds, SM id}: two of these around a sample give the clock of one SM.
extern "C" __global__ void harness_clock(unsigned long long* out) {
    unsigned long long ns;
    unsigned int sm;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns)::"memory");
    out[0] = clock64();
    asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
    out[1] = ns;
    out[2] = sm;
}

extern "C" __global__ void harness_empty() {}

static const probes::Export kExports[] = {
    {"harness_read", reinterpret_cast<const void*>(harness_read)},
    {"harness_clock", reinterpret_cast<const void*>(harness_clock)},
    {"harness_empty", reinterpret_cast<const void*>(harness_empty)},
};
PROBES_EXPORT(kExports)
