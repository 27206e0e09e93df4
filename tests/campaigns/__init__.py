"""Seeded mutations of what comes from outside: a few seconds in CI, an hour with --campaigns.

Each input ends in an answer or in one line and exit code 2; its time and memory have bounds. The counts are
printed: `pytest --campaigns -n 0 -s tests/campaigns`.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

SECONDS, LONG = 1.5, 3600.0
WORST_S, WORST_MIB = 5.0, 500.0


def budget(request: pytest.FixtureRequest) -> float:
    """Seconds that a campaign may take."""
    return LONG if request.config.getoption("--campaigns") else SECONDS


@dataclass
class Tally:
    """What became of the inputs. An exception that `run` lets out is a crash and ends the test."""

    name: str
    seconds: float
    tried: int = 0
    refused: int = 0
    worst_s: float = 0.0

    def inputs(self) -> Iterator[int]:
        """Seeds, until the time is up; at least one."""
        end = time.monotonic() + self.seconds
        while not self.tried or time.monotonic() < end:
            yield self.tried
            self.tried += 1

    def take(self, run: Callable[[], bool]) -> None:
        """Run one input; it says whether it was refused."""
        started = time.process_time()
        self.refused += run()
        spent = time.process_time() - started
        assert spent < WORST_S, f"{self.name}: seed {self.tried} took {spent:.1f} s"
        self.worst_s = max(self.worst_s, spent)

    def __str__(self) -> str:
        mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        return (
            f"{self.name}: {self.tried} inputs, {self.refused} refusals, 0 crashes, "
            f"{self.worst_s:.2f} s and {mib:.0f} MiB at worst"
        )
