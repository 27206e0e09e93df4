"""Files on disk: whole or not at all, under names that nobody foresees; what must stay stays."""

from __future__ import annotations

import errno
import os
import re
import stat
import threading
from pathlib import Path
from typing import Any

import pytest

from probes.core import ends, streams
from probes.core.types import BadInput
from probes.engine import run as engine
from probes.l1 import report as l1_report
from probes.l2 import report as l2_report
from probes.l3 import waves
from probes.report import files, pictures, store
from tests.host_run import Commands
from tests.report.test_rows import head, row

ROOT = Path(__file__).resolve().parents[2]
STRANGER = 12345


def given_away(path: Path) -> None:
    if os.geteuid():
        pytest.skip("only root can give a file away")
    os.chown(path, STRANGER, -1, follow_symlinks=False)


def refused(path: Path, why: str) -> None:
    """Both the trial and the write say why, in one line, and leave nothing behind."""
    before = sorted(path.parent.iterdir()) if path.parent.is_dir() else []
    for attempt in (files.check_writable, lambda p: files.write(p, "new")):
        with pytest.raises(BadInput, match=re.escape(why)) as caught:
            attempt(path)
        assert "\n" not in str(caught.value)
    assert before == (sorted(path.parent.iterdir()) if path.parent.is_dir() else [])


def test_written_whole_with_the_modes_of_a_plain_file(tmp_path: Path) -> None:
    path, old = tmp_path / "a" / "l1.json", os.umask(0o027)
    try:
        files.write(path, "one \udcff µ")
        assert path.read_bytes() == b"one \\udcff \xc2\xb5" and stat.S_IMODE(path.stat().st_mode) == 0o640
        path.chmod(0o600)
        files.write(path, b"two")
        assert path.read_bytes() == b"two" and stat.S_IMODE(path.stat().st_mode) == 0o600
    finally:
        os.umask(old)
    assert list(path.parent.iterdir()) == [path]


def test_temporary_names_are_not_foreseen_and_no_link_is_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[tuple[str, int]] = []
    true = os.open

    def spied(path: Any, flags: int, *rest: Any, **more: Any) -> int:
        if str(path).endswith(".tmp"):
            made.append((str(path), flags))
        return true(path, flags, *rest, **more)

    monkeypatch.setattr(os, "open", spied)
    for _ in range(2):
        files.write(tmp_path / "l1.json", "x")
    (first, flags), (second, _) = made
    assert first != second and str(os.getpid()) not in first
    assert flags & os.O_EXCL and flags & os.O_NOFOLLOW
    planted = tmp_path / f".{'0' * 16}.tmp"
    planted.symlink_to(tmp_path / "victim")
    monkeypatch.setattr(files.secrets, "token_hex", lambda n: "0" * 16)
    with pytest.raises(BadInput, match="File exists"):
        files.write(tmp_path / "l1.json", "y")
    assert not (tmp_path / "victim").exists() and (tmp_path / "l1.json").read_text() == "x"


def test_what_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "l1.json"
    path.write_text("old")
    path.chmod(0o444)
    refused(path, "it is read-only")
    path.chmod(0o644)
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    for name in ("folder", "pipe"):
        refused(tmp_path / name, "no regular file")
    refused(tmp_path / "loop", "its links lead in a circle")
    refused(tmp_path / "loop" / "x", "its links lead in a circle")
    refused(tmp_path / ("x" * 256), "File name too long")
    assert path.read_text() == "old"


def test_the_longest_name_that_fits_is_taken(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 255)
    files.check_writable(path)
    files.write(path, "x")
    assert path.read_text() == "x"


def test_links_of_one_s_own_are_followed_and_others_are_not(tmp_path: Path) -> None:
    link, target = tmp_path / "link", tmp_path / "target"
    link.symlink_to(target)
    files.write(link, "own")
    assert link.is_symlink() and target.read_text() == "own"
    given_away(link)
    refused(link, f"a link of another user's (uid {STRANGER})")
    assert target.read_text() == "own"


