"""The L2 kernels of four chains, in the kinds of pdl.py.

stream               XOR of 16 KiB per block, mixed with a word of the predecessor's result
stream_8k, _bulk     the same in two of the forms of harness.py's reads
compute, wide        multiply-adds on 4 or 48 words a thread
rms_quantise … add   a decode layer, see probes/formats/layer.py
q4k_ring, q6k_ring   see l2_ring.py
gpl_two … dpl_one    a q6_K matrix by a row per block, see l2_rows.py
sleeper              triggers, sleeps, then writes: shows a missing wait

Arguments end with flags (TRIGGER, STAMP, TAIL) and stamps (two words).
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from numba import float32, int32, int64, types, uint32, uint64

from kernels_numba import attention, decode, l2_ring, l2_rows, pdl, q4k, q6k, q8, reads, reductions, swiglu
from kernels_numba.ops import BYTES, FLOATS, HALVES, LONGS, WORDS, gpu_ops
from probes.formats.chains import CONSTANTS
from probes.formats.layouts import layout

THREADS, WARPS, PAD_WORDS = 256, 8, 10
_INT, _FLOAT = types.int32, types.float32


def _stream(tile: Callable[..., Any], size: int, threads: int) -> Callable[[SimpleNamespace, str], Any]:
    def make(ops: SimpleNamespace, kind: str) -> Any:
        from numba import cuda

        gate, fetch, of_warp = pdl.parts(kind), tile(ops, size, threads), reads.of_warp(ops)
        begin, tail, late_wait, end = gate.begin, gate.tail, gate.late_wait, gate.end
        advance, mix, warps, vectors = ops.advance, CONSTANTS.mix, threads // 32, size // 16
        words = reads.SUMS

        def kernel(w, prev, out, flags, stamps):
            begin(flags, stamps)
            t, b = int32(cuda.threadIdx.x), int64(cuda.blockIdx.x)
            x = of_warp(fetch(advance(w, b * size), vectors))
            sums = cuda.shared.array(words, uint32, alignment=128)
            if t & 31 == 0:
                sums[uint32(t) >> uint32(5)] = x
            cuda.syncthreads()
            tail(flags)
            late_wait()  # not before the loads are used: ptxas would sink them below it
            if t == 0:
                for k in range(1, warps):
                    x = uint32(x ^ sums[k])
                carry = prev[int64(cuda.gridDim.x) - 1 - b]
                out[b] = uint32(uint32(uint32(x ^ carry) * uint32(mix)) + uint32(1))
            end(flags, stamps)

        kernel.max_threads = threads  # type: ignore[attr-defined]  # for compile.py
        return kernel

    return make


def _chain(words: int) -> Callable[[SimpleNamespace, str], Any]:  # words of a thread
    def make(ops: SimpleNamespace, kind: str) -> Any:
        from numba import cuda

        gate = pdl.parts(kind)
        begin, tail, late_wait, end = gate.begin, gate.tail, gate.late_wait, gate.end

        @ops.jit
        def steps(x, factor, step, count):  # x * factor + step, count times
            k = int32(0)
            while k < count:
                for s in range(words):
                    x[s] = uint32(uint32(x[s] * factor) + step)
                k = int32(k + 1)

        def kernel(prev, out, m, c, iters, flags, stamps):
            begin(flags, stamps)
            i = uint32(uint32(cuda.blockIdx.x) * uint32(THREADS) + uint32(cuda.threadIdx.x))
            last = uint32(uint32(cuda.gridDim.x) * uint32(THREADS) - uint32(1))
            factor, step = uint32(m), uint32(c)
            x = cuda.local.array(words, uint32)  # registers: NVVM takes it apart
            for s in range(words):
                x[s] = uint32(uint32(i * uint32(words)) + uint32(s))
            half = int32(uint32(iters) >> uint32(1))
            steps(x, factor, step, half)
            late_wait()
            carry = prev[uint32(last - i)]
            for s in range(words):
                x[s] = uint32(x[s] ^ carry)
            steps(x, factor, step, int32(iters - half))
            tail(flags)
            total = uint32(0)
            for s in range(words):
                total = uint32(total + x[s])
            out[i] = total
            end(flags, stamps)

        return kernel

    return make


def _rms_quantise(ops: SimpleNamespace, kind: str) -> Any:
    from numba import cuda

    gate = pdl.parts(kind)
    begin, late_wait, prefetch, end = gate.begin, gate.late_wait, gate.prefetch, gate.end
    unit, store, reduce_row = decode.functions(ops), q8.warp_store(ops), reductions.row(ops)
    rms_scale, rms_value, add, mul, advance = unit.rms_scale, unit.rms_value, ops.add, ops.mul, ops.advance

    def kernel(h, gamma, x8, n, eps, flags, stamps):
        begin(flags, stamps)
        t = int32(cuda.threadIdx.x)
        first = int64(cuda.blockIdx.x) * THREADS
        prefetch(advance(gamma, first), THREADS * 4)
        late_wait()
        acc = float32(0.0)
        k = t
        while k < n:
            acc = add(acc, mul(h[k], h[k]))
            k = int32(k + THREADS)
        total = reduce_row(acc)  # every block sums all squares, so that each can go on alone
        scale = cuda.shared.array(1, float32, alignment=16)
        if t == 0:
            scale[0] = rms_scale(total, n, eps)
        cuda.syncthreads()
        i = int64(first + t)
        store(rms_value(h[i], scale[0], gamma[i]), x8, (i >> 5) * PAD_WORDS)
        end(flags, stamps)

    return kernel


def _q4k(ops: SimpleNamespace, kind: str) -> Any:
    from numba import cuda

    gate = pdl.parts(kind)
    begin, tail, late_wait = gate.begin, gate.tail, gate.late_wait
    prefetch, end = gate.prefetch, gate.end
    unit, total_of, add, advance = q4k.functions(ops), reductions.butterfly(ops), ops.add, ops.advance
    weights, activations, term = unit.weights, unit.activations, unit.term

    def kernel(w, x8, out, nbe, flags, stamps):  # one row per warp
        begin(flags, stamps)
        t = int32(cuda.threadIdx.x)
        row_bytes, units = int64(int32(nbe * q4k.BLOCK)), int32(nbe * 4)
        block = advance(w, int64(cuda.blockIdx.x) * WARPS * row_bytes)
        prefetch(block, int32(row_bytes * WARPS))
        warp, lane = uint32(uint32(t) >> uint32(5)), int32(t & 31)
        row = advance(block, int64(warp) * row_bytes)
        late_wait()
        total = float32(0.0)
        first = int32(0)
        while first < units:
            u = int32(first + lane)
            acc = float32(0.0)
            if u < units:
                acc = add(acc, term(weights(row, u), activations(x8, u), u))
            total = add(total, total_of(acc))
            first = int32(first + 32)
        tail(flags)
        if lane == 0:
            out[int64(cuda.blockIdx.x) * WARPS + int64(warp)] = total
        end(flags, stamps)

    return kernel


def _q6k(ops: SimpleNamespace, kind: str) -> Any:
    from numba import cuda

    gate = pdl.parts(kind)
    begin, tail, late_wait = gate.begin, gate.tail, gate.late_wait
    prefetch, end = gate.prefetch, gate.end
    unit, add, advance, reduce_row = (
        q6k.functions(ops, layout("dpl")), ops.add, ops.advance, reductions.row(ops),
    )  # fmt: skip
    load, term = unit.load, unit.term

    def kernel(w, x8, out, nbe, row_stride, flags, stamps):  # one row per block
        begin(flags, stamps)
        t = int32(cuda.threadIdx.x)
        row = advance(w, int64(cuda.blockIdx.x) * int64(row_stride))
        prefetch(row, row_stride)
        late_wait()
        acc = float32(0.0)
        units = int32(nbe * 8)
        u = t
        while u < units:
            acc = add(acc, term(load(row, x8, u, nbe), u))
            u = int32(u + THREADS)
        tail(flags)
        total = reduce_row(acc)
        if t == 0:
            out[cuda.blockIdx.x] = total
        end(flags, stamps)

    return kernel


def _quantise(ops: SimpleNamespace, kind: str) -> Any:
    from numba import cuda

    gate, store = pdl.parts(kind), q8.warp_store(ops)
    begin, end = gate.begin, gate.end

    def kernel(x, x8, flags, stamps):
        begin(flags, stamps)
        i = int64(cuda.blockIdx.x) * THREADS + int64(cuda.threadIdx.x)
        store(x[i], x8, (i >> 5) * PAD_WORDS)
        end(flags, stamps)

    return kernel


def _swiglu_quantise(ops: SimpleNamespace, kind: str) -> Any:
    from numba import cuda

    gate, store, gated = pdl.parts(kind), q8.warp_store(ops), swiglu.functions(ops).swiglu
    begin, end = gate.begin, gate.end

    def kernel(gu, x8, nf, flags, stamps):
        begin(flags, stamps)
        i = int64(cuda.blockIdx.x) * THREADS + int64(cuda.threadIdx.x)
        store(gated(gu[i], gu[nf + i]), x8, (i >> 5) * PAD_WORDS)
        end(flags, stamps)

    return kernel


def _add(ops: SimpleNamespace, kind: str) -> Any:
    from numba import cuda

    gate, add = pdl.parts(kind), ops.add
    begin, end = gate.begin, gate.end

    def kernel(a, b, out, flags, stamps):
        begin(flags, stamps)
        i = int64(cuda.blockIdx.x) * THREADS + int64(cuda.threadIdx.x)
        out[i] = add(a[i], b[i])
        end(flags, stamps)

    return kernel


def _empty(ops: SimpleNamespace, kind: str) -> Any:
    gate = pdl.parts(kind)
    begin, end = gate.begin, gate.end

    def kernel(flags, stamps):
        begin(flags, stamps)
        end(flags, stamps)

    return kernel


def _sleeper(ops: SimpleNamespace) -> Any:
    from numba import cuda

    trigger, globaltimer = pdl.statements().trigger, ops.globaltimer

    def kernel(src, dst, n, sleep_ns):  # one block
        trigger()
        start = globaltimer()
        while uint64(globaltimer() - start) < uint64(sleep_ns):
            pass
        i = int32(cuda.threadIdx.x)
        while i < n:
            dst[i] = src[i]
            i = int32(i + THREADS)

    return kernel


_FORMS: dict[str, tuple[Callable[[SimpleNamespace, str], Any], tuple[Any, ...], bool]] = {
    "stream": (_stream(reads.loaded, CONSTANTS.tile, THREADS), (BYTES, WORDS, WORDS), True),
    "compute": (_chain(CONSTANTS.narrow), (WORDS, WORDS, _INT, _INT, _INT), True),
    "wide": (_chain(CONSTANTS.wide), (WORDS, WORDS, _INT, _INT, _INT), True),
    "empty": (_empty, (), False),
    "rms_quantise": (_rms_quantise, (FLOATS, FLOATS, WORDS, _INT, _FLOAT), True),
    "q4k": (_q4k, (BYTES, BYTES, FLOATS, _INT), True),
    "q6k": (_q6k, (BYTES, BYTES, FLOATS, _INT, _INT), True),
    "rope_store": (attention.rope_store, (FLOATS, FLOATS, FLOATS, HALVES, _INT, _INT, _INT), True),
    "attention_split": (attention.attention_split, (FLOATS, BYTES, FLOATS, _INT, _INT, _INT, _FLOAT), True),
    "attention_combine": (attention.attention_combine, (FLOATS, FLOATS, _INT), False),
    "quantise": (_quantise, (FLOATS, WORDS), False),
    "swiglu_quantise": (_swiglu_quantise, (FLOATS, WORDS, _INT), False),
    "add": (_add, (FLOATS, FLOATS, FLOATS), False),
}  # fmt: skip
"""Kernel -> its maker, its own arguments, whether it has anything to do before the wait (a late kind)."""

_ENDS: dict[str, tuple[Callable[[SimpleNamespace, str], Any], tuple[Any, ...]]] = {
    "stream_8k": (_stream(reads.loaded, 8192, 64), (BYTES, WORDS, WORDS)),
    "stream_bulk": (_stream(reads.copied, CONSTANTS.tile, 128), (BYTES, WORDS, WORDS)),
    **{name: (make, (BYTES, BYTES, WORDS, FLOATS, _INT, _INT)) for name, make in l2_rows.FORMS.items()},
}
"""The same of kernels that are plain or late and nothing between."""


def kernels() -> dict[str, tuple[Any, Any]]:
    """Every kernel as name -> (Python function, signature), ready for compile.py."""
    ops = gpu_ops()
    out: dict[str, tuple[Any, Any]] = {}
    for name, (make, own, late) in _FORMS.items():
        signature = types.void(*own, _INT, LONGS)
        for kind in pdl.KINDS if late else pdl.KINDS[:2]:
            out[f"l2_{name}_{kind}"] = make(ops, kind), signature
    for name, (make, own) in _ENDS.items():
        for kind in ("plain", "late"):
            out[f"l2_{name}_{kind}"] = make(ops, kind), types.void(*own, _INT, LONGS)
    out["l2_sleeper"] = _sleeper(ops), types.void(WORDS, WORDS, _INT, _INT)
    return out | l2_ring.kernels()
