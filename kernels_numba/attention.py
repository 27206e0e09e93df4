"""Decode attention over an f16 KV cache, as kernels_cu/attention.cuh; sums as probes/formats/layer.py.

The cache holds all keys, then all values, each [KV head][position][head].
"""

from types import SimpleNamespace
from typing import Any

from numba import float32, int32, int64, uint16, uint32

from kernels_numba import decode, pdl, reductions
from probes.formats.layer import CONSTANTS

THREADS = 256
HEAD, HALF, GROUP, CHUNK, PART = (
    CONSTANTS.head, CONSTANTS.head // 2, CONSTANTS.group, CONSTANTS.chunk, CONSTANTS.part,
)  # fmt: skip
ROW, QUERIES, WEIGHTS, VALUES, TOPS = HEAD * 2, GROUP * HEAD, GROUP * CHUNK, CHUNK * HEAD // 2, HEAD // 32
MOST_SPLITS, BATCH, STEP = 256, 64, 16  # BATCH: splits that a thread of attention_combine has in flight


def largest(ops: SimpleNamespace) -> Any:  # the warp's largest float32, in every lane
    from numba import cuda

    @ops.jit
    def top(v):  # float32 -> float32
        for k in range(5):
            v = max(v, cuda.shfl_xor_sync(0xFFFFFFFF, v, 16 >> k))
        return v

    return top


