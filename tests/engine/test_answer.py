"""The answer's lines out of verdict rows, and that the README's figures are those of the reports."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from probes.commands import readme
from probes.engine import answer, probe
from probes.report.rows import Row

ROOT = Path(__file__).resolve().parents[2]


def verdict(variant: str, case: str, scope: str, ratio: float, **more: object) -> Row:
    row = Row(
        probe="l1", case=case, variant=variant, backend="cu", source="measured", role="verdict", scope=scope,
        verdict="GO", ratio_to_baseline=ratio, ratio_low=ratio - 0.01, ratio_high=ratio + 0.002,
        baseline="padded_ring",
    )  # fmt: skip
    for name, value in more.items():
        setattr(row, name, value)
    return row


def test_a_line_is_a_model_s_where_there_are_sums_and_names_what_it_is_held_against() -> None:
    rows = [
        verdict("dpl_best", "attn_v_14b", "each", 0.9),
        verdict("dpl_best", "model_14b", "sum", 0.868, of="dpl_ring"),
        verdict(
            "dpl_best", "model_14b", "sum", 0.87, of="dpl_ring", backend="numba", baseline="padded_async"
        ),
        verdict("gs", "model_14b", "sum", 0.9),
    ]
    (line,) = answer.lines("l1", rows)
    assert (line.lever, line.case, set(line.by)) == ("dpl_best", "model_14b", {"cu", "numba"})
    assert answer.change(line.first) == "-13.2 % [-14.2, -13.0]"
    assert answer.against(line) == "dpl_ring over padded_ring / dpl_ring over padded_async"
    assert answer.lines("l2", rows) == []


def test_a_contest_s_lever_is_told_for_its_own_cases_alone() -> None:
    rows = [replace(verdict("pdl_entry", c, "all", 0.97), probe="l2") for c in ("decode13", "ffn_down24")]
    assert [line.case for line in answer.lines("l2", rows)] == ["decode13"]
    assert all(answer.levers(c) for name in probe.names() for c in probe.table(name).CONTESTS)


def test_the_readme_states_no_figure_that_no_report_gave() -> None:
    """Beside the blocks that are made from reports, the section on results has no per cent of its own."""
    text = (ROOT / "README.md").read_text()
    section = text[text.index("## A real report") : text.index("## How to read a table")]
    for name in (readme.SHORT, *probe.names()):
        section = re.sub(rf"<!-- {name}:begin -->.*?<!-- {name}:end -->", "", section, flags=re.S)
    told = [line for line in section.splitlines() if re.search(r"\d\s?(%|µs|GB/s)", line)]
    assert len(told) == 1 and "its 99 % interval" in told[0]
