// The kernels of l3.cu themselves, run on the host by fibers.
#include "ring.h"

#include "l3.cu"

extern "C" {
void run_matmul(const uint8_t* w, const uint8_t* x8, float* gu, int nbe, int grid, unsigned seed) {
    host::launch(grid, probes::kThreads, seed, [=] { l3_matmul(w, x8, gu, nbe); });
}
void run_form_a(const uint8_t* w, const uint8_t* x8, float* h, int nf, int nbe, int grid, unsigned seed) {
    host::launch(grid, probes::kThreads, seed, [=] { l3_form_a(w, x8, h, nf, nbe); });
}
void run_form_b(const uint8_t* w, const uint8_t* x8, uint32_t* q8, int nf, int nbe, int grid, unsigned seed) {
    host::launch(grid, probes::kThreads, seed, [=] { l3_form_b(w, x8, q8, nf, nbe); });
}
void run_form_b_staged(const uint8_t* w, const uint8_t* x8, uint32_t* q8, int nf, int nbe, int grid, unsigned seed) {
    host::launch(grid, probes::kThreads, seed, [=] { l3_form_b_staged(w, x8, q8, nf, nbe); });
}
void run_matmul_traced(const uint8_t* w, const uint8_t* x8, float* gu, int nbe, uint32_t* sm, int grid, unsigned seed) {
    host::launch(grid, probes::kThreads, seed, [=] { l3_matmul_traced(w, x8, gu, nbe, sm); });
}
void run_form_a_traced(const uint8_t* w, const uint8_t* x8, float* h, int nf, int nbe, uint32_t* sm, int grid, unsigned seed) {
    host::launch(grid, probes::kThreads, seed, [=] { l3_form_a_traced(w, x8, h, nf, nbe, sm); });
}
void run_form_b_traced(const uint8_t* w, const uint8_t* x8, uint32_t* q8, int nf, int nbe, uint32_t* sm, int grid,
                       unsigned seed) {
    host::launch(grid, probes::kThreads, seed, [=] { l3_form_b_traced(w, x8, q8, nf, nbe, sm); });
}
void run_form_b_staged_traced(const uint8_t* w, const uint8_t* x8, uint32_t* q8, int nf, int nbe, uint32_t* sm, int grid,
                              unsigned seed) {
    host::launch(grid, probes::kThreads, seed, [=] { l3_form_b_staged_traced(w, x8, q8, nf, nbe, sm); });
}
void run_swiglu_quant(const float* gu, uint32_t* q8, int nf, int grid, unsigned seed) {
    host::launch(grid, probes::kThreads, seed, [=] { l3_swiglu_quant(gu, q8, nf); });
}
void run_quant(const float* h, uint32_t* q8, int nf, int grid, unsigned seed) {
    host::launch(grid, probes::kThreads, seed, [=] { l3_quant(h, q8, nf); });
}
// The fault of a run, 0 for none (ring.h).
int run_matmul_ring(const uint8_t* w, const uint8_t* x8, float* gu, uint32_t* counter, int nbe, int od, int rows, int stages,
                    int grid, int block, int64_t smem, unsigned seed) {
    return host::ring_launch(grid, block, smem, seed, [=] { l3_matmul_ring(w, x8, gu, counter, nbe, od, rows, stages); });
}
int run_form_c(const uint8_t* w, const uint8_t* x8, uint32_t* q8, probes::Words* words, uint32_t* counter, int nbe, int nf,
               int rows, int stages, int grid, int block, int64_t smem, unsigned seed) {
    return host::ring_launch(grid, block, smem, seed, [=] {
        l3_form_c(w, x8, q8, words, counter, nbe, nf, rows, stages);
    }, true);
}
// What each ticket of form_c names: its first row, and whether it is the last of its group.
void fills_of_form_c(int nf, int rows, uint32_t* row, uint32_t* last) {
    host::memory.assign(1, std::vector<uint8_t>(16)), blockIdx.x = 0;
    const probes::Ring ring(1, rows, 0, 1);
    const probes::GatedRows job{nullptr, nullptr, nullptr, nullptr, static_cast<uint32_t>(nf)};
    for (uint32_t ticket = 0; ticket < job.tickets(ring); ++ticket) {
        const uint32_t first = job.fill_of(ring, ticket).first;
        row[ticket] = (first & probes::kPair) + (first & probes::kUp ? nf : 0), last[ticket] = first & probes::kLast ? 1 : 0;
    }
}
}
