// Launch bounds of a kernel form: probes/device/launch_bounds.toml's, or what --blocks-per-sm asked for.
#pragma once

#include "common.cuh"
#include "constants.gen.cuh"

#ifndef PROBES_MIN_BLOCKS
#define PROBES_MIN_BLOCKS 0
#endif

#define PROBES_BOUNDS(form) \
    __launch_bounds__(probes::kThreads, PROBES_MIN_BLOCKS ? PROBES_MIN_BLOCKS : probes::kMinBlocks_##form)

// A ring's block has a warp per virtual warp at most, the producer, and in some a finisher; a q4_K one up to four consumer
// groups of three. What --blocks-per-sm asks for is their grid's affair, not their registers'.
#define PROBES_RING_BOUNDS __launch_bounds__(probes::kThreads + 64, probes::kMinBlocks_ring)
#define PROBES_RING_Q4K_BOUNDS __launch_bounds__(448, probes::kMinBlocks_ring)

// The body of a kernel that needs sm_90, or sm_80: nothing before.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define PROBES_SM90(...) __VA_ARGS__
#else
#define PROBES_SM90(...)
#endif
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
#define PROBES_SM80(...) __VA_ARGS__
#else
#define PROBES_SM80(...)
#endif
