// L1 past the record: a persistent grid, register-resident activations (held.cuh), and rows that stream through shared
// memory (ring.cuh).
//
//   ring    by bulk copies; sm_90 and up, compiled to nothing before
//   async   by copies of 16 bytes (cp.async) of the producer warp's lanes; sm_80 and up, likewise
//
// Arguments: weights, pad40 activations, one result per row, the ticket counter or null, super-blocks per row, row
// stride, rows, rows per tile, stages. One warp per virtual warp that owns a unit, and one more; dynamic shared memory is
// probes/device/pipeline.py's stage_bytes for each stage.
#include "bounds.cuh"
#include "exports.cuh"
#include "layouts.gen.cuh"
#include "ring_feed.cuh"

#define PROBES_RING(layout, form, job, since)                                                                        \
    extern "C" __global__ void PROBES_RING_BOUNDS                                                                    \
        l1_##layout##_##form(const uint8_t* __restrict__ w, const uint8_t* __restrict__ x8, float* __restrict__ out, \
                             uint32_t* counter, int nbe, int row_stride, int od, int rows, int stages) {             \
        since(probes::ring_form<probes::Q6kRows<probes::layout, probes::ReadOnly>>(                                  \
                  probes::Ring(stages, rows, row_stride, nbe * 8), x8, nbe,                                          \
                  probes::job{w, out, static_cast<uint32_t>(od), counter}, probes::NoHooks{});)                      \
    }
#define PROBES_BOTH(layout)                         \
    PROBES_RING(layout, ring, Rows, PROBES_SM90)    \
    PROBES_RING(layout, async, CopiedRows, PROBES_SM80)
PROBES_LAYOUTS(PROBES_BOTH)

#define PROBES_ROWS(layout)                                                     \
    {"l1_" #layout "_ring", reinterpret_cast<const void*>(l1_##layout##_ring)}, \
        {"l1_" #layout "_async", reinterpret_cast<const void*>(l1_##layout##_async)},
static const probes::Export kExports[] = {PROBES_LAYOUTS(PROBES_ROWS)};
PROBES_EXPORT(kExports)
