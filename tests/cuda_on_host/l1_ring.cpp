// The kernels of l1_ring.cu themselves, run on the host by fibers: see ring.h.
#include "ring.h"

#include "l1_ring.cu"

#define PROBES_RUN(layout, form)                                                                                 \
    extern "C" int run_##form##_##layout(const uint8_t* w, const uint8_t* x8, float* out, uint32_t* counter,    \
                                         int nbe, int stride, int od, int rows, int stages, int grid, int block, \
                                         int64_t smem, unsigned seed) {                                         \
        return host::ring_launch(grid, block, smem, seed,                                                       \
                                 [=] { l1_##layout##_##form(w, x8, out, counter, nbe, stride, od, rows, stages); }); \
    }
#define PROBES_RUN_BOTH(layout) PROBES_RUN(layout, ring) PROBES_RUN(layout, async)
PROBES_LAYOUTS(PROBES_RUN_BOTH)
extern "C" int64_t most_copies() { return host::most_copies; }
extern "C" int run_hang() {
    return host::ring_launch(1, 64, 64, 0, [] {
        auto* b = reinterpret_cast<probes::Barrier*>(probes::ring_memory());
        if (threadIdx.x == 0) probes::barrier_init(b, 2);
        __syncthreads();
        if (threadIdx.x == 0) probes::barrier_arrive(b);
        if (threadIdx.x < 32) probes::barrier_wait(b, 0);
    });
}
