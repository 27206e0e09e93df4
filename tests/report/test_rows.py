"""Rows, their file, and the tables made from them."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probes.core.types import BadInput
from probes.report import store, tables
from probes.report.provenance import Head
from probes.report.rows import FIELDS, Row

FIXED = (
    "probe case variant backend source device shape time_s time_s_p25 time_s_p75 samples_s content_bytes "
    "traffic_bytes content_gbps read_ceiling_gbps fraction_of_ceiling same_bytes_read_s "
    "fraction_of_same_bytes_read registers spill_bytes smem_bytes blocks_per_sm waves tail_fraction "
    "load_balance overlap_s gain_per_interface_s limiter bitwise rotation_bytes l2_bytes sm_clock_hz "
    "throttled ratio_to_baseline ratio_low ratio_high noise_floor verdict recorded agrees reason"
).split()


def row(**more: object) -> Row:
    base: dict[str, object] = {
        "probe": "l1", "case": "ffn_down_14b", "variant": "dpl_loop", "backend": "cu", "source": "measured",
        "device": "nvidia-h200", "shape": [5120, 13824], "time_s": 24.6e-6, "content_bytes": 58_060_800,
        "traffic_bytes": 58_100_000, "content_gbps": 2360.2, "fraction_of_ceiling": 0.512, "registers": 40,
        "spill_bytes": 0, "blocks_per_sm": 6, "limiter": "registers", "waves": 6.46, "tail_fraction": 0.077,
        "ratio_to_baseline": 1.0372, "ratio_low": 1.0341, "ratio_high": 1.0402, "bitwise": True,
        "samples_s": [24.6e-6, 24.7e-6, 24.5e-6, 24.6e-6], "windows": 2, "processes": 1,
    }  # fmt: skip
    return Row(**{**base, **more})


def head(**more: object) -> Head:
    base: dict[str, object] = {
        "mode": "measure", "device": "nvidia-h200", "seed": 7, "kernels_sha256": "ab" * 32,
        "driver": "580.1", "argv": ["-m probes.l1"], "versions": {"numpy": "2.4.6"},
        "time_utc": "2026-01-01T00:00:00Z",
    }  # fmt: skip
    return Head(**{**base, **more})


def test_json_names_are_the_design_s() -> None:
    assert list(FIELDS[: len(FIXED)]) == FIXED
    assert list(row().to_json()) == list(FIELDS)
    want = "schema device driver versions git argv seed bars_sha256 kernels_sha256 time_utc".split()
    assert set(want) <= set(head().to_json())


def test_rows_and_heads_round_trip(tmp_path: Path) -> None:
    rows = [row(), row(variant="pf|x", skipped="needs 256 < units", notes=["hot", "µ"], agrees=False)]
    store.write_json(tmp_path / "deep" / "l1.json", head(complete=True), rows)
    got_head, got = store.read_json(tmp_path / "deep" / "l1.json")
    assert got == rows
    assert got_head == head(complete=True, rows_sha256=store.rows_sha256(rows))
    text = (tmp_path / "deep" / "l1.json").read_text()
    assert text.count("\n") < 50  # one row a line
    store.write_json(tmp_path / "none.json", head(), [])
    assert store.read_json(tmp_path / "none.json") == (head(rows_sha256=store.rows_sha256([])), [])


@settings(max_examples=40, deadline=None)
@given(
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=20),
    st.lists(st.floats(1e-9, 1), max_size=6),
)
def test_any_figure_survives_json(x: float, text: str, samples: list[float]) -> None:
    one = row(time_s=x, reason=text, samples_s=samples, windows=None)
    assert Row.from_json(json.loads(json.dumps(one.to_json()))) == one


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"time_s": "fast"}, "time_s must be float | None, got 'fast'"),
        ({"time_s": float("nan")}, "time_s"),
        ({"time_s": float("inf")}, "time_s"),
        ({"time_s": True}, "time_s"),
        ({"registers": 40.5}, "registers"),
        ({"backend": "opencl"}, "backend must be one of numba, cu, got 'opencl'"),
        ({"source": "guessed"}, "source"),
        ({"verdict": "MAYBE"}, "verdict"),
        ({"samples_s": [1.0, None]}, "samples_s"),
        ({"samples_s": [1.0, 1.0], "windows": 4}, "2 samples, 8 expected"),
        ({"notes": "hot"}, "notes"),
        ({"role": "guest"}, "role must be one of variant, again, "),
        ({"role": None}, "role"),
        ({"missing": "a wait"}, "missing"),
        ({"cold": "no"}, "cold must be bool | None, got 'no'"),
        ({"sweep": True}, "sweep"),
    ],
)
def test_bad_rows_are_refused(change: dict[str, object], text: str) -> None:
    with pytest.raises(BadInput) as e:
        Row.from_json({**row().to_json(), **change})
    assert text in str(e.value)
    with pytest.raises(BadInput):
        replace(row(), **change).to_json()


def good() -> dict[str, object]:
    return {**head().to_json(), "rows": [row().to_json()]}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "not a report's JSON"),
        ("{", "not a report's JSON"),
        ("[]", "an object with a list of rows"),
        ("[" * 100_000, "not a report's JSON"),
        ("{}", "an object with a list of rows"),
        ('{"rows": {}}', "an object with a list of rows"),
        ('{"rows": [], "schema": 99}', "schema 99"),
        ('{"rows": [], "schema": NaN}', "NaN is not a number"),
        (json.dumps({**good(), "rows": [1]}), r"rows\[0\]: a row must be a JSON object, got int"),
        (json.dumps({**good(), "rows": [{}]}), "lacks probe"),
        (json.dumps({**good(), "rows": [{**row().to_json(), "speed": 1}]}), "unknown fields: speed"),
        (json.dumps({**good(), "seed": "x"}), "seed must be int"),
        (json.dumps({**good(), "mode": "dream"}), "measure or predict"),
        (json.dumps({**good(), "colour": 1}), "unknown: colour"),
        (json.dumps({k: v for k, v in good().items() if k != "argv"}), "missing: argv"),
    ],
)
def test_malformed_files_are_refused(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "x.json"
    file.write_text(text)
    with pytest.raises(BadInput, match=says) as e:
        store.read_json(file)
    assert "x.json" in str(e.value)
    assert "\n" not in str(e.value)


def test_unreadable_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe\x00")
    for path in (tmp_path / "gone.json", tmp_path, tmp_path / "bytes.json"):
        with pytest.raises(BadInput, match=path.name):
            store.read_json(path)


def test_a_killed_run_keeps_its_rows(tmp_path: Path) -> None:
    """SIGKILL between rows: the file holds what was finished, says so, and no temporary file is read."""
    file = tmp_path / "l1.json"
    code = f"""