def test_another_user_s_file_in_a_sticky_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Renaming over it would fail at the end of a run."""
    path = tmp_path / "l1.json"
    path.write_text("")
    path.chmod(0o666)
    tmp_path.chmod(0o1777)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    refused(path, "it is another user's")


def test_readers_and_writers_at_once_see_whole_files(tmp_path: Path) -> None:
    path, torn = tmp_path / "l1.json", []
    texts = [letter * 200_000 for letter in "abcd"]
    files.write(path, texts[0])
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            if (text := path.read_text()) not in texts:
                torn.append(len(text))

    def write(text: str) -> None:
        for _ in range(20):
            files.write(path, text)

    reader = threading.Thread(target=read)
    writers = [threading.Thread(target=write, args=(t,)) for t in texts]
    for thread in (reader, *writers):
        thread.start()
    for thread in writers:
        thread.join()
    done.set()
    reader.join()
    assert not torn and list(tmp_path.iterdir()) == [path]


def test_another_run_that_writes_there_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    streams.warn.cache_clear()
    path = tmp_path / "l1.json"
    with store.ReportFile(path, head()) as one:
        one.add(row())
        one.add(row(case="b"))
        assert not one.head.notes
        with store.ReportFile(path, head()) as two:
            two.add(row(case="c"))
        one.add(row(case="d"))
    assert [r.case for r in store.read_json(path)[1]] == ["ffn_down_14b", "b", "d"]
    assert store.read_json(path)[0].notes == [
        "another run writes to l1.json, too: each replaces the other's rows"
    ]
    assert capsys.readouterr().err.count("another run writes to l1.json") == 1


def test_a_prediction_does_not_replace_what_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At its start, and where another run has measured in the meantime; a measurement may."""
    path, predicted = tmp_path / "l1.json", head(mode="predict")
    monkeypatch.setattr(files.tempfile, "tempdir", str(tmp_path))
    refusal = pytest.raises(BadInput, match="was measured, and a prediction does not replace it")
    with refusal, store.ReportFile(path, predicted) as file:
        file.add(row(source="predicted"))
        store.write_json(path, head(), [row()])
        before = path.read_bytes()
        file.add(row(source="predicted", case="b"))
    with pytest.raises(BadInput, match="was measured"), store.ReportFile(path, predicted):
        pytest.fail("it is said before anything is predicted")
    assert path.read_bytes() == before
    with store.ReportFile(path, head()) as file:
        file.add(row())


@pytest.mark.parametrize("name", ["l1.json", "l1.md", "l2.json", "l3.md", "selfcheck.json", "selfcheck.md"])
def test_committed_reports_are_seen_as_measured(name: str, tmp_path: Path) -> None:
    report = ROOT / "out" / "nvidia-h200" / name
    assert files.measured(report) and files.committed(report)
    (tmp_path / "copy").write_bytes(report.read_bytes())
    assert files.measured(tmp_path / "copy") and not files.committed(tmp_path / "copy")


@pytest.mark.parametrize(
    "text", ["", "{", '{"mode": "predict", "rows": []}', "# L1: x\n\nNothing was measured: "]
)
def test_what_is_no_measurement(text: str, tmp_path: Path) -> None:
    (tmp_path / "x").write_text(text)
    assert not files.measured(tmp_path / "x")
    assert not files.measured(tmp_path) and not files.measured(tmp_path / "absent")


def test_committed_places_wherever_one_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "link").symlink_to(ROOT / "out")
    monkeypatch.chdir(tmp_path)
    for path in (
        ROOT / "out/nvidia-h200/l1.json",
        Path("link/new/x"),
        Path("out/a/x"),
        Path("out/runs/../a/x"),
    ):
        assert files.committed(path)
    for path in (
        Path("out/runs/x"),
        Path("out/build/x"),
        Path("x"),
        Path("other/out/a/x"),
        Path("out/a/b/x"),
    ):
        assert not files.committed(path)


