"""What launches read and where they write, on the stand-in GPU: each safeguard shown by what it catches."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from probes import cli
from probes.core.types import Shape
from probes.engine import arms as binding
from probes.engine import probe, reads
from probes.engine import run as engine
from probes.engine.bench import Bench, Spec
from probes.engine.plan import Planned
from probes.engine.probe import Case
from probes.gpu import facts, timing
from probes.gpu.kernels import Launch
from probes.gpu.timing import Arm
from probes.l1 import arms as l1_arms
from probes.l2.overlap import Chain
from probes.l3.arms import GateUp
from tests.fixtures import L1_CASES
from tests.host_arms import arm
from tests.host_gpu import TWO_SMS, HostGpu, Running
from tests.host_run import Commands
from tests.host_specs import spec

CU = ("--backend", "cu", "--windows", "2", "--blocks", "16")
GIB = 1 << 30


def bound(bench: Bench, name: str, case: Case, *argv: str) -> Iterator[dict[str, tuple[Spec, Arm]]]:
    """A case's arms in C++ by variant, its reads among them, while the case is open."""
    args = cli.parser(name).parse_args([*CU, *argv])
    kernels = engine.load(name, bench, args)
    with ExitStack() as stack:
        arms = probe.arms(name).make(bench, args, kernels, stack)
        variants = probe.table(name).variants(args, case)
        material = arms.open(case, variants, stack)
        found, _ = binding.bind(name, probe.plan(name), arms, material, bench, case, variants, kernels, args)
        yield {s.planned.variant.name: (s, a) for s, a in [*found, *arms.reads(material, ["cu"])]}


@pytest.fixture
def l1_bound(small_l1: HostGpu, host_bench: Bench) -> Iterator[dict[str, tuple[Spec, Arm]]]:
    """L1's arms of its smallest case."""
    yield from bound(host_bench, "l1", L1_CASES[1])


# Launch addresses are shown distinct


@pytest.mark.parametrize(
    ("which", "rotation", "said"),
    [
        (None, GIB, ""),
        ([0], GIB, ""),
        ([0, 0, 0, 0], None, ""),
        ([0, 0, 0, 0], GIB, "read/cu: 4 launches read 1 copies of weights"),
        ([0, 1, 2, 2], GIB, "read/cu: 4 launches read 3 copies of weights"),
    ],
)
def test_launches_that_claim_a_rotation_and_share_a_copy_are_a_fault(
    host_gpu: HostGpu, host_bench: Bench, which: list[int] | None, rotation: int | None, said: str
) -> None:
    given = [(spec(host_gpu, rotation), arm(host_gpu, "read/cu", which=which))]
    if not said:
        assert len(host_bench.measure("l1", given, "case")) == 1
        return
    with pytest.raises(RuntimeError, match=said):
        host_bench.measure("l1", given, "case")
    assert host_gpu.graphs == 0, "and gives its graphs back"


def test_a_rotation_that_no_launch_reads_is_a_fault(host_gpu: HostGpu, host_bench: Bench) -> None:
    own = spec(host_gpu, GIB)
    none = replace(own, planned=replace(own.planned, weights=(False,)))
    with pytest.raises(RuntimeError, match="0 launches read 0 copies"):
        host_bench.measure("l1", [(none, arm(host_gpu, "read/cu"))], "case")


