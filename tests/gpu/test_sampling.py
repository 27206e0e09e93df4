"""Samples and blocks on the stand-in GPU: which arm runs when, what is thrown away, what is taken again."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest

from probes.gpu import sampling
from probes.gpu.facts import Gpu
from probes.gpu.sampling import Blocks, Sampler
from probes.gpu.timing import Arm
from tests.host_arms import arm, kernel
from tests.host_gpu import HostGpu, Running
from tests.host_kernels import KERNELS

COPIES = 4
US = {"A": 2e-6, "B": 3e-6, "C": 4e-6, "D": 5e-6}


def built(host: HostGpu, opened: Gpu, names: str) -> dict[str, Arm]:
    """Arms by name, each of a time of its own, on a GPU without noise."""
    arms = {name: arm(host, name, COPIES) for name in names}
    out = {a.output.buffer.address: a.name for a in arms.values()}
    host.noise = 0.0
    host.seconds = lambda x: US[out[x.args[1]]] if x.kernel == "harness_read" else 1e-7
    for each in arms.values():
        each.build(opened.stream)
    host.launched.clear()
    return arms


@dataclass
class Told:
    """One sample as the launches tell it: its arm, and the arms that ran untimed before it."""

    arm: str
    untimed: str


def trace(host: HostGpu, arms: dict[str, Arm]) -> list[Told]:
    """What was launched since `built`: a mark before and behind each sample, 4 + 8 launches in it."""
    out = {a.output.buffer.address: a.name for a in arms.values()}
    seen = "".join("|" if x.kernel == "harness_clock" else out[x.args[1]] for x in host.launched)
    *parts, end = seen.split("|")
    assert end == "", "nothing runs behind the last mark"
    found = []
    for untimed, sample in zip(parts[::2], parts[1::2], strict=True):
        assert sample == 12 * sample[0], "an n-node replay and a 2n-node replay, of one arm"
        found.append(Told(sample[0], untimed))
    return found


class Stop:
    """closed: remembers what it was told, and closes what it was made with at each look."""

    def __init__(self, at: dict[int, Collection[int]] | None = None) -> None:
        self.at, self.seen = at or {}, list[tuple[int, list[int]]]()

    def __call__(self, look: int, taken: Sequence[Blocks]) -> Collection[int]:
        self.seen.append((look, [t.count for t in taken]))
        return self.at.get(look, ())


def rounds(
    host: HostGpu,
    opened: Gpu,
    pairs: Sequence[tuple[Arm, Arm]],
    looks: Sequence[int],
    stop: Stop,
    seed: int = 0,
) -> list[Blocks]:
    return sampling.rounds(opened.stream, pairs, looks, kernel(host, "harness_clock"), seed, stop)


def test_one_untimed_replay_before_each_change_and_none_without(host_gpu: HostGpu, opened: Gpu) -> None:
    arms = built(host_gpu, opened, "AB")
    a, b = arms.values()
    with Sampler(opened.stream, kernel(host_gpu, "harness_clock"), 4) as sampler:
        times, hertz = sampler.take([a, b, b, a])
    assert times == pytest.approx([2e-6, 3e-6, 3e-6, 2e-6]) and hertz.shape == (4,)
    first, *rest = trace(host_gpu, arms)
    assert first == Told("A", 12 * "A"), "a whole sample of the first arm is thrown away"
    assert rest == [Told("B", "BBBB"), Told("B", ""), Told("A", "AAAA")]


def test_blocks_are_A_B_B_A_and_B_A_A_B_by_turns_side_by_side(host_gpu: HostGpu, opened: Gpu) -> None:
    arms = built(host_gpu, opened, "ABCD")
    pairs = [(arms["A"], arms["B"]), (arms["C"], arms["D"])]
    taken = rounds(host_gpu, opened, pairs, (6,), Stop())
    order = "".join(t.arm for t in trace(host_gpu, arms))
    assert len(order) == 6 * 8, "each round has a block of each pair"
    orders = set()
    for k in range(6):
        now = order[8 * k : 8 * k + 8]
        want = ("ABBA", "CDDC") if k % 2 == 0 else ("BAAB", "DCCD")
        assert {now[:4], now[4:]} == set(want)
        orders.add(now[:4] in ("ABBA", "BAAB"))
    assert orders == {True, False}, "the order within a round is random"
    for (a, b), own in zip("AB CD".split(), taken, strict=True):
        forth, back = [US[x] for x in (a, b, b, a)], [US[x] for x in (b, a, a, b)]
        assert own.count == 6 and own.time_s == pytest.approx((forth + back) * 3)
        assert len(own.clock_hz) == len(own.after) == 6 and own.retaken == 0
    for own, names in zip(taken, ("AB", "CD"), strict=True):
        at = [next(k for k in range(8 * n, 8 * n + 8, 4) if order[k] in names) for n in range(6)]
        assert own.after == [order[k - 1] if k % 8 else "" for k in at], "who ran before each block"


def test_a_round_begins_with_a_sample_that_is_thrown_away(host_gpu: HostGpu, opened: Gpu) -> None:
    """One synchronisation a round, and its first sample unused."""
    arms = built(host_gpu, opened, "ABCD")
    rounds(host_gpu, opened, [(arms["A"], arms["B"]), (arms["C"], arms["D"])], (4,), Stop())
    found = trace(host_gpu, arms)
    for k, told in enumerate(found):
        new = not k or told.arm != found[k - 1].arm
        assert told.untimed == (12 * told.arm if k % 8 == 0 else 4 * told.arm if new else "")


def test_seeds_give_orders_of_their_own(host_gpu: HostGpu, opened: Gpu) -> None:
    seen = []
    for seed in (0, 0, 1):
        arms = built(host_gpu, opened, "ABCD")
        rounds(host_gpu, opened, [(arms["A"], arms["B"]), (arms["C"], arms["D"])], (8,), Stop(), seed)
        seen.append("".join(t.arm for t in trace(host_gpu, arms)))
    assert seen[0] == seen[1] != seen[2]


def test_seeds_give_surveys_of_their_own(host_gpu: HostGpu, opened: Gpu) -> None:
    seen = []
    for seed in (0, 0, 1):
        arms = built(host_gpu, opened, "ABCD")
        sampling.survey(opened.stream, list(arms.values()), 4, kernel(host_gpu, "harness_clock"), seed)
        seen.append("".join(t.arm for t in trace(host_gpu, arms)))
    assert seen[0] == seen[1] != seen[2]


def test_a_pair_that_is_closed_at_a_look_gets_no_more_blocks(host_gpu: HostGpu, opened: Gpu) -> None:
    arms = built(host_gpu, opened, "ABCD")
    stop = Stop({2: [0]})
    taken = rounds(host_gpu, opened, [(arms["A"], arms["B"]), (arms["C"], arms["D"])], (2, 4, 8), stop)
    assert [t.count for t in taken] == [2, 8]
    assert stop.seen == [(2, [2, 2]), (4, [2, 4]), (8, [2, 8])]
    assert rounds(host_gpu, opened, [], (2,), stop) == [] and len(stop.seen) == 3


def test_a_block_with_a_slope_at_or_below_0_is_taken_again(host_gpu: HostGpu, opened: Gpu) -> None:
    """The first replay of the third sample is held up: its slope is below 0."""
    arms = built(host_gpu, opened, "AB")
    began = host_gpu.replays
    # thrown away: 2; A: 2; B: 1 + 2; B: its first one
    host_gpu.disturbed = lambda k: 1e-3 if k - began == 2 + 2 + 3 else 0.0
    (own,) = rounds(host_gpu, opened, [(arms["A"], arms["B"])], (3,), Stop())
    assert own.retaken == 1 and own.count == 3 and min(own.time_s) > 0
    assert own.time_s[:8] == pytest.approx([2e-6, 3e-6, 3e-6, 2e-6, 3e-6, 2e-6, 2e-6, 3e-6])
    assert "".join(t.arm for t in trace(host_gpu, arms)) == "ABBAABBABAABABBA", "in the place that it had"


def test_bad_blocks_have_a_cap(host_gpu: HostGpu, opened: Gpu) -> None:
    """Launches that take no time have a slope of exactly 0; the other pair goes on to its look."""
    arms = built(host_gpu, opened, "ABCD")
    usual = host_gpu.seconds
    out = {arms[x].output.buffer.address for x in "AB"}
    host_gpu.replay_s = 0.0
    host_gpu.seconds = lambda x: 0.0 if x.kernel == "harness_read" and x.args[1] in out else usual(x)
    pairs = [(arms["A"], arms["B"]), (arms["C"], arms["D"])]
    taken = rounds(host_gpu, opened, pairs, (4, 8), Stop())
    assert (taken[0].retaken, taken[0].count) == (5, 0), "as often as there are blocks, and once more"
    assert (taken[1].retaken, taken[1].count) == (0, 8)


def test_a_window_with_a_bad_slope_is_taken_again_and_what_stays_bad_is_unknown(
    host_gpu: HostGpu, opened: Gpu
) -> None:
    arms = built(host_gpu, opened, "AB")
    clock, began = kernel(host_gpu, "harness_clock"), host_gpu.replays
    host_gpu.disturbed = lambda k: 1e-3 if k - began == 4 + 2 else 0.0  # behind warming up and the first one
    found = sampling.survey(opened.stream, list(arms.values()), 3, clock, 0)
    assert found["A"].time_s == pytest.approx(np.full((3, 2), 2e-6))
    assert found["B"].time_s == pytest.approx(np.full((3, 2), 3e-6))
    assert len(host_gpu.of("harness_clock")) == 2 * 4 * (3 + 1), "one window more"
    out = arms["A"].output.buffer.address
    usual, host_gpu.replay_s, host_gpu.disturbed = host_gpu.seconds, 0.0, lambda k: 0.0
    host_gpu.seconds = lambda x: 0.0 if x.args[1:] and x.args[1] == out else usual(x)
    host_gpu.launched.clear()
    found = sampling.survey(opened.stream, list(arms.values()), 3, clock, 0)
    assert np.isnan(found["A"].time_s).all() and not np.isnan(found["B"].time_s).any()
    assert len(host_gpu.of("harness_clock")) == 2 * 4 * (3 + 3), "as many windows again, and no more"


def test_every_graph_is_replayed_before_the_first_window(host_gpu: HostGpu, opened: Gpu) -> None:
    arms = built(host_gpu, opened, "AB")
    sampling.survey(opened.stream, list(arms.values()), 1, kernel(host_gpu, "harness_clock"), 0)
    first = trace(host_gpu, arms)[0]
    assert first.untimed == 12 * "A" + 12 * "B" + 12 * first.arm


def test_a_window_is_an_order_and_back_and_each_has_its_own(host_gpu: HostGpu, opened: Gpu) -> None:
    arms = built(host_gpu, opened, "ABCD")
    sampling.survey(opened.stream, list(arms.values()), 6, kernel(host_gpu, "harness_clock"), 0)
    order = "".join(t.arm for t in trace(host_gpu, arms))
    windows = [order[k : k + 8] for k in range(0, 48, 8)]
    assert all(sorted(w[:4]) == [*"ABCD"] and w[4:] == w[3::-1] for w in windows)
    assert len(set(windows)) > 1


# The clock


def test_a_block_s_clock_is_its_lowest(host_gpu: HostGpu, opened: Gpu) -> None:
    arms = built(host_gpu, opened, "AB")
    began = host_gpu.replays
    low = 2 + 2 + 3 + 2 + 1  # only the fourth sample of the first block
    host_gpu.clock = lambda now: (
        0.5 if host_gpu.replays - began >= low and host_gpu.replays - began < low + 3 else 1.0
    )
    (own,) = rounds(host_gpu, opened, [(arms["A"], arms["B"])], (2,), Stop())
    assert own.clock_hz[0] < 0.7 * 1.9e9 and own.clock_hz[1] == pytest.approx(1.9e9)


def test_a_clock_that_was_read_on_two_sms_is_unknown(host_gpu: HostGpu, opened: Gpu) -> None:
    """Cycles of one SM say nothing of another's."""
    seen = [0]

    def moving(x: Running, out: int) -> None:
        seen[0] += 1
        x.write(out, np.uint64, 3)[:] = *x.clock(), seen[0] if seen[0] <= 4 else 9

    host_gpu.kernels["harness_clock"] = replace(KERNELS["harness_clock"], run=moving)
    arms = built(host_gpu, opened, "AB")
    a, b = arms.values()
    with Sampler(opened.stream, kernel(host_gpu, "harness_clock"), 4) as sampler:
        _, hertz = sampler.take([a, b, b, a])
    assert np.isnan(hertz[:2]).all() and hertz[2:] == pytest.approx([1.9e9] * 2)
