// The kernels of l2.cu on fibers, with the wait and the trigger of programmatic dependent launch made visible: what a
// predecessor writes is there from a launch's first wait on, and not before.
#include "ring.h"

#include <string>

using std::min;

namespace host {

struct Written {
    uint8_t* to;
    const uint8_t* from;
    size_t bytes;
};
inline std::vector<Written> predecessor;
inline int64_t waits, triggers, least_made;  // least_made: copies that had been asked for at the first trigger

// A statement of pdl.cuh, by its text.
inline void ptx(const std::string& text) {
    if (text.find("griddepcontrol.wait") != std::string::npos) {
        if (!waits++)
            for (const Written& w : predecessor) std::memcpy(w.to, w.from, w.bytes);
    } else if (text.find("griddepcontrol.launch_dependents") != std::string::npos) {
        if (!triggers++) least_made = made;
    }
}

}  // namespace host

#include "common.cuh"

#define __CUDA_ARCH__ 900
#define asm
#define volatile(...) host::ptx(#__VA_ARGS__)
#include "pdl.cuh"
#undef volatile
#undef asm
#undef __CUDA_ARCH__

#include "l2.cu"

// Before a launch: what its predecessor will have written, once it waits.
extern "C" void pdl_begin() { host::predecessor.clear(), host::waits = host::triggers = 0, host::least_made = -1; }
extern "C" void pdl_written(uint8_t* to, const uint8_t* from, int64_t bytes) {
    host::predecessor.push_back({to, from, static_cast<size_t>(bytes)});
}
extern "C" int64_t pdl_waits() { return host::waits; }
extern "C" int64_t pdl_triggers() { return host::triggers; }
extern "C" int64_t pdl_made() { return host::least_made; }

#define RUN2(name) RUN(l2_##name##_plain) RUN(l2_##name##_entry)
#define RUN3(name) RUN2(name) RUN(l2_##name##_late)
RUN3(stream) RUN3(compute) RUN3(wide) RUN3(rms_quantise) RUN3(q4k) RUN3(q6k) RUN3(rope_store) RUN3(attention_split)
RUN2(attention_combine) RUN2(quantise) RUN2(swiglu_quantise) RUN2(add) RUN2(empty) RUN3(q4k_ring) RUN3(q6k_ring)
