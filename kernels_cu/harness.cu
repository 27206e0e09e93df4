// The harness' own kernels: plain reads, the SM clock, and an empty launch.
//
//   harness_read       16 KiB a block, 4 loads in flight per thread
//   harness_read_32k   32 KiB a block, 8 loads: the fastest of 58 MB and of 1 GiB, by 0.3 % (H200)
//   harness_read_4k    4 KiB a block, 8 loads: the fastest of 4 MB, by 2 %
//   harness_read_bulk  32 KiB a block by a bulk copy; sm_90 and up: as dependents the fastest, 58 MB by 8 % and 4 MB by half
//
// Arguments of the reads: what is read, a word per tile, 16-byte vectors in all. probes/engine/reads.py has their launches.
#include "exports.cuh"
#include "pdl.cuh"
#include "reads.cuh"

namespace probes {

// Block b reads tile b and stores the XOR of its words. As a dependent it reads before it waits, and lets its successor start
// at once; launched otherwise, both instructions do nothing.
template <class T, bool Dependent>
__device__ __forceinline__ void read_form(const uint8_t* src, uint32_t* out, long long vectors) {
    if constexpr (Dependent) grid_trigger();
    const long long first = static_cast<long long>(blockIdx.x) * T::kVectors, left = vectors - first;
    Words4 v[T::kLoads];
    T::fetch(v, src + first * 16, left < T::kVectors ? static_cast<int>(left) : T::kVectors);
    __shared__ uint32_t sums[T::kWarps];
    const uint32_t x = xor_warps(v, sums);
    if constexpr (Dependent) grid_wait();
    if (threadIdx.x == 0) out[blockIdx.x] = xor_rest(x, sums);
}

}  // namespace probes

#define PROBES_READ(name, tile, bytes, threads, dependent)                                                   \
    extern "C" __global__ void __launch_bounds__(threads)                                                    \
        name(const uint8_t* __restrict__ src, uint32_t* __restrict__ out, long long vectors) {               \
        probes::read_form<probes::tile<bytes, threads>, dependent>(src, out, vectors);                       \
    }
PROBES_READ(harness_read, LoadedTile, 16384, 256, false)
PROBES_READ(harness_read_32k, LoadedTile, 32768, 256, false)
PROBES_READ(harness_read_4k, LoadedTile, 4096, 32, false)
PROBES_READ(harness_read_bulk, CopiedTile, 32768, 256, true)

// {SM cycles, nanoseconds, SM id}: two of these around a sample give the clock of one SM.
extern "C" __global__ void harness_clock(unsigned long long* out) {
    const unsigned long long ns = probes::now_ns();
    out[0] = clock64();
    unsigned int sm = 0;
#ifdef __CUDA_ARCH__
    asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
#endif
    out[1] = ns;
    out[2] = sm;
}

extern "C" __global__ void harness_empty() {}

#define PROBES_ROW(name) {#name, reinterpret_cast<const void*>(name)}
static const probes::Export kExports[] = {
    PROBES_ROW(harness_read),      PROBES_ROW(harness_read_32k), PROBES_ROW(harness_read_4k),
    PROBES_ROW(harness_read_bulk), PROBES_ROW(harness_clock),    PROBES_ROW(harness_empty),
};
PROBES_EXPORT(kExports)
