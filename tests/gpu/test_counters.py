"""--counters without a GPU: the profiler's CSV, a step's launches as one, a stand-in for ncu."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from probes import cli
from probes.core.types import Unavailable
from probes.engine import probe, processes, profile
from probes.gpu import counters, facts, sms
from probes.report import store
from probes.report.provenance import Head
from probes.report.rows import Row

HEAD = (
    '"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size",'
    '"Device","CC","Section Name","Metric Name","Metric Unit","Metric Value"'
)


def lines(place: int, kernel: str = "l1_padded_loop(const unsigned char *)", **values: str) -> str:
    """One launch in ncu's CSV. values: bytes, time, dram, issue as the profiler writes them."""
    names = {
        "bytes": counters.BYTES, "time": counters.DURATION, "dram": counters.DRAM, "issue": counters.ISSUE,
    }  # fmt: skip
    return "".join(
        f'"{place}","7","python3","127.0.0.1","{kernel}","1","7","(256, 1, 1)","(5120, 1, 1)","0","9.0",'
        f'"Command line profiler metrics","{names[key]}","unit","{value}"\n'
        for key, value in values.items()
    )


CSV = (
    f"==PROF== Connected to process 7\n{HEAD}\n"
    + lines(0, bytes="61,970,432", time="22,912", dram="61.5", issue="42.25")
    + lines(1, "l1_dpl_loop", bytes="58113024", time="21000", dram="n/a", issue="")
    + lines(10, "l1_gpl_loop", time="20000", bytes="1", issue="nan")
    + lines(2, "l1_gs_loop", bytes="n/a", time="20000", dram="50", issue="50")
)


def test_launches_come_out_in_order_with_bytes_seconds_and_fractions() -> None:
    first, second, third = counters.parse(CSV)  # one of the four lacks its bytes, which are needed
    assert (first.kernel, first.dram_bytes_read) == ("l1_padded_loop", 61_970_432)
    assert first.time_s == pytest.approx(22.912e-6)
    assert (first.dram_fraction, first.issue_fraction) == pytest.approx((0.615, 0.4225))
    assert (second.kernel, second.dram_bytes_read) == ("l1_dpl_loop", 58_113_024)
    assert (second.dram_fraction, second.issue_fraction) == (None, None)
    assert (third.kernel, third.dram_fraction, third.issue_fraction) == ("l1_gpl_loop", None, None)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no launch in its output"),
        (HEAD, "no launch in its output"),
        ("==ERROR== The application failed\n==ERROR== ERR_NVGPUCTRPERM: no permission", "no permission"),
        (f"{HEAD}\n{lines(0, time='1')}", "no launch in its output"),
        (f'{HEAD}\n"cut', "no launch in its output"),
        (f"{lines(0, time='1', bytes='1')}", "no launch in its output"),
        (f"{HEAD}\n{lines(0, time='1', bytes='1').replace(chr(34) + '0', chr(34) + 'x', 1)}", "no launch"),
        (f"{HEAD}\n{lines(0, time='-1', bytes='1')}", "no launch in its output"),
        (f"{HEAD}\n{lines(0, time='1', bytes='1e300')}", "no launch in its output"),
        (f"{HEAD}\n{lines(0, kernel='k' * 140_000, time='1', bytes='1')}", "cannot be read"),
    ],
)
def test_a_profiler_that_says_nothing_is_said_so(text: str, said: str) -> None:
    with pytest.raises(Unavailable, match=rf"gave no counters: .*{said}"):
        counters.parse(text)


def test_a_step_of_two_kernels_is_weighted_by_time() -> None:
    long = counters.Counted("l3_matmul", 1000, 3e-6, 0.8, 0.2)
    short = counters.Counted("l3_swiglu_quant", 10, 1e-6, 0.4, None)
    both = counters.joined([long, short])
    assert (both.kernel, both.dram_bytes_read, both.time_s) == ("l3_matmul", 1010, pytest.approx(4e-6))
    assert both.dram_fraction == pytest.approx(0.7) and both.issue_fraction is None
    assert counters.joined([long]) == replace(long, dram_fraction=pytest.approx(0.8))
    assert counters.joined([replace(long, time_s=0.0)]).dram_fraction is None


def test_no_profiler(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Unavailable, match="no ncu on PATH"):
        counters.profile(["true"], ".*")


STAND_IN = """#!{python}
import os, pathlib, shutil, sys
folder = pathlib.Path(__file__).parent
words = [part for word in sys.argv for part in word.split("=", 1)]
if not "--profile-from-start off" in " ".join(sys.argv):
    sys.exit("only what is launched inside the window counts")
for flag, name in (("--log-file", "log.csv"), ("--json", "rows.json")):
    if (folder / name).exists():
        shutil.copy(folder / name, words[words.index(flag) + 1])
sys.exit((folder / "fails").read_text() if (folder / "fails").exists() else 0)
"""


@pytest.fixture
def ncu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with an `ncu` that starts nothing: it hands out log.csv and rows.json, or `fails`."""
    program = tmp_path / "ncu"
    program.write_text(STAND_IN.format(python=sys.executable))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def row(variant: str, **values: object) -> Row:
    given = {"probe": "l1", "case": "c", "backend": "cu", "source": "measured", "samples_s": [1e-5] * 4}
    return Row(variant=variant, **{**given, **values})  # type: ignore[arg-type]


def hand_out(folder: Path, text: str, *rows: Row) -> None:
    """What the stand-in's child made."""
    (folder / "log.csv").write_text(text)
    head = Head(mode="measure", device="x", seed=0, kernels_sha256="", argv=[])
    store.write_json(folder / "rows.json", head, rows)


