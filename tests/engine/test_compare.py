"""Two made-up H200 runs held against each other: what is claimed of one build, and of a planted slowdown.

`--campaigns` takes 200 pairs of runs with 288 rows each, CI 20 with 72. A fixed rule (1 % on medians) stands
beside it: it claims something of one build in every pair.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest

from probes.core.types import BadInput
from probes.engine import compare
from probes.engine.compare import Comparison, Matched
from probes.engine.sides import Report
from probes.report.rows import Row
from tests.engine import two_runs
from tests.engine.two_runs import HIGH_HZ, Build, head, run

SMALL = Build(groups=3)
CLAIMS = ("FASTER", "SLOWER")


@dataclass
class Found:
    """What a campaign saw."""

    pairs: int = 0
    claimed: int = 0  # pairs of runs of one build with a claim
    fixed: int = 0  # and by a fixed rule on medians
    outside: int = 0  # intervals that miss no change
    intervals: int = 0
    planted: dict[str, list[bool]] | None = None
    elsewhere: int = 0  # claims of rows that nobody changed


def line(found: Comparison, group: int, name: str, kind: str = "time") -> Matched:
    return next(
        x for x in found.lines if (x.kind, x.row.case, x.row.variant) == (kind, f"case{group}", name)
    )  # fmt: skip


@pytest.fixture(scope="module")
def campaign_found(campaign: int) -> Found:
    large = campaign > 500
    build, pairs = (Build(), 200) if large else (SMALL, 20)
    rng, out = np.random.default_rng(1), Found(planted={"contest": [], "alone": []})
    assert out.planted is not None
    names = {
        k: [x for x in build.rows if x[1].startswith(p)] for k, p in (("contest", "arm"), ("alone", "alone"))
    }
    for i in range(pairs):
        old, new = run(build, 3 * i), run(build, 3 * i + 1)
        same = compare.compare([old], [new], 0.01)
        out.pairs += 1
        out.claimed += any(x.answer in CLAIMS for x in same.lines)
        out.fixed += any(x.kind == "time" and abs((x.new or 0) / (x.old or 1) - 1) > 0.01 for x in same.lines)
        known = [x.found for x in same.lines if x.found]
        out.outside += sum(not c.low <= 0 <= c.high for c in known)
        out.intervals += len(known)
        chosen = {kind: keys[rng.integers(len(keys))] for kind, keys in names.items()}
        slow = compare.compare([old], [run(build, 3 * i + 2, dict.fromkeys(chosen.values(), 0.03))], 0.01)
        for kind, (g, name) in chosen.items():
            out.planted[kind].append(line(slow, g, name).answer == "SLOWER")
        changed = {(f"case{g}", name) for g, name in chosen.values()}
        out.elsewhere += any(
            x.answer in CLAIMS and not {(x.row.case, v) for v in (x.row.variant, x.row.of)} & changed
            for x in slow.lines
        )
    print({k: sum(v) for k, v in out.planted.items()}, replace(out, planted=None))
    return out


def test_one_build_is_seldom_claimed_to_differ(campaign_found: Found) -> None:
    f = campaign_found
    assert f.claimed <= 0.01 * f.pairs and f.elsewhere <= 0.01 * f.pairs
    assert f.outside <= 0.012 * f.intervals
    assert f.fixed >= 0.9 * f.pairs  # what a fixed rule does


def test_a_slowdown_of_three_per_cent_is_found(campaign_found: Found) -> None:
    """In a contest's rows always; in eight samples alone where they are not too noisy."""
    planted = campaign_found.planted
    assert planted and np.mean(planted["contest"]) >= 0.95
    assert np.mean(planted["alone"]) >= 0.5


