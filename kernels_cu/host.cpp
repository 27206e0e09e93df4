// The unit functions of the kernels, built for the host: the same headers, tested to the bit without a GPU.
//
// A row is walked as the reference order says: 256 virtual threads, butterfly, eight warp sums.
#include "common.cuh"
#include "layouts.gen.cuh"
#include "q4k.cuh"
#include "q6k.cuh"
#include "q8.cuh"
#include "swiglu.cuh"

namespace {

float reduce(float acc[256]) {
    float total = 0.0f;
    for (int warp = 0; warp < 8; ++warp) {
        float lane[32], next[32];
        std::memcpy(lane, acc + 32 * warp, sizeof lane);
        for (int offset = 16; offset; offset >>= 1) {
            for (int k = 0; k < 32; ++k) next[k] = probes::add(lane[k], lane[k ^ offset]);
            std::memcpy(lane, next, sizeof lane);
        }
        total = probes::add(total, lane[0]);
    }
    return total;
}

template <class L>
void q6k_rows(const uint8_t* w, const uint8_t* x8, float* out, uint32_t* checksums, int64_t od, int nbe, int64_t stride) {
    for (int64_t r = 0; r < od; ++r) {
        float acc[256] = {};
        uint32_t checksum = 0;
        for (int u = 0; u < nbe * 8; ++u) {
            const auto unit = probes::load_q6k<L>(w + r * stride, x8, u, nbe);
            acc[u % 256] = probes::add(acc[u % 256], probes::q6k_term(unit));
            checksum += probes::q6k_checksum(unit);
        }
        out[r] = reduce(acc);
        checksums[r] = checksum;
    }
}

}  // namespace

#define PROBES_HOST(layout)                                                                                           \
    extern "C" void host_q6k_##layout(const uint8_t* w, const uint8_t* x8, float* out, uint32_t* checksums, int64_t od, \
                                      int nbe, int64_t stride) {                                                      \
        q6k_rows<probes::layout>(w, x8, out, checksums, od, nbe, stride);                                             \
    }
PROBES_LAYOUTS(PROBES_HOST)

extern "C" void host_q4k(const uint8_t* w, const uint8_t* x8, float* out, int64_t od, int nbe) {
    for (int64_t r = 0; r < od; ++r) {
        float acc[256] = {};
        for (int u = 0; u < nbe * 4; ++u)
            acc[u % 256] = probes::add(acc[u % 256], probes::q4k_term(probes::load_q4k_weights(w + r * nbe * probes::kQ4kBlock, u),
                                                                      probes::load_q4k_activations(x8, u)));
        out[r] = reduce(acc);
    }
}

extern "C" void host_exp(const float* x, float* out, int64_t n) {
    for (int64_t k = 0; k < n; ++k) out[k] = probes::exp_fixed(x[k]);
}

extern "C" void host_swiglu(const float* g, const float* u, float* out, int64_t n) {
    for (int64_t k = 0; k < n; ++k) out[k] = probes::swiglu(g[k], u[k]);
}

extern "C" void host_half(const float* x, uint32_t* out, int64_t n) {
    for (int64_t k = 0; k < n; ++k) out[k] = probes::half_of_float(x[k]);
}

// pad40 blocks of n values; with `up`, of swiglu(x, up): what one warp of the kernels does for each block.
extern "C" void host_quantise(const float* x, const float* up, uint32_t* out, int64_t n) {
    for (int64_t b = 0; b < n / 32; ++b, x += 32, out += probes::kPad40 / 4) {
        float v[32];
        uint32_t top = 0;
        for (int k = 0; k < 32; ++k) {
            v[k] = up ? probes::swiglu(x[k], up[32 * b + k]) : x[k];
            const uint32_t size = probes::bits_of_float(v[k]) & 0x7fffffffu;
            top = size > top ? size : top;
        }
        const float d = probes::q8_scale(top), r = probes::q8_inverse(d);
        std::memset(out, 0, probes::kPad40);
        out[0] = probes::half_of_float(d);
        int32_t sum = 0;
        for (int k = 0; k < 32; ++k) {
            const int32_t q = probes::q8_value(v[k], r);
            out[1 + k / 4] |= (static_cast<uint32_t>(q) & 255u) << (8 * (k % 4));
            sum += q;
        }
        out[9] = static_cast<uint32_t>(sum);
    }
}
