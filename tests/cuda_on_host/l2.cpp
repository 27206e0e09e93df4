// The kernels of l2.cu themselves, run on the host by fibers.
#include "ring.h"

using std::min;

#include "l2.cu"

#define RUN2(name) RUN(l2_##name##_plain) RUN(l2_##name##_entry)
#define RUN3(name) RUN2(name) RUN(l2_##name##_late)
RUN3(stream) RUN3(compute) RUN3(wide) RUN3(rms_quantise) RUN3(q4k) RUN3(q6k) RUN3(rope_store) RUN3(attention_split)
RUN2(attention_combine) RUN2(quantise) RUN2(swiglu_quantise) RUN2(add) RUN2(empty) RUN3(q4k_ring) RUN3(q6k_ring)
#define RUNE(name) RUN(l2_##name##_plain) RUN(l2_##name##_late)
RUNE(stream_8k) RUNE(stream_bulk) RUNE(gpl_two) RUNE(gpl_one) RUNE(gs_one) RUNE(dpl_one)
