// The kernels of l3.cu themselves, run on the host by fibers.
#include "ring.h"

#include "l3.cu"

#define RUN2(name) RUN(l3_##name) RUN(l3_##name##_traced)
RUN2(matmul) RUN2(form_a) RUN2(form_b) RUN2(form_b_staged)
RUN(l3_swiglu_quant) RUN(l3_quant) RUN(l3_matmul_ring) RUN(l3_form_c)

// What each ticket of form_c names: its first row, and whether it is the last of its group.
extern "C" void fills_of_form_c(int nf, int rows, uint32_t* row, uint32_t* last) {
    host::memory.assign(1, std::vector<uint8_t>(16)), blockIdx.x = 0;
    const probes::Ring ring(1, rows, 0, 1);
    const probes::GatedRows job{nullptr, nullptr, nullptr, nullptr, static_cast<uint32_t>(nf)};
    for (uint32_t ticket = 0; ticket < job.tickets(ring); ++ticket) {
        const uint32_t first = job.fill_of(ring, ticket).first;
        row[ticket] = (first & probes::kPair) + (first & probes::kUp ? nf : 0), last[ticket] = first & probes::kLast ? 1 : 0;
    }
}