def test_files_are_pooled_as_processes() -> None:
    """Three runs a side find in eight samples alone what one run a side may not."""
    rng, alone = np.random.default_rng(0), [k for k in SMALL.rows if k[1].startswith("alone")]
    hits = []
    for i in range(4):
        chosen = [alone[j] for j in rng.choice(len(alone), 8, replace=False)]
        old = [run(SMALL, 10 * i + k) for k in range(3)]
        new = [run(SMALL, 10 * i + 5 + k, dict.fromkeys(chosen, 0.03)) for k in range(3)]
        found = compare.compare(old, new, 0.01)
        hits += [line(found, *key).answer == "SLOWER" for key in chosen]
        assert {x.processes for x in found.lines} == {3}
    assert np.mean(hits) >= 0.9


@pytest.fixture(scope="module")
def pair() -> tuple[Report, Report]:
    return run(SMALL, 1), run(SMALL, 2)


def changed(report: Report, name: str, **fields: object) -> Report:
    """The report with one row of group 0 changed."""
    rows = [replace(r, **fields) if (r.case, r.variant) == ("case0", name) else r for r in report.rows]  # type: ignore[arg-type]
    return Report(report.name, report.head, rows)


def test_drift_is_taken_out_and_told(pair: tuple[Report, Report]) -> None:
    found = compare.compare([pair[0]], [pair[1]], 0.01)
    moved = np.median([np.log((x.new or 1) / (x.old or 1)) for x in found.lines if x.kind == "time"])
    assert abs(moved) > 0.003 and found.drift.m == pytest.approx(moved, abs=0.002)
    assert found.drift.rows == 3 * 6


def test_identical_reports_are_the_same_everywhere(pair: tuple[Report, Report]) -> None:
    old = changed(pair[0], "arm0", cold=False, missing=["a proof"])
    found = compare.compare([old], [old], 0.01)
    assert {(x.answer, x.reason) for x in found.lines} == {("SAME", "identical")}


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"bitwise": False}, "doubt:not-bitwise"), ({"missing": ["a race proof"]}, "doubt:missing-proof"),
        ({"cold": False}, "doubt:hot"), ({"fraction_of_ceiling": 1.25}, "doubt:above-a-read"),
        ({"samples_s": [1e-5] * 4, "windows": 2}, "too-few-samples"),
    ],
)  # fmt: skip
def test_doubts_block(pair: tuple[Report, Report], fields: dict[str, object], reason: str) -> None:
    found = compare.compare([pair[0]], [changed(pair[1], "alone0", **fields)], 0.01)
    got = line(found, 0, "alone0")
    assert (got.answer, got.reason) == ("UNCLEAR", reason)


def test_blocks_that_are_missing_leave_the_survey(pair: tuple[Report, Report]) -> None:
    none = changed(pair[1], "arm0:base", blocks_s=[], block_clock_hz=[])
    found = compare.compare([pair[0]], [none], 0.01)
    lever = line(found, 0, "arm0:base", "lever")
    assert (lever.answer, lever.reason, lever.found) == ("UNCLEAR", "blocks-missing", None)
    assert line(found, 0, "arm0").places == 8


def test_a_clock_that_explains_a_change_is_told() -> None:
    slow = run(SMALL, 2, {(0, "arm0"): 0.05})
    old = run(SMALL, 1)
    found = compare.compare([old], [changed(slow, "arm0", sm_clock_hz=0.9 * HIGH_HZ)], 0.01)
    got = line(found, 0, "arm0")
    assert (got.answer, got.reason) == ("UNCLEAR", "low-clock")
    rows = [replace(r, sm_clock_hz=0.8 * HIGH_HZ) if r.samples_s else r for r in slow.rows]
    told = compare.compare([old], [Report("low.json", head(), rows)], 0.01).notes
    assert told == ["the new side ran at a low clock throughout: 1.58 GHz against 1.98"]


