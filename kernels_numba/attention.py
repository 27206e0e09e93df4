"""Decode attention over an f16 KV cache: rope and store, split, combine. Twins of kernels_cu/attention.cuh.

The cache holds all keys, then all values, each [KV head][position][head]. Queries are f32, rotated. The order
of every sum is that of probes/core/decode.py.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from numba import float32, int32, int64, uint16, uint32

from kernels_numba import decode, pdl
from probes.core.decode import CONSTANTS

THREADS = 256
HEAD, HALF, GROUP, CHUNK, PART = (
    CONSTANTS.head,
    CONSTANTS.head // 2,
    CONSTANTS.group,
    CONSTANTS.chunk,
    CONSTANTS.part,
)
ROW, QUERIES, WEIGHTS = HEAD * 2, GROUP * HEAD, GROUP * CHUNK
MOST_SPLITS = 256


def butterfly(ops: SimpleNamespace) -> Any:
    """The warp's float32 sum in the reference order, in every lane."""
    from numba import cuda

    add = ops.add

    @ops.jit
    def total(acc):  # float32 -> float32
        acc = add(acc, cuda.shfl_xor_sync(0xFFFFFFFF, acc, 16))
        acc = add(acc, cuda.shfl_xor_sync(0xFFFFFFFF, acc, 8))
        acc = add(acc, cuda.shfl_xor_sync(0xFFFFFFFF, acc, 4))
        acc = add(acc, cuda.shfl_xor_sync(0xFFFFFFFF, acc, 2))
        return add(acc, cuda.shfl_xor_sync(0xFFFFFFFF, acc, 1))

    return total


