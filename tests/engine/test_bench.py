"""What the bench times when, and what a row says of its own samples."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from probes import cli
from probes.core.types import WrongResult
from probes.engine.bench import Bench
from probes.gpu import facts, sampling, timing
from probes.gpu.sampling import Samples
from probes.gpu.timing import Arm
from tests.host_arms import arm
from tests.host_gpu import HostGpu, Running
from tests.host_kernels import KERNELS
from tests.host_specs import spec

# What is timed when


def test_eager_launches_and_event_loops_come_last(
    host_gpu: HostGpu, host_bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They leave the GPU in another state: the survey and the contests of graphs are over by then."""
    seen: list[str] = []

    def noted(module: Any, name: str, what: Any) -> None:
        true = getattr(module, name)

        def call(*args: Any, **more: Any) -> Any:
            seen.append(f"{name} {what(*args)}".strip())
            return true(*args, **more)

        monkeypatch.setattr(module, name, call)

    noted(sampling, "survey", lambda stream, arms, *rest: "+".join(a.name[0] for a in arms))
    noted(sampling, "rounds", lambda *rest: "")
    noted(timing, "event_loop_s", lambda stream, a: a.name[0])
    noted(Arm, "build", lambda a, stream: a.name[0])
    noted(Arm, "recheck", lambda a: a.name[0])
    host_gpu.seconds = lambda x: 1e-4
    arms = [(spec(host_gpu, None, n), arm(host_gpu, f"{n}/cu")) for n in "abc"]
    arms[1][1].graph = False
    rows = host_bench.measure("l1", arms, "case")
    assert [r.variant for r in rows] == ["a", "b", "c"], "rows in the order of the arms"
    assert seen == [
        "build a", "build b", "build c", "survey a+c", "rounds", "survey b", "event_loop_s a", "recheck a",
        "event_loop_s b", "recheck b", "event_loop_s c", "recheck c",
    ]  # fmt: skip
    assert all(r.bitwise and r.event_loop_time_s for r in rows)


def test_only_what_takes_50_us_has_an_event_loop(host_gpu: HostGpu, host_bench: Bench) -> None:
    for seconds, there in ((40e-6, False), (60e-6, True)):
        host_gpu.seconds = lambda x, t=seconds: t
        (row,) = host_bench.measure("l1", [(spec(host_gpu), arm(host_gpu, "read/cu"))], "case")
        assert (row.event_loop_time_s is not None) is there


def test_a_run_s_seeds_are_its_flag_s_and_a_contest_s_are_not_the_survey_s(
    host_gpu: HostGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    for name, at in (("survey", 4), ("rounds", 4)):
        true = getattr(sampling, name)
        monkeypatch.setattr(sampling, name, lambda *a, t=true, k=at: seen.append(a[k]) or t(*a))
    bench = Bench(facts.open_gpu(0), 7, 2, lambda line: None)
    bench.measure("l1", [(spec(host_gpu), arm(host_gpu, "read/cu"))], "case")
    assert seen == [7, 8]


def test_an_arm_that_goes_wrong_while_it_is_timed_gives_no_row(host_gpu: HostGpu, host_bench: Bench) -> None:
    seen = [0]

    def run(x: Running, *args: int) -> None:
        KERNELS["harness_read"].run(x, *args)
        x.repeats = False
        seen[0] += 1
        if seen[0] > 30:
            x.gpu.at(args[1], np.uint32, 1)[0] ^= 1

    host_gpu.kernels["harness_read"] = replace(KERNELS["harness_read"], run=run)
    with pytest.raises(WrongResult, match="read/cu, after timing"):
        host_bench.measure("l1", [(spec(host_gpu), arm(host_gpu, "read/cu"))], "case")


# A row's own samples


def row_of(
    host: HostGpu, bench: Bench, times: Sequence[float], clocks: Sequence[float], usual: float = 1.9e9
) -> Any:
    found = Samples(np.reshape(times, (-1, 2)), np.reshape(clocks, (-1, 2)))
    return bench._row("l1", spec(host), found, usual)  # internals


def test_samples_below_97_per_cent_of_the_usual_clock_are_marked(
    host_gpu: HostGpu, host_bench: Bench
) -> None:
    clocks = [1.9e9, 0.98 * 1.9e9, 0.96 * 1.9e9, np.nan]
    row = row_of(host_gpu, host_bench, [1e-6] * 4, clocks)
    assert (row.throttled_samples, row.throttled) == ([2], 1)
    assert row.sm_clock_hz == pytest.approx(0.98 * 1.9e9)
    assert row.doubts() == ["1 of 4 samples at a lower clock"]


def test_samples_without_a_slope_are_left_out_and_told(host_gpu: HostGpu, host_bench: Bench) -> None:
    row = row_of(host_gpu, host_bench, [1e-6, np.nan, 3e-6, 2e-6], [1.9e9, 1.9e9, 1.0, 1.9e9])
    assert row.samples_s == [1e-6, 3e-6, 2e-6] and row.time_s == 2e-6 and row.windows is None
    assert not row.missing, "the tables lack a sample, contests have blocks of their own"
    assert row.notes == ["1 of 4 samples had a slope at or below 0: another process on the GPU?"]
    assert row.throttled_samples == [1], "places are those of the samples that are there"
    none = row_of(host_gpu, host_bench, [np.nan] * 4, [1.9e9] * 4)
    assert none.samples_s == [] and none.time_s is None and none.bitwise is None
    assert none.skipped == none.notes[0]
    row.check()
    none.check()


# Processes


def test_every_process_has_a_seed_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    from probes.engine import processes

    args = cli.parser("l1").parse_args(
        ["--processes", "3", "--seed", "5", "--windows", "4", "--blocks", "32"]
    )
    seen = [processes.child_argv("l1", args, tmp_path / "x.json", k) for k in range(3)]
    parsed = [cli.parser("l1").parse_args(argv) for argv in seen]
    assert [a.seed for a in parsed] == [5, 6, 7] and {a.blocks for a in parsed} == {32}
    started: list[int] = []

    def child(name: str, args: argparse.Namespace, k: int, out: Any) -> list[Any]:
        started.append(k)
        return []

    monkeypatch.setattr(processes, "_child", child)
    list(processes.pooled("l1", args, lambda line: None))
    assert started == [0, 1, 2]
