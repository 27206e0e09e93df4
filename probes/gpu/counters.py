"""The profiler's figures of single launches: DRAM bytes, duration, how busy DRAM and schedulers were.

ncu runs a child that launches each arm once, in order, inside `window`. Clocks are left alone, caches are
flushed before each kernel, and memory is restored before each further pass: a launch's counters begin at 0.
"""

from __future__ import annotations

import csv
import io
import math
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from probes.core.types import Unavailable
from probes.gpu.driver import call

BYTES, DURATION = "dram__bytes_read.sum", "gpu__time_duration.sum"
DRAM = "dram__throughput.avg.pct_of_peak_sustained_elapsed"
ISSUE = "smsp__issue_active.avg.pct_of_peak_sustained_active"
NEEDED = (BYTES, DURATION)
METRICS = (*NEEDED, DRAM, ISSUE)  # a launch without the needed ones counts as not seen
PERMIT = "run as root, or load the driver with NVreg_RestrictProfilingToAdminUsers=0"


@dataclass(frozen=True, slots=True)
class Counted:
    """One kernel launch as the profiler saw it, or several as `joined` adds them up."""

    kernel: str
    dram_bytes_read: int
    time_s: float
    dram_fraction: float | None = None
    """DRAM throughput over its peak, of the whole duration; None where the profiler gave no number."""
    issue_fraction: float | None = None
    """Cycles in which a scheduler issued an instruction, over those in which it had a warp."""


def joined(parts: Sequence[Counted]) -> Counted:
    """The launches of one step as one: bytes and times added up, fractions weighted by time."""
    times = [p.time_s for p in parts]
    fractions = ([p.dram_fraction for p in parts], [p.issue_fraction for p in parts])
    dram, issue = (_weighted(values, times) for values in fractions)
    return Counted(parts[0].kernel, sum(p.dram_bytes_read for p in parts), sum(times), dram, issue)


def _weighted(values: Sequence[float | None], weights: Sequence[float]) -> float | None:
    """The mean; None where a value is missing."""
    known = [v * w for v, w in zip(values, weights, strict=True) if v is not None]
    total = sum(weights)
    return sum(known) / total if len(known) == len(values) and total else None


def _counted(kernel: str, m: Mapping[str, float]) -> Counted:
    dram, issue = (m[name] / 100 if name in m else None for name in (DRAM, ISSUE))
    return Counted(kernel, int(m[BYTES]), m[DURATION] * 1e-9, dram, issue)


def parse(text: str) -> list[Counted]:
    """Launches out of ncu's CSV (base units), in launch order. Raises Unavailable where it holds none."""
    lines = [line for line in text.splitlines() if line.startswith('"')]
    found: dict[int, tuple[str, dict[str, float]]] = {}
    try:
        for row in csv.DictReader(io.StringIO("\n".join(lines))):
            place, name = row.get("ID") or "", row.get("Metric Name")
            value = _number(row.get("Metric Value"))
            if place.isdecimal() and name in METRICS and value is not None:
                kernel = (row.get("Kernel Name") or "").split("(")[0]
                found.setdefault(int(place), (kernel, {}))[1][name] = value
    except (csv.Error, ValueError) as error:  # fields and numbers longer than Python reads
        raise Unavailable(f"the profiler gave no counters: its output cannot be read ({error})") from error
    out = [_counted(*launch) for _, launch in sorted(found.items()) if launch[1].keys() >= set(NEEDED)]
    if not out:
        raise Unavailable(f"the profiler gave no counters: {_fault(text) or 'no launch in its output'}")
    return out


def _number(text: str | None) -> float | None:
    """A metric's value; None for `n/a` and whatever else is no count, time or share."""
    try:
        value = float((text or "").replace(",", ""))
    except ValueError:
        return None
    return value if math.isfinite(value) and 0 <= value < 2**63 else None


def _fault(text: str) -> str:
    """The line of the profiler's output that says what went wrong, the missing permission before all."""
    lines = text.splitlines()
    told = [f"{line.strip()}; {PERMIT}" for line in lines if "ERR_NVGPUCTRPERM" in line]
    told += [line for line in lines if "ERR" in line or "error" in line.lower()]
    return told[0].strip() if told else ""


@contextmanager
def window() -> Iterator[None]:
    """What is launched inside is profiled, where ncu runs this process; what is not there is not."""
    call("cuProfilerStart")
    yield
    call("cuProfilerStop")  # not where the launches failed: their own error is the one to show


def profile(command: Sequence[str], kernel_regex: str, timeout_s: float = 600.0) -> list[Counted]:
    """Run `command` under ncu. Raises Unavailable: no ncu, no permission for the counters, a failed child."""
    ncu = shutil.which("ncu")
    if not ncu:
        raise Unavailable("no ncu on PATH: the profiler's figures need Nsight Compute")
    with tempfile.TemporaryDirectory(prefix="probes-") as folder:
        log = Path(folder) / "ncu.csv"
        argv = [
            ncu, "--csv", "--print-units", "base", "--clock-control", "none", "--cache-control", "all",
            "--profile-from-start", "off", "--metrics", ",".join(METRICS), "-k", f"regex:{kernel_regex}",
            "--log-file", str(log), *command,
        ]  # fmt: skip
        try:
            child = subprocess.run(argv, capture_output=True, text=True, errors="replace", timeout=timeout_s)
        except subprocess.TimeoutExpired as error:
            raise Unavailable(f"the profiler did not finish in {timeout_s:.0f} s") from error
        except OSError as error:
            raise Unavailable(f"the profiler cannot be started: {error.strerror}") from error
        text = log.read_text(errors="replace") if log.exists() else ""
    if child.returncode:
        denied = _fault(text) if "ERR_NVGPUCTRPERM" in text else ""
        said = (denied or child.stderr.strip() or text.strip() or "no message").splitlines()[-1]
        raise Unavailable(f"the profiled run failed: {said}")
    return parse(text)
