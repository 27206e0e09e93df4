"""Inline PTX for Numba: bulk copies, mbarriers, shared memory by 32-bit address. The C++ is in
kernels_cu/mbarrier.cuh and ring_gated.cuh.

All clobber memory, so that no load crosses them. Barriers and 16-byte copies need sm_80, bulk copies and
prefetches sm_90.
"""

import functools
from types import SimpleNamespace
from typing import Any

from llvmlite import ir
from numba import types
from numba.cuda.extending import intrinsic

from kernels_numba import target

_I8, _I16, _I32, _I64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))
_MEMORY = "ring_memory"


def _statement(text: str, *kinds: Any, before: str | None = None) -> Any:
    """An intrinsic of PTX without a result. kinds: uint32 or 'pointer'. before: the text below sm_90."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        said = text if before is None or target.capability >= (9, 0) else before
        if not said:
            return context.get_dummy_value()
        values = [builder.ptrtoint(a, _I64) if isinstance(a.type, ir.PointerType) else a for a in args]
        kind = ir.FunctionType(ir.VoidType(), [v.type for v in values])
        letters = ["l" if v.type.width == 64 else "r" for v in values]
        asm = ir.InlineAsm(kind, said, ",".join([*letters, "~{memory}"]), side_effect=True)
        builder.call(asm, values, attrs=("convergent",))
        return context.get_dummy_value()

    def signature(*given: Any) -> Any:
        return types.void(*(g if k == "pointer" else k for g, k in zip(given, kinds, strict=True)))

    if not kinds:
        return intrinsic(lambda typingctx: (signature(), codegen))
    if len(kinds) == 1:
        return intrinsic(lambda typingctx, a: (signature(a), codegen))
    if len(kinds) == 2:
        return intrinsic(lambda typingctx, a, b: (signature(a, b), codegen))
    return intrinsic(lambda typingctx, a, b, c, d: (signature(a, b, c, d), codegen))


def _memory_address() -> Any:  # () -> uint32: where the block's dynamic shared memory starts
    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        module = builder.module
        if _MEMORY in module.globals:
            memory = module.globals[_MEMORY]
        else:
            memory = ir.GlobalVariable(module, ir.ArrayType(_I8, 0), _MEMORY, addrspace=3)
            memory.linkage, memory.align = "external", 128
        return builder.trunc(builder.ptrtoint(memory, _I64), _I32)

    return intrinsic(lambda typingctx: (types.uint32(), codegen))


def _load(kind: Any, result: Any, align: int, words: int = 1) -> Any:  # address -> the value, or values
    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        whole = ir.VectorType(kind, words) if words > 1 else kind
        value = builder.load(builder.inttoptr(args[0], whole.as_pointer(3)), align=align)
        if words == 1:
            return builder.zext(value, _I32) if kind is _I16 else value
        parts = [builder.extract_element(value, ir.Constant(_I32, k)) for k in range(words)]
        return context.make_tuple(builder, sig.return_type, parts)

    out = types.UniTuple(result, words) if words > 1 else result
    return intrinsic(lambda typingctx, address: (out(types.uint32), codegen))


def _store(value: Any) -> Any:  # (address, value), of four bytes
    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        builder.store(args[1], builder.inttoptr(args[0], args[1].type.as_pointer(3)), align=4)
        return context.get_dummy_value()

    return intrinsic(lambda typingctx, address, v: (types.void(types.uint32, value), codegen))


def _pinned() -> Any:  # word -> the same word, which the compiler will rather keep than work out again
    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        kind = ir.FunctionType(_I32, [_I32])
        return builder.call(ir.InlineAsm(kind, "mov.b32 $0, $1;", "=r,r", side_effect=True), args)

    return intrinsic(lambda typingctx, word: (types.uint32(types.uint32), codegen))


def _draw() -> Any:  # (pointer, last) -> the word, before it is counted up or wraps from `last` to 0
    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        kind = ir.FunctionType(_I32, [_I64, _I32])
        asm = ir.InlineAsm(kind, "atom.global.inc.u32 $0, [$1], $2;", "=r,l,r,~{memory}", side_effect=True)
        return builder.call(asm, [builder.ptrtoint(args[0], _I64), args[1]])

    return intrinsic(lambda typingctx, pointer, value: (types.uint32(pointer, types.uint32), codegen))


def _handed_over() -> Any:  # pointer -> (gate, up): both words in one load, past L1
    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        kind = ir.FunctionType(ir.LiteralStructType([_I32, _I32]), [_I64])
        asm = ir.InlineAsm(kind, _HANDED_OVER, "=r,=r,l,~{memory}", side_effect=True)
        both = builder.call(asm, [builder.ptrtoint(args[0], _I64)])
        return context.make_tuple(builder, sig.return_type, [builder.extract_value(both, k) for k in (0, 1)])

    pair = types.UniTuple(types.uint32, 2)
    return intrinsic(lambda typingctx, pointer: (pair(pointer), codegen))


def _no_counter() -> Any:  # () -> the null pointer to a word
    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return ir.Constant(context.get_value_type(sig.return_type), None)

    return intrinsic(lambda typingctx: (types.CPointer(types.uint32)(), codegen))


def _is_null() -> Any:  # pointer -> bool
    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.icmp_unsigned("==", builder.ptrtoint(args[0], _I64), ir.Constant(_I64, 0))

    return intrinsic(lambda typingctx, pointer: (types.boolean(pointer), codegen))


_HANDED_OVER = "ld.relaxed.gpu.global.v2.u32 {$0, $1}, [$2];"
_TAKE_BACK = (
    "{\n\t.reg .b32 none;\n\tmov.b32 none, 0;\n\tst.relaxed.gpu.global.v2.u32 [$0], {none, none};\n\t}"
)
_ARRIVE_IF = (
    "{\n\t.reg .pred arrive;\n\tsetp.ne.u32 arrive, $1, 0;\n\t"
    "@arrive mbarrier.arrive.shared::cta.b64 _, [$0];\n\t}"
)
_WAIT = (
    "{\n\t.reg .pred done;\n\tAGAIN:\n\tmbarrier.try_wait.parity.shared::cta.b64 done, [$0], $1;\n\t"
    "@!done bra AGAIN;\n\t}"
)


@functools.cache
def statements() -> SimpleNamespace:
    """The intrinsics, under the C++ functions' names; an address is a uint32 in the shared window."""
    word, single = types.uint32, types.float32
    return SimpleNamespace(
        memory=_memory_address(),
        block_arrive=_statement("bar.arrive 1, $0;", word),
        block_join=_statement("bar.sync 1, $0;", word),
        barrier_init=_statement("mbarrier.init.shared::cta.b64 [$0], $1;", word, word),
        barriers_ready=_statement(
            "fence.mbarrier_init.release.cluster;\n\tfence.proxy.async.shared::cta;", before=""
        ),
        barrier_arrive=_statement("mbarrier.arrive.shared::cta.b64 _, [$0];", word),
        barrier_arrive_if=_statement(_ARRIVE_IF, word, word),
        barrier_expect=_statement("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [$0], $1;", word, word),
        barrier_wait=_statement(_WAIT, word, word, before=_WAIT.replace("try_wait", "test_wait")),
        bulk_copy=_statement(
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [$0], [$1], $2, [$3];",
            word, "pointer", word, word,
        ),
        copy_16=_statement("cp.async.cg.shared.global.L2::128B [$0], [$1], 16;", word, "pointer"),
        barrier_arrive_copied=_statement("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [$0];", word),
        bulk_prefetch=_statement("cp.async.bulk.prefetch.L2.global [$0], $1;", "pointer", word),
        load16=_load(_I32, word, 16, 4), load8=_load(_I32, word, 8, 2), load2=_load(_I16, word, 2),
        load_word=_load(_I32, types.int32, 4), load_floats=_load(ir.FloatType(), single, 16, 4),
        store_word=_store(types.int32), store_float=_store(single), pinned=_pinned(), draw=_draw(),
        hand_over=_statement("st.relaxed.gpu.global.u32 [$0], $1;", "pointer", word),
        handed_over=_handed_over(), take_back=_statement(_TAKE_BACK, "pointer"),
        no_counter=_no_counter(), is_null=_is_null(),
    )  # fmt: skip
