"""The judge: committed reports keep their verdict rows, and no note moves one.

Each committed report is judged once by `replay`, as its file says; everything here is held against that.
Under tests/data/schema1 lie the timed rows of three reports from before contests had blocks of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from probes.commands import replay
from probes.engine import judge, probe, sweep
from probes.engine.probe import Contest
from probes.report import store
from probes.report.provenance import Head
from probes.report.rows import Row
from tests.l1.l1_rows import measured

ROOT = Path(__file__).resolve().parents[2]
OLD = ROOT / "tests" / "data" / "schema1"
REPORTS = sorted(
    p for name in probe.names() for p in (ROOT / "out").glob(f"*/{name}*.json") if p.parent.name != "runs"
) + sorted(OLD.glob("*.json"))
FOLDERS = (ROOT / "out" / "nvidia-h200", OLD)
NUMBERS = ("ratio_to_baseline", "ratio_low", "ratio_high", "noise_floor")
WORDS = ("verdict", "recorded", "agrees", "reason")
NOISE = (
    "a one-shot run", "hot", "hot: too little memory to rotate over cold copies", "proof missing: x",
    "dispatched to y", "dispatched to gpl_pf3", "geometry 8r2b0s-drawn, 3 stages",
)  # fmt: skip
"""Notes that something in a reader of schema 1 would take for more than words."""

Judge = Callable[[Sequence[Row]], list[Row]]


def said(rows: Sequence[Row]) -> dict[str, Any]:
    """Verdict rows by id: their words as they are, their numbers to a relative 1e-12."""
    found = {
        r.id: (*(getattr(r, n) for n in WORDS), *(pytest.approx(getattr(r, n), rel=1e-12) for n in NUMBERS))
        for r in rows
    }
    assert len(found) == len(rows)
    return found


def plain(rows: Sequence[Row]) -> dict[str, Any]:
    """The same as plain values, to be held against `said`."""
    return {r.id: tuple(getattr(r, n) for n in (*WORDS, *NUMBERS)) for r in rows}


def decided(rows: Sequence[Row]) -> list[Row]:
    """The rows with their reasons up to the rule's own sentence: what an analysis adds may be worded anew."""
    return [replace(r, reason=(r.reason or "").partition(". ")[0]) for r in rows]


def noted(rows: Sequence[Row], notes: Sequence[str]) -> list[Row]:
    """The rows with these notes: none, or besides their own."""
    return [replace(r, notes=[*r.notes, *notes] if notes else []) for r in rows]


def moved_by_notes(rows: Sequence[Row], judged: Judge) -> list[str]:
    """What comes out otherwise once notes are erased, or noise is added."""
    before = said(judged(rows))
    out = []
    for what, notes in (("erased", ()), ("noise", NOISE)):
        after = plain(judged(noted(rows, notes)))
        out += [f"{what}: {i}" for i in before.keys() | after.keys() if after.get(i) != before.get(i)]
    return out


@dataclass
class Committed:
    """A committed report: its rows without verdicts, the file's verdicts, and those of `replay`."""

    path: Path
    head: Head
    rows: list[Row]
    kept: list[Row]
    again: list[Row]

    def judged(self, rows: Sequence[Row]) -> list[Row]:
        return replay.rejudged(rows, [name_of(self.path)], self.head, self.path)


def name_of(path: Path) -> str:
    """l3 of l3.json and of l3-48sm.json."""
    return path.stem.partition("-")[0]


def opened(path: Path) -> Committed:
    head, rows = store.read_json(path)
    kept = [r for r in rows if r.verdict]
    made = Committed(path, head, [r for r in rows if not r.verdict], kept, [])
    made.again = made.judged(made.rows)
    return made


@pytest.fixture(scope="module", params=REPORTS, ids=lambda p: f"{p.parent.name}/{p.stem}")
def committed(request: pytest.FixtureRequest) -> Committed:
    return opened(request.param)


def test_replay_gives_the_verdict_rows_of_the_file(committed: Committed) -> None:
    again, kept = committed.again, committed.kept
    if committed.head.schema < replay.BLOCKS_SCHEMA:
        again, kept = decided(again), decided(kept)
    assert plain(again) == said(kept)
    swept = sweep.swept(committed.rows)
    assert bool(committed.kept) is not swept, "every report decides something, but for a sweep over launches"
    assert swept is committed.path.stem.endswith(("-sweep", "-geometries"))


def test_no_note_moves_a_verdict_of_a_committed_report(committed: Committed) -> None:
    def judged(rows: Sequence[Row]) -> list[Row]:
        return committed.again if rows is committed.rows else committed.judged(rows)

    assert any(r.notes for r in committed.rows)
    assert moved_by_notes(committed.rows, judged) == []


