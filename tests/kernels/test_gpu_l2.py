"""L2 kernels and launches on a GPU: the oracle's bits in every kind, edges, replays, overlap, and the race.

The race: a producer lets its successor start, sleeps, then writes. With the wait the consumer sees what was
written; the plain kind, a copy of the same kernel with the wait taken out, sees what was there before.
"""

from __future__ import annotations

import ctypes
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from probes import cli, l2, l2_chains, l2_decode, l2_launch, l2_make, l2_measure
from probes.core.types import LaunchConfig, Unavailable
from probes.engine.bench import BACKENDS
from probes.formats import chains, checksum
from probes.formats import layer as decode_layer
from probes.formats.layer import TINY
from probes.formats.layouts import layout
from probes.formats.packing import pack
from probes.gpu.graph import capture
from probes.gpu.kernels import Launch, int32
from probes.gpu.memory import Buffer
from tests.kernels.backends import built, of, sized

pytestmark = pytest.mark.gpu

SLEEP_NS = 300_000


@pytest.fixture(scope="module")
def kernels(bench: Any) -> dict[str, Any]:
    """Kernels by backend."""
    if bench.gpu.facts.compute_capability < (9, 0):
        pytest.skip(f"{l2.NEEDS}, this GPU is {bench.gpu.facts.arch}")
    return built(lambda backend: bench.kernels("l2", [*l2_chains.kernel_names(), "l2_sleeper"], backend))


def enqueue(
    bench: Any, mine: Any, step: l2_chains.Step, kind: str, at: dict[str, int], pdl: bool = False
) -> None:
    args = [
        at[a] if isinstance(a, str) else ctypes.c_float(a) if isinstance(a, float) else int32(a)
        for a in step.args
    ]
    config = LaunchConfig(step.grid, step.block, pdl=pdl)
    Launch(mine[step.entry_point(kind)], config, (*args, int32(0), 0)).enqueue(bench.gpu.stream)


def device(stack: ExitStack, arrays: dict[str, NDArray[Any]]) -> dict[str, Buffer]:
    return {name: stack.enter_context(Buffer.of(a)) for name, a in arrays.items()}


def tiny(kv: int, stack: ExitStack) -> tuple[decode_layer.Data, NDArray[Any], dict[str, Buffer]]:
    data, cache = decode_layer.data(TINY, 3), decode_layer.cache(TINY, kv, 4)
    sizes = l2_chains.activation_bytes(kv, TINY)
    found = device(
        stack,
        {
            **{name: np.full(size, 0xFF, np.uint8) for name, size in sizes.items()},
            "in": data.hidden, "out": data.hidden * np.nan, "gamma0": data.gamma[0], "gamma1": data.gamma[1],
            "table": decode_layer.rope_table(kv - 1), "w.qkv": data.qkv, "w.o": data.o, "w.gate_up": data.gate_up,
            "w.down": pack(data.down, layout("dpl")), "w.cache": cache,
        },
    )  # fmt: skip
    return data, cache, found


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", ["plain", "entry", "late"])
@pytest.mark.parametrize("kv", sized([1, 63, 64, 65, 700], [65]))
def test_every_kernel_of_a_layer_equals_the_oracle(
    bench: Any, kernels: Any, backend: str, kind: str, kv: int
) -> None:
    mine = of(kernels, backend)
    with ExitStack() as stack:
        data, cache, buffers = tiny(kv, stack)
        want = decode_layer.run_layer(data, cache, data.hidden, decode_layer.rope_table(kv - 1), TINY)
        at = {name: b.address for name, b in buffers.items()}
        for step in l2_chains.decode_steps(kv, TINY):
            enqueue(bench, mine, step, kind, at)
            name = l2_chains.WRITES[step.name]
            got = buffers["out" if name == "h" else name].download(want[name].dtype, want[name].size)
            l2_launch.compare(got, want[name], f"{backend} {step.name}")
        l2_launch.compare(buffers["w.cache"].download(np.uint8, cache.nbytes), cache, "cache")


@pytest.mark.parametrize("kv", [128, 3254])
def test_a_14b_layer_equals_the_oracle_in_both_languages(bench: Any, kernels: Any, kv: int) -> None:
    both = {b: k for b, k in kernels.items() if not isinstance(k, Unavailable)}
    args = cli.parser("l2").parse_args([])
    with ExitStack() as stack:
        weights = l2_decode.Weights.make(bench, stack)
        found = l2_decode.decode_chains(bench, args, l2.Case("decode13", kv), both, weights, stack)
        assert len(found) == len(both) and found[0].output.want.size == 5120


