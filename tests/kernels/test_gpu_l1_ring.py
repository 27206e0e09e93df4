"""The ring and async forms on a GPU: the oracle's bits in every geometry, replays, drawn tickets."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from probes.l1_ring import Geometry

from probes import l1_ring
from probes.core.types import Shape, Unavailable
from probes.device import pipeline
from probes.engine.bench import BACKENDS, bits
from probes.formats import packing, q6k, q8
from probes.formats.layouts import LAYOUTS
from tests.kernels.backends import built, of, sized

pytestmark = pytest.mark.gpu

SHAPES = [Shape(od, id_) for od in (1, 3, 1023) for id_ in (256, 512, 3584, 5120, 13824, 16384, 18944)]
SHAPES += [
    Shape(5120, 512),
    Shape(5120, 5120),
    Shape(64, 8192),
    Shape(64, 8448),
    Shape(64, 24576),
    Shape(64, 25600),
    Shape(600, 2048),  # few stages and several fills a block on any GPU of up to 300 SMs
]
SMALL = [Shape(3, 256), Shape(3, 13824), Shape(3, 18944), Shape(600, 2048)]
GEOMETRIES = [
    Geometry(1, 1), Geometry(1, 2, drawn=True), Geometry(2, 2, drawn=True), Geometry(4, 2, 2),
    Geometry(4, 1, drawn=True), Geometry(8, 1, 1), Geometry(3, 2, 3, drawn=True),
    Geometry(1, 1, 1), Geometry(1, 1, 2, drawn=True),
]  # fmt: skip


@pytest.fixture(scope="module")
def kernels(bench: Any) -> dict[str, Any]:
    """Kernels by backend."""
    names = [f"l1_{lay.name}_{form}" for lay in LAYOUTS for form in ("ring", "async")]
    return built(lambda backend: bench.kernels("l1_ring", names, backend))


def needs(bench: Any, form: str) -> None:
    """Skip where this GPU has no such copies."""
    why, since = pipeline.NEEDS[form]
    if bench.gpu.facts.compute_capability < since:
        pytest.skip(f"{why}, this GPU is {bench.gpu.facts.arch}")


@pytest.mark.parametrize("form", pipeline.NEEDS)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("shape", sized(SHAPES, SMALL), ids=str)
def test_a_ring_equals_the_oracle(bench: Any, kernels: Any, backend: str, shape: Shape, form: str) -> None:
    from probes.gpu.memory import Buffer

    needs(bench, form)
    facts = bench.gpu.facts
    raw, x8 = q6k.random_raw(shape, 1), q8.random_x8(shape.id, 2)
    want = bits(q6k.reference(raw, x8))
    for lay in LAYOUTS:
        packed = packing.pack(raw, lay)
        stride = packed.shape[1]
        kernel = of(kernels, backend)[f"l1_{lay.name}_{form}"]
        with Buffer.of(packed) as w, Buffer.of(x8) as x, Buffer(4 * shape.od) as out, Buffer(16) as counter:
            counter.upload(np.zeros(4, np.uint32))
            for geometry in GEOMETRIES:
                try:
                    made = l1_ring.plan(shape, lay, stride, geometry, facts, form)
                except Unavailable:
                    continue
                l1_ring.make_room(kernel, made.config.smem_bytes)
                pointers = (w.address, x.address, out.address)
                launch = l1_ring.ring_launch(
                    kernel, made, pointers, counter.address, shape.nbe, stride, shape.od
                )
                out.poison()
                launch.enqueue(bench.gpu.stream)
                what = f"{backend} {lay.name} {form} {shape} {geometry}"
                np.testing.assert_array_equal(out.download(np.uint32, shape.od), want, err_msg=what)
                assert counter.download(np.uint32, 1)[0] == 0, what


@pytest.mark.parametrize("form", pipeline.NEEDS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_replays_give_the_same_bits_and_leave_the_counter_at_zero(
    bench: Any, kernels: Any, backend: str, form: str
) -> None:
    from probes.gpu.graph import capture
    from probes.gpu.memory import Buffer

    needs(bench, form)
    facts = bench.gpu.facts
    shape, lay = Shape(5120, 5120), LAYOUTS[3]
    raw, x8 = q6k.random_raw(shape, 5), q8.random_x8(shape.id, 6)
    want, packed = bits(q6k.reference(raw, x8)), packing.pack(raw, lay)
    kernel = of(kernels, backend)[f"l1_{lay.name}_{form}"]
    made = l1_ring.plan(shape, lay, packed.shape[1], Geometry(2, 2, 3, drawn=True), facts, form)
    assert made.drawn
    l1_ring.make_room(kernel, made.config.smem_bytes)
    with Buffer.of(packed) as w, Buffer.of(x8) as x, Buffer(4 * shape.od) as out, Buffer(16) as counter:
        counter.upload(np.zeros(4, np.uint32))
        launch = l1_ring.ring_launch(
            kernel,
            made,
            (w.address, x.address, out.address),
            counter.address,
            shape.nbe,
            packed.shape[1],
            shape.od,
        )
        graph = capture(bench.gpu.stream, [launch] * 20)
        for _ in range(10):
            out.poison()
            for _ in range(20):
                graph.replay()
            np.testing.assert_array_equal(out.download(np.uint32, shape.od), want)
            assert counter.download(np.uint32, 1)[0] == 0
        graph.close()


def test_a_run_and_a_sweep_of_one_case(bench: Any) -> None:
    """Both ways through the probe itself: every row to the bit, and what the table should hold."""
    from probes import cli, l1_measure, l1_sweep

    needs(bench, "ring")
    argv = ["--case", "attn_v_7b", "--form", "ring", "--form", "async", "--layout", "gpl"]
    (rows,) = l1_measure.measure(bench, cli.parser("l1").parse_args(argv))
    for variant in ("gpl_ring", "gpl_async", "padded_ring", "padded_ring_aa", "padded_loop"):
        for row in (r for r in rows if r.variant == variant):
            assert row.bitwise is True and row.waves, row.id
    (swept,) = l1_measure.measure(bench, cli.parser("l1").parse_args([*argv, "--sweep"]))
    assert all(r.bitwise or r.skipped for r in swept)
    assert set(l1_sweep.chosen(swept)["attn_v_7b"]) == {"gpl"}
