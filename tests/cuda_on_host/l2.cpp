// The kernels of l2.cu themselves, run on the host by fibers: run_NAME_KIND(its arguments, grid, block, seed).
#include "ring.h"

inline Dim gridDim;
using std::min;

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

#include "l2.cu"

template <class... P, class... A>
void run(void (*kernel)(P...), int grid, int block, unsigned seed, A... args) {
    gridDim.x = grid;
    host::launch(grid, block, seed, [=] { kernel(args...); });
}

#define LAUNCH int flags, probes::Stamp *stamps, int grid, int block, unsigned seed
#define RUN1(name, kind, params, ...)                                                            \
    extern "C" void run_##name##_##kind params {                                                 \
        run(l2_##name##_##kind, grid, block, seed, __VA_ARGS__ __VA_OPT__(, ) flags, stamps);    \
    }
#define RUN2(name, params, ...)            \
    RUN1(name, plain, params, __VA_ARGS__) \
    RUN1(name, entry, params, __VA_ARGS__)
#define RUN3(name, params, ...)     \
    RUN2(name, params, __VA_ARGS__) \
    RUN1(name, late, params, __VA_ARGS__)

RUN3(stream, (const uint8_t* w, const uint32_t* prev, uint32_t* out, LAUNCH), w, prev, out)
RUN3(compute, (const uint32_t* prev, uint32_t* out, int m, int c, int iters, LAUNCH), prev, out, m, c, iters)
RUN3(wide, (const uint32_t* prev, uint32_t* out, int m, int c, int iters, LAUNCH), prev, out, m, c, iters)
RUN3(rms_quantise, (const float* h, const float* gamma, uint32_t* x8, int n, float eps, LAUNCH), h, gamma, x8, n, eps)
RUN3(q4k, (const uint8_t* w, const uint8_t* x8, float* out, int nbe, LAUNCH), w, x8, out, nbe)
RUN3(q6k, (const uint8_t* w, const uint8_t* x8, float* out, int nbe, int stride, LAUNCH), w, x8, out, nbe, stride)
RUN3(rope_store, (const float* qkv, const float* table, float* q, uint16_t* cache, int heads, int kv_heads, int kv, LAUNCH), qkv,
     table, q, cache, heads, kv_heads, kv)
RUN3(attention_split,
     (const float* q, const uint8_t* cache, float* parts, int kv_heads, int kv, int splits, float scale, LAUNCH), q, cache,
     parts, kv_heads, kv, splits, scale)
RUN2(attention_combine, (const float* parts, float* out, int splits, LAUNCH), parts, out, splits)
RUN2(quantise, (const float* x, uint32_t* x8, LAUNCH), x, x8)
RUN2(swiglu_quantise, (const float* gu, uint32_t* x8, int nf, LAUNCH), gu, x8, nf)
RUN2(add, (const float* a, const float* b, float* out, LAUNCH), a, b, out)
RUN2(empty, (LAUNCH))

// The fault of a run, 0 for none (ring.h).
#define RUN_RING(name)                                                                                                \
    extern "C" int run_##name(int kind, const uint8_t* w, const uint8_t* x8, uint32_t* next8, float* out, int nbe,      \
                              int stride, int od, int rows, int stages, int ahead, int grid, int block, int64_t smem,  \
                              unsigned seed) {                                                                        \
        const auto kernel = kind == 0 ? l2_##name##_plain : kind == 1 ? l2_##name##_entry : l2_##name##_late;          \
        return host::ring_launch(grid, block, smem, seed, [=] {                                                       \
            kernel(w, x8, next8, out, nbe, stride, od, rows, stages, ahead, 0, nullptr);                              \
        });                                                                                                           \
    }
RUN_RING(q4k_ring)
RUN_RING(q6k_ring)
extern "C" int64_t prefetches() { return host::prefetches; }