def test_L1_on_copy_0_is_a_fault(
    small_l1: HostGpu, commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    true, first = l1_arms.launch, dict[str, int]()

    def stuck(planned: Planned, kernel: Any, w: Any, pointers: tuple[int, int], counter: int) -> Launch:
        own = first.setdefault(kernel.name, pointers[0])
        return true(planned, kernel, w, (own, pointers[1]), counter)

    monkeypatch.setattr(l1_arms, "launch", stuck)
    with pytest.raises(RuntimeError, match="padded_loop/cu: 2 launches read 1 copies"):
        commands("l1", *CU, "--case", "attn_v_14b")


def test_a_read_on_copy_0_is_a_fault(
    small_l1: HostGpu, commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    true = reads._arm

    def stuck(*args: Any) -> tuple[Spec, Arm]:
        found, made = true(*args)
        return found, replace(made, launches=[made.launches[0]] * len(made.launches))

    monkeypatch.setattr(reads, "_arm", stuck)
    with pytest.raises(RuntimeError, match="read_large/cu: 4 launches read 1 copies"):
        commands("l1", *CU, "--case", "attn_v_14b")


@pytest.mark.parametrize(
    ("case", "stuck", "said"),
    [
        ("bandwidth24", "w.", "plain/cu: 8 launches read 4 copies"),
        ("ffn_down24", "w.3", "plain/cu: 8 launches read 7 copies"),
        ("decode13", "w.down", "plain/cu: 8 launches read 7 copies"),
        ("decode13", "w.qkv", "plain/cu: 8 launches read 7 copies"),
    ],
)
def test_one_matrix_of_a_chain_on_copy_0_is_a_fault(
    small_l2: HostGpu, commands: Commands, monkeypatch: pytest.MonkeyPatch, case: str, stuck: str, said: str
) -> None:
    true = Chain.launches

    def launches(self: Chain, *rest: Any, **more: Any) -> Any:
        first = {k: v for k, v in self.copies[0].items() if k.startswith(stuck)}
        return true(replace(self, copies=[{**own, **first} for own in self.copies]), *rest, **more)

    monkeypatch.setattr(Chain, "launches", launches)
    with pytest.raises(RuntimeError, match=said):
        commands("l2", *CU, "--case", case, "--arm", "plain", *(("--kv", "9") if "decode" in case else ()))


def test_L3_on_copy_0_is_a_fault(
    small_l3: HostGpu, commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(GateUp, "copy", lambda self, k: self.weights.address)
    with pytest.raises(RuntimeError, match="pair/cu: 2 launches read 1 copies"):
        commands("l3", *CU, "--nf", "32", "--variant", "pair")


# Cold or hot


@pytest.mark.parametrize(
    ("l2_bytes", "rotation", "cold"),
    [
        (1024, GIB, True), (1024, GIB - 1, False), (GIB, 4 * GIB, True), (GIB, 4 * GIB - 1, False),
        (1024, None, None),
    ],
)  # fmt: skip
def test_hot_is_below_four_caches_or_a_gibibyte(
    host_gpu: HostGpu, l2_bytes: int, rotation: int | None, cold: bool | None
) -> None:
    host_gpu.facts = replace(TWO_SMS, l2_bytes=l2_bytes)
    row = Bench(facts.open_gpu(0), 0, 2, print).row("l1", spec(host_gpu, rotation))
    assert row.cold is cold and row.rotation_bytes == rotation
    assert row.notes == (["hot: too little memory to rotate over cold copies"] if cold is False else [])


def test_copies_are_counted_so_that_the_smallest_layout_is_cold_and_all_have_room(
    small_l1: HostGpu, host_bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, int, int]] = []
    monkeypatch.setattr(timing, "rotation", lambda *a: asked.append(a) or 2)
    free, _ = host_bench.gpu.free_bytes()
    found = next(bound(host_bench, "l1", L1_CASES[1]))
    sizes = {n: (s.rotation_bytes or 0) // 2 for n, (s, _) in found.items() if "read" not in n}
    assert asked == [(min(sizes.values()), 1024, free // 6 * 4)], "four layouts, and two arms again"
    assert sizes["dpl_loop"] < sizes["padded_loop"] == sizes["padded_loop_aa"]


# Where launches write


def test_slots_are_common_to_all_arms_and_rotate_with_the_copies(
    l1_bound: dict[str, tuple[Spec, Arm]],
) -> None:
    kernels = {n: a for n, (s, a) in l1_bound.items() if "read" not in n}
    outs = {n: [x.args[2] for x in a.launches] for n, a in kernels.items()}  # type: ignore[union-attr]
    assert len({tuple(o) for o in outs.values()}) == 1 and len(set(outs["padded_loop"])) == 2
    for a in kernels.values():
        assert a.output.slots == len(a.launches) == 2
        assert (
            a.output.buffer.address == outs["padded_loop"][0] and 4 * a.output.words <= a.output.buffer.pitch
        )


def test_rings_that_draw_have_a_counter_a_slot_that_must_be_0_again(
    small_l1: HostGpu, host_bench: Bench
) -> None:
    found = next(bound(host_bench, "l1", replace(L1_CASES[0], shape=Shape(4096, 512))))
    drawn = {n: a for n, (s, a) in found.items() if s.planned.ring and s.planned.ring.drawn}
    assert {"padded_ring", "dpl_ring", "padded_ring_aa"} <= drawn.keys()
    for a in drawn.values():
        (kept,) = a.kept
        counters = [kept.buffer.address + k * kept.buffer.pitch for k in range(2)]
        assert [x.args[3] for x in a.launches] == counters and kept.slots == 2  # type: ignore[union-attr]
        assert kept.want.tolist() == [0]


def test_an_arm_again_of_L1_has_weights_of_its_own(l1_bound: dict[str, tuple[Spec, Arm]]) -> None:
    """Where weights lie is part of what it is to show."""
    read = {n: a.reads((True,)) for n, (_, a) in l1_bound.items()}
    for name in ("padded_loop", "padded_ring"):
        assert not {*read[name]} & {*read[f"{name}_aa"]} and len(set(read[f"{name}_aa"])) == 2
    assert read["padded_loop"] == read["padded_ring"] == read["padded_loop"] == read["dispatch_padded"]


@pytest.mark.parametrize("slot", [0, 1])
def test_a_copy_that_goes_wrong_after_the_first_check_is_seen(
    small_l1: HostGpu, commands: Commands, slot: int
) -> None:
    argv = (*CU, "--case", "attn_v_14b", "--form", "loop", "--layout", "dpl")
    commands("l1", *argv)
    outs = sorted({x.args[2] for x in small_l1.of("l1_dpl_loop")})
    assert len(outs) == 2

    def change(x: Running) -> None:
        mine = sorted({y.args[2] for y in x.gpu.of("l1_padded_loop")})
        if x.launch.args[2] == mine[slot]:
            x.gpu.at(x.launch.args[2], np.uint32, 1)[0] ^= 1

    small_l1.launched.clear()
    small_l1.wrong("l1_dpl_loop", after=2, change=change)
    done = commands("l1", *argv)
    assert done.code == 1 and f"dpl_loop/cu, after timing{', slot 1' if slot else ''} (1 of" in done.err


@pytest.mark.parametrize("arm", ["plain", "pdl_late"])
def test_an_attention_that_reads_the_row_of_a_launch_before_is_seen(
    small_l2: HostGpu, commands: Commands, arm: str
) -> None:
    """rope_store stores no row once the first layers were right: without poison the old one still stands."""
    argv = (*CU, "--case", "decode13", "--kv", "9", "--arm", arm)
    kind = {"plain": "plain", "pdl_late": "late"}[arm]
    assert commands("l2", *argv).code == 3
    name, seen = f"l2_rope_store_{kind}", [0]
    usual = small_l2.kernels[name]

    def lazy(x: Running, qkv: int, table: int, q: int, cache: int, *rest: int) -> None:
        held = x.gpu.at(cache, np.float16, 2 * rest[1] * rest[2] * 128)
        before = held.copy()
        usual.run(x, qkv, table, q, cache, *rest)
        x.repeats = False
        seen[0] += 1
        if seen[0] > (4 if arm == "plain" else 0):
            held[:] = before

    small_l2.kernels[name] = replace(usual, run=lazy)
    done = commands("l2", *argv)
    assert done.code == 1 and "WRONG RESULT" in done.err and f"{arm}/cu" in done.err
