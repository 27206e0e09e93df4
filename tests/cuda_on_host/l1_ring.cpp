// The kernels of l1_ring.cu themselves, run on the host by fibers.
#include "ring.h"

#include "l1_ring.cu"

#define RUNS(layout) RUN(l1_##layout##_ring) RUN(l1_##layout##_async)
PROBES_LAYOUTS(RUNS)

// A consumer warp too few: the feeder waits for ever.
extern "C" int run_hang() {
    return host::ring_launch(1, 64, 64, 0, [] {
        auto* b = reinterpret_cast<probes::Barrier*>(probes::ring_memory());
        if (threadIdx.x == 0) probes::barrier_init(b, 2);
        __syncthreads();
        if (threadIdx.x == 0) probes::barrier_arrive(b);
        if (threadIdx.x < 32) probes::barrier_wait(b, 0);
    });
}
