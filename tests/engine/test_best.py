"""Which rows a contest holds against each other: best against best, by language, without a sweep's points."""

from __future__ import annotations

from dataclasses import replace

import pytest

from probes.engine import judge
from probes.l1 import analysis, table
from probes.report.rows import Row
from tests.block_rows import paired
from tests.l1.l1_rows import judged, measured

BEST = next(c for c in table.CONTESTS if c.sides)


def surveyed(**times: float) -> list[Row]:
    """L1's rows of one case, some in other times; no contest was timed yet."""
    rows = [r for r in measured(0.8) if r.role != "contest" and r.case == "ffn_down_14b"]
    like = next(r for r in rows if r.variant == "dpl_pf")
    made = {r.variant: r for r in rows} | {
        v: replace(like, variant=v, time_s=t, samples_s=[t] * 8, windows=4) for v, t in times.items()
    }
    return list(made.values())


def sides(rows: list[Row], name: str = "dpl_best") -> tuple[str, str] | None:
    found = judge.both(rows, BEST, name)
    return (found[0].variant, found[1].variant) if found else None


def test_a_side_is_the_fastest_of_its_rows() -> None:
    assert sides(surveyed(dpl_ring=1e-6, dpl_loop=2e-6, padded_ring=3e-6)) == ("dpl_ring", "padded_ring")
    assert sides(surveyed(dpl_ring=3e-6, dpl_loop=2e-6, padded_ring=4e-6)) == ("dpl_loop", "padded_ring")


def test_a_row_that_no_check_stands_behind_is_no_side() -> None:
    rows = surveyed(dpl_ring=1e-6, dpl_loop=2e-6, padded_ring=3e-6)
    unchecked = [replace(r, bitwise=None) if r.variant == "dpl_ring" else r for r in rows]
    assert sides(unchecked) == ("dpl_loop", "padded_ring")


def test_a_contest_needs_both_of_its_sides() -> None:
    rows = surveyed()
    assert sides([r for r in rows if not r.variant.startswith("padded")]) is None
    assert sides([]) is None


@pytest.mark.parametrize(("cu", "numba"), [("GO", "NO-GO"), ("NO-GO", "GO")])
def test_each_language_is_judged_by_its_own_rows(cu: str, numba: str) -> None:
    ratio = {"GO": 0.8, "NO-GO": 1.1}
    rows = [
        replace(r, backend=b) for b, word in (("cu", cu), ("numba", numba)) for r in measured(ratio[word])
    ]
    found = {(r.backend, r.verdict) for r in judged(rows) if r.variant == "dpl"}
    assert found == {("cu", cu), ("numba", numba)}


def test_a_sweep_s_points_decide_nothing() -> None:
    rows = measured(0.8)
    assert judged(rows)
    assert judged([replace(r, sweep="geometries") for r in rows]) == []


def test_what_repeats_nothing_is_no_a_a_pair() -> None:
    rows = surveyed()
    again = [p for p in judge.pairs(rows, table.CONTESTS, analysis) if p.again]
    assert [p.name for p in again] == ["padded_loop_aa:padded_loop"]
    plain = [replace(r, role="variant") if r.variant == "padded_loop_aa" else r for r in rows]
    assert not [p for p in judge.pairs(plain, table.CONTESTS, analysis) if p.again]


def test_a_row_is_not_held_against_itself() -> None:
    rows = [r for r in surveyed() if r.variant != "dispatch_dpl"]
    same = [replace(r, variant="dispatch_dpl") for r in rows if r.variant == "dispatch_padded"]
    names = {p.name for p in judge.pairs([*rows, *same], table.CONTESTS, analysis)}
    assert all(a != b for a, b in (n.split(":") for n in names)) and names
    assert paired(rows, table.CONTESTS, analysis)
