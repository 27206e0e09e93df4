// The kernels of l1.cu themselves, run on the host by fibers.
#include "ring.h"

#include "l1.cu"

#define RUNS(layout) RUN(l1_##layout##_loop) RUN(l1_##layout##_pf) RUN(l1_##layout##_pf3) RUN(l1_##layout##_stream)
PROBES_LAYOUTS(RUNS)
