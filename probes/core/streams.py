"""The three streams of a process, any of which may be closed, full or gone; lines for a person."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from functools import cache

from probes.core import escaping


def settle() -> None:
    """Let a stream that was closed before the process began lead nowhere.

    Else the next file that is opened, such as a report, would get its number, and what is printed. A sign
    that the terminal lacks is shown as a ?.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free: this one
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - it stays open to the end
    for stream, how in ((sys.stdout, "replace"), (sys.stderr, "backslashreplace")):
        if hasattr(stream, "reconfigure"):  # a test's has no such method
            stream.reconfigure(errors=how)


def drop() -> None:
    """Let standard output lead nowhere from now on: what it still holds would fail again at the end."""
    with suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def tell(line: str) -> None:
    """One line on standard error, or nowhere: a message that cannot be shown ends no run."""
    with suppress(OSError, ValueError):  # its reader is gone; it was closed
        if sys.stderr:
            print(escaping.shown(line), file=sys.stderr, flush=True)


@cache
def warn(line: str) -> None:
    """A warning, once a process."""
    tell(f"warning: {line}")