import os, signal, sys
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from pathlib import Path
from probes.report.provenance import Head
from probes.report.rows import Row
from probes.report.store import ReportFile
head = Head(mode="measure", device="d", seed=1, kernels_sha256="", argv=[])
with ReportFile(Path({str(file)!r}), head) as f:
    for k in range(3):
        f.add(Row(probe="l1", case=str(k), variant="v", backend="cu", source="measured"))
    os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", code], timeout=30).returncode == -9
    got_head, rows = store.read_json(file)
    assert [r.case for r in rows] == ["0", "1", "2"]
    assert not got_head.complete
    assert "INCOMPLETE" in tables.document("L1", got_head, rows)


def test_ctrl_c_keeps_finished_rows_and_the_end_completes(tmp_path: Path) -> None:
    file = tmp_path / "l1.json"
    with pytest.raises(KeyboardInterrupt), store.ReportFile(file, head()) as f:
        f.add(row())
        raise KeyboardInterrupt
    assert store.read_json(file) == (head(rows_sha256=store.rows_sha256([row()])), [row()])
    with store.ReportFile(file, head()) as f:
        f.add(one := row())
        one.verdict, one.reason = "NO-GO", "because"
    got_head, rows = store.read_json(file)
    assert got_head.complete
    assert rows[0].verdict == "NO-GO"


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EACCES, errno.EROFS, errno.EDQUOT])
def test_a_full_or_closed_disk_is_one_clear_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    file = tmp_path / "l1.json"
    store.write_json(file, head(), [row()])

    def refuse(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(BadInput, match=os.strerror(code)) as e:
        store.write_json(file, head(), [row(), row()])
    assert "\n" not in str(e.value)
    monkeypatch.undo()
    assert store.read_json(file)[1] == [row()]  # the old file stays whole
    assert list(tmp_path.iterdir()) == [file]  # and no temporary one is left


def test_places_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "file" / "l1.json", tmp_path / "folder", tmp_path / ("x" * 300), Path("a\0b")):
        with pytest.raises(BadInput, match="cannot write"), store.ReportFile(path, head()):
            pytest.fail("nothing may be measured before the file is known to be writable")


def test_units() -> None:
    assert tables.format_time(176.5e-6) == "176.5 µs"
    assert tables.format_time(2.25e-6) == "2.25 µs"
    assert tables.format_time(45.45e-3) == "45.450 ms"
    assert tables.format_time(1.5) == "1.50 s"
    assert tables.format_time(-2e-6) == "-2.00 µs"
    assert tables.format_time(176.5e-6, predicted=True) == "~176.5 µs"
    assert tables.format_percent(0.6213) == "62.1 %"
    assert tables.format_percent(0.0427, 2, sign=True) == "+4.27 %"
    assert tables.format_bytes(58_060_800) == "55.37 MiB"
    assert tables.format_bytes(4 << 30) == "4.00 GiB"
    assert tables.format_bytes(210) == "210 B"
    assert tables.format_ratio(0.829, 0.8261, 0.83224) == "0.8290 [0.8261, 0.8322]"
    assert tables.format_ratio(0.829) == "0.8290"
    assert tables.format_time(None) == tables.format_percent(None) == tables.format_ratio(None) == ""


