"""python -m probes readme: the README's tables, made again from the committed reports. No GPU needed."""

from __future__ import annotations

from pathlib import Path

from probes import cli
from probes.core import flags
from probes.core.types import BACKENDS, BadInput
from probes.engine import answer, probe
from probes.report import files, store, tables
from probes.report.provenance import Head

DEVICE = "nvidia-h200"
STALE = "stale: "
SHORT = "short"


def stale_mark(head: Head) -> str:
    """Why a report lags behind its kernels, as its table must then say; '' where it claims not to."""
    return next((n for n in head.notes if str(n).startswith(STALE)), "")


def block(name: str, path: Path) -> str:
    """One probe's block of the README, from its committed report. Raises BadInput."""
    head, rows = store.read_json(path)
    if head.mode != "measure" or not head.complete:
        raise BadInput(f"{path} is not a finished measurement; a README shows nothing else")
    mark = stale_mark(head)
    lines = [f"**{mark}**\n"] if mark else []
    return "\n".join([*lines, probe.report(name).readme(rows), "", tables.first_line(head, True)])


def short(folder: Path) -> str:
    """The answers of all reports in `folder`, a line for each lever: every figure of the README's summary."""
    cells = []
    for name in probe.names():
        path = folder / f"{name}.json"
        for line in answer.lines(name, store.read_json(path)[1]) if path.exists() else ():
            said = [line.by.get(b) for b in BACKENDS]
            each = [f"{r.verdict} {answer.change(r)}".rstrip() if r else "" for r in said]
            recorded = line.first.recorded or ""
            cells.append([f"{name} {line.lever}", line.case, answer.against(line), *each, str(recorded)])
    heads = ["lever", "case", "against", "C++", "Numba", "recorded"]
    return tables.table(heads, cells, True, left=heads)


def filled(text: str, folder: Path) -> str:
    """The README's text with every probe's block made from the reports in `folder`."""
    text = tables.fill(text, SHORT, short(folder))
    for name in probe.names():
        path = folder / f"{name}.json"
        text = tables.fill(text, name, block(name, path) if path.exists() else "(not measured yet)")
    return text


def main(argv: list[str]) -> int:
    """Rewrite README.md in the current folder; with --check only compare."""
    p = flags.Parser(prog="python -m probes readme", description=(__doc__ or "").partition("\n")[0])
    p.add_argument("--check", action="store_true", help="compare only; write nothing")
    return cli.guarded(lambda: _work(p.parse_args(argv).check))


def _work(check: bool) -> int:
    readme = Path("README.md")
    if not readme.exists():
        raise BadInput("no README.md in the current folder; run this in a checkout's root")
    try:
        text = readme.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"cannot read {readme}: {error}") from error
    new = filled(text, Path("out") / DEVICE)
    if not check:
        files.write(readme, new)
    elif new != text:
        raise BadInput("README.md lags behind the committed reports; run: python -m probes readme")
    return 0
