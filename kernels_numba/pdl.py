"""Programmatic dependent launch (sm_90 and up): wait, trigger, prefetch, time stamps.

kernels_cu/pdl.cuh says what the kinds are. All statements clobber memory, so that no load crosses them.
"""

import functools
from types import SimpleNamespace
from typing import Any

from llvmlite import ir
from numba import types
from numba.cuda.extending import intrinsic

from kernels_numba.ops import gpu_ops

KINDS = ("plain", "entry", "late")
TRIGGER, STAMP, TAIL = 1, 2, 4


def _statement(text: str, *kinds: Any) -> Any:  # of nothing, or of a pointer and one value
    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        values = [
            builder.ptrtoint(a, ir.IntType(64)) if isinstance(a.type, ir.PointerType) else a for a in args
        ]
        kind = ir.FunctionType(ir.VoidType(), [v.type for v in values])
        letters = ["l" if v.type.width == 64 else "r" for v in values]
        asm = ir.InlineAsm(kind, text, ",".join([*letters, "~{memory}"]), side_effect=True)
        builder.call(asm, values)
        return context.get_dummy_value()

    if not kinds:
        return intrinsic(lambda typingctx: (types.void(), codegen))
    return intrinsic(lambda typingctx, pointer, value: (types.void(pointer, kinds[0]), codegen))


@functools.cache
def statements() -> SimpleNamespace:
    """wait(), trigger(), prefetch(pointer, bytes), stamp_min(pointer, ns), stamp_max(pointer, ns)."""
    return SimpleNamespace(
        wait=_statement("griddepcontrol.wait;"),
        trigger=_statement("griddepcontrol.launch_dependents;"),
        prefetch=_statement("cp.async.bulk.prefetch.L2.global [$0], $1;", types.int32),
        stamp_min=_statement("red.global.min.u64 [$0], $1;", types.uint64),
        stamp_max=_statement("red.global.max.u64 [$0], $1;", types.uint64),
    )


@functools.cache
def parts(kind: str) -> SimpleNamespace:
    """begin(flags, stamps), tail(flags), late_wait(), prefetch(pointer, bytes), end(flags, stamps)."""
    from numba import cuda

    ops, asm = gpu_ops(), statements()
    globaltimer, advance = ops.globaltimer, ops.advance
    wait, trigger, bulk, stamp_min, stamp_max = (
        asm.wait, asm.trigger, asm.prefetch, asm.stamp_min, asm.stamp_max,
    )  # fmt: skip

    @ops.jit
    def nothing():  # where this kind does not wait
        return

    @ops.jit
    def waits():  # where it does
        wait()

    @ops.jit
    def mute(flags):  # the plain kind triggers nothing
        return

    @ops.jit
    def triggers(flags):  # the others do if asked
        if flags & TRIGGER:
            trigger()

    @ops.jit
    def triggers_late(flags):  # where a block has asked for its last weights, or only has to store
        if flags & TAIL:
            trigger()

    signal, tail = (mute, mute) if kind == "plain" else (triggers, triggers_late)
    early = waits if kind == "entry" else nothing
    late_wait = waits if kind == "late" else nothing

    @ops.jit
    def begin(flags, stamps):  # the first thing in every kernel
        if flags & STAMP and cuda.threadIdx.x == 0:
            stamp_min(stamps, globaltimer())
        signal(flags)
        early()

    @ops.jit
    def end(flags, stamps):  # the last thing in every kernel
        if flags & STAMP:
            cuda.syncthreads()
            if cuda.threadIdx.x == 0:
                stamp_max(advance(stamps, 1), globaltimer())

    @ops.jit
    def fetch(pointer, size):  # into L2, once per block
        if cuda.threadIdx.x == 0:
            bulk(pointer, size)

    @ops.jit
    def skip(pointer, size):  # only the late kind prefetches
        return

    return SimpleNamespace(
        begin=begin, tail=tail, late_wait=late_wait, prefetch=fetch if kind == "late" else skip, end=end
    )
