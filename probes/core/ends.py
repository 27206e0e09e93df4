"""Runs that signals end: SIGHUP, SIGINT (Ctrl-C) and SIGTERM all give one line and exit code 128 + number.

Before a command works, and while it imports, nothing can be lost: the process ends at once. While it works,
`Stopped` is raised, so that children end and files are whole. A signal that this process was started to
ignore, as nohup and a shell's background jobs do, stays ignored.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, NoReturn

SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
DEAF_S = 2.0
"""After a first signal, further ones are left aside so long: a closing terminal sends several."""

_raised: tuple[float, int] | None = None  # when the first signal came, and which


class Stopped(KeyboardInterrupt):
    """A signal asked this process to end; `exit_code` is what a shell expects of that."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number


def line(number: int) -> str:
    """What is said at the end."""
    return f"stopped by {signal.Signals(number).name}; whatever rows were finished are kept"


def early() -> None:
    """End at once on a signal, from now on: the first thing that `python -m probes...` does."""
    _install(_leave)


@contextmanager
def caught() -> Iterator[None]:
    """Raise `Stopped` on a signal in this block; afterwards all is as it was."""
    global _raised
    _raised, before = None, _install(_raise)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        _raised = None


@contextmanager
def at_once() -> Iterator[None]:
    """End at once on a signal in this block: modules are imported, some of which take no exception well."""
    before = _install(_leave)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def check() -> None:
    """Raise `Stopped` again where one was swallowed, as in a callback of a library's."""
    if _raised:
        raise Stopped(_raised[1])


def _install(handler: Any) -> dict[signal.Signals, Any]:
    """Set a handler for each signal that is not ignored; the ones before. None but the main thread may."""
    if threading.current_thread() is not threading.main_thread():
        return {}
    heard = {n: signal.getsignal(n) for n in SIGNALS}
    heard = {n: was for n, was in heard.items() if was not in (signal.SIG_IGN, None)}
    for number in heard:
        signal.signal(number, handler)
    return heard


def _raise(number: int, frame: FrameType | None) -> None:
    global _raised
    now = time.monotonic()
    if _raised is None:
        _raised = now, number
        raise Stopped(number)
    if now - _raised[0] > DEAF_S:  # it does not end by itself
        _leave(number, frame)


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    with suppress(OSError, ValueError, AttributeError):
        sys.stdout.flush()
    with suppress(OSError):
        os.write(2, f"{line(number)}\n".encode())
    os._exit(128 + number)
