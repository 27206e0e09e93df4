// Launch bounds of a kernel form: probes/core/bounds.py's, or what --blocks-per-sm asked for.
#pragma once

#include "common.cuh"
#include "constants.gen.cuh"

#ifndef PROBES_MIN_BLOCKS
#define PROBES_MIN_BLOCKS 0
#endif

#define PROBES_BOUNDS(form) \
    __launch_bounds__(probes::kThreads, PROBES_MIN_BLOCKS ? PROBES_MIN_BLOCKS : probes::kMinBlocks_##form)