def test_a_case_s_table() -> None:
    text = tables.case_table([row(), row(variant="padded_loop", ratio_to_baseline=None)])
    title, _, header, *_ = text.splitlines()
    assert title == "ffn_down_14b, 5120x13824 on nvidia-h200: measured"
    for word in ("variant", "backend", "content GB/s", "traffic GB/s", "of ceiling", "regs", "spill B",
                 "blocks/SM (limiter)", "waves", "tail", "ratio [low, high]", "bitwise"):  # fmt: skip
        assert word in header
    assert "source" not in header
    assert "overlap" not in header  # a column nobody fills is not shown
    line = next(x for x in text.splitlines() if x.startswith("dpl_loop"))
    for cell in ("24.60 µs", "2360", "2362", "51.2 %", "6 (registers)", "6.46", "7.7 %",
                 "1.0372 [1.0341, 1.0402]", "yes"):  # fmt: skip
        assert cell in line


def test_every_line_says_its_source_where_they_differ() -> None:
    rows = [row(), row(source="recorded", variant="padded_loop"), row(source="predicted", variant="gs_loop")]
    text = tables.case_table(rows)
    assert text.splitlines()[0].endswith("measured and recorded and predicted")
    lines = text.splitlines()[4:]
    assert all(r.source in line for r, line in zip(rows, lines, strict=True))
    assert ["~24.60 µs" in line for line in lines] == [False, False, True]
    judged = tables.verdict_table([replace(r, verdict="GO", reason="so") for r in rows])
    assert judged.splitlines()[0] == "Verdicts on nvidia-h200: measured and recorded and predicted"
    assert "source" in judged.splitlines()[2]


def test_skipped_and_doubtful_rows_are_seen() -> None:
    text = tables.case_table(
        [row(), row(variant="dpl_pf", time_s=None, skipped="432 units | 513 is too many")]
    )
    assert "SKIPPED (432 units | 513 is too many)" in text
    doubts = row(
        fraction_of_ceiling=1.02,
        fraction_of_same_bytes_read=1.1,
        time_s=100e-6,
        event_loop_time_s=110e-6,
        dram_bytes_read=30_000_000,
        throttled=1,
    ).doubts()
    assert [d.split(":")[0] for d in doubts] == [
        "above the read ceiling",
        "faster than a plain read of the same bytes",
        "the plain event loop differs by +10.0 %",
        "only 52 % of the content came from DRAM",
        "1 of 4 samples at a lower clock",
    ]
    assert row(event_loop_time_s=30e-6).doubts() == []  # below 50 µs the two need not agree
    assert "above the read ceiling" in tables.case_table([row(fraction_of_ceiling=1.02)])
    lacks = tables.case_table([row(missing=["no wait"], notes=["hot"])])
    assert "proof missing: no wait; " in lacks and lacks.rstrip().endswith("hot")
    assert row(fraction_of_ceiling=1 + 2**-52, event_loop_time_s=30e-6).doubts() == [], "that is rounding"


def test_markdown_escapes_and_keeps_its_columns() -> None:
    text = tables.case_table([row(variant="007", skipped="a | b\nc < d")], markdown=True)
    lines = text.splitlines()
    assert lines[0].startswith("### ")
    assert "SKIPPED (a \\| b\\\\nc &lt; d)" in lines[-1]
    assert lines[-1].startswith("| 007 ")  # not turned into the number 7
    bars = {line.replace("\\|", "").count("|") for line in lines[2:]}
    assert len(bars) == 1
    assert tables.case_table([]) == "(no rows)"
    assert tables.table(["a"], []) == "(no rows)"


def test_a_whole_document() -> None:
    rows = [row(verdict="NO-GO", reason="gain | none", noise_floor=0.004, recorded="LANDED", agrees=False)]
    md = tables.document("L1", head(complete=True, neighbours=["another process is on the GPU"]), rows)
    assert md.splitlines()[2] == "Measured on nvidia-h200, driver 580.1, 2026-01-01T00:00:00Z."
    assert "NOTE: another process" in md
    assert "INCOMPLETE" not in md
    assert "gain \\| none" in md
    assert "| NO-GO" in md
    assert "0.40 %" in md
    assert "LANDED" in md
    assert "git not from a checkout" in md
    text = tables.document("L1", head(mode="predict", device="gb10"), rows)
    assert text.splitlines()[2].startswith("Nothing was measured")


def test_fill_between_markers() -> None:
    text = "a\n<!-- l1:begin -->\nold\n<!-- l1:end -->\nb\n"
    once = tables.fill(text, "l1", "new\n")
    assert once == "a\n<!-- l1:begin -->\nnew\n<!-- l1:end -->\nb\n"
    assert tables.fill(once, "l1", "new") == once
    for bad in ("", "<!-- l1:end --><!-- l1:begin -->", text + text):
        with pytest.raises(BadInput, match="l1:begin"):
            tables.fill(bad, "l1", "x")
