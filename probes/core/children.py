"""Compilers and other children: with a time limit, and ended with all that they started.

A child ends with this process, even where that is killed: guardian.py watches a pipe that only this process
holds. Children lead process groups of their own, so that a terminal's Ctrl-C reaches them through us alone.
"""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from probes.core import guardian
from probes.core.types import BadInput, Unavailable

LIMIT_S = 900.0
"""Seconds that a compiler may take by default. The slowest file takes 60 s on two cores."""

_limit_s = LIMIT_S
_held: set[IO[bytes]] = set()  # the pipes' ends, which keep children running


def limit(seconds: float) -> None:
    """How long each compiler may take from now on. BadInput where that is no positive number."""
    global _limit_s
    if not 0 < seconds < 1e9:
        raise BadInput(f"--build-timeout must be a positive number of seconds, got {seconds:g}")
    _limit_s = seconds


def limit_s() -> float:
    """Seconds that a compiler may take."""
    return _limit_s


def run(
    command: Sequence[str], within_s: float | None = None, cwd: Path | None = None,
    env: dict[str, str] | None = None, scratch: bool = False,
) -> subprocess.CompletedProcess[str]:  # fmt: skip
    """Run a command to its end, without input; its status (-n: ended by signal n), output and errors.

    within_s: seconds at most, by default `limit_s()`. scratch: `cwd` is removed where this process dies.
    Raises Unavailable where it takes longer; OSError where it does not start.
    """
    within_s = _limit_s if within_s is None else within_s
    end, kept_fd = os.pipe()
    kept = os.fdopen(kept_fd, "wb", 0)
    _held.add(kept)
    argv = [sys.executable, "-I", "-S", guardian.__file__, str(end), "01"[not scratch], *command]
    child = None
    try:
        child = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, pass_fds=(end,),
            process_group=0, cwd=cwd, env=env, text=True, errors="replace",
        )  # fmt: skip
        out, err = child.communicate(timeout=within_s)
    except subprocess.TimeoutExpired as error:
        name = Path(command[0]).name
        raise Unavailable(
            f"{name} did not finish in {within_s:g} s and was stopped; --build-timeout gives it longer"
        ) from error
    finally:
        os.close(end)
        _held.discard(kept)
        kept.close()
        if child:
            _ended(child)
    if err.startswith(guardian.NO_START):
        raise OSError(errno.ENOENT, err.removeprefix(guardian.NO_START).strip())
    return subprocess.CompletedProcess(list(command), child.returncode, out, err)


def stop() -> None:
    """End every child that runs, from whatever thread it was started."""
    for kept in list(_held):
        kept.close()


def _ended(child: subprocess.Popen[str]) -> None:
    """Wait for a child that has been told to end, and shut its pipes."""
    try:
        child.wait(2 * guardian.GRACE_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
    for pipe in (child.stdout, child.stderr):
        if pipe:
            pipe.close()