def deciding(rows: Sequence[Row]) -> set[str]:
    """Ids of the rows that decide something: variants and what a dispatcher chose, never reads or repeats."""
    return {r.id for r in rows if r.role in ("variant", "choice") and r.samples_s}


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda p: p.name)
@pytest.mark.parametrize("name", probe.names())
@pytest.mark.parametrize(
    ("planted", "want"),
    [({"cold": False}, judge.COLD), ({"missing": ["proof missing: a trigger"]}, "proof missing: a trigger")],
)
def test_rows_that_are_hot_or_lack_a_proof_decide_nothing_whatever_is_noted(
    name: str, folder: Path, planted: dict[str, Any], want: str
) -> None:
    """Every row that decides in a committed report is made such a row; notes may say what they like."""
    it = opened(folder / f"{name}.json")
    mine = deciding(it.rows)
    rows = [replace(r, **planted) if r.id in mine else r for r in it.rows]
    found = it.judged(rows)
    assert plain(it.again).keys() == plain(found).keys()
    assert {r.verdict for r in found} == {"INCONCLUSIVE"}
    assert all(want in (r.reason or "") for r in found)
    assert {r.verdict for r in it.again} != {"INCONCLUSIVE"}
    assert moved_by_notes(rows, it.judged) == []


@pytest.mark.parametrize("planted", [{"cold": False}, {"missing": ["proof missing: a trigger"]}])
def test_one_such_row_is_enough_for_its_case_and_its_sum(planted: dict[str, Any]) -> None:
    """Of the made-up rows of L1, where all is GO: one case's variant, then one case's baseline."""

    def judged(rows: Sequence[Row]) -> list[Row]:
        return judge.judge(rows, probe.table("l1").CONTESTS, probe.analysis("l1"))

    rows = measured(0.8)
    assert {r.verdict for r in judged(rows)} == {"GO"}
    for variant in ("dispatch_dpl", "dispatch_padded"):
        hit = [replace(r, **planted) if (r.case, r.variant) == ("attn_v_14b", variant) else r for r in rows]
        stopped = {r.case for r in judged(hit) if r.verdict == "INCONCLUSIVE"}
        proof_of_the_baseline = "missing" in planted and variant == "dispatch_padded"
        assert stopped == (set() if proof_of_the_baseline else {"attn_v_14b", "model_14b"})
        assert moved_by_notes(hit, judged) == []


def test_a_judge_that_reads_notes_is_seen() -> None:
    """The comparison itself can fail: by a proof read out of a note, and by a note in a reason."""
    rows = [replace(r, notes=["a quiet night"]) for r in measured(0.8)]
    table, true = probe.table("l1"), probe.analysis("l1")

    def blocked(row: Row, base: Row) -> str | None:
        return next((n for n in row.notes if n.startswith("hot")), None)

    def why(rows: Sequence[Row], contest: Contest, row: Row, *rest: Any) -> str:
        return ", ".join(row.notes[:1])

    parts = {n: getattr(true, n) for n in ("pair", "blocked", "why", "why_all")}
    for changed, words in (({"blocked": blocked}, {"noise"}), ({"why": why}, {"erased"})):
        analysis: Any = SimpleNamespace(**(parts | changed))
        found = moved_by_notes(rows, lambda r, a=analysis: judge.judge(r, table.CONTESTS, a))
        assert {line.partition(":")[0] for line in found} == words
    assert moved_by_notes(rows, lambda r: judge.judge(r, table.CONTESTS, true)) == []


def test_the_fastest_of_a_family_of_reads_counts() -> None:
    """A read and its further forms are a family; as dependents they are another."""
    base = measured(0.8)[0]

    def row(variant: str, time_s: float, **more: Any) -> Row:
        own = {"variant": variant, "time_s": time_s, "samples_s": [time_s] * 4, "baseline": None}
        return replace(base, **{**own, "windows": 2, **more})

    def read(variant: str, time_s: float, of: str = "") -> Row:
        return row(variant, time_s, role="read", of=of or None, read=None)

    kernel, dependent = (row(f"k{k}", 4.0, read=name) for k, name in enumerate(("read_x", "read_x_pdl")))
    rows = [
        kernel, dependent, read("read_x", 3.0), read("read_x_4k", 2.0, "read_x"), read("read_x_pdl", 1.0),
        read("read_y", 0.5),
    ]  # fmt: skip
    judge.relate(rows)
    assert kernel.fraction_of_same_bytes_read == 0.5 and dependent.fraction_of_same_bytes_read == 0.25
    assert [r.variant for r in judge.family(rows, kernel)] == ["read_x", "read_x_4k"]
    assert rows[2].same_bytes_read_s is None and not judge.family(rows, rows[2])
