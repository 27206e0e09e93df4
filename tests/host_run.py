"""Whole commands on the stand-in GPU, in this process: what they print, what they write, how they end."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from probes import __main__, cli
from probes.report import store
from probes.report.rows import Row
from tests.host_gpu import HostGpu


@dataclass
class Ran:
    """How a command ended. `rows`: those that were measured; `verdicts`: those of the judge."""

    code: int
    out: str
    err: str
    head: Any = None
    report: str = ""
    rows: list[Row] = field(default_factory=list)
    verdicts: list[Row] = field(default_factory=list)

    def by(self, backend: str = "cu") -> dict[str, Row]:
        """Rows of one backend by variant."""
        return {r.variant: r for r in self.rows if r.backend == backend}


class Commands:
    """`commands("l1", "--sweep")` is `python -m probes.l1 --sweep`; with "" it is `python -m probes`."""

    def __init__(self, gpu: HostGpu, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.gpu, self.folder, self._capsys = gpu, folder, capsys

    def __call__(self, name: str, *argv: str) -> Ran:
        self.gpu.end_process()
        if not name:
            code = __main__.main(list(argv))
            return Ran(code, *self._capsys.readouterr())
        path = self.folder / f"{name}.json"
        for old in (path, path.with_suffix(".md")):
            old.unlink(missing_ok=True)
        code = cli.main(name, ["--mode", "measure", "-q", "--json", str(path), *argv])
        done = Ran(code, *self._capsys.readouterr())
        if path.exists():
            done.head, rows = store.read_json(path)
            done.rows = [r for r in rows if not r.verdict]
            done.verdicts = [r for r in rows if r.verdict]
        if path.with_suffix(".md").exists():
            done.report = path.with_suffix(".md").read_text()
        return done


def cold(rows: list[Row]) -> list[Row]:
    """The rows as they were if these small weights had been cold."""
    for row in rows:
        row.cold = True if row.cold is False else row.cold
        row.notes = [n for n in row.notes if not n.startswith("hot")]
    return rows
