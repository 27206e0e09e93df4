"""The L1 kernels: one q6_K row per block, in every layout of probes/formats/layouts.py.

A block has a warp for each virtual warp that owns a unit, as l1.cu says.

loop    u += 256
pf      two units loaded before either term; right only for 256 < units <= 512
pf3     three units; right only for 512 < units <= 768
stream  the loop form's loads; the result is the sum of all words

Arguments: as kernels_cu/l1.cu.
"""

from typing import Any

from numba import float32, int32, int64, types, uint32

from kernels_numba import q6k, reductions
from kernels_numba.ops import BYTES, FLOATS, WORDS, gpu_ops
from probes.formats.layouts import LAYOUTS, Layout

THREADS = 256
_SUM_SIGNATURE = types.void(BYTES, BYTES, FLOATS, types.int32, types.int32)
_CHECKSUM_SIGNATURE = types.void(BYTES, BYTES, WORDS, types.int32, types.int32)


def _forms(lay: Layout) -> dict[str, tuple[Any, Any]]:
    from numba import cuda

    ops = gpu_ops()
    unit = q6k.functions(ops, lay)
    load, term, checksum = unit.load, unit.term, unit.checksum
    piece, activation = unit.piece, unit.activation
    advance, add, kept, anew = ops.advance, ops.add, ops.kept, ops.anew
    reduce_row, reduce_words = reductions.row(ops), reductions.words(ops)
    reduce_fewer = reductions.row(ops, fewer=True)

    def loop(w, x8, out, nbe, row_stride):
        t = int32(cuda.threadIdx.x)
        row = kept(advance(w, int64(cuda.blockIdx.x) * int64(row_stride)))
        nunits = int32(nbe * 8)
        acc = float32(0.0)
        u = t
        while u < nunits:
            v = anew(u)
            weights = piece(row, v, nbe)  # all asked for at once: activations have a unit number of their own
            acc = add(acc, term((*weights, activation(x8, anew(u))), v))
            u = int32(u + THREADS)
        total = reduce_fewer(acc)
        if t == 0:
            out[cuda.blockIdx.x] = total

    # Whole warps come here, so nothing below is behind a branch and every load stays ahead of every term. A
    # lane that does not own the last unit loads its first again, out of L1, and drops the term.
    @ops.jit
    def two(row, x8, nbe, t, owns_last):  # -> float32
        last = int32(t + THREADS) if owns_last else t
        a, b = load(row, x8, t, nbe), load(row, x8, last, nbe)
        one = add(float32(0.0), term(a, t))
        both = add(one, term(b, last))
        return both if owns_last else one

    @ops.jit
    def three(row, x8, nbe, t, owns_last):  # -> float32
        second = int32(t + THREADS)
        last = int32(second + THREADS) if owns_last else t
        a, b, c = load(row, x8, t, nbe), load(row, x8, second, nbe), load(row, x8, last, nbe)
        both = add(add(float32(0.0), term(a, t)), term(b, second))
        all_three = add(both, term(c, last))
        return all_three if owns_last else both

    def pf(w, x8, out, nbe, row_stride):
        t = int32(cuda.threadIdx.x)
        row = kept(advance(w, int64(cuda.blockIdx.x) * int64(row_stride)))
        second, nunits = int32(t + THREADS), int32(nbe * 8)
        if (second & ~31) < nunits:
            acc = two(row, x8, nbe, t, second < nunits)
        else:
            acc = add(float32(0.0), term(load(row, x8, t, nbe), t))
        total = reduce_row(acc)
        if t == 0:
            out[cuda.blockIdx.x] = total

    def pf3(w, x8, out, nbe, row_stride):
        t = int32(cuda.threadIdx.x)
        row = kept(advance(w, int64(cuda.blockIdx.x) * int64(row_stride)))
        third, nunits = int32(t + 2 * THREADS), int32(nbe * 8)
        if (third & ~31) < nunits:
            acc = three(row, x8, nbe, t, third < nunits)
        else:
            acc = two(row, x8, nbe, t, True)
        total = reduce_row(acc)
        if t == 0:
            out[cuda.blockIdx.x] = total

    def stream(w, x8, out, nbe, row_stride):
        t = int32(cuda.threadIdx.x)
        row = kept(advance(w, int64(cuda.blockIdx.x) * int64(row_stride)))
        nunits = int32(nbe * 8)
        acc = uint32(0)
        u = t
        while u < nunits:
            acc = uint32(acc + checksum(load(row, x8, u, nbe)))
            u = int32(u + THREADS)
        total = reduce_words(acc)
        if t == 0:
            out[cuda.blockIdx.x] = total

    return {
        "loop": (loop, _SUM_SIGNATURE), "pf": (pf, _SUM_SIGNATURE), "pf3": (pf3, _SUM_SIGNATURE),
        "stream": (stream, _CHECKSUM_SIGNATURE),
    }  # fmt: skip


def kernels(layouts: tuple[Layout, ...] = LAYOUTS) -> dict[str, tuple[Any, Any]]:
    """Every kernel as name -> (Python function, signature), ready for compile.py."""
    return {f"l1_{lay.name}_{form}": row for lay in layouts for form, row in _forms(lay).items()}
