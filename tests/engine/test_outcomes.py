"""How a run ends: exit codes, which rule a file is judged by, and pooled blocks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from probes import __main__, cli
from probes.commands import replay
from probes.core.types import BadInput
from probes.engine import judge, old_rule, processes
from probes.engine import run as engine
from probes.engine.block_rule import BlockRule
from probes.engine.run import Run
from probes.l1 import analysis, table
from probes.report import provenance, store
from probes.report.provenance import Head
from probes.report.rows import Row
from probes.verdict import bars, blocks
from tests.engine.test_block_rule import contest
from tests.host_gpu import HostGpu
from tests.host_run import Commands
from tests.l1.l1_rows import judged, measured


def head(**more: object) -> Head:
    made = provenance.collect(
        mode="measure", device="test", seed=0, kernels_sha256="0", argv=["l1"], probes=("l1",)
    )
    return replace(made, **more)


def verdict(word: str) -> Row:
    return Row(
        probe="l1", case=word, variant="dpl", backend="cu", source="measured", role="verdict", verdict=word
    )


@pytest.mark.parametrize(
    ("words", "mode", "code"),
    [
        (["GO", "NO-GO"], "measure", 0), (["GO", "INCONCLUSIVE"], "measure", 3), ([], "measure", 3),
        ([], "predict", 0),
    ],
)  # fmt: skip
def test_a_run_ends_with_0_only_where_all_was_decided(words: list[str], mode: str, code: int) -> None:
    done = Run("l1", head(mode=mode), [verdict(w) for w in words])
    assert cli.code_of(done) == code


def test_a_sweep_judges_nothing_and_ends_well() -> None:
    point = Row(
        probe="l1", case="c", variant="gpl_ring@8r2b0s-drawn", backend="cu", source="measured", role="point",
        sweep="geometries", of="gpl_ring", time_s=1e-6, samples_s=[1e-6] * 4, windows=2, processes=1,
    )  # fmt: skip
    assert cli.code_of(Run("l1", head(), [point])) == 0


def replayed(path: Path, at: Head, rows: list[Row]) -> int:
    store.write_json(path, at, rows)
    return __main__.main(["replay", str(path)])


def made(ratio: float) -> list[Row]:
    """Rows of L1 in both languages, with figures that are their own."""
    rows = []
    for backend, k in (("cu", 1.0), ("numba", 1.001)):
        for r in measured(ratio):
            own, side_by_side = ([t * k for t in some] for some in (r.samples_s, r.blocks_s))
            rows.append(replace(r, backend=backend, samples_s=own, blocks_s=side_by_side))
    for r in rows:
        if r.samples_s:
            r.time_s, r.time_s_p25, r.time_s_p75 = blocks.quartiles(r.samples_s)
        r.cold = None
    judge.relate(rows)
    return rows


def test_replay_ends_as_the_verdicts_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "l1.json"
    go, straddling = made(0.8), made(1 - bars.bar("l1.dpl").bar)
    assert replayed(path, head(), [*go, *judged(go)]) == 0, capsys.readouterr().out
    assert replayed(path, head(), [*straddling, *judged(straddling)]) == 3
    assert replayed(path, head(), [r for r in go if r.backend == "cu"]) == 4, "one language is gone"


def test_a_file_that_decides_nothing_ends_with_3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    alone = [r for r in made(0.8) if r.variant == "padded_loop"]
    assert replayed(tmp_path / "l1.json", head(), alone) == 3
    assert "DIFFERS" not in capsys.readouterr().out


def test_a_verdict_that_is_lost_ends_with_4(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, go = tmp_path / "l1.json", made(0.8)
    kept = [r for r in go if not (r.variant == "dispatch_dpl" and r.case == "attn_v_14b")]
    assert replayed(path, head(), [*kept, *judged(go)]) == 4
    out = capsys.readouterr().out
    assert "l1/attn_v_14b/dpl/cu was GO in the file and cannot be judged" in out


def test_a_file_of_an_older_schema_is_judged_by_the_rule_of_its_time(tmp_path: Path) -> None:
    rows = made(0.8)
    for schema, rule in ((1, old_rule.Windows), (2, old_rule.Windows), (3, BlockRule)):
        assert type(replay.rule_of(head(schema=schema), rows)) is rule
    rings = {"padded_loop": ("padded_ring", None), "padded_loop_aa": ("padded_ring_aa", "padded_ring")}
    for r in [r for r in rows if r.variant in rings]:
        name, of = rings[r.variant]
        rows.append(replace(r, variant=name, of=of))
    old = replay.rejudged(rows, ["l1"], head(schema=2), tmp_path)
    new = replay.rejudged(rows, ["l1"], head(schema=3), tmp_path)
    assert {r.verdict for r in old} == {r.verdict for r in new} == {"GO"}
    assert all("noise floor" in (r.reason or "") for r in old)
    assert all("placement" in (r.reason or "") for r in new)
    assert not [r for r in old if r.variant.endswith("_best")], "best against best is not asked of it"


def test_replay_holds_a_run_s_clock_against_the_device_s_highest() -> None:
    by = replay.rule_of(head(device_facts={"sm_clock_hz": 2.0e9}), [contest(clock=[1.4e9] * 64)])
    assert isinstance(by, BlockRule) and "70 % of the device's highest" in by.clock


def test_rows_that_no_check_stands_behind_decide_nothing(tmp_path: Path) -> None:
    rows = made(0.8)
    unchecked = [replace(r, bitwise=None) if r.variant == "dispatch_dpl" else r for r in rows]
    found = replay.rejudged(unchecked, ["l1"], head(), tmp_path)
    assert not [r for r in found if r.variant == "dpl"] and [r for r in rows if r.variant == "dispatch_dpl"]


def test_a_floor_is_converted_to_the_bar_s_own_metric() -> None:
    """A floor of 4.9 % of time is one of 5.15 % of speed: a gain of 5 % is not above it."""
    bar = bars.bar("l2.pdl")
    ratio = 1 / 1.05
    assert bars.judge_ratio(ratio, ratio, ratio, 0.049, bar).verdict == "INCONCLUSIVE"
    assert bars.judge_ratio(ratio, ratio, ratio, 0.047, bar).verdict == "GO"
    assert bars.judge_ratio(ratio, ratio, ratio, 1.5, bar).verdict == "INCONCLUSIVE"


@pytest.mark.parametrize(("blocks_s", "clocks"), [(3, 0), (8, 1), (8, 8), (0, 1)])
def test_a_row_s_blocks_and_clocks_fit_together(blocks_s: int, clocks: int) -> None:
    good = contest(count=2)
    good.check()
    bad = replace(good, blocks_s=[1e-5] * blocks_s, block_clock_hz=[1e9] * clocks)
    with pytest.raises(BadInput, match="no whole blocks of 4"):
        bad.check()


def test_pooled_blocks_keep_who_came_first() -> None:
    """A process that ended on an odd count would turn every ratio behind it round."""
    odd, even = contest(0.9, 17, seed=1), contest(0.9, 32, seed=2)
    odd.retaken, even.missing, odd.missing = 2, ["x"], ["x"]
    one = processes.join([odd, even])
    assert len(one.blocks_s) == 4 * 48 and len(one.block_clock_hz) == 48
    e = blocks.interval(blocks.figures(one.blocks_s))
    assert e and e.ratio.high < 0.91 and one.retaken == 2 and one.missing == ["x"]


@pytest.mark.parametrize(("most", "looks"), [(16, (16,)), (32, (16, 32)), (64, (16, 32, 64))])
def test_the_looks_of_a_run_end_at_its_flag(most: int, looks: tuple[int, ...]) -> None:
    assert engine.looks_of(most) == looks


def test_a_model_is_judged_with_all_its_cases_alone() -> None:
    found = {r.case for r in judge.judge(measured(0.8), table.CONTESTS, analysis)}
    assert "model_14b" in found
    part = [r for r in measured(0.8) if r.case != "attn_v_14b"]
    assert "model_14b" not in {r.case for r in judge.judge(part, table.CONTESTS, analysis)}


def test_samples_that_were_left_out_are_told_in_the_report(small_l1: HostGpu, commands: Commands) -> None:
    """A probe's proofs come after them, and take none of their words away."""
    small_l1.disturbed = lambda k: 1e-2 if k % 7 == 0 else 0.0
    done = commands("l1", "--backend", "cu", "--case", "attn_v_14b", "--windows", "4", "--blocks", "16")
    lacking = [r for r in done.rows if r.samples_s and len(r.samples_s) < 8]
    assert {"variant", "again", "read"} <= {r.role for r in lacking}
    for row in lacking:
        told = f"{8 - len(row.samples_s)} of 8 samples had a slope at or below 0: another process on the GPU?"
        assert told in row.notes and told in done.report and row.windows is None