def test_a_lever_whose_baseline_gained_is_no_regression() -> None:
    """Nothing is slower; the levers over the faster baseline are, and say why."""
    faster = {(g, "base"): -0.06 for g in range(SMALL.groups)}
    new = run(SMALL, 2, faster)
    new.head.kernels_sha256 = "other"
    found = compare.compare([run(SMALL, 1)], [new], 0.01)
    assert line(found, 0, "base").answer == "FASTER"
    lever = line(found, 0, "arm0:base", "lever")
    assert (lever.answer, lever.reason) == ("SLOWER", "baseline-faster") and lever.baseline == "base"
    assert found.exit_code("slower") == 0


def test_exit_codes(pair: tuple[Report, Report]) -> None:
    found = compare.compare([pair[0]], [pair[1]], 0.01)
    assert found.count("UNCLEAR") and not found.count("SLOWER")
    assert (found.exit_code("slower"), found.exit_code("unclear")) == (0, 5)
    worse = compare.compare([pair[0]], [run(SMALL, 2, {(0, "arm0"): 0.05})], 0.01)
    assert (worse.exit_code("slower"), worse.exit_code("unclear")) == (4, 4)


def test_without_unchanged_rows_the_drift_is_unknown(pair: tuple[Report, Report]) -> None:
    """One row in common: a change of 3 % may be drift, one of 15 % is none."""
    one = [Report(r.name, r.head, [x for x in r.rows if x.id == "l1/case0/arm0/cu"]) for r in pair]
    found = compare.compare([one[0]], [one[1]], 0.01)
    assert [(x.answer, x.reason) for x in found.lines] == [("UNCLEAR", "no-controls")]
    times = [[t * 1.15 for t in r.samples_s] for r in one[0].rows]
    slower = [replace(r, samples_s=t) for r, t in zip(one[0].rows, times, strict=True)]
    found = compare.compare([one[0]], [Report("x.json", head(), slower)], 0.01)
    assert [x.answer for x in found.lines] == ["SLOWER"]


def report(rows: Sequence[Row], name: str = "new.json", **more: object) -> Report:
    return Report(name, head(**more), list(rows))


def test_what_may_not_be_compared_is_refused_by_the_flag_that_permits_it(pair: tuple[Report, Report]) -> None:
    old, rows = pair[0], pair[1].rows
    turned = [replace(r, rotation_bytes=1 << 30) if r.samples_s else r for r in rows]
    for what, new in (
        ("devices", report(rows, device="gb10")), ("seeds", report(rows, seed=3)),
        ("bars", report(rows, bars_sha256="other")), ("rotations", report(turned)),
    ):  # fmt: skip
        with pytest.raises(BadInput, match=f"--across {what} permits it") as told:
            compare.permit([old], [new], ())
        assert "\n" not in str(told.value)
        compare.permit([old], [new], [what])
    with pytest.raises(BadInput, match="no timed row in common: l1 rows against l1 rows"):
        compare.permit([old], [report([replace(r, case=f"other_{r.case}") for r in rows])], ())
    with pytest.raises(BadInput, match="schema 2"):
        report(rows, schema=2)
    with pytest.raises(BadInput, match="predicted"):
        report(rows, mode="predict")
    with pytest.raises(BadInput, match="two rows"):
        compare.permit([old], [report([*rows, replace(rows[0])])], ())


def test_what_one_side_lacks_is_listed(pair: tuple[Report, Report]) -> None:
    fewer = report([r for r in pair[1].rows if r.variant != "alone3"])
    found = compare.compare([pair[0]], [fewer], 0.01)
    assert found.only_old == [f"l1/case{g}/alone3/cu" for g in range(3)] and not found.only_new


def test_an_edit_by_hand_is_told(pair: tuple[Report, Report]) -> None:
    edited = report(pair[1].rows, rows_sha256="0" * 64)
    assert "not those that the run wrote" in compare.compare([pair[0]], [edited], 0.01).notes[0]


def test_made_up_runs_are_reports(pair: tuple[Report, Report]) -> None:
    for row in pair[0].rows:
        row.check()
    assert two_runs.run(SMALL, 1).rows == pair[0].rows
