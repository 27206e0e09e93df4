"""L2's kernels, one claim each on every machine: a decode layer's, the synthetic chains', the rings."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from probes.core.types import Shape, Unavailable
from probes.device import pipeline
from probes.device.tuning import Geometry
from probes.formats import chains as words
from probes.formats import checksum, q4k, q6k
from probes.formats import layer as decode_layer
from probes.formats.layouts import layout
from probes.formats.packing import pack
from probes.l2 import chains, data
from probes.l2.chains import TAIL, TRIGGER, ChainRing, Matrix, Step
from tests.host_calls import TINY
from tests.kernels.machines import HostNumba, given, over, ring, room, written

KINDS = ("plain", "entry", "late")


def bits(array: NDArray[Any]) -> NDArray[np.uint32]:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint32)


def launch(
    machine: Any, step: Step, buffers: dict[str, NDArray[Any]], kind: str, order: int = 0, few: bool = False
) -> list[int]:
    """One launch of a chain, its buffers by name; the blocks that ran."""
    args = [buffers[a] if isinstance(a, str) else a for a in step.args]
    ran: list[int] = machine.run(
        step.entry_point(kind), (*args, 0, None), step.grid, step.block, order=order, few=few
    )
    return ran


# A decode layer


@over(
    "kv,kind,order",
    cu=[(1, "entry", 0), (63, "plain", 1), (70, "entry", 7), (128, "plain", 8)],
    numba=[(70, "plain", 0)],
    gpu=[(kv, kind, 0) for kv in (1, 63, 64, 65, 700) for kind in KINDS],
    small=[(65, kind, 0) for kind in KINDS],
)
def test_every_kernel_of_a_layer_equals_the_oracle(machine: Any, kv: int, kind: str, order: int) -> None:
    """The oracle's own buffers go in. Of a slow machine the first and the last block run alone."""
    weights, cache = decode_layer.data(TINY, 3), decode_layer.cache(TINY, kv, 4)
    before, table = cache.copy(), decode_layer.rope_table(kv - 1)
    want = decode_layer.run_layer(weights, cache, weights.hidden, table, TINY)
    inputs = {
        "in": weights.hidden, "gamma0": weights.gamma[0], "gamma1": weights.gamma[1], "table": table,
        "w.qkv": weights.qkv, "w.o": weights.o, "w.gate_up": weights.gate_up,
        "w.down": pack(weights.down, layout("dpl")), "w.cache": cache,
        **{k: v for k, v in want.items() if k != "h"},
    }  # fmt: skip
    inputs = {name: given(np.ascontiguousarray(a)) for name, a in inputs.items()}
    for step in chains.decode_steps(kv, TINY):
        name = chains.WRITES[step.name]
        out, expected = room(want[name].nbytes // 4), bits(want[name])
        own = {**inputs, "out" if name == "h" else name: out}
        if "w.cache" in step.args:
            own["w.cache"] = (before if step.kernel == "rope_store" else cache).copy()
        ran = launch(machine, step, own, kind, order, few=True)
        got, whole = written(out, step.name), len(ran) == step.grid
        hit = np.full(got.size, True) if whole else got != got.dtype.type(0xFFFFFFFF)
        np.testing.assert_array_equal(got[hit], expected[hit], err_msg=step.name)
        if step.kernel == "rope_store":  # its last blocks write into the cache, not q
            seen, wanted = (a.reshape(2, TINY.kv_heads, kv, 128) for a in (own["w.cache"], cache))
            np.testing.assert_array_equal(seen.view(np.uint16)[1], wanted.view(np.uint16)[1])
            assert not whole or (seen.view(np.uint16) == wanted.view(np.uint16)).all()
            assert whole or hit.sum() == 256
        elif (
            step.kernel == "attention_split"
        ):  # reads the cache alone; heads of the first KV head, first split; of the last, last
            assert whole or hit.sum() == 2 * 5 * decode_layer.CONSTANTS.part
            assert (own["w.cache"] == cache).all()
        else:
            assert hit.sum() == got.size * len(ran) // step.grid


def guarded(machine: Any, array: NDArray[Any]) -> NDArray[Any]:
    """The array with a few KiB of NaN after its end, of both float widths: what is read there shows.

    The emulator of Numba raises there anyway.
    """
    if isinstance(machine, HostNumba):
        return given(array)
    return given(np.concatenate([bits(array), np.full(1 << 12, 0xFFFFFFFF, np.uint32)]))


def random_parts(splits: int) -> NDArray[np.float32]:
    """attention_split's results for TINY's heads, tops far enough apart that some weights vanish."""
    rng = np.random.default_rng(splits)
    parts = rng.standard_normal((TINY.heads, splits, decode_layer.CONSTANTS.part), dtype=np.float32)
    parts[:, :, 128] *= 20
    parts[:, :, 129] = rng.uniform(1, 64, parts.shape[:2])
    return parts


SPLIT = [
    (kv, *how)
    for kv in (1, 2, 33, 64, 65, 97, 128)
    for how in (("plain", 0), ("entry", 1), ("late", 7))
]  # fmt: skip


@over("kv,kind,order", cu=SPLIT, numba=[(kv, "plain", 0) for kv in (1, 33, 64, 65)], gpu=SPLIT)
def test_a_split_of_any_length_equals_the_oracle(machine: Any, kv: int, kind: str, order: int) -> None:
    """Nothing past the last position counts, and nothing but the parts is written."""
    q = np.random.default_rng(kv).standard_normal(TINY.heads * 128).astype(np.float32)
    cache, n = decode_layer.cache(TINY, kv, kv + 1), decode_layer.splits(kv)
    want, out = decode_layer.attention_split(q, cache, kv), room(TINY.heads * n * decode_layer.CONSTANTS.part)
    buffers = {"q": guarded(machine, q), "w.cache": guarded(machine, cache), "parts": out}
    ran = launch(machine, chains.decode_steps(kv, TINY)[3], buffers, kind, order, few=True)
    got, expected = written(out).reshape(want.shape), want.view(np.uint32)
    if len(ran) == TINY.kv_heads * n:
        np.testing.assert_array_equal(got, expected)
        return
    for heads, split in ((slice(0, 5), 0), (slice(5, None), -1)):
        np.testing.assert_array_equal(got[heads, split], expected[heads, split])
    assert (got == 0xFFFFFFFF).sum() == got.size - 2 * 5 * decode_layer.CONSTANTS.part


COMBINE = [
    (splits, *how)
    for splits in (1, 2, 16, 17, 63, 64, 65, 128, 129, 255, 256)
    for how in (("plain", 0), ("entry", 7))
]  # fmt: skip


@over("splits,kind,order", cu=COMBINE, numba=[(n, "plain", 0) for n in (1, 64, 65, 129, 256)], gpu=COMBINE)
def test_any_number_of_splits_combines_as_the_oracle_says(
    machine: Any, splits: int, kind: str, order: int
) -> None:
    parts, out = random_parts(splits), room(TINY.heads * 128)
    want = bits(decode_layer.attention_combine(parts)).reshape(TINY.heads, 128)
    buffers = {"parts": guarded(machine, parts), "attention": out}
    ran = launch(machine, chains.decode_steps(splits * 64, TINY)[4], buffers, kind, order, few=True)
    got = written(out).reshape(want.shape)
    np.testing.assert_array_equal(got[ran], want[ran])
    assert (np.delete(got, ran, axis=0) == 0xFFFFFFFF).all()


# The synthetic chains


@over(
    "tiles,launches,kind",
    cu=[(3, 4, "plain"), (3, 4, "late")],
    numba=[(2, 1, "plain")],
    gpu=[(300, 24, kind) for kind in KINDS],
    small=[(300, 24, kind) for kind in KINDS],
)
def test_the_stream_chain_equals_the_oracle(machine: Any, tiles: int, launches: int, kind: str) -> None:
    w = np.random.default_rng(1).integers(0, 256, tiles * words.CONSTANTS.tile, dtype=np.uint8)
    start, shared = words.start(tiles, 2), given(w)
    b = {
        **{f"w.{k}": shared for k in range(launches)},
        "start": given(start),
        "a": room(tiles),
        "b": room(tiles),
    }
    for step in chains.stream_steps(tiles, launches):
        launch(machine, step, b, kind, 7)
    want = words.stream(checksum.read_xors(w), start, launches)
    np.testing.assert_array_equal(written(b[chains.ping_pong(launches - 1)[1]]), want)


BOTH = (("compute", 4), ("wide", 48))


@over(
    "kernel,each,grid,iters,launches,kind",
    cu=[(*k, 2, iters, 4, "entry") for k in BOTH for iters in (2, 13)],
    numba=[(*k, 2, 5, 1, "plain") for k in BOTH],
    gpu=[(*k, 77, 31, 24, kind) for k in BOTH for kind in KINDS],
    small=[(*k, 77, 31, 24, kind) for k in BOTH for kind in KINDS],
)
def test_the_compute_chain_equals_the_oracle(
    machine: Any, kernel: str, each: int, grid: int, iters: int, launches: int, kind: str
) -> None:
    start = words.start(grid * 256, 5)
    b = {"start": given(start), "a": room(start.size), "b": room(start.size)}
    for step in chains.compute_steps(grid, kernel, iters, launches):
        launch(machine, step, b, kind, 3)
    want = words.compute_fast(each, iters, start, launches)
    np.testing.assert_array_equal(written(b[chains.ping_pong(launches - 1)[1]]), want)


# The rings


class Placed:
    """A matrix, its activations and what its rows must give."""

    def __init__(self, form: str, shape: Shape) -> None:
        self.m = Matrix("m", form, shape)
        raw = decode_layer.weights(shape, 3, "q4_K" if form == "q4k" else "q6_K")
        self.x8 = data.activations(self.m, 4)
        self.want = (q4k if form == "q4k" else q6k).reference(raw, self.x8).view(np.uint32)
        self.w, self.x = given(raw if form == "q4k" else pack(raw, layout("dpl"))), given(self.x8)

    def run(
        self, machine: Any, kind: str, made: pipeline.Plan, ahead: int, flags: int, hand_on: bool, order: int
    ) -> None:
        """One launch: every row, and the successor's activations where they are wanted."""
        m, c, what = self.m, made.config, f"{kind} {made} ahead {ahead} order {order}"
        out, following = room(m.shape.od), room(self.x8.size // 4)
        ints = m.shape.nbe, m.row_stride, m.shape.od, made.rows, made.stages, ahead, flags
        machine.run(
            f"l2_{m.form}_ring_{kind}", (self.w, self.x, following if hand_on else None, out, *ints, None),
            c.grid, c.block, c.smem_bytes, order=order, pdl=kind != "plain",
        )  # fmt: skip
        np.testing.assert_array_equal(written(out, what), self.want, err_msg=what)
        if hand_on:
            handed = written(following, what).view(np.uint8)
            np.testing.assert_array_equal(handed, data.rotate(self.x8, 1), err_msg=what)


CHOICES = [
    ChainRing(Geometry(1, 1)), ChainRing(Geometry(2, 2), 2), ChainRing(Geometry(4, 1, 2), 4),
    ChainRing(Geometry(3, 1, 1), 9), ChainRing(Geometry(8, 1), 1),
]  # fmt: skip
ON_HOST = [(1, 1, 1, 0), (2, 3, 2, 1), (4, 2, 3, 2), (3, 1, 2, 9)]
"""Rows, stages, blocks, fills ahead."""


def rings(machine: Any, m: Matrix) -> list[tuple[pipeline.Plan, int]]:
    """On a GPU the choices that fit beside a successor."""
    if not machine.live:
        return [(ring(m.units, m.row_stride, *own, False), ahead) for *own, ahead in ON_HOST]
    out = []
    for choice in CHOICES:
        fills, share = -(-m.shape.od // choice.ring.rows), 1 if choice.ring.stages else chains.SHARE
        try:
            made = pipeline.plan(m.units, m.row_stride, fills, choice.ring, machine.facts, share=share)
        except Unavailable:
            continue
        step = chains.step_of(m, ("w", "x", "next", "out"), choice, machine.facts)
        assert (step.grid, step.block, step.smem_bytes) == (
            made.config.grid, made.config.block, made.config.smem_bytes
        )  # fmt: skip
        out.append((made, choice.ahead))
    return out


FORMS = ("q4k", "q6k")
GPU_SHAPES = (Shape(5, 256), Shape(1023, 5120), Shape(517, 13824), Shape(64, 8448), Shape(600, 2048))


@pytest.mark.sampled(3, "host-numba")
@over(
    "form,shape,kind",
    cu=product(FORMS, (Shape(5, 256), Shape(37, 5120), Shape(9, 13824), Shape(4, 25600)), KINDS),
    numba=product(FORMS, [Shape(12, 512)], KINDS),
    gpu=product(FORMS, GPU_SHAPES, KINDS),
    small=product(FORMS, (Shape(5, 256), Shape(64, 8448), Shape(600, 2048)), KINDS),
)
def test_a_ring_equals_the_oracle_and_hands_its_activations_on(
    machine: Any, form: str, shape: Shape, kind: str
) -> None:
    """Blocks and threads in any order; the successor's activations are these, a unit further."""
    if machine.live:
        machine.kernel(f"l2_{form}_ring_{kind}")
    placed, ran = Placed(form, shape), 0
    for number, (made, ahead) in enumerate(rings(machine, placed.m)):
        for hand_on in (True, False):
            flags = (0, TRIGGER, TAIL)[number % 3]
            for order in machine.orders:
                placed.run(machine, kind, made, ahead, flags, hand_on, order)
            ran += 1
    assert ran >= 4


@pytest.mark.parametrize(
    ("kind", "ahead", "want"),
    [("plain", 3, 0), ("entry", 3, 0), ("late", 3, 3), ("late", 99, 10), ("late", 0, 0)],
)
@pytest.mark.parametrize("form", FORMS)
def test_only_the_late_kind_prefetches_and_not_past_the_end(
    host: Any, form: str, kind: str, ahead: int, want: int
) -> None:
    placed = Placed(form, Shape(12, 256))
    made = ring(placed.m.units, placed.m.row_stride, 1, 2, 1, False)
    placed.run(host, kind, made, ahead, 0, False, 0)
    assert host.prefetched == want
