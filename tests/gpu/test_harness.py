"""The harness itself, on the stand-in GPU: what it promises of a time, each shown by a fault that it sees."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from probes.core.types import WrongResult
from probes.engine import probe
from probes.engine.bench import Bench, Spec
from probes.engine.plan import Planned
from probes.engine.probe import Case, Variant
from probes.gpu import facts, graph, sampling, timing
from probes.gpu.facts import Gpu
from probes.gpu.memory import POISON, Buffer
from probes.gpu.sampling import Samples
from probes.gpu.timing import Arm
from tests.host_arms import arm, kernel
from tests.host_gpu import HostGpu, Launched, Running
from tests.host_kernels import KERNELS
from tests.host_run import Commands

CU_LOOP = ("--form", "loop", "--layout", "dpl", "--backend", "cu", "--case", "attn_v_14b")


def sampled(host: HostGpu, opened: Gpu, arms: Sequence[Arm], windows: int = 2) -> dict[str, Samples]:
    for each in arms:
        each.build(opened.stream)
    found = sampling.survey(opened.stream, arms, windows, kernel(host, "harness_clock"), seed=0)
    for each in arms:
        each.recheck()
    return found


# Checked before and after


def lazy(after: int) -> Any:
    """A read kernel that writes nothing from its `after`-th launch on."""
    seen = [0]

    def run(x: Running, *args: int) -> None:
        x.repeats = False
        seen[0] += 1
        if seen[0] <= after:
            KERNELS["harness_read"].run(x, *args)

    return replace(KERNELS["harness_read"], run=run)


def test_an_output_that_is_not_written_is_seen_before_any_replay(host_gpu: HostGpu, opened: Gpu) -> None:
    host_gpu.kernels["harness_read"] = lazy(0)
    said = r"read, before timing \(4 of 4 differ\): element 0 is '0xffffffff \(nan\)'"
    with pytest.raises(WrongResult, match=said):
        arm(host_gpu).build(opened.stream)
    assert host_gpu.replays == 0


def test_an_output_that_is_not_written_any_more_is_seen_after_timing(host_gpu: HostGpu, opened: Gpu) -> None:
    """Without poison the words of an earlier launch would still stand there."""
    # the check; every graph once; two samples a window, and one before them thrown away
    before = 1 + (4 + 8) + 2 * 3 * (4 + 8)
    host_gpu.kernels["harness_read"] = lazy(before)
    with pytest.raises(WrongResult, match=r"read, after timing \(4 of 4 differ\): element 0 is '0xffffffff"):
        sampled(host_gpu, opened, [arm(host_gpu)])
    assert len(host_gpu.of("harness_read")) == before + 4


@pytest.mark.parametrize(
    ("after", "said"), [(0, "dpl_loop/cu, before timing (1 of "), (40, "dpl_loop/cu, after timing (1 of ")]
)
def test_one_wrong_bit_ends_a_run(small_l1: HostGpu, commands: Commands, after: int, said: str) -> None:
    right = commands("l1", *CU_LOOP, "--windows", "2")
    assert right.code == 3 and all(r.bitwise for r in right.rows)
    small_l1.wrong("l1_dpl_loop", after)
    done = commands("l1", *CU_LOOP, "--windows", "2")
    assert done.code == 1 and done.err.startswith(f"WRONG RESULT: {said}") and not done.rows


def test_a_counter_that_a_kernel_leaves_is_seen(l3_gpu: HostGpu, commands: Commands) -> None:
    def change(x: Running) -> None:
        x.gpu.at(x.launch.args[3], np.uint32, 1)[0] = 7
        x.gpu.allocation(x.launch.args[3]).written()

    l3_gpu.wrong("l3_form_c", change=change)
    done = commands("l3", "--nf", "32", "--backend", "cu", "--variant", "form_c")
    said = "form_c/cu, before timing (1 of 64 differ): element 0 is '0x00000007"
    assert done.code == 1 and said in done.err


def test_poison_fills_every_byte(host_gpu: HostGpu, opened: Gpu) -> None:
    buffer = Buffer(1000)
    buffer.poison()
    assert (buffer.download(np.uint8, 1000) == POISON).all()


# The slope


@pytest.mark.parametrize("replay_s", [0.0, 5e-6, 2e-3])
def test_a_sample_is_the_slope_whatever_a_replay_costs_once(
    host_gpu: HostGpu, opened: Gpu, replay_s: float
) -> None:
    """Copy k takes (k + 1) us: (20 - 10) us over four launches are 2.5 us each."""
    host_gpu.noise, host_gpu.replay_s = 0.0, replay_s
    mine = arm(host_gpu)
    first = mine.launches[0].args[0]
    pitch = 1 << 14

    def seconds(x: Launched) -> float:
        return 1e-6 * (1 + (x.args[0] - first) // (4 * pitch)) if x.kernel == "harness_read" else 1e-7

    host_gpu.seconds = seconds
    found = sampled(host_gpu, opened, [mine])["read"]
    assert found.time_s == pytest.approx(np.full((2, 2), 2.5e-6))
    assert timing.replay_s(opened.stream, mine) == pytest.approx(2.5e-6)
    assert timing.event_loop_s(opened.stream, mine) == pytest.approx(2.5e-6)


@pytest.mark.parametrize("extra", [-1, 1])
def test_a_graph_that_lies_about_its_nodes_is_not_timed(host_gpu: HostGpu, opened: Gpu, extra: int) -> None:
    host_gpu.extra_nodes = extra
    with pytest.raises(RuntimeError, match=f"graphs hold {4 + extra} and {8 + extra} nodes, not 4 and 8"):
        arm(host_gpu).build(opened.stream)


def test_edges_are_the_graph_s_own(host_gpu: HostGpu, opened: Gpu) -> None:
    mine = arm(host_gpu).launches
    steps = [replace(x, config=replace(x.config, pdl=k != 2)) for k, x in enumerate(mine)]
    made = graph.capture(opened.stream, steps)
    assert (made.nodes, made.edges, made.programmatic) == (4, 3, 2)
    host_gpu.lost_edges = 1
    assert graph.capture(opened.stream, steps).programmatic == 1
    assert host_gpu.launched == [], "what is captured does not run"


def test_arms_are_interleaved_in_an_order_and_back(host_gpu: HostGpu, opened: Gpu) -> None:
    arms = [arm(host_gpu, name) for name in "ABC"]
    out = {a.output.buffer.address: a.name for a in arms}
    for each in arms:
        each.build(opened.stream)
    host_gpu.launched.clear()
    sampling.survey(opened.stream, arms, 5, kernel(host_gpu, "harness_clock"), seed=3)
    seen = "".join("|" if x.kernel == "harness_clock" else out[x.args[1]] for x in host_gpu.launched)
    warm, seen = seen[:36], seen[36:]
    assert warm == 12 * "A" + 12 * "B" + 12 * "C", "every graph is replayed once before the first window"
    *parts, end = seen.split("|")  # by turns what is untimed and a sample, a mark before and behind it
    assert end == "" and len(parts) == 5 * 6 * 2
    windows = ["".join(s[0] for s in parts[k + 1 : k + 12 : 2]) for k in range(0, len(parts), 12)]
    assert all(sorted(w[:3]) == ["A", "B", "C"] and w[3:] == w[2::-1] for w in windows)
    assert len({w[:3] for w in windows}) > 1, "the order changes from window to window"
    for k in range(0, len(parts), 2):
        untimed, name = parts[k], parts[k + 1][0]
        assert parts[k + 1] == 12 * name, "4 + 8 launches a sample, of one arm"
        change = 4 * name if parts[k - 1][0] != name else ""
        assert untimed == (change if k % 12 else 12 * name), "the first of a window is thrown away"


# Copies


def uneven(launched: Sequence[Launched], owner: Callable[[int], int] = lambda address: 0) -> list[str]:
    """Kernels that read some copy of their weights more often than another, or only one.

    owner: the allocation of an address, as an arm again has weights of its own.
    """
    found = set()
    for name, mine in {(x.kernel, owner(x.args[0])): None for x in launched}:
        own = (x.args[0] for x in launched if x.kernel == name and not x.eager)
        counts = Counter(address for address in own if owner(address) == mine)
        if len(counts) < 2 or len(set(counts.values())) > 1:
            found.add(name)
    return sorted(found)


def test_every_replay_walks_all_copies(small_l1: HostGpu, commands: Commands) -> None:
    true, owners = small_l1.seconds, dict[int, int]()

    def noted(x: Launched) -> float:
        owners[x.args[0]] = small_l1.allocation(x.args[0]).address
        return true(x)

    small_l1.seconds = noted
    commands("l1", *CU_LOOP, "--windows", "3")
    kernels = [x for x in small_l1.launched if x.kernel.startswith("l1_")]
    assert len({x.kernel for x in kernels}) == 2 and uneven(kernels, owners.__getitem__) == []
    assert len({owners[x.args[0]] for x in kernels}) == 3, "padded's, again, and dpl's"


def test_a_launch_order_that_keeps_one_copy_shows(host_gpu: HostGpu, opened: Gpu) -> None:
    for which, said in ((None, []), ([0, 0, 0, 0], ["harness_read"]), ([0, 1, 2, 2], ["harness_read"])):
        host_gpu.launched.clear()
        sampled(host_gpu, opened, [arm(host_gpu, which=which)])
        assert uneven(host_gpu.of("harness_read")) == said


def test_weights_that_stay_in_the_cache_are_marked_hot(small_l1: HostGpu, commands: Commands) -> None:
    done = commands("l1", *CU_LOOP, "--windows", "2")
    rows = [r for r in done.rows if r.samples_s and r.role != "control"]
    assert rows and all(r.cold is False and any("hot" in n for n in r.notes) for r in rows)
    assert {r.verdict for r in done.verdicts} <= {"INCONCLUSIVE"} and done.code == 3


def test_weights_that_leave_the_cache_are_not(host_gpu: HostGpu, opened: Gpu) -> None:
    bench, read = Bench(opened, 0, 2, lambda line: None), kernel(host_gpu, "harness_read")
    for rotation, hot in ((None, False), ((1 << 30) - 1, True), (1 << 30, False)):
        mine = arm(host_gpu, "read/cu")
        planned = Planned(
            variant=Variant(name="read"), kernel=read.name, config=mine.launches[0].config, content_bytes=1
        )
        spec = Spec(Case(id="case"), planned, read, rotation)
        (row,) = bench.measure("l1", [(spec, mine)], "case")  # internals
        assert any("hot" in n for n in row.notes) is hot and row.cold is (
            None if rotation is None else not hot
        )


# The clock and the neighbours


def test_samples_under_a_slow_clock_are_marked(small_l1: HostGpu, commands: Commands) -> None:
    argv = [*CU_LOOP, "--windows", "8"]
    began = small_l1.now
    usual = commands("l1", *argv)
    assert {r.throttled for r in usual.rows if r.samples_s} == {0}
    assert usual.by()["dpl_loop"].sm_clock_hz == pytest.approx(1.9e9, rel=1e-2)
    took = small_l1.now - began
    began = small_l1.now
    small_l1.clock = lambda now: 0.8 if 0.4 < (now - began) / took < 0.6 else 1.0
    rows = [r for r in commands("l1", *argv).rows if r.samples_s]
    assert any(r.throttled for r in rows)
    for row in rows:
        assert row.samples_s and row.throttled == len(row.throttled_samples) < len(row.samples_s)
        assert row.sm_clock_hz == pytest.approx(1.9e9, rel=1e-2)


def test_a_neighbour_that_makes_a_slope_negative_is_no_time(small_l1: HostGpu, commands: Commands) -> None:
    """What it hits is measured again."""
    argv = (*CU_LOOP, "--windows", "4")
    usual = commands("l1", *argv)
    random = np.random.default_rng(6)
    small_l1.disturbed = lambda k: 1e-2 * float(k > 900 and random.random() < 0.05)  # once surveyed
    done = commands("l1", *argv)
    assert done.code == usual.code == 3
    assert {r.id: len(r.blocks_s) for r in done.rows} == {r.id: len(r.blocks_s) for r in usual.rows}
    assert all(t > 0 for r in done.rows for t in (*r.samples_s, *r.blocks_s))
    assert sum(r.retaken or 0 for r in usual.rows) == 0 < sum(r.retaken or 0 for r in done.rows)
    assert [(r.id, r.verdict) for r in done.verdicts] == [(r.id, r.verdict) for r in usual.verdicts]


def test_a_neighbour_that_stays_costs_the_verdicts_alone(small_l1: HostGpu, commands: Commands) -> None:
    small_l1.disturbed = lambda k: 1e-2 if k % 3 == 0 else 0.0
    done = commands("l1", *CU_LOOP, "--windows", "4")
    assert done.code == 3 and done.verdicts and {r.verdict for r in done.verdicts} == {"INCONCLUSIVE"}
    pairs = [r for r in done.rows if r.role == "contest"]
    assert pairs and all("another process on the GPU?" in r.missing[0] for r in pairs)


def test_other_processes_are_told(small_l1: HostGpu, commands: Commands) -> None:
    small_l1.others = (7, 8, 9)
    done = commands("l1", *CU_LOOP, "--windows", "2")
    assert any("2 other process(es) on the GPU" in line for line in done.head.neighbours)
    small_l1.others = ()
    assert commands("l1", *CU_LOOP, "--windows", "2").head.neighbours == []


def test_a_same_kernel_claims_no_difference(
    small_l1: HostGpu, commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "names", lambda: ("l1",))
    done = commands("", "selfcheck", "--runs", "3", "-q")
    assert done.code == 0 and "3 A/A runs: 0 said GO, 0 claimed a difference" in done.out
    assert (commands.folder / "out" / "runs" / "selfcheck.json").exists()
    assert {x.kernel for x in small_l1.launched if x.kernel.startswith("l1_")} >= {"l1_padded_loop"}


# What the driver answers


FULL = (
    "the GPU has no room left (cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY (out of memory)); "
    "free some, or try --quick or one --case"
)


@pytest.mark.parametrize("after", [0, 9])
def test_a_full_gpu_is_one_line(small_l1: HostGpu, commands: Commands, after: int) -> None:
    small_l1.fail["cuMemAlloc"] = "CUDA_ERROR_OUT_OF_MEMORY", after
    done = commands("l1", *CU_LOOP)
    assert done.code == 2 and done.err.strip().splitlines() == [f"error: {FULL}"]


def test_a_case_that_a_gpu_has_no_room_for_is_skipped_with_that_line(
    small_l1: HostGpu, commands: Commands
) -> None:
    small_l1.fail["cuMemAlloc"] = "CUDA_ERROR_OUT_OF_MEMORY", 3
    done = commands("l1", *CU_LOOP)
    assert done.code == 3 and done.rows and {r.skipped for r in done.rows} == {FULL}
    assert not done.verdicts and len(small_l1.memory) == 2, "but for the ceiling's two buffers"


def test_a_backend_that_fails_costs_itself_alone(small_l1: HostGpu, commands: Commands) -> None:
    small_l1.missing["cu"] = "no nvcc here"
    done = commands("l1", "--form", "loop", "--case", "attn_v_14b", "--windows", "2")
    assert {r.backend for r in done.rows if r.samples_s} == {"numba"}
    assert [r.skipped for r in done.rows if r.backend == "cu"] == ["no nvcc here"]
    small_l1.missing["numba"] = "nor Numba"
    done = commands("l1", "--form", "loop")
    assert done.code == 2 and "no nvcc here; nor Numba" in done.err


@pytest.mark.parametrize(
    ("fault", "said"),
    [("CUDA_ERROR_NO_DEVICE", "answered CUDA_ERROR_NO_DEVICE"), (RuntimeError("no libcuda"), "no libcuda")],
)
def test_no_gpu_is_one_line(host_gpu: HostGpu, commands: Commands, fault: Any, said: str) -> None:
    host_gpu.fail["cuInit"] = fault
    done = commands("l1")
    assert done.code == 2 and said in done.err and len(done.err.splitlines()) == 1
    assert not facts.look().count


def test_what_was_taken_is_given_back(small_l1: HostGpu, commands: Commands) -> None:
    done = commands("l1", *CU_LOOP, "--windows", "2")
    assert done.rows and small_l1.graphs == 0
    assert sorted(a.size for a in small_l1.memory.values())[:-2] == [], "all but the ceiling's two buffers"
