"""--counters on a GPU: figures in the rows of every probe, and the table of what is left to a plain read."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from probes import cli
from probes.report import store
from probes.report.rows import Row

pytestmark = pytest.mark.gpu

RUNS = {
    "l1": (["--case", "attn_v_14b", "--layout", "gpl", "--form", "ring"], {"padded_ring", "gpl_ring"}),
    "l2": (
        ["--case", "attn_v24", "--case", "bandwidth24", "--arm", "pdl_late_tail"],
        {f"profiled_{name}_{kind}" for name in ("attn_v", "stream") for kind in ("plain", "late", "read")},
    ),
    "l3": (
        ["--nf", "1056", "--variant", "pair_ring", "--variant", "form_c"],
        {"pair", "pair_ring", "form_c"},
    ),
}


@pytest.mark.parametrize("name", [*RUNS])
def test_the_profiler_s_figures_land_in_rows_and_report(name: str, tmp_path: Path) -> None:
    """Only a GPU has counters to profile."""
    if not shutil.which("ncu"):
        pytest.skip("needs ncu of Nsight Compute on PATH")
    argv, wanted = RUNS[name]
    out = tmp_path / "out.json"
    common = ["--counters", "--quick", "--windows", "2", "--backend", "cu", "--json", str(out)]
    assert cli.main(name, [*argv, *common]) in (0, 3)
    _, rows = store.read_json(out)
    notes = [n for r in rows for n in r.notes if "profile" in n or "ncu" in n]
    denied = next((n for n in notes if "ERR_NVGPUCTRPERM" in n), "")
    if denied:
        pytest.skip(denied)
    # A verdict's row has its variant's name too, and no bytes.
    shown = [r for r in rows if r.variant in wanted and r.content_bytes]
    if all(r.skipped for r in rows):
        pytest.skip(f"nothing runs here: {rows[0].skipped}")
    ran = {r.variant: r for r in shown if not r.skipped}
    assert wanted == {*ran} | {r.variant for r in shown if r.skipped}, notes
    for row in ran.values():
        plausible(row)
    assert "What is left to a plain read of the same bytes" in out.with_suffix(".md").read_text()


def plausible(row: Row) -> None:
    """The content's bytes in a time that a GPU could take."""
    assert row.dram_bytes_read and row.profiler_time_s and row.content_bytes, row.id
    assert 0.9 < row.dram_bytes_read / row.content_bytes < 1.5, row.id
    assert 5e-7 < row.profiler_time_s < 1e-2, row.id
    for fraction in (row.profiler_dram_fraction, row.profiler_issue_fraction):
        assert fraction is None or 0 <= fraction <= 1.05, row.id
    if row.variant.startswith("profiled_"):
        assert not row.samples_s and row.time_s is None
