"""Lines for a person on standard error, which may be closed, full or gone."""

from __future__ import annotations

import sys
from contextlib import suppress
from functools import cache


def tell(line: str) -> None:
    """One line on standard error, or nowhere: a message that cannot be shown ends no run."""
    with suppress(OSError, ValueError):  # its reader is gone; it was closed
        if sys.stderr:
            print(line, file=sys.stderr, flush=True)


@cache
def warn(line: str) -> None:
    """A warning, once a process."""
    tell(f"warning: {line}")