@pytest.mark.small
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", ["plain", "entry", "late"])
def test_the_synthetic_chains_equal_the_oracle(bench: Any, kernels: Any, backend: str, kind: str) -> None:
    mine = of(kernels, backend)
    tiles = 300
    w = np.random.default_rng(1).integers(0, 256, tiles * chains.CONSTANTS.tile, dtype=np.uint8)
    with ExitStack() as stack:
        start = chains.start(tiles, 2)
        b = device(stack, {"w": w, "start": start, "a": start, "b": start})
        at = {name: x.address for name, x in b.items()} | {f"w.{k}": b["w"].address for k in range(24)}
        for step in l2_chains.stream_steps(tiles):
            enqueue(bench, mine, step, kind, at)
        l2_launch.compare(
            b["b"].download(np.uint32, tiles), chains.stream(checksum.read_xors(w), start), "stream"
        )
        for kernel, words in (("compute", 4), ("wide", 48)):
            start = chains.start(77 * 256, 5)
            b = device(stack, {"start": start, "a": start, "b": start})
            at = {name: x.address for name, x in b.items()}
            for step in l2_chains.compute_steps(77, kernel, 31):
                enqueue(bench, mine, step, kind, at)
            l2_launch.compare(
                b["b"].download(np.uint32, start.size), chains.compute_fast(words, 31, start), kernel
            )


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("in_graph", [False, True], ids=["stream", "graph"])
def test_a_wait_that_is_missing_gives_a_wrong_result(
    bench: Any, kernels: Any, backend: str, in_graph: bool
) -> None:
    mine = of(kernels, backend)
    n = 256
    old, new, other = (np.full(n, x, np.float32) for x in (1.0, 2.0, 10.0))
    (step,) = (s for s in l2_chains.decode_steps(1, TINY) if s.name == "add")
    step = l2_chains.Step("add", "add", 1, step.args)
    seen = {}
    with ExitStack() as stack:
        b = device(stack, {"in": old, "o": other, "middle": old * 0, "new": new})
        at = {name: x.address for name, x in b.items()}
        args = (at["new"], at["in"], int32(n), int32(SLEEP_NS))
        producer = Launch(mine["l2_sleeper"], LaunchConfig(1, 256), args)
        for kind in ("entry", "plain"):
            own = (at["in"], at["o"], at["middle"], int32(0), 0)
            consumer = Launch(mine[f"l2_add_{kind}"], LaunchConfig(1, 256, pdl=True), own)
            for launch in (producer, consumer):  # once each, so that both are loaded
                launch.enqueue(bench.gpu.stream)
                bench.gpu.stream.sync()
            b["in"].upload(old)
            b["middle"].poison()
            if in_graph:
                graph = capture(bench.gpu.stream, [producer, consumer])
                assert (graph.nodes, graph.edges, graph.programmatic) == (2, 1, 1)
                graph.replay()
                bench.gpu.stream.sync()
                graph.close()
            else:
                producer.enqueue(bench.gpu.stream)
                consumer.enqueue(bench.gpu.stream)
            seen[kind] = b["middle"].download(np.float32, n)
    np.testing.assert_array_equal(seen["entry"], new + other)
    np.testing.assert_array_equal(seen["plain"], old + other, err_msg="a race that was not there")


@pytest.fixture(scope="module", params=["bandwidth24", "attn_v24", "ffn_down24"])
def chain24(bench: Any, kernels: Any, request: pytest.FixtureRequest) -> Any:
    """A chain of 24 launches of the first backend that works."""
    backend = next((b for b in BACKENDS if not isinstance(kernels[b], Unavailable)), None)
    if backend is None:
        pytest.skip(str(next(iter(kernels.values()))))
    args = cli.parser("l2").parse_args([])
    with ExitStack() as stack:
        made = l2_make.Chains(bench, args, {backend: kernels[backend]}, stack)
        (chain,) = made.of(l2.Case(request.param), stack)
        yield chain


@pytest.mark.parametrize("arm", [a for a in l2.ARMS if a.graph], ids=lambda a: a.name)
def test_an_arm_s_graph_has_its_edges_and_replays_alike(bench: Any, chain24: Any, arm: l2.Arm) -> None:
    if not l2.runs(arm, chain24.case.id):
        pytest.skip("not an arm of this chain")
    graph = capture(bench.gpu.stream, chain24.launches(arm, copies=1))
    assert (graph.nodes, graph.edges) == (24, 23)
    assert graph.programmatic == (23 if l2.dispatch(arm, {}) else 0)
    graph.close()
    told = l2_launch.stable(bench, chain24, arm, chain24.output, 1)
    assert told == "200 replays equal to eager launches"


@pytest.mark.parametrize("name", ["pdl_late_trigger", "pdl_late_tail"])
def test_launches_overlap_where_they_are_let(bench: Any, chain24: Any, name: str) -> None:
    if name == "pdl_late_tail" and chain24.case.id not in l2.RING:
        pytest.skip("a block of one tile asks for its last weights just before it ends")
    plain = l2_launch.overlap(bench, chain24, l2.arm("plain"))
    early = l2_launch.overlap(bench, chain24, l2.arm(name))
    assert (plain.seconds <= 0).all(), "a plain graph does not overlap"
    assert early.median_s > 0 and (early.seconds > 0).mean() > 0.9


def test_a_short_run_gives_rows_and_verdicts(bench: Any) -> None:
    from probes import l2_report

    args = cli.parser("l2").parse_args(["--case", "decode13", "--kv", "128", "--arm", "pdl_late_trigger"])
    rows = [r for rows in l2_measure.measure(bench, args) for r in rows]
    for row in rows:
        row.check()
    arms = [r for r in rows if r.samples_s and r.variant in {a.name for a in l2.ARMS}]
    assert arms and all(r.bitwise for r in arms)
    assert not [n for r in rows for n in r.notes if n.startswith(l2.MISSING)]
    assert {r.verdict for r in l2_report.judge(rows, 0)} <= {
        "INCONCLUSIVE",
        "NO-GO",
    }  # one KV length is missing
