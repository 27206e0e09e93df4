// The arithmetic of a decode layer's small kernels, step for step as probes/formats/layer.py states it.
#pragma once

#include "common.cuh"
#include "constants.gen.cuh"
#include "q8.cuh"
#include "swiglu.cuh"

#ifndef __CUDA_ARCH__
#include <cmath>
#endif

namespace probes {

PROBES_FN float square_root(float x) {
#ifdef __CUDA_ARCH__
    return __fsqrt_rn(x);
#else
    return std::sqrt(x);
#endif
}

// 1 / sqrt(total / n + eps): what a vector whose squares sum to `total` is scaled by.
PROBES_FN float rms_scale(float total, int n, float eps) {
    return divide(1.0f, square_root(add(divide(total, static_cast<float>(n)), eps)));
}

PROBES_FN float rms_value(float x, float r, float gamma) { return mul(mul(x, r), gamma); }

// Value i of a head x, rotated by the cosine and sine of its pair (i, i + kDecode_head / 2).
PROBES_FN float rotated(const float* x, float c, float s, int i) {
    constexpr int kHalf = kDecode_head / 2;
    const int k = i & (kHalf - 1);
    const float a = x[k], b = x[k + kHalf];
    return i < kHalf ? sub(mul(a, c), mul(b, s)) : add(mul(b, c), mul(a, s));
}

// A lane's four dimensions of a query and a key (two words of two f16).
PROBES_FN float dot4(const float* q, Words2 k) {
    float acc = mul(q[0], float_of_half(k.w[0] & 0xffffu));
    acc = add(acc, mul(q[1], float_of_half(k.w[0] >> 16)));
    acc = add(acc, mul(q[2], float_of_half(k.w[1] & 0xffffu)));
    return add(acc, mul(q[3], float_of_half(k.w[1] >> 16)));
}

// A position's weight under the largest score of its chunk (or a chunk's under the largest of all).
PROBES_FN float softmax_weight(float s, float top) { return exp_fixed(sub(s, top)); }

}  // namespace probes
