"""The L3 kernels: gate and up rows in q4_K, SwiGLU and q8 quantising, apart and fused.

matmul          one row per block: gate rows 0..nf-1, then up rows nf..2nf-1; f32 out
swiglu_quant    SwiGLU of both halves, quantised to pad40, 32 values per warp
form_b          one q8 block per thread block: its 32 gate rows, its 32 up rows, then the rest
form_b_staged   the next row's weights loaded before this row is reduced
form_a          a gate row and its up row per block; f32 out
quant           f32 to pad40

l3_ring.py has matmul_ring and form_c. Kernels ending in _traced also store each block's SM; they are never
timed.
"""

from types import SimpleNamespace
from typing import Any

from numba import float32, int32, int64, types, uint32

from kernels_numba import l3_ring, q4k, q8, reductions, swiglu
from kernels_numba.ops import BYTES, FLOATS, WORDS, gpu_ops

THREADS, GROUP, PAD_WORDS = 256, 32, 10
_INT = types.int32
_SIGNATURES = {
    "matmul": (BYTES, BYTES, FLOATS, _INT), "form_a": (BYTES, BYTES, FLOATS, _INT, _INT),
    "form_b": (BYTES, BYTES, WORDS, _INT, _INT), "form_b_staged": (BYTES, BYTES, WORDS, _INT, _INT),
    "swiglu_quant": (FLOATS, WORDS, _INT), "quant": (FLOATS, WORDS, _INT),
}  # fmt: skip


def _parts(ops: SimpleNamespace) -> SimpleNamespace:
    """What the forms share: a thread's part of a row, and the two stages of the reference reduction."""
    add = ops.add
    unit = q4k.functions(ops)
    weights, activations, term = unit.weights, unit.activations, unit.term

    @ops.jit
    def row_sum(row, x8, first, units, acc):  # a thread's units, ascending
        u = first
        while u < units:
            acc = add(acc, term(weights(row, u), activations(x8, u), u))
            u = int32(u + THREADS)
        return acc

    @ops.jit
    def add_warps(sums, first):  # eight warp sums, one after another
        total = float32(0.0)
        for k in range(8):
            total = add(total, sums[first + k])
        return total

    @ops.jit
    def warp_of(t):  # unsigned, so that no sign is carried into the address
        return uint32(uint32(t) >> uint32(5))

    return SimpleNamespace(
        row_sum=row_sum, butterfly=reductions.butterfly(ops), add_warps=add_warps, warp_of=warp_of,
        weights=weights, activations=activations, term=term,
    )  # fmt: skip


def _row_forms(ops: SimpleNamespace, parts: SimpleNamespace) -> dict[str, Any]:
    from numba import cuda

    advance, add = ops.advance, ops.add
    row_sum, butterfly, add_warps, warp_of = parts.row_sum, parts.butterfly, parts.add_warps, parts.warp_of
    weights, activations, term = parts.weights, parts.activations, parts.term
    gated = swiglu.functions(ops).swiglu

    @ops.jit
    def matmul(w, x8, gu, nbe):
        t = int32(cuda.threadIdx.x)
        sums = cuda.shared.array(8, float32, alignment=16)
        row = advance(w, int64(cuda.blockIdx.x) * int64(int32(nbe * q4k.BLOCK)))
        acc = butterfly(row_sum(row, x8, t, int32(nbe * 4), float32(0.0)))
        if t & 31 == 0:
            sums[warp_of(t)] = acc
        cuda.syncthreads()
        if t == 0:
            gu[cuda.blockIdx.x] = add_warps(sums, 0)

    @ops.jit
    def form_a(w, x8, h, nf, nbe):
        t = int32(cuda.threadIdx.x)
        sums = cuda.shared.array(16, float32, alignment=16)
        row_bytes, units = int64(int32(nbe * q4k.BLOCK)), int32(nbe * 4)
        gate = advance(w, int64(cuda.blockIdx.x) * row_bytes)
        up = advance(gate, int64(nf) * row_bytes)
        g, v = float32(0.0), float32(0.0)
        u = t
        while u < units:
            a, b = weights(gate, u), weights(up, u)
            x = activations(x8, u)
            g = add(g, term(a, x, u))
            v = add(v, term(b, x, u))
            u = int32(u + THREADS)
        g, v = butterfly(g), butterfly(v)
        if t & 31 == 0:
            sums[warp_of(t)] = g
            sums[uint32(8) + warp_of(t)] = v
        cuda.syncthreads()
        if t == 0:
            h[cuda.blockIdx.x] = gated(add_warps(sums, 0), add_warps(sums, 8))

    return {"matmul": matmul, "form_a": form_a}