def attached(rows: list[Row], name: str = "l1") -> list[Row]:
    args = cli.parser(name).parse_args(["--counters"])
    args.windows = 2
    return profile.attach(name, args, rows, lambda line: None)


def test_figures_land_in_the_rows_of_their_arms(ncu: Path) -> None:
    child = [row(v, samples_s=[]) for v in ("padded_loop", "pair", "pair", "profiled_x_late")]
    left_out = row("gs_ring", samples_s=[], skipped="no room")
    text = f"{HEAD}\n" + "".join(
        lines(k, bytes=str(100 * (k + 1)), time="1000", dram=str(10 * k), issue="50") for k in range(4)
    )
    hand_out(ncu, text, left_out, *child)
    rows = [row("padded_loop"), row("pair"), row("gs_ring", samples_s=[], skipped="no room")]
    (added,) = attached(rows)
    assert [r.dram_bytes_read for r in rows] == [100, 500, None]
    assert rows[1].profiler_dram_fraction == pytest.approx(0.15)
    assert rows[1].profiler_time_s == pytest.approx(2e-6)
    assert (added.variant, added.dram_bytes_read, added.profiler_issue_fraction) == (
        "profiled_x_late", 400, 0.5,
    )  # fmt: skip
    assert not [n for r in rows for n in r.notes]


def test_what_goes_wrong_under_the_profiler_is_a_note(ncu: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def told(**more: str) -> str:
        for name, text in more.items():
            (ncu / name).write_text(text)
        rows = [row("padded_loop", samples_s=[]), row("gs_loop"), row("gs_loop", backend="numba")]
        assert attached(rows) == [] and not rows[0].notes
        assert all(r.dram_bytes_read is None for r in rows) and rows[1].notes == rows[2].notes
        return " ".join(rows[1].notes)

    assert "gave no counters: no launch" in told()
    two = f"{HEAD}\n" + lines(0, bytes="1", time="1") + lines(1, bytes="1", time="1")
    (ncu / "log.csv").write_text(two)
    assert "left no rows" in told()
    (ncu / "rows.json").write_text("{")
    assert "left no rows" in told()
    hand_out(ncu, two, row("padded_loop", samples_s=[]))
    assert "saw 2 launches where 1 were made" in told()
    assert told(fails="error: the GPU is gone") == "the profiled run failed: error: the GPU is gone"
    denied = "==ERROR== ERR_NVGPUCTRPERM: no permission\n==ERROR== The application returned an error"
    (ncu / "log.csv").write_text(denied)
    assert told().endswith(f"ERR_NVGPUCTRPERM: no permission; {counters.PERMIT}")
    (ncu / "ncu").write_text("#!/nowhere/at/all\n")
    assert "cannot be started" in told()
    monkeypatch.setenv("PATH", str(ncu / "empty"))
    assert "no ncu on PATH" in told()


@pytest.mark.parametrize("name", probe.names())
def test_counters_need_a_gpu(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(name, ["--mode", "predict", "--counters"]) == 2
    assert "--counters reads a GPU's counters" in capsys.readouterr().err


def test_a_row_without_the_new_figures_still_loads() -> None:
    data = row("gpl_ring").to_json()
    assert json.loads(json.dumps(data)) == data
    new = ["profiler_dram_fraction", "profiler_issue_fraction"]
    place = list(data).index("kv") + 1
    assert list(data)[place : place + 3] == [*new, "role"], "old names keep their place"
    for name in new:
        del data[name]
    assert Row.from_json(data).profiler_dram_fraction is None


def test_the_child_of_counters_takes_the_run_s_own_flags(tmp_path: Path) -> None:
    args = cli.parser("l2").parse_args(["--counters", "--sweep", "--kv", "128", "--case", "decode13"])
    args.windows, args.blocks = 2, 16
    own = argparse.Namespace(**{**vars(args), "backend": ["cu"]})
    argv = processes.child_argv("l2", own, tmp_path / "x.json")
    again = cli.parser("l2").parse_args([*argv, "--once"])
    assert (again.sweep, again.kv, again.case, again.backend, again.counters) == (
        True, [128], ["decode13"], ["cu"], False,
    )  # fmt: skip


def test_the_window_shows_the_launches_own_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU that failed inside fails at the window's end too."""
    called: list[object] = []
    monkeypatch.setattr(counters, "call", called.append)
    with counters.window():
        pass
    assert len(called) == 2
    with pytest.raises(Unavailable, match="no room"), counters.window():
        raise Unavailable("no room")
    assert len(called) == 3


def test_our_own_work_is_given_time_to_leave_the_window() -> None:
    seen = iter([90, 60, 3])
    assert facts._busy_percent(lambda: next(seen)) == 3
    assert facts._busy_percent(lambda: 55, patience_s=0.2) == 55


def test_a_devices_folder_is_named_after_it() -> None:
    assert sms.slug_of("NVIDIA H200") == "nvidia-h200"
    assert sms.slug_of("NVIDIA GeForce RTX 4090 / D") == "nvidia-geforce-rtx-4090-d"


def test_our_own_process_is_no_neighbour() -> None:
    assert facts._others([], 7, False) == 0
    assert facts._others([7], 7, True) == 0
    assert facts._others([7, 9], 7, True) == 1
    assert facts._others([412], 7, True) == 0  # a container: our own, under another id
    assert facts._others([412, 9], 7, True) == 1
    assert facts._others([412], 7, False) == 1
