"""A build runs no folder's name, has a time limit, leaves nothing behind and ends its children with it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kernels_cu import build
from probes.core import children
from probes.core.types import BadInput, Unavailable
from probes.engine import compiling

ROOT = Path(__file__).resolve().parents[2]
VERSION = 'if [ "$1" = --version ]; then echo "release 13.0, V13.0.88"; exit 0; fi'
SHELL = 'for word in "$@"; do eval ": \\"$word\\" \\"$(pwd -P)\\" \\"$TMPDIR\\""; done'
"""What nvcc does: names, the source's whole path too, stand between double quotes in a shell's command."""
OUTPUT = 'while [ "$1" != -o ]; do shift; done; echo library > "$2"'
HANGS = 'sh -c "echo \\$\\$ > $PIDS/inner; exec sleep 60" & echo $$ > "$PIDS/outer"; wait'

NAMES = ["a $(touch $PIDS/run) b", "a`touch $PIDS/run`", 'a";touch $PIDS/run;"', "it's", "a\nb", "\udcff"]


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Path]]:
    """`tools(script)` puts an nvcc of that script on PATH; returns the folder of its notes, $PIDS."""
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PROBES_BUILD_DIR", str(tmp_path / "build"))
    monkeypatch.setenv("PIDS", str(tmp_path / "pids"))
    (tmp_path / "pids").mkdir()

    def made(script: str) -> Path:
        for name, text in (("nvcc", f"{VERSION}\n{script}"), ("g++", "echo 'g++ 13.3'")):
            (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
            (tmp_path / name).chmod(0o755)
        build.find_nvcc.cache_clear()
        build._version.cache_clear()
        return tmp_path / "pids"

    yield made
    children.limit(children.LIMIT_S)
    build.find_nvcc.cache_clear()
    build._version.cache_clear()


def wait_for(what: Callable[[], object], seconds: float = 10.0) -> bool:
    end = time.monotonic() + seconds
    while not what() and time.monotonic() < end:
        time.sleep(0.02)
    return bool(what())


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def running(pids: Path) -> list[int]:
    """The compiler's and its own child's process, once both have said so."""
    names = [pids / "outer", pids / "inner"]
    assert wait_for(lambda: all(p.exists() and p.read_text().strip() for p in names))
    return [int(p.read_text()) for p in names]


def gone(pids: list[int], folder: Path) -> bool:
    return wait_for(lambda: not any(map(alive, pids)) and not list(folder.glob("*")))


@pytest.mark.parametrize("name", NAMES)
def test_no_folder_s_name_is_run(
    name: str, tools: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The build folder's, the system's for temporary files, the checkout's."""
    pids = tools(f"{SHELL}\n{OUTPUT}")
    place = tmp_path / name
    (place / "tmp").mkdir(parents=True)
    for file in build.HERE.glob("*.cu*"):
        shutil.copy(file, place)
    monkeypatch.setattr(build, "HERE", place)
    monkeypatch.setenv("PROBES_BUILD_DIR", str(place / "build"))
    monkeypatch.setattr(build.tempfile, "tempdir", str(place / "tmp"))
    assert build.library("harness.cu", "sm_90").read_text() == "library\n"
    assert not (pids / "run").exists() and not list((place / "tmp").iterdir())
    assert len(list((place / "build").iterdir())) == 1


@pytest.mark.toolchain
def test_no_folder_s_name_is_run_by_nvcc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        build.find_nvcc()
    except Unavailable as why:
        pytest.skip(str(why))
    place = tmp_path / "a $(touch run) b"
    place.mkdir()
    monkeypatch.chdir(place)
    monkeypatch.setenv("PROBES_BUILD_DIR", str(place / "build"))
    assert build.library("harness.cu", "sm_90").with_suffix(".cubin").exists()
    assert not list(tmp_path.rglob("run"))