def _block_forms(ops: SimpleNamespace, parts: SimpleNamespace) -> dict[str, Any]:
    """form_b and form_b_staged as device functions: 64 rows of one block, one after another."""
    from numba import cuda

    advance, add = ops.advance, ops.add
    row_sum, butterfly, add_warps, warp_of = parts.row_sum, parts.butterfly, parts.add_warps, parts.warp_of
    weights, activations, term = parts.weights, parts.activations, parts.term
    gated, store = swiglu.functions(ops).swiglu, q8.warp_store(ops)

    @ops.jit
    def finish(acc, j, sums, totals):  # reduce row j into totals[j]
        t = int32(cuda.threadIdx.x)
        acc = butterfly(acc)
        # Two sets of warp sums, used in turn: a warp a row ahead does not touch what thread 0 still reads.
        mine = int32((j & 1) * 8)
        if t & 31 == 0:
            sums[uint32(mine) + warp_of(t)] = acc
        cuda.syncthreads()
        if t == 0:
            totals[j] = add_warps(sums, mine)

    @ops.jit
    def quantise(totals, out):  # 32 gate and 32 up sums to one q8 block
        t = int32(cuda.threadIdx.x)
        cuda.syncthreads()
        if t < GROUP:
            store(gated(totals[t], totals[GROUP + t]), out, int64(cuda.blockIdx.x) * PAD_WORDS)

    @ops.jit
    def form_b(w, x8, out, nf, nbe):
        t = int32(cuda.threadIdx.x)
        sums = cuda.shared.array(16, float32, alignment=16)
        totals = cuda.shared.array(64, float32)
        row_bytes, units = int64(int32(nbe * q4k.BLOCK)), int32(nbe * 4)
        row = advance(w, int64(cuda.blockIdx.x) * GROUP * row_bytes)
        j = int32(0)
        while j < 2 * GROUP:
            finish(row_sum(row, x8, t, units, float32(0.0)), j, sums, totals)
            step = row_bytes
            if j == GROUP - 1:
                step = row_bytes * int64(int32(nf - GROUP + 1))
            row = advance(row, step)
            j = int32(j + 1)
        quantise(totals, out)

    @ops.jit
    def form_b_staged(w, x8, out, nf, nbe):
        t = int32(cuda.threadIdx.x)
        sums = cuda.shared.array(16, float32, alignment=16)
        totals = cuda.shared.array(64, float32)
        row_bytes, units = int64(int32(nbe * q4k.BLOCK)), int32(nbe * 4)
        row = advance(w, int64(cuda.blockIdx.x) * GROUP * row_bytes)
        z = uint32(0)
        following = ((z, z, z, z), (z, z, z, z), (z, z, z, z))
        if t < units:
            following = weights(row, t)
        j = int32(0)
        while j < 2 * GROUP:
            step = row_bytes
            if j == GROUP - 1:
                step = row_bytes * int64(int32(nf - GROUP + 1))
            after = advance(row, step)
            acc = float32(0.0)
            if t < units:
                now = following
                if j < 2 * GROUP - 1:
                    following = weights(after, t)
                acc = add(acc, term(now, activations(x8, t), t))
            finish(row_sum(row, x8, int32(t + THREADS), units, acc), j, sums, totals)
            row = after
            j = int32(j + 1)
        quantise(totals, out)

    return {"form_b": form_b, "form_b_staged": form_b_staged}


def _quantisers(ops: SimpleNamespace) -> dict[str, Any]:  # eight q8 blocks per thread block
    from numba import cuda

    gated, store = swiglu.functions(ops).swiglu, q8.warp_store(ops)

    def swiglu_quant(gu, out, nf):
        i = int32(int32(cuda.blockIdx.x) * THREADS + int32(cuda.threadIdx.x))
        if i < nf:  # nf is a multiple of 32: a warp is in or out as one
            store(gated(gu[i], gu[nf + i]), out, (i >> 5) * PAD_WORDS)

    def quant(h, out, nf):
        i = int32(int32(cuda.blockIdx.x) * THREADS + int32(cuda.threadIdx.x))
        if i < nf:
            store(h[i], out, (i >> 5) * PAD_WORDS)

    return {"swiglu_quant": swiglu_quant, "quant": quant}


def _plain(form: str, body: Any) -> Any:
    if form == "matmul":

        def four(w, x8, out, nbe):
            body(w, x8, out, nbe)

        return four

    def five(w, x8, out, nf, nbe):
        body(w, x8, out, nf, nbe)

    return five


def _traced(ops: SimpleNamespace, form: str, body: Any) -> Any:  # also stores each block's SM, sm[block]
    from numba import cuda

    smid = ops.smid

    @ops.jit
    def trace(sm):  # uint32 pointer
        here = smid()
        if cuda.threadIdx.x == 0:
            sm[cuda.blockIdx.x] = here

    if form == "matmul":

        def four(w, x8, out, nbe, sm):
            trace(sm)
            body(w, x8, out, nbe)

        return four

    def five(w, x8, out, nf, nbe, sm):
        trace(sm)
        body(w, x8, out, nf, nbe)

    return five


def kernels() -> dict[str, tuple[Any, Any]]:
    """Every kernel as name -> (Python function, signature), ready for compile.py."""
    ops = gpu_ops()
    parts = _parts(ops)
    out = {
        f"l3_{form}": (function, types.void(*_SIGNATURES[form]))
        for form, function in _quantisers(ops).items()
    }
    for form, body in (_row_forms(ops, parts) | _block_forms(ops, parts)).items():
        out[f"l3_{form}"] = _plain(form, body), types.void(*_SIGNATURES[form])
        out[f"l3_{form}_traced"] = _traced(ops, form, body), types.void(*_SIGNATURES[form], WORDS)
    return out | l3_ring.kernels()
