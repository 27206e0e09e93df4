"""What every kernel of the suite does, in NumPy, by the oracles of probes.core; what it costs is made up.

A kernel checks its own launch too: block and grid of its form, the shared memory of a ring's stages, counters
that must be 0, and that a kernel without a wait is not launched as a dependent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from probes.core.types import BadInput, Resources
from probes.device import pipeline
from probes.formats import chains, checksum, q4k, q6k, q8, swiglu
from probes.formats import layer as decode_layer
from probes.formats.layouts import LAYOUTS, Layout, layout
from probes.formats.packing import unpack
from tests.host_gpu import HostKernel, Running
from tests.host_reads import READS, stream

U8, U32, F16, F32, U64 = np.uint8, np.uint32, np.float16, np.float32, np.uint64
THREADS = 256
NO_NUMBER = 0xEE
"""Bytes of a q8 block that was made of NaNs: a GPU gives no error, and nothing that is right."""


def quantised(make: Callable[..., Any], *values: Any, n: int) -> Any:
    """pad40 bytes of n values."""
    try:
        return make(*values)
    except BadInput:
        return np.full(n // 32 * q8.PAD40, NO_NUMBER, U8)


def in_a_ring(x: Running, rows: int, stages: int, stride: int, units: int, others: int = 1) -> int:
    """Check a ring's block; its sets of consumers."""
    assert 1 <= rows <= pipeline.MOST_ROWS and stages >= 1
    assert x.launch.smem == stages * pipeline.stage_bytes(rows, stride), "shared memory is the stages'"
    assert x.launch.carveout == 100, "a ring wants all of an SM's shared memory"
    sets, rest = divmod(x.launch.block // 32 - others, pipeline.consumer_warps(units))
    assert sets >= 1 and not rest and x.launch.block % 32 == 0, "warps of whole sets, and the producer"
    return sets


def zero(x: Running, address: int, n: int = 1) -> None:
    """Counters that must be 0, where there are any; a kernel leaves them so."""
    assert not address or not x.read(address, U32, n).any(), "a counter is not 0 before the launch"


# The harness


def harness_clock(x: Running, out: int) -> None:
    x.write(out, U64, 3)[:] = *x.clock(), 0


# L1


def q6k_sums(lay: Layout, x: Running, w: int, x8: int, out: int, nbe: int, stride: int, od: int) -> None:
    raw = unpack(x.read(w, U8, od * stride).reshape(od, stride), lay, nbe)
    x.write(out, F32, od)[:] = q6k.reference(raw, x.read(x8, U8, nbe * 320))


def l1_rows(lay: Layout, form: str) -> Callable[..., None]:
    """A row per block; `one`, `two`, `pf` and `pf3` sum so many units per thread and no more."""
    most = {"one": THREADS, "two": 2 * THREADS, "pf": 2 * THREADS, "pf3": 3 * THREADS}.get(form)

    def run(x: Running, w: int, x8: int, out: int, nbe: int, stride: int) -> None:
        od = x.launch.grid
        if x.launch.kernel.startswith("l1_"):
            assert x.launch.block == min(THREADS, (8 * nbe + 31) & ~31), "a warp without a unit"
        assert most is None or most - THREADS < 8 * nbe <= most, f"{form} drops units of such a row"
        if form == "stream":
            packed = x.read(w, U8, od * stride).reshape(od, stride)
            x.write(out, U32, od)[:] = checksum.stream_sums(packed, lay, nbe, x.read(x8, U8, nbe * 320))
        else:
            q6k_sums(lay, x, w, x8, out, nbe, stride, od)

    return run


def l1_ring(lay: Layout) -> Callable[..., None]:
    def run(
        x: Running, w: int, x8: int, out: int, counter: int, nbe: int, stride: int, od: int, *two: int
    ) -> None:
        assert in_a_ring(x, *two, stride, 8 * nbe) == 1
        zero(x, counter)
        q6k_sums(lay, x, w, x8, out, nbe, stride, od)

    return run


# L2: a kernel's own arguments, then flags and stamps


def in_a_chain(kind: str) -> Callable[..., tuple[Any, ...]]:
    def before(x: Running, *args: Any) -> tuple[Any, ...]:
        *own, flags, stamps = args
        assert 0 <= flags < 8 and bool(flags & 2) == bool(stamps), "stamps have a flag and a place"
        assert kind != "plain" or not x.launch.pdl, "a kernel without a wait is launched as a dependent"
        x.stamps = stamps
        return tuple(own)

    return before


def compute(words: int) -> Callable[..., None]:
    def run(x: Running, prev: int, out: int, m: int, c: int, iters: int) -> None:
        assert (m, c) == (chains.FACTOR, chains.STEP) and x.launch.block == THREADS
        n = x.launch.grid * THREADS
        x.write(out, U32, n)[:] = chains.compute_fast(words, iters, x.read(prev, U32, n), 1)

    return run


def q4k_matmul(x: Running, w: int, x8: int, out: int, nbe: int) -> None:
    od = 8 * x.launch.grid  # a warp per row
    raw = x.read(w, U8, od * nbe * q4k.BLOCK).reshape(od, -1)
    x.write(out, F32, od)[:] = q4k.reference(raw, x.read(x8, U8, nbe * 320))


def q6k_matmul(x: Running, w: int, x8: int, out: int, nbe: int, stride: int) -> None:
    q6k_sums(layout("dpl"), x, w, x8, out, nbe, stride, x.launch.grid)


def l2_rows(lay: Layout, form: str) -> Callable[..., None]:
    rows = l1_rows(lay, form)

    def run(x: Running, w: int, x8: int, next8: int, out: int, nbe: int, stride: int) -> None:
        rows(x, w, x8, out, nbe, stride)
        hand_on(x, x8, next8, nbe)

    return run


def hand_on(x: Running, x8: int, next8: int, nbe: int) -> None:
    """Unit u of these activations becomes unit u + 1 of those."""
    if next8:
        x.write(next8, U8, nbe * 320)[:] = np.roll(x.read(x8, U8, nbe * 320), q8.PAD40)


def l2_ring(form: str) -> Callable[..., None]:
    def run(
        x: Running, w: int, x8: int, next8: int, out: int, nbe: int, stride: int, od: int, *three: int
    ) -> None:
        rows, stages, ahead = three
        assert in_a_ring(x, rows, stages, stride, nbe * (4 if form == "q4k" else 8)) == 1 and ahead >= 0
        given = x.read(x8, U8, nbe * 320)
        if form == "q4k":
            raw = x.read(w, U8, od * stride).reshape(od, stride)
            x.write(out, F32, od)[:] = q4k.reference(raw, given)
        else:
            q6k_sums(layout("dpl"), x, w, x8, out, nbe, stride, od)
        hand_on(x, x8, next8, nbe)

    return run


def rms_quantise(x: Running, h: int, gamma: int, out: int, n: int, eps: float) -> None:
    values = x.read(h, F32, n), x.read(gamma, F32, n), eps
    x.write(out, U8, n // 32 * q8.PAD40)[:] = quantised(decode_layer.rms_quantise, *values, n=n)


def rope_store(
    x: Running, qkv: int, table: int, q: int, cache: int, heads: int, kv_heads: int, kv: int
) -> None:
    values = x.read(qkv, F32, (heads + 2 * kv_heads) * 128)
    layer = decode_layer.Layer(hidden=heads * 128, ffn=256, kv_heads=kv_heads)
    new, k, v = decode_layer.rope_store(values, x.read(table, F32, 128), layer)
    x.write(q, F32, new.size)[:] = new
    held = x.update(cache, F16, 2 * kv_heads * kv * 128).reshape(2, kv_heads, kv, 128)
    held[0, :, -1], held[1, :, -1] = k, v


def attention_split(
    x: Running, q: int, cache: int, parts: int, kv_heads: int, kv: int, n: int, scale: float
) -> None:
    heads = kv_heads * decode_layer.CONSTANTS.group
    held = x.read(cache, F16, 2 * kv_heads * kv * 128).reshape(2, kv_heads, kv, 128)
    found = decode_layer.attention_split(x.read(q, F32, heads * 128), held, kv, scale)
    assert found.shape[1] == n and x.launch.grid == kv_heads * n
    x.write(parts, F32, found.size)[:] = found.reshape(-1)


def attention_combine(x: Running, parts: int, out: int, n: int) -> None:
    heads = x.launch.grid
    given = x.read(parts, F32, heads * n * decode_layer.CONSTANTS.part).reshape(heads, n, -1)
    x.write(out, F32, heads * 128)[:] = decode_layer.attention_combine(given)


def quantise(x: Running, values: int, out: int, n: int = 0) -> None:
    """L2's, of a grid's values, and L3's, of n."""
    n = n or THREADS * x.launch.grid
    assert x.launch.grid == -(-n // THREADS)
    x.write(out, U8, n // 32 * q8.PAD40)[:] = quantised(q8.quantise, x.read(values, F32, n), n=n)


def swiglu_quantise(x: Running, gu: int, out: int, nf: int) -> None:
    assert x.launch.grid == -(-nf // THREADS)
    given = x.read(gu, F32, 2 * nf)
    x.write(out, U8, nf // 32 * q8.PAD40)[:] = quantised(decode_layer.swiglu_quantise, given, n=nf)


def add(x: Running, a: int, b: int, out: int) -> None:
    n = THREADS * x.launch.grid
    x.write(out, F32, n)[:] = x.read(a, F32, n) + x.read(b, F32, n)


L2: dict[str, tuple[str, Callable[..., None], bool]] = {
    "stream": ("ppp", stream(), True),
    "compute": ("ppiii", compute(chains.CONSTANTS.narrow), True),
    "wide": ("ppiii", compute(chains.CONSTANTS.wide), True),
    "empty": ("", lambda x: None, False),
    "rms_quantise": ("pppif", rms_quantise, True),
    "q4k": ("pppi", q4k_matmul, True),
    "q6k": ("pppii", q6k_matmul, True),
    "q4k_ring": ("ppppiiiiii", l2_ring("q4k"), True),
    "q6k_ring": ("ppppiiiiii", l2_ring("q6k"), True),
    "rope_store": ("ppppiii", rope_store, True),
    "attention_split": ("pppiiif", attention_split, True),
    "attention_combine": ("ppi", attention_combine, False),
    "quantise": ("pp", quantise, False),
    "swiglu_quantise": ("ppi", swiglu_quantise, False),
    "add": ("ppp", add, False),
}
"""Kernel -> types of its own arguments, what it does, whether it has a late kind."""

L2_ENDS: dict[str, tuple[str, Callable[..., None]]] = {
    "stream_8k": ("ppp", stream(8192, 64)),
    "stream_bulk": ("ppp", stream(block=128, smem=16384 + 16)),
    **{
        f"{lay}_{form}": ("ppppii", l2_rows(layout(lay), form))
        for lay, form in (("gpl", "two"), ("gpl", "one"), ("gs", "one"), ("dpl", "one"))
    },
}
"""The same of those that are plain or late and nothing between."""


# L3


def sums(x: Running, w: int, x8: int, rows: int, nbe: int) -> Any:
    raw = x.read(w, U8, rows * nbe * q4k.BLOCK).reshape(rows, -1)
    return q4k.reference(raw, x.read(x8, U8, nbe * 320))


def gated(gu: Any) -> Any:
    nf = gu.size // 2
    return swiglu.swiglu(gu[:nf], gu[nf:])


def matmul(x: Running, w: int, x8: int, gu: int, nbe: int) -> None:
    assert x.launch.block == THREADS
    x.write(gu, F32, x.launch.grid)[:] = sums(x, w, x8, x.launch.grid, nbe)


def form_a(x: Running, w: int, x8: int, h: int, nf: int, nbe: int) -> None:
    assert (x.launch.grid, x.launch.block) == (nf, THREADS)
    x.write(h, F32, nf)[:] = gated(sums(x, w, x8, 2 * nf, nbe))


def fused(x: Running, w: int, x8: int, out: int, nf: int, nbe: int) -> None:
    found = gated(sums(x, w, x8, 2 * nf, nbe))
    x.write(out, U8, nf // 32 * q8.PAD40)[:] = quantised(q8.quantise, found, n=nf)


def form_b(x: Running, w: int, x8: int, out: int, nf: int, nbe: int) -> None:
    assert (x.launch.grid, x.launch.block) == (nf // 32, THREADS)
    fused(x, w, x8, out, nf, nbe)


def traced(run: Callable[..., None]) -> Callable[..., None]:
    """The twin that tells each block's SM: by turns, unless the GPU says otherwise."""

    def whole(x: Running, *args: int) -> None:
        run(x, *args[:-1])
        on = x.gpu.smid or (lambda block: block % x.launch.sms)
        x.write(args[-1], U32, x.launch.grid)[:] = [on(k) for k in range(x.launch.grid)]
        x.repeats = False

    return whole


def matmul_ring(
    x: Running, w: int, x8: int, gu: int, counter: int, nbe: int, od: int, rows: int, stages: int
) -> None:
    in_a_ring(x, rows, stages, nbe * q4k.BLOCK, 4 * nbe)
    zero(x, counter)
    x.write(gu, F32, od)[:] = sums(x, w, x8, od, nbe)


def form_c(
    x: Running, w: int, x8: int, out: int, words: int, counter: int, nbe: int, nf: int, *two: int
) -> None:
    in_a_ring(x, *two, nbe * q4k.BLOCK, 4 * nbe, others=2)
    zero(x, words, 2 * nf)
    zero(x, counter)
    fused(x, w, x8, out, nf, nbe)


L3: dict[str, tuple[str, Callable[..., None]]] = {
    "matmul": ("pppi", matmul),
    "form_a": ("pppii", form_a),
    "form_b": ("pppii", form_b),
    "form_b_staged": ("pppii", form_b),
}
"""Reader -> types of its arguments, what it does; each has a traced twin."""
RING = Resources(72)
"""So few registers that a ring's blocks fit all at once."""

KERNELS: dict[str, HostKernel] = {
    **{n: HostKernel("ppq", run) for n, run in READS.items()},
    "harness_clock": HostKernel("p", harness_clock),
    "harness_empty": HostKernel("", lambda x: None),
    **{
        f"l1_{lay.name}_{form}": HostKernel("pppii", l1_rows(lay, form), Resources(40, 32))
        for lay in LAYOUTS
        for form in ("loop", "pf", "pf3", "stream")
    },
    **{
        f"l1_{lay.name}_{form}": HostKernel("ppppiiiii", run, Resources(96, 32))
        for lay in LAYOUTS
        for run in (l1_ring(lay),)
        for form in ("ring", "async")
    },
    **{
        f"l2_{name}_{kind}": HostKernel(
            f"{types}ip", run, Resources(64 if name == "wide" else 32), in_a_chain(kind)
        )
        for name, (types, run, late) in L2.items()
        for kind in ("plain", "entry", "late")
        if late or kind != "late"
    },
    **{
        f"l2_{name}_{kind}": HostKernel(f"{types}ip", run, before=in_a_chain(kind))
        for name, (types, run) in L2_ENDS.items()
        for kind in ("plain", "late")
    },
    **{f"l3_{name}": HostKernel(types, run, Resources(200, 320)) for name, (types, run) in L3.items()},
    **{
        f"l3_{name}_traced": HostKernel(f"{types}p", traced(run), Resources(200, 320))
        for name, (types, run) in L3.items()
    },
    "l3_swiglu_quant": HostKernel("ppi", swiglu_quantise, Resources(200, 320)),
    "l3_quant": HostKernel("ppi", quantise, Resources(200, 320)),
    "l3_matmul_ring": HostKernel("ppppiiii", matmul_ring, RING),
    "l3_form_c": HostKernel("pppppiiii", form_c, RING),
}
