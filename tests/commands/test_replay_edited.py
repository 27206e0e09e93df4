"""A report that was edited by hand, in each way that once went unnoticed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from probes import __main__
from probes.report import store
from tests.host_gpu import HostGpu
from tests.host_run import Commands

Data = dict[str, Any]


def row(data: Data, **want: Any) -> Any:
    return next(r for r in data["rows"] if all(r[k] == v for k, v in want.items()))


def scaled(data: Data) -> None:
    mine = row(data, variant="dispatch_dpl", backend="cu", case="ffn_down_14b")
    mine["samples_s"] = [0.7 * t for t in mine["samples_s"]]


def blocks_scaled(data: Data) -> None:
    mine = row(data, role="contest", of="dispatch_dpl", backend="cu", case="ffn_down_14b")
    mine["blocks_s"] = [0.7 * t for t in mine["blocks_s"]]


def a_pair_dropped(data: Data) -> None:
    data["rows"].remove(row(data, variant="padded_loop_aa:padded_loop", backend="cu", case="attn_v_14b"))


def an_arm_copied(data: Data) -> None:
    again, own = (row(data, variant=v, backend="cu") for v in ("padded_loop_aa", "padded_loop"))
    for name in ("samples_s", "time_s", "time_s_p25", "time_s_p75", "content_gbps"):
        again[name] = own[name]


def blocks_repeated(data: Data) -> None:
    mine = row(data, role="contest", of="dispatch_dpl", backend="cu", case="ffn_down_14b")
    mine["blocks_s"][8:16] = mine["blocks_s"][:8]


def one_language_dropped(data: Data) -> None:
    data["rows"] = [r for r in data["rows"] if r["backend"] != "cu"]


def a_tiny_rotation(data: Data) -> None:
    mine = row(data, variant="dispatch_dpl", backend="cu")
    mine["rotation_bytes"], mine["cold"] = 1, True


def above_the_ceiling(data: Data) -> None:
    row(data, variant="dispatch_dpl", backend="cu")["fraction_of_ceiling"] = 1.7


def an_interval(data: Data) -> None:
    row(data, role="verdict", variant="dpl", backend="cu", case="model_14b")["ratio_high"] = 0.9


def a_verdict(data: Data) -> None:
    mine = row(data, role="verdict", variant="dpl", backend="cu", case="model_14b")
    mine["verdict"] = "GO" if mine["verdict"] != "GO" else "NO-GO"


def a_role(data: Data) -> None:
    row(data, variant="padded_loop_aa", backend="cu")["role"] = "variant"


def the_bars(data: Data) -> None:
    data["bars_sha256"] = "0" * 64


EDITS: dict[Callable[[Data], None], str] = {
    scaled: "dispatch_dpl/cu: time_s",
    blocks_scaled: "its blocks' times of dispatch_dpl are not its windows'",
    a_pair_dropped: "padded_loop_aa:padded_loop/cu: no blocks",
    an_arm_copied: "samples that l1/ffn_down_14b/padded_loop/cu has too",
    blocks_repeated: "samples that l1/ffn_down_14b/dispatch_dpl:dispatch_padded/cu has too",
    one_language_dropped: "l1: no row of cu",
    a_tiny_rotation: "dispatch_dpl/cu: cold, by its rotation_bytes",
    above_the_ceiling: "dispatch_dpl/cu: fraction_of_ceiling",
    an_interval: "l1/model_14b/dpl/cu: another ratio_high",
    a_verdict: "in the file",
    a_role: "the rows are not those that the run wrote",
    the_bars: "the bars are not those",
}
"""Each edit, and what replay says of it even where the rows' own hash was made anew."""


@pytest.fixture
def report(commands: Commands, small_l1: HostGpu) -> Path:
    """A finished run of L1."""
    commands("l1", "--blocks", "16")
    return commands.folder / "l1.json"


def replayed(path: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    code = __main__.main(["replay", str(path)])
    return code, capsys.readouterr().out


def test_each_edit_ends_with_exit_code_4(report: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out = replayed(report, capsys)
    assert code == 3 and "DIFFERS" not in out, "untouched, it is what the run said"
    told = report.read_text()
    for edit, want in EDITS.items():
        data = json.loads(told)
        edit(data)
        report.write_text(json.dumps(data))
        head, rows = store.read_json(report)
        assert edit is the_bars or head.rows_sha256 != store.rows_sha256(rows), edit.__name__
        if edit is not a_role:  # with a hash of its own: the figures must show it
            store.write_json(report, head, rows)
        code, out = replayed(report, capsys)
        assert code == 4 and "DIFFERS" in out and want in out, edit.__name__


def test_a_run_killed_at_any_moment_has_the_verdicts_of_what_it_had_finished(
    commands: Commands, small_l1: HostGpu, capsys: pytest.CaptureFixture[str]
) -> None:
    """Written as the cases come: nothing has to run after the last of them."""
    seen: list[int] = []
    inner = store.write_json

    def killed(path: Path, head: Any, rows: Any) -> None:
        inner(path, head, rows)
        seen.append(len({r.case for r in rows if r.samples_s}))
        if seen[-1] == 2:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "write_json", killed)
        done = commands("l1", "--blocks", "16")
    assert done.code == 130 and not done.head.complete
    assert {r.case for r in done.verdicts} == {"ffn_down_14b", "attn_v_14b", "model_14b"}
    code, out = replayed(commands.folder / "l1.json", capsys)
    assert code == 3 and "DIFFERS" not in out and "the run was stopped" in out
