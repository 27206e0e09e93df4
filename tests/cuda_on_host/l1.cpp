// The kernels of l1.cu themselves, run on the host by fibers: run_FORM_LAYOUT(their arguments, grid, seed).
#include "ring.h"

#include "l1.cu"

#define RUN(layout, form, type)                                                                                       \
    extern "C" void run_##form##_##layout(const uint8_t* w, const uint8_t* x8, type* out, int nbe, int stride, int grid, \
                                          unsigned seed) {                                                           \
        host::launch(grid, probes::kThreads, seed, [=] { l1_##layout##_##form(w, x8, out, nbe, stride); });           \
    }
#define RUNS(layout)         \
    RUN(layout, loop, float) \
    RUN(layout, pf, float)   \
    RUN(layout, pf3, float)  \
    RUN(layout, stream, uint32_t)
PROBES_LAYOUTS(RUNS)