def split_scores(ops: SimpleNamespace) -> SimpleNamespace:
    """key_part(keys, at, there) and scores(query, a, b, first): a lane's part of two keys, five heads' sums.

    A part is what the reference order's lanes first, first + 8, first + 16 and first + 24 take.
    """
    dot4, add, load8, float_of_bits = decode.functions(ops).dot4, ops.add, ops.load8, ops.float_of_bits

    @ops.jit
    def key_part(keys, at, there):  # of the key at byte `at`, zeros where there is none
        if there:
            return load8(keys, at), load8(keys, at + 64), load8(keys, at + 128), load8(keys, at + 192)
        none = (uint32(0), uint32(0))
        return none, none, none, none

    @ops.jit
    def pair(query, at, a, b):  # one head, a lane's two keys
        q0, q1 = float_of_bits(query[at]), float_of_bits(query[uint32(at + 1)])
        q2, q3 = float_of_bits(query[uint32(at + 2)]), float_of_bits(query[uint32(at + 3)])
        return dot4(q0, q1, q2, q3, a[0], a[1]), dot4(q0, q1, q2, q3, b[0], b[1])

    @ops.jit
    def lane_scores(query, lane, a, b):  # what the reference order's lane brings to its butterfly
        return (
            pair(query, uint32(lane * 4), a, b), pair(query, uint32(lane * 4 + HEAD), a, b),
            pair(query, uint32(lane * 4 + 2 * HEAD), a, b), pair(query, uint32(lane * 4 + 3 * HEAD), a, b),
            pair(query, uint32(lane * 4 + 4 * HEAD), a, b),
        )  # fmt: skip

    @ops.jit
    def both(x, y):  # two sums of one head
        return add(x[0], y[0]), add(x[1], y[1])

    @ops.jit
    def sums(x, y):  # of five
        return both(x[0], y[0]), both(x[1], y[1]), both(x[2], y[2]), both(x[3], y[3]), both(x[4], y[4])

    @ops.jit
    def scores(query, a, b, first):  # the butterfly's offsets 16 and 8, a lane's own sums
        even = sums(lane_scores(query, first, a[0], b[0]), lane_scores(query, first + 16, a[2], b[2]))
        odd = sums(lane_scores(query, first + 8, a[1], b[1]), lane_scores(query, first + 24, a[3], b[3]))
        return sums(even, odd)

    return SimpleNamespace(key_part=key_part, scores=scores)


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
    unit, part_of = decode.functions(ops), split_scores(ops)
    total, top_of = reductions.butterfly(ops), largest(ops)
    softmax_weight, key_part, scores = unit.softmax_weight, part_of.key_part, part_of.scores
    add, mul, advance, load16 = ops.add, ops.mul, ops.advance, ops.load16
    float_of_half, shift_right = ops.float_of_half, ops.shift_right
    low, none = float32(float("-inf")), (uint32(0), uint32(0), uint32(0), uint32(0))

    @ops.jit
    def place_of_weight(p):  # in its head's row: even positions, then odd ones, as the values are summed
        return int32((p & 1) * (CHUNK // 2) + (p >> 1))

    @ops.jit
    def piece(values, k, rows):  # 16 bytes of row 16 k, zeros where there is none, under a weight of zero
        if k * 16 < rows:
            return load16(values, int64(k * 16 * ROW))
        return none

    @ops.jit
    def keep(shared, k, piece):  # the k-th 16 bytes
        at = uint32(k * 4)
        shared[at] = piece[0]
        shared[uint32(at + 1)] = piece[1]
        shared[uint32(at + 2)] = piece[2]
        shared[uint32(at + 3)] = piece[3]

    @ops.jit
    def finish(sums, weight, position, lane, scale):  # the butterfly's 4, 2, 1; halves exchange keys
        upper = (lane & 16) != 0
        at = place_of_weight(int32(position + 4) if upper else position)
        for g in range(GROUP):
            x, y = sums[g]
            own, other = (y, x) if upper else (x, y)
            s = add(own, cuda.shfl_xor_sync(0xFFFFFFFF, other, 16))
            s = add(s, cuda.shfl_xor_sync(0xFFFFFFFF, s, 8))
            s = mul(add(s, cuda.shfl_xor_sync(0xFFFFFFFF, s, 4)), scale)
            if lane & 12 == 0:
                weight[g * CHUNK + at] = s

    @ops.jit
    def softmax(weight, parts, part, splits, count):  # a warp per query head
        t = int32(cuda.threadIdx.x)
        lane, g = int32(t & 31), int32(uint32(t) >> uint32(5))
        if g < GROUP:
            one = uint32(g * CHUNK + place_of_weight(lane))
            two = uint32(g * CHUNK + place_of_weight(int32(lane + 32)))
            a = weight[one] if lane < count else low
            b = weight[two] if lane + 32 < count else low
            top = top_of(max(a, b))
            pa = softmax_weight(a, top) if lane < count else float32(0.0)
            pb = softmax_weight(b, top) if lane + 32 < count else float32(0.0)
            weight[one] = pa
            weight[two] = pb
            mass = total(add(pa, pb))
            if lane == 0:
                tail = part + int64(g) * splits * PART + HEAD
                parts[tail] = top
                parts[tail + 1] = mass
                parts[tail + 2] = float32(0.0)
                parts[tail + 3] = float32(0.0)

    @ops.jit
    def sum4(acc, weight, at, v):  # four positions of one head
        acc = add(acc, mul(weight[at], v[0]))
        acc = add(acc, mul(weight[uint32(at + 1)], v[1]))
        acc = add(acc, mul(weight[uint32(at + 2)], v[2]))
        return add(acc, mul(weight[uint32(at + 3)], v[3]))

    @ops.jit
    def weighted(weight, value):  # positions of one parity, five sums; those past the end add +0
        t = int32(cuda.threadIdx.x)
        dim, odd = int32(t & (HEAD - 1)), int32(uint32(t) >> uint32(7))
        half = uint32(uint32(dim & 1) * uint32(16))
        a, b, c, d, e = float32(0.0), float32(0.0), float32(0.0), float32(0.0), float32(0.0)
        p = int32(0)
        while p < CHUNK // 2:
            row = uint32((2 * p + odd) * (HEAD // 2) + (dim >> 1))
            v = (
                float_of_half(shift_right(value[row], half)),
                float_of_half(shift_right(value[uint32(row + HEAD)], half)),
                float_of_half(shift_right(value[uint32(row + 2 * HEAD)], half)),
                float_of_half(shift_right(value[uint32(row + 3 * HEAD)], half)),
            )
            at = uint32(odd * (CHUNK // 2) + p)
            a = sum4(a, weight, at, v)
            b = sum4(b, weight, uint32(at + CHUNK), v)
            c = sum4(c, weight, uint32(at + 2 * CHUNK), v)
            d = sum4(d, weight, uint32(at + 3 * CHUNK), v)
            e = sum4(e, weight, uint32(at + 4 * CHUNK), v)
            p = int32(p + 4)
        return a, b, c, d, e

    def kernel(q, cache, parts, kv_heads, kv, splits, scale, flags, stamps):
        begin(flags, stamps)
        t = int32(cuda.threadIdx.x)
        lane, warp = int32(t & 31), int32(uint32(t) >> uint32(5))
        block = uint32(cuda.blockIdx.x)
        kv_head, split = int32(block // uint32(splits)), int32(block % uint32(splits))
        first = int32(split * CHUNK)
        count = int32(min(int32(CHUNK), int32(kv - first)))
        keys = advance(cache, (int64(kv_head) * kv + first) * ROW)
        values = advance(keys, int64(kv_heads) * kv * ROW)
        prefetch(keys, count * ROW)  # into L2 only: the predecessor's row is read after the wait
        prefetch(values, count * ROW)
        late_wait()
        # Everything that the block reads is asked for at once, before the first barrier: no load crosses it.
        # Four lanes side by side have the same part of four keys: a query's part is one address for them.
        query = cuda.shared.array(QUERIES, uint32, alignment=16)  # their bits
        weight = cuda.shared.array(WEIGHTS, float32, alignment=16)
        value = cuda.shared.array(VALUES, uint32, alignment=16)
        other = cuda.shared.array(QUERIES, float32, alignment=16)
        key_lane, position = int32(uint32(lane) >> uint32(2)), int32(warp * 8 + (lane & 3))
        four = none
        if t < QUERIES // 4:
            four = load16(advance(q, int64(kv_head) * QUERIES + t * 4), 0)
        my_keys, my_values = advance(keys, position * ROW + key_lane * 8), advance(values, t * 16)
        a = key_part(my_keys, 0, position < count)
        b = key_part(my_keys, 4 * ROW, position + 4 < count)
        rows = int32(count - (t >> 4))
        v0, v1 = piece(my_values, 0, rows), piece(my_values, 1, rows)
        v2, v3 = piece(my_values, 2, rows), piece(my_values, 3, rows)
        if t < QUERIES // 4:
            keep(query, t, four)
        cuda.syncthreads()
        finish(scores(query, a, b, key_lane), weight, position, lane, scale)
        keep(value, t, v0)
        keep(value, t + 1 * THREADS, v1)
        keep(value, t + 2 * THREADS, v2)
        keep(value, t + 3 * THREADS, v3)
        cuda.syncthreads()
        part = (int64(kv_head) * GROUP * splits + split) * PART
        softmax(weight, parts, part, splits, count)
        cuda.syncthreads()
        sums = weighted(weight, value)
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
    top_of, low = largest(ops), float32(float("-inf"))

    @ops.jit
    def load_batch(v, parts, at, count):  # a value of each of BATCH splits, zeros from the count-th on
        for k in range(BATCH):
            v[k] = parts[at + k * PART] if k < count else float32(0.0)

    def kernel(parts, out, splits, flags, stamps):
        begin(flags, stamps)
        t, head = int32(cuda.threadIdx.x), int64(cuda.blockIdx.x)
        u = int32(t + HEAD)
        part = head * splits * PART
        one, two = part + t * PART + HEAD, part + u * PART + HEAD
        ma, la = (parts[one], parts[one + 1]) if t < splits else (low, float32(0.0))
        mb, lb = (parts[two], parts[two + 1]) if u < splits else (low, float32(0.0))
        v = cuda.local.array(BATCH, float32)
        load_batch(v, parts, part + t, splits)  # asked for before the maximum is known
        tops = cuda.shared.array(TOPS, float32, alignment=16)
        weight = cuda.shared.array(MOST_SPLITS, float32, alignment=16)
        masses = cuda.shared.array(MOST_SPLITS, float32, alignment=16)
        top = top_of(max(ma, mb))
        if t & 31 == 0:
            tops[uint32(t) >> uint32(5)] = top
        cuda.syncthreads()
        for k in range(TOPS):
            top = max(top, tops[k])
        wa = softmax_weight(ma, top) if t < splits else float32(0.0)
        wb = softmax_weight(mb, top) if u < splits else float32(0.0)
        weight[t] = wa
        weight[u] = wb
        masses[t] = mul(la, wa)
        masses[u] = mul(lb, wb)
        cuda.syncthreads()
        mass, acc = float32(0.0), float32(0.0)
        first = int32(0)
        while first < splits:
            if first != 0:
                load_batch(v, parts, part + first * PART + t, int32(splits - first))
            for step in range(0, BATCH, STEP):
                if first + step < splits:
                    for k in range(step, step + STEP):  # splits past the end add +0
                        mass = add(mass, masses[uint32(first + k)])
                        acc = add(acc, mul(v[k], weight[uint32(first + k)]))
            first = int32(first + BATCH)
        out[head * HEAD + t] = divide(acc, mass)
        end(flags, stamps)

    return kernel
