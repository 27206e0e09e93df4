"""Fast packing of q6_K rows: one super-block at a time, in vector registers, from any thread.

`packing` calls this for matrices of more than a few MB, where their plain
NumPy form would take seconds. Numba compiles it for the CPU at hand on first use (about a second,
so Numba is imported only then) and it runs without the GIL.

Two things bring it within reach of a plain copy. Every block is read whole, as vectors, before
anything is stored: loops over bytes reach a third of the speed, because the compiler cannot prove
that source and destination do not overlap. And rows are built in a buffer that stays in cache and
then streamed out in whole lines past the cache, as a large memcpy does, so that memory is not read
before it is overwritten (0.49 of a copy's speed without, 0.54 to 0.75 with).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

LINE = 64
"""Bytes streamed at a time: a cache line."""

BATCH_BYTES = 16384
"""Rows are built in a buffer of about this size (at least one row): half of a first-level cache."""

Rows = Callable[..., None]
"""(source u8 1-d, its row bytes, destination u8 1-d, its row bytes, first row, last row, nbe, at u64[8])."""


def qh_words(pack: bool) -> list[tuple[list[int], list[int], list[int]]]:
    """How the 16 words of a super-block's high bits move: 4 steps of (word to read, right, left shift).

    In GGUF order word [c][half][j] holds, in byte k, value 16 * half + 4 * j + k of the chunk's unit
    g at bits 2g. Grouped, word [c][g][half] holds the same at bits 2j. Each step reads one word per
    lane, shifts it right, keeps the low two bits of every byte, and shifts them left into place.
    """
    steps = []
    for step in range(4):
        words, right, left = [], [], []
        for lane in range(16):
            c = lane >> 3
            if pack:  # lane is [c][g][half]; the step is j
                g, half = (lane >> 1) & 3, lane & 1
                words.append(c * 8 + half * 4 + step)
                right.append(2 * g)
                left.append(2 * step)
            else:  # lane is [c][half][j]; the step is g
                half, j = (lane >> 2) & 1, lane & 3
                words.append(c * 8 + step * 2 + half)
                right.append(2 * j)
                left.append(2 * step)
        steps.append((words, right, left))
    return steps


@cache
def compiled(pack: bool, group: bool) -> Rows:
    """The row loop that packs (or unpacks) rows first..last of a matrix, compiled for this CPU.

    `at` holds start and step per block of ql, qh, sc and d in a packed row. Nothing is
    checked here: `packing` has done so. Raises ImportError where Numba is missing.
    """
    import numba
    from llvmlite import ir
    from numba.core import cgutils
    from numba.extending import intrinsic

    i8, i32 = ir.IntType(8), ir.IntType(32)

    def vector(kind: Any, values: list[int]) -> Any:
        return ir.Constant(ir.VectorType(kind, len(values)), values)

    def shuffle(b: Any, first: Any, second: Any, lanes: list[int]) -> Any:
        return b.shuffle_vector(first, second, vector(i32, lanes))

    def nibbles(b: Any, ql: Any) -> Any:
        """ql as <128 x i8> in the other order; lines of 32 bytes, of which 16 and 16 pair up."""
        low, high, four = vector(i8, [15] * 64), vector(i8, [240] * 64), vector(i8, [4] * 64)
        chunks = [0, 64]
        if pack:  # A: the first 16 bytes of each line, B: the last 16
            starts_a = [c + 32 * h for c in chunks for h in (0, 1)]
            starts_b = [s + 16 for s in starts_a]
            # result [c][h | 2 + h][16]: `one` is units h, `two` is units 2 + h
            back = [c * 32 + w * 64 + k for c in (0, 1) for w in (0, 1) for k in range(32)]
        else:  # A: units h, B: units 2 + h
            starts_a = [c + 16 * h for c in chunks for h in (0, 1)]
            starts_b = [s + 32 for s in starts_a]
            back = [line * 16 + w * 64 + k for line in range(4) for w in (0, 1) for k in range(16)]
        x = shuffle(b, ql, ql, [s + k for s in starts_a for k in range(16)])
        y = shuffle(b, ql, ql, [s + k for s in starts_b for k in range(16)])
        one = b.or_(b.and_(x, low), b.shl(y, four))
        two = b.or_(b.lshr(x, four), b.and_(y, high))
        return shuffle(b, one, two, back)

    def high_bits(b: Any, qh: Any) -> Any:
        """qh as <16 x i32> in the other order."""
        total = None
        low_two = vector(i32, [0x03030303] * 16)
        for words, right, left in qh_words(pack):
            part = b.lshr(shuffle(b, qh, qh, words), vector(i32, right))
            part = b.shl(b.and_(part, low_two), vector(i32, left))
            total = part if total is None else b.or_(total, part)
        return total

    def pointer(context: Any, b: Any, kind: Any, array: Any, at: Any, to: Any) -> Any:
        """Address of byte `at` of a Numba array, as a pointer to the vector type `to`."""
        data = cgutils.create_struct_proxy(kind)(context, b, value=array).data
        return b.bitcast(b.gep(data, [at]), to.as_pointer())

    @intrinsic  # type: ignore[untyped-decorator]  # numba has no stubs
    def move(typing: Any, src: Any, dst: Any, dense: Any, ql: Any, qh: Any, sc: Any, d: Any) -> Any:
        """Move one super-block between byte `dense` of GGUF order and its four pieces."""

        def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
            kinds = [ir.VectorType(kind, n) for kind, n in ((i8, 128), (i32, 16), (i8, 16), (i8, 2))]
            whole = [b.add(args[2], ir.Constant(args[2].type, offset)) for offset in (0, 128, 192, 208)]
            sources, targets = (whole, args[3:]) if pack else (args[3:], whole)
            values = [
                b.load(pointer(context, b, signature.args[0], args[0], at, kind), align=1)
                for at, kind in zip(sources, kinds, strict=True)
            ]
            if group:
                values[0] = nibbles(b, values[0])
                values[1] = high_bits(b, values[1])
            for value, at, kind in zip(values, targets, kinds, strict=True):
                b.store(value, pointer(context, b, signature.args[1], args[1], at, kind), align=1)
            return context.get_dummy_value()

        return numba.types.void(src, dst, dense, ql, qh, sc, d), codegen

    @intrinsic  # type: ignore[untyped-decorator]  # numba has no stubs
    def stream(typing: Any, src: Any, at: Any, dst: Any, to: Any) -> Any:
        """Copy 64 bytes to an address that is a multiple of 64, past the cache."""

        def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
            line = ir.VectorType(i8, LINE)
            value = b.load(pointer(context, b, signature.args[0], args[0], args[1], line), align=1)
            store = b.store(value, pointer(context, b, signature.args[2], args[2], args[3], line), align=LINE)
            store.set_metadata("nontemporal", b.module.add_metadata([ir.Constant(i32, 1)]))
            return context.get_dummy_value()

        return numba.types.void(src, at, dst, to), codegen

    @intrinsic  # type: ignore[untyped-decorator]  # numba has no stubs
    def fence(typing: Any) -> Any:
        """Order the streamed lines before whatever the thread does next."""

        def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
            b.fence("seq_cst")
            return context.get_dummy_value()

        return numba.types.void(), codegen

    @numba.njit(nogil=True)  # type: ignore[untyped-decorator]  # numba has no stubs
    def rows(
        src: Any, src_row: int, dst: Any, dst_row: int, first: int, last: int, nbe: int, at: Any
    ) -> None:
        batch = max(1, BATCH_BYTES // dst_row)
        near = np.zeros(batch * dst_row, np.uint8)  # dead bytes of a packed row stay 0
        address = dst.ctypes.data
        for start in range(first, last, batch):
            stop = min(start + batch, last)
            for r in range(start, stop):
                source, target = r * src_row, (r - start) * dst_row
                dense, packed = (source, target) if pack else (target, source)
                for n in range(nbe):
                    move(
                        src, near, dense + n * 210,
                        packed + at[0] + at[1] * n, packed + at[2] + at[3] * n,
                        packed + at[4] + at[5] * n, packed + at[6] + at[7] * n,
                    )  # fmt: skip
            out, size = start * dst_row, (stop - start) * dst_row
            head = min(size, -(address + out) % LINE)
            tail = size - (size - head) % LINE
            for k in range(head):
                dst[out + k] = near[k]
            for k in range(head, tail, LINE):
                stream(near, k, dst, out + k)
            for k in range(tail, size):
                dst[out + k] = near[k]
        fence()

    result: Rows = rows
    return result