# A run's end


def test_a_full_disk_loses_no_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows so far go to another place, and the line says where."""
    full, true = tmp_path / "full", files.write
    monkeypatch.setattr(files.tempfile, "tempdir", str(tmp_path))

    def write(path: Path, data: bytes | str) -> tuple[int, int]:
        if len(data) > 3500 and full in path.parents:
            with files._errors(path):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return true(path, data)

    monkeypatch.setattr(files, "write", write)
    refusal = pytest.raises(BadInput, match=r"No space left.*all rows so far are kept in")
    with refusal as caught, store.ReportFile(full / "l1.json", head()) as file:
        for k in range(10):
            file.add(row(case=str(k)))
    _, kept = store.read_json(Path(str(caught.value).rpartition(" in ")[2]))
    _, before = store.read_json(full / "l1.json")
    assert [r.case for r in kept] == [str(k) for k in range(len(before) + 1)] and before

    def refuse(**_: object) -> str:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(files.tempfile, "mkdtemp", refuse)
    assert files.salvaged("x", "l1.json") == "and nowhere else is there room for the rows"


def test_a_signal_while_rows_are_written_loses_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, true, stops = tmp_path / "l1.json", os.replace, [ends.Stopped(15)]

    def stopped(*args: Any) -> None:
        if len(file.given) == 2 and stops:
            raise stops.pop()
        true(*args)

    with (
        pytest.raises(ends.Stopped),
        store.ReportFile(path, head(), lambda rows: [row(verdict="GO")]) as file,
    ):
        monkeypatch.setattr(os, "replace", stopped)
        file.add(row())
        file.add(row(case="b"))
    top, rows = store.read_json(path)
    assert [r.case for r in rows if not r.verdict] == ["ffn_down_14b", "b"] and not top.complete
    assert [r.verdict for r in rows if r.verdict] == ["GO"]


def test_what_fails_after_the_last_row_is_said_and_costs_nothing(
    small_l1: Any, commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(done: Any, path: Path) -> None:
        raise BadInput("cannot write l1.md: No space left on device; choose another place")

    monkeypatch.setattr(engine, "document", broken)
    done = commands("l1", "--quick")
    assert done.code == 2 and done.head.complete and done.verdicts
    assert "error: cannot write l1.md: No space left on device" in done.err and "the rows are in" in done.err
    assert "Verdicts" in done.out


def test_pictures_are_tried_before_anything_is_measured(
    small_l2: Any, commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A library that cannot draw, and a place that cannot be written."""
    from matplotlib import figure

    assert l1_report.pictures(Path("x.md")) == []
    place = commands.folder / "l2_sweep.svg"
    place.mkdir()
    done = commands("l2", "--sweep")
    assert done.code == 2 and "l2_sweep.svg: it is there and is no regular file" in done.err and not done.rows
    place.rmdir()

    def savefig(*_: Any, **__: Any) -> None:
        raise RuntimeError("no fonts\nat all")

    monkeypatch.setattr(figure.Figure, "savefig", savefig)
    done = commands("l2", "--sweep")
    assert done.code == 2 and "error: matplotlib cannot draw: no fonts; " in done.err and not done.rows
    with pytest.raises(BadInput, match="matplotlib cannot draw: no fonts"):
        pictures.check()
    point = (row(waves=1.0, ratio_to_baseline=1.0, ratio_low=0.9, ratio_high=1.1), None)
    monkeypatch.setattr(l2_report.analysis, "tail_points", lambda rows: [point])
    monkeypatch.setattr(waves, "points", lambda rows, backend: [point])
    monkeypatch.setattr(waves, "_panel", lambda *_: None)
    for plots in (l2_report.plots, waves.plots):
        with pytest.raises(BadInput, match="matplotlib cannot draw"):
            plots([], commands.folder / "x.md")