def test_a_compiler_s_own_path_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "$(true)"
    folder.mkdir()
    (folder / "nvcc").write_text("#!/bin/sh\n")
    (folder / "nvcc").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))
    build.find_nvcc.cache_clear()
    with pytest.raises(Unavailable, match="signs that a shell reads"):
        build.find_nvcc()
    monkeypatch.setenv("NVCC_CCBIN", f"{folder}/g++")
    with pytest.raises(Unavailable, match="signs that a shell reads"):
        build._host_version()


def test_a_compiler_that_hangs_has_a_time_limit(tools: Callable[[str], Path], tmp_path: Path) -> None:
    pids = tools(HANGS)
    children.limit(0.5)
    with pytest.raises(Unavailable, match=r"nvcc did not finish in 0\.5 s.*--build-timeout") as caught:
        build.library("l1.cu", "sm_90")
    assert "\n" not in str(caught.value)
    assert gone(running(pids), tmp_path / "build")


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_a_limit_that_is_none(seconds: float) -> None:
    with pytest.raises(BadInput, match="--build-timeout must be a positive number"):
        children.limit(seconds)


def test_numba_s_compiler_has_it_too(monkeypatch: pytest.MonkeyPatch, tools: Callable[[str], Path]) -> None:
    tools("exit 1")
    monkeypatch.setattr(compiling, "_WORK", "import time; time.sleep(60)")
    children.limit(0.5)
    failed = compiling.compile_all([compiling.Asked("harness", ("harness_read",))], "sm_90", ["numba"])
    assert "did not finish in 0.5 s" in failed["numba"]


CODE = (
    "import signal, sys\n"
    "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    "from probes.engine.compiling import Asked, compile_all\n"
    "compile_all([Asked('l1', ()), Asked('l2', ()), Asked('l3', ())], 'sm_90', ['cu'], workers=2)\n"
)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_run_that_is_ended_takes_its_compilers_along(
    number: signal.Signals, tools: Callable[[str], Path], tmp_path: Path
) -> None:
    pids = tools(HANGS)
    run = subprocess.Popen(
        [sys.executable, "-c", CODE], env={**os.environ, "PYTHONPATH": str(ROOT)}, stderr=subprocess.DEVNULL
    )
    started, build = running(pids), tmp_path / "build"
    began = time.monotonic()
    run.send_signal(number)
    run.wait(20)
    assert time.monotonic() - began < 8
    assert wait_for(lambda: not any(map(alive, started)))
    assert wait_for(lambda: not any(build.rglob("*.cu")))
    if number != signal.SIGKILL:  # of a killed one an empty folder stays, which a later build removes
        assert not list(build.iterdir())


def test_what_a_compiler_leaves_running_ends_with_it(tools: Callable[[str], Path]) -> None:
    until = "while [ ! -s $PIDS/inner ]; do sleep 0.01; done"
    pids = tools(f"{HANGS.removesuffix('; wait')}\n{until}\n{OUTPUT}")
    build.library("l1.cu", "sm_90")
    assert wait_for(lambda: not any(map(alive, running(pids))))


def test_children_report_as_they_end() -> None:
    done = children.run(["sh", "-c", "echo out; echo err >&2; exit 3"])
    assert (done.returncode, done.stdout, done.stderr) == (3, "out\n", "err\n")
    assert children.run(["sh", "-c", "kill -SEGV $$"]).returncode == -signal.SIGSEGV
    assert children.run(["cat"]).stdout == "", "a child has no input to wait for"
    with pytest.raises(OSError, match="No such file"):
        children.run(["no-such-program"])


def test_all_children_can_be_stopped() -> None:
    found: list[int] = []
    threads = [
        threading.Thread(target=lambda: found.append(children.run(["sleep", "60"]).returncode)) for _ in "ab"
    ]
    for t in threads:
        t.start()
    assert wait_for(lambda: len(children._held) == 2)
    time.sleep(0.2)
    children.stop()
    for t in threads:
        t.join(10)
    assert found == [-signal.SIGTERM] * 2