def rope_store(ops: SimpleNamespace, kind: str) -> Any:
    """256 values of q, k and v a block: q rotated to f32, k (rotated) and v to f16 at the last position."""
    from numba import cuda

    gate = pdl.parts(kind)
    begin, late_wait, prefetch, end = gate.begin, gate.late_wait, gate.prefetch, gate.end
    rotated, half_of_float = decode.functions(ops).rotated, ops.half_of_float

    def kernel(qkv, table, q, cache, heads, kv_heads, kv, flags, stamps):
        begin(flags, stamps)
        e = uint32(uint32(cuda.blockIdx.x) * uint32(THREADS) + uint32(cuda.threadIdx.x))
        head, i = int32(e // uint32(HEAD)), int32(e % uint32(HEAD))
        prefetch(table, HEAD * 4)
        late_wait()
        pair = int32(i & (HALF - 1))
        c, s = table[pair], table[HALF + pair]
        first = int64(head) * HEAD
        if head < heads:
            q[e] = rotated(qkv[first + pair], qkv[first + HALF + pair], c, s, i < HALF)
        else:
            row = int32(head - heads)  # KV heads of the keys, then of the values
            v = qkv[first + i]
            if row < kv_heads:
                v = rotated(qkv[first + pair], qkv[first + HALF + pair], c, s, i < HALF)
            cache[(int64(row) * kv + kv - 1) * HEAD + i] = uint16(half_of_float(v))
        end(flags, stamps)

    return kernel


def attention_split(ops: SimpleNamespace, kind: str) -> Any:
    """Block (KV head, split): scores of 64 positions, five query heads; softmax pieces; weighted values."""
    from numba import cuda

    gate = pdl.parts(kind)
    begin, late_wait, prefetch, end = gate.begin, gate.late_wait, gate.prefetch, gate.end
    unit, total, add, mul = decode.functions(ops), butterfly(ops), ops.add, ops.mul
    dot4, softmax_weight = unit.dot4, unit.softmax_weight
    advance, load8, load2, float_of_half = ops.advance, ops.load8, ops.load2, ops.float_of_half
    low = float32(float("-inf"))

    @ops.jit
    def score(query, weight, key, p, lane, scale):  # one position, five heads
        for g in range(GROUP):
            at = int32(g * HEAD + lane * 4)
            s = total(dot4(query[at], query[at + 1], query[at + 2], query[at + 3], key[0], key[1]))
            if lane == 0:
                weight[g * CHUNK + p] = mul(s, scale)

    @ops.jit
    def key_at(keys, p, count, lane):  # a lane's four dimensions
        return load8(keys, int64(int32(min(int32(p), int32(count - 1)) * ROW + lane * 8)))

    @ops.jit
    def scores(query, weight, keys, count, scale):  # a warp: four keys in flight
        t = int32(cuda.threadIdx.x)
        lane, p = int32(t & 31), int32(uint32(t) >> uint32(5))
        while p < CHUNK:
            a, b = key_at(keys, p, count, lane), key_at(keys, p + 8, count, lane)
            c, d = key_at(keys, p + 16, count, lane), key_at(keys, p + 24, count, lane)
            if p < count:
                score(query, weight, a, p, lane, scale)
            if p + 8 < count:
                score(query, weight, b, p + 8, lane, scale)
            if p + 16 < count:
                score(query, weight, c, p + 16, lane, scale)
            if p + 24 < count:
                score(query, weight, d, p + 24, lane, scale)
            p = int32(p + 32)

    @ops.jit
    def softmax(weight, parts, part, splits, count):  # a warp per query head
        t = int32(cuda.threadIdx.x)
        lane, g = int32(t & 31), int32(uint32(t) >> uint32(5))
        if g < GROUP:
            at = int32(g * CHUNK + lane)
            a = weight[at] if lane < count else low
            b = weight[at + 32] if lane + 32 < count else low
            top = max(a, b)
            for k in range(5):
                top = max(top, cuda.shfl_xor_sync(0xFFFFFFFF, top, 16 >> k))
            pa = softmax_weight(a, top) if lane < count else float32(0.0)
            pb = softmax_weight(b, top) if lane + 32 < count else float32(0.0)
            weight[at] = pa
            weight[at + 32] = pb
            mass = total(add(pa, pb))
            if lane == 0:
                tail = part + int64(g) * splits * PART + HEAD
                parts[tail] = top
                parts[tail + 1] = mass
                parts[tail + 2] = float32(0.0)
                parts[tail + 3] = float32(0.0)

    @ops.jit
    def weighted(weight, values, count):  # positions of one parity, five sums
        t = int32(cuda.threadIdx.x)
        dim, p = int32(t & (HEAD - 1)), int32(uint32(t) >> uint32(7))
        a, b, c, d, e = float32(0.0), float32(0.0), float32(0.0), float32(0.0), float32(0.0)
        while p < count:
            v = float_of_half(load2(values, int64(int32(p * ROW + dim * 2))))
            a = add(a, mul(weight[p], v))
            b = add(b, mul(weight[CHUNK + p], v))
            c = add(c, mul(weight[2 * CHUNK + p], v))
            d = add(d, mul(weight[3 * CHUNK + p], v))
            e = add(e, mul(weight[4 * CHUNK + p], v))
            p = int32(p + 2)
        return a, b, c, d, e

    def kernel(q, cache, parts, kv_heads, kv, splits, scale, flags, stamps):
        begin(flags, stamps)
        t = int32(cuda.threadIdx.x)
        block = uint32(cuda.blockIdx.x)
        kv_head, split = int32(block // uint32(splits)), int32(block % uint32(splits))
        first = int32(split * CHUNK)
        count = int32(min(int32(CHUNK), int32(kv - first)))
        keys = advance(cache, (int64(kv_head) * kv + first) * ROW)
        values = advance(keys, int64(kv_heads) * kv * ROW)
        prefetch(
            keys, count * ROW
        )  # into L2 only: the row that the predecessor writes is read after the wait
        prefetch(values, count * ROW)
        late_wait()
        query = cuda.shared.array(QUERIES, float32, alignment=16)
        weight = cuda.shared.array(WEIGHTS, float32, alignment=16)
        other = cuda.shared.array(QUERIES, float32, alignment=16)
        k = t
        while k < QUERIES:
            query[k] = q[int64(kv_head) * QUERIES + k]
            k = int32(k + THREADS)
        cuda.syncthreads()
        scores(query, weight, keys, count, scale)
        cuda.syncthreads()
        part = (int64(kv_head) * GROUP * splits + split) * PART
        softmax(weight, parts, part, splits, count)
        cuda.syncthreads()
        sums = weighted(weight, values, count)
        dim = int32(t & (HEAD - 1))
        if t >= HEAD:
            for g in range(GROUP):
                other[g * HEAD + dim] = sums[g]
        cuda.syncthreads()
        if t < HEAD:
            for g in range(GROUP):
                parts[part + int64(g) * splits * PART + dim] = add(sums[g], other[g * HEAD + dim])
        end(flags, stamps)

    return kernel


def attention_combine(ops: SimpleNamespace, kind: str) -> Any:
    """One query head per block of 128 threads: the splits' results under one maximum."""
    from numba import cuda

    gate = pdl.parts(kind)
    begin, end = gate.begin, gate.end
    softmax_weight, add, mul, divide = decode.functions(ops).softmax_weight, ops.add, ops.mul, ops.divide

    def kernel(parts, out, splits, flags, stamps):
        begin(flags, stamps)
        t, head = int32(cuda.threadIdx.x), int64(cuda.blockIdx.x)
        part = head * splits * PART
        top = parts[part + HEAD]
        s = int32(1)
        while s < splits:
            top = max(top, parts[part + s * PART + HEAD])
            s = int32(s + 1)
        weight = cuda.shared.array(MOST_SPLITS, float32, alignment=16)
        s = t
        while s < splits:
            weight[s] = softmax_weight(parts[part + s * PART + HEAD], top)
            s = int32(s + HEAD)
        cuda.syncthreads()
        mass, acc = float32(0.0), float32(0.0)
        s = int32(0)
        while s < splits:
            mass = add(mass, mul(parts[part + s * PART + HEAD + 1], weight[s]))
            acc = add(acc, mul(parts[part + s * PART + t], weight[s]))
            s = int32(s + 1)
        out[head * HEAD + t] = divide(acc, mass)
        end(flags, stamps)

    return kernel
