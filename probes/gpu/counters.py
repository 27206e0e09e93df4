"""The profiler's own figures: DRAM bytes read and duration of single launches, out of Nsight Compute.

ncu runs a child that launches each arm once, in a known order; its CSV is matched by that order. The
clocks are left alone and the caches are flushed before each kernel, so a launch is cold.
"""

from __future__ import annotations

import csv
import io
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from probes.core.types import Unavailable

BYTES, DURATION = "dram__bytes_read.sum", "gpu__time_duration.sum"
METRICS = (BYTES, DURATION)


@dataclass(frozen=True, slots=True)
class Counted:
    """One kernel launch as the profiler saw it."""

    kernel: str
    dram_bytes_read: int
    time_s: float


def parse(text: str) -> list[Counted]:
    """Launches out of ncu's CSV (base units), in launch order. Raises Unavailable where it holds none."""
    lines = [line for line in text.splitlines() if line.startswith('"')]
    found: dict[int, tuple[str, dict[str, float]]] = {}
    for row in csv.DictReader(io.StringIO("\n".join(lines))):
        name, value = row.get("Metric Name"), row.get("Metric Value")
        if name in METRICS and value:
            entry = found.setdefault(int(row["ID"]), (row["Kernel Name"].split("(")[0], {}))
            entry[1][name] = float(value.replace(",", ""))
    out = [
        Counted(kernel, int(m[BYTES]), m[DURATION] * 1e-9)
        for _, (kernel, m) in sorted(found.items())
        if set(m) == set(METRICS)
    ]
    if not out:
        said = next(
            (line for line in text.splitlines() if "ERR" in line or "error" in line.lower()),
            "no launch in its output",
        )
        raise Unavailable(f"the profiler gave no counters: {said}")
    return out


def profile(command: Sequence[str], kernel_regex: str, timeout_s: float = 300.0) -> list[Counted]:
    """Run `command` under ncu. Raises Unavailable: no ncu, no permission for the counters, a failed child."""
    ncu = shutil.which("ncu")
    if not ncu:
        raise Unavailable("no ncu on PATH: the profiler's DRAM bytes need Nsight Compute")
    with tempfile.TemporaryDirectory(prefix="probes-") as folder:
        log = Path(folder) / "ncu.csv"
        argv = [
            ncu, "--csv", "--print-units", "base", "--clock-control", "none", "--cache-control", "all",
            "--metrics", ",".join(METRICS), "-k", f"regex:{kernel_regex}", "--log-file", str(log), *command,
        ]  # fmt: skip
        try:
            child = subprocess.run(argv, capture_output=True, text=True, timeout=timeout_s)
        except subprocess.TimeoutExpired as error:
            raise Unavailable(f"the profiler did not finish in {timeout_s:.0f} s") from error
        text = log.read_text() if log.exists() else ""
        if child.returncode:
            said = (child.stderr.strip() or text.strip() or "no message").splitlines()[-1]
            raise Unavailable(f"the profiled run failed: {said}")
    return parse(text)
