"""Signals, closed and full streams, odd places: one line, an exit code that says it, finished rows kept."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from probes import cli
from probes.core import ends
from probes.report import store
from tests.host_run import Commands

ROOT = Path(__file__).resolve().parents[1]
SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
PREDICT = ["l3", "--mode", "predict", "-q"]


def ended(cases: list[list[Any]], cwd: Path) -> list[tuple[int, str, str]]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.ending"],
        input=json.dumps(cases), cwd=cwd, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True,
        text=True, timeout=120, check=True,
    )  # fmt: skip
    return [(code, out, err) for code, out, err in json.loads(done.stdout.splitlines()[-1])]


STREAMS: dict[str, tuple[list[str], dict[str, str], int, str]] = {
    "stdout closed": ([*PREDICT, "--json", "0.json"], {"stdout": "closed"}, 0, ""),
    "both closed": ([*PREDICT, "--json", "1.json"], {"stdout": "closed", "stderr": "closed"}, 0, ""),
    "reader gone": ([*PREDICT, "--json", "2.json"], {"stdout": "gone"}, 2, "what read the output is gone"),
    "stdout full": ([*PREDICT, "--json", "3.json"], {"stdout": "full"}, 2, "No space left"),
    "stderr full": ([*PREDICT, "--case", "none"], {"stderr": "full"}, 2, ""),
    "stderr gone": ([*PREDICT, "--case", "none"], {"stderr": "gone"}, 2, ""),
    "stderr closed": ([*PREDICT, "--case", "none"], {"stderr": "closed"}, 2, ""),
    "help, reader gone": (["--help"], {"stdout": "gone"}, 2, "what read the output is gone"),
    "list, reader gone": (["l1", "--list"], {"stdout": "gone"}, 2, "what read the output is gone"),
    "replay, reader gone": (
        ["replay", str(ROOT / "out/nvidia-h200/l3.json")],
        {"stdout": "gone"},
        2,
        "is gone",
    ),
    "no folder": (PREDICT, {"folder": "gone"}, 2, "the current folder is not there"),
    "no folder, replay": (["replay", "x"], {"folder": "gone"}, 2, "the current folder is not there"),
    "not UTF-8": ([*PREDICT, "--json", "x\udcff.json"], {}, 0, ""),
    "not UTF-8, refused": (["replay", "y\udcff.json"], {}, 2, "y\\udcff.json"),
    "links in a circle": ([*PREDICT, "--out", "loop"], {}, 2, "its links lead in a circle"),
    "links in a circle, read": (["replay", "loop"], {}, 2, "cannot read loop"),
}


def test_streams_and_places_end_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    found = ended([[argv, how, None, 0] for argv, how, _, _ in STREAMS.values()], tmp_path)
    for (name, (_, how, code, said)), (got, out, err) in zip(STREAMS.items(), found, strict=True):
        assert got == code, (name, err)
        assert said in err and err.count("\n") == bool(said), (name, err)
        assert "Traceback" not in out + err and "Exception ignored" not in err, name
        assert how.get("stdout") or code or "Nothing was measured" in out, name
    for name in ("0", "1", "x\udcff"):
        head, rows = store.read_json(tmp_path / f"{name}.json")
        assert head.complete and rows, name
    assert not list(tmp_path.glob(".*.tmp"))


def test_signals_at_any_moment_end_in_one_line(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Seeded; with --campaigns 1,500 of them. What was finished is whole."""
    count = 1500 if request.config.getoption("--campaigns") else 8
    rng = random.Random(0)
    cases = []
    for k in range(count):
        argv = [*PREDICT, "--json", f"{k}.json"]
        cases.append([argv, {}, rng.uniform(0.01, 0.25), int(rng.choice(SIGNALS))])
    codes = set()
    for k, (case, (code, out, err)) in enumerate(zip(cases, ended(cases, tmp_path), strict=True)):
        codes.add(code)
        assert code in (0, 128 + case[3]) and "Traceback" not in out + err, (case, code, err)
        told = f"stopped by {signal.Signals(case[3]).name}; whatever rows were finished are kept\n"
        assert err == ("" if code == 0 else told)
        if (path := tmp_path / f"{k}.json").exists():
            head, _ = store.read_json(path)
            assert head.complete or code
    assert codes - {0} and not list(tmp_path.glob(".*.tmp"))


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_while_modules_are_imported(number: signal.Signals, tmp_path: Path) -> None:
    """A stand-in for argparse, which cli imports first, says that it is being imported, and sleeps."""
    (tmp_path / "argparse.py").write_text(
        "import sys, time\nprint('READY', flush=True)\ntry: time.sleep(20)\nexcept BaseException: pass\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-m", "probes.l1", "--help"], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}, text=True,
    )  # fmt: skip
    assert child.stdout and "READY" in child.stdout.readline()
    child.send_signal(number)
    _, err = child.communicate(timeout=20)
    assert (child.returncode, err) == (128 + number, f"{ends.line(number)}\n")


@pytest.mark.sampled(1, "[")
@pytest.mark.parametrize("number", SIGNALS)
def test_finished_rows_are_kept_with_their_verdicts(
    number: signal.Signals, small_l1: Any, commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped while its second case is measured."""
    from probes.engine import run

    true, seen, handler = run._case, list[str](), signal.getsignal(number)

    def stopped(name: str, arms: Any, bench: Any, case: Any, *rest: Any) -> Any:
        seen.append(case.id)
        if len(seen) == 2:
            os.kill(os.getpid(), number)
        return true(name, arms, bench, case, *rest)

    monkeypatch.setattr(run, "_case", stopped)
    done = commands("l1", "--backend", "cu")
    assert done.code == 128 + number and done.err == f"{ends.line(number)}\n"
    assert {r.case for r in done.rows} == {seen[0]} and not done.head.complete
    assert any(r.case == seen[0] for r in done.verdicts)
    assert signal.getsignal(number) == handler


def test_ignored_signals_stay_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert cli.guarded(lambda: os.kill(os.getpid(), signal.SIGHUP) or 0) == 0
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_signal_that_a_callback_swallows_is_raised_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second one at once is left aside; one later ends the process."""
    left: list[int] = []
    monkeypatch.setattr(ends, "_leave", lambda number, frame: left.append(number))

    def work() -> int:
        for _ in range(2):
            try:
                os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(0.01)
            except KeyboardInterrupt:
                pass
        monkeypatch.setattr(ends, "DEAF_S", 0.0)
        os.kill(os.getpid(), signal.SIGHUP)
        ends.check()
        return 0

    assert cli.guarded(work) == 143 and left == [signal.SIGHUP]
    ends.check()


def test_nothing_is_said_again_when_python_ends(tmp_path: Path) -> None:
    """What standard output still holds would fail once more, with lines of Python's own and code 120."""
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "probes.l1", "--list"], stdout=write, stderr=subprocess.PIPE, text=True,
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": ""},
    )  # fmt: skip
    os.close(write)
    assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
