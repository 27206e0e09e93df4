"""An arm's checks on the stand-in GPU: what is poisoned, what is looked at when, and what it reads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from probes.core.types import LaunchConfig, WrongResult
from probes.formats import checksum
from probes.gpu.facts import Gpu
from probes.gpu.kernels import Launch, Launches, int64
from probes.gpu.memory import POISON, Buffer, Region
from probes.gpu.timing import Arm, Output, replay_s
from tests.host_arms import SIZE, TILES, arm, kernel
from tests.host_gpu import HostGpu, Running
from tests.host_kernels import KERNELS


def slotted(host: HostGpu, copies: int = 3) -> Arm:
    """A read of `copies` copies, each of which writes to a slot of its own; a counter behind each slot."""
    data = np.random.default_rng(1).integers(0, 256, SIZE, dtype=np.uint8)
    weights, outs = Buffer.of(data, copies), Buffer.slots(4 * TILES, copies)
    counters = Buffer.of(np.zeros(1, np.uint32), copies)
    read = kernel(host, "harness_read")
    both = [(weights.address + k * weights.pitch, outs.address + k * outs.pitch) for k in range(copies)]
    launches = [Launch(read, LaunchConfig(TILES, 256), (*at, int64(SIZE // 16))) for at in both]
    kept = Output(counters, 1, np.zeros(1, np.uint32), slots=copies)
    return Arm("read", launches, Output(outs, TILES, checksum.read_xors(data), slots=copies), kept=(kept,))


def faulty(fault: Callable[[Running, int], None], after: int = 0) -> Any:
    """A read kernel that does `fault` with where it wrote, from its `after`-th launch on."""
    seen = [0]

    def run(x: Running, data: int, out: int, vectors: int) -> None:
        KERNELS["harness_read"].run(x, data, out, vectors)
        x.repeats = False
        seen[0] += 1
        if seen[0] > after:
            fault(x, out)

    return replace(KERNELS["harness_read"], run=run)


@pytest.mark.parametrize("slot", [0, 1, 2])
def test_after_timing_every_slot_is_looked_at(host_gpu: HostGpu, opened: Gpu, slot: int) -> None:
    mine = slotted(host_gpu)
    at = mine.output.buffer.address + slot * mine.output.buffer.pitch

    def fault(x: Running, out: int) -> None:
        if out == at:
            x.gpu.at(out, np.uint32, TILES)[2] ^= 1

    host_gpu.kernels["harness_read"] = faulty(fault, after=1)
    mine.build(opened.stream)
    which = f", slot {slot}" if slot else ""
    with pytest.raises(WrongResult, match=rf"after timing{which} \(1 of 4 differ\): element 2"):
        mine.recheck()


@pytest.mark.parametrize("slot", [0, 2])
def test_what_must_be_0_again_is_looked_at_in_every_slot(host_gpu: HostGpu, opened: Gpu, slot: int) -> None:
    mine = slotted(host_gpu)
    outs, counters = mine.output.buffer, mine.kept[0].buffer

    def fault(x: Running, out: int) -> None:
        if out == outs.address + slot * outs.pitch:
            x.gpu.at(counters.address + slot * counters.pitch, np.uint32, 1)[0] = 7

    host_gpu.kernels["harness_read"] = faulty(fault, after=1)
    mine.build(opened.stream)
    with pytest.raises(WrongResult, match="0x00000007"):
        mine.recheck()


def test_counters_are_not_poisoned(host_gpu: HostGpu, opened: Gpu) -> None:
    mine = slotted(host_gpu)
    mine.poison()
    assert (mine.output.buffer.download(np.uint8, mine.output.buffer.size) == POISON).all()
    assert not mine.kept[0].buffer.download(np.uint32, 1).any()
    mine.build(opened.stream)
    mine.recheck()


def test_all_outputs_and_what_is_read_after_it_is_written_are_poisoned(
    host_gpu: HostGpu, opened: Gpu
) -> None:
    """A kernel that stops writing shows in each of them, since no word of an earlier launch is left."""
    one, other = Buffer.of(np.arange(8, dtype=np.uint32)), Buffer.of(np.zeros(256, np.uint8), 2)
    mine = slotted(host_gpu)
    mine.also = (Output(one, 8, np.arange(8, dtype=np.uint32)),)
    mine.stale = (Region(other.address + 16, 64, 8, 2), Region(other.address + 256, 64, 4, 1))
    mine.poison()
    assert (one.download(np.uint8, one.size) == POISON).all()
    seen = other.download(np.uint8, other.size)
    assert list(np.flatnonzero(seen)) == [*range(16, 24), *range(80, 88), *range(256, 260)]
    with pytest.raises(WrongResult, match=r"before timing \(8 of 8 differ\)"):
        mine.build(opened.stream)


def test_a_kernel_that_stops_writing_is_seen_after_timing(host_gpu: HostGpu, opened: Gpu) -> None:
    """The words of the launch before would still stand there."""
    mine, usual, seen = slotted(host_gpu), KERNELS["harness_read"], [0]

    def lazy(x: Running, *args: int) -> None:
        x.repeats = False
        seen[0] += 1
        if seen[0] <= 1 + 3:
            usual.run(x, *args)

    host_gpu.kernels["harness_read"] = replace(usual, run=lazy)
    mine.build(opened.stream)
    mine.graphs[0].replay()  # type: ignore[index]  # built just now
    opened.stream.sync()
    with pytest.raises(WrongResult, match=r"after timing \(4 of 4 differ\): element 0 is '0xffffffff"):
        mine.recheck()


def test_words_that_another_arm_left_in_a_slot_do_not_pass(host_gpu: HostGpu, opened: Gpu) -> None:
    """Slots are common to all arms of a case."""
    mine = slotted(host_gpu)
    mine.build(opened.stream)
    mine.recheck()
    usual = KERNELS["harness_read"]
    host_gpu.kernels["harness_read"] = replace(usual, run=lambda x, *args: None)
    with pytest.raises(WrongResult, match=r"before timing \(4 of 4 differ\): element 0 is '0xffffffff"):
        mine.build(opened.stream)


def test_launches_that_were_planted_are_time_and_no_launches(host_gpu: HostGpu, opened: Gpu) -> None:
    """Four of 2 us, and one more: 2.5 us a launch."""
    host_gpu.noise, host_gpu.seconds = 0.0, lambda x: 2e-6
    mine = arm(host_gpu)
    mine.launches, mine.extra = [*mine.launches, mine.launches[0]], 1
    mine.build(opened.stream)
    assert replay_s(opened.stream, mine) == pytest.approx(2.5e-6)


@pytest.mark.parametrize(("whole", "launches"), [(False, 1), (True, 3)])
def test_the_first_check_runs_one_launch_or_all(
    host_gpu: HostGpu, opened: Gpu, whole: bool, launches: int
) -> None:
    mine = slotted(host_gpu)
    mine.whole = whole
    mine.build(opened.stream)
    assert len(host_gpu.of("harness_read")) == launches and host_gpu.replays == 0
    assert mine.graphs and [g.nodes for g in mine.graphs] == [3, 6]
    mine.recheck()
    assert host_gpu.replays == 1 and len(host_gpu.of("harness_read")) == launches + 3


def test_only_the_rows_that_are_known_are_held(host_gpu: HostGpu, opened: Gpu) -> None:
    mine = slotted(host_gpu)
    want = mine.output.want[[1, 3]]
    mine.output = replace(mine.output, want=want, indices=np.array([1, 3]))
    mine.build(opened.stream)
    wrong = replace(mine.output, want=want ^ np.array([0, 1], np.uint32))
    with pytest.raises(WrongResult, match=r"x \(1 of 2 differ\): element 3"):
        wrong.check("x")


# What launches read


def test_the_copies_that_launches_read_are_counted_from_their_arguments(
    host_gpu: HostGpu, opened: Gpu
) -> None:
    four, one = arm(host_gpu), arm(host_gpu, which=[0, 0, 1])
    assert len(set(four.reads((True,)))) == 4 == len(four.launches)
    assert [len(one.reads((True,))), len(set(one.reads((True,))))] == [3, 2]
    first = four.launches[0].args[0]
    assert four.reads((True,)) == [first + k * (SIZE) for k in range(4)]


def test_of_a_step_only_those_count_that_read_weights(host_gpu: HostGpu, opened: Gpu) -> None:
    single = [x for x in arm(host_gpu).launches if isinstance(x, Launch)]
    other = replace(single[0], args=(7, *single[0].args[1:]))
    step = Arm("step", [Launches((other, x)) for x in single], arm(host_gpu).output)
    assert step.reads((False, True)) == [x.args[0] for x in single]
    assert step.reads((True,)) == [7] * 4 and step.reads(()) == []
    step.launches, step.extra = [*step.launches, step.launches[0]], 1
    assert len(step.reads((False, True))) == 4, "a launch that was planted is not counted"
