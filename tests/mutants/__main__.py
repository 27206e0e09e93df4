"""python -m tests.mutants [WORD ...]: one change after another in a copy of the tree; survivors are named.

WORD: only changes whose file or reason holds one of these words. The copy has no Git and no committed reports
but those that tests read; a test that fails without any change is left out of what may see one.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.mutants import Mutant
from tests.mutants.table import MUTANTS

ROOT = Path(__file__).resolve().parents[2]
TAKEN = (
    "probes",
    "kernels_cu",
    "kernels_numba",
    "tests",
    "out",
    "docs",
    "pyproject.toml",
    "README.md",
    "LICENSE",
)
MOST_S = 300  # of one change's tests: a hang is seen, too


def copied(folder: Path) -> Path:
    """The tree without what a run or Git left."""
    for name in TAKEN:
        source, skip = ROOT / name, shutil.ignore_patterns("__pycache__", ".pytest_cache", "runs", "build")
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=skip)
        elif source.exists():
            shutil.copy2(source, folder / name)
    return folder


def pytest(folder: Path, tests: Sequence[str], *argv: str, most_s: float = MOST_S) -> tuple[int, str]:
    """Exit code and output; 124 where it took too long."""
    whole = ["--campaigns"] if all(t.startswith("tests/kernels/") for t in tests) else []
    command = [sys.executable, "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider", *whole, *argv, *tests]
    quiet = {"PYTHONDONTWRITEBYTECODE": "1", "PROBES_MUTANT": "1"}
    try:
        done = subprocess.run(
            command, cwd=folder, env={**os.environ, **quiet}, capture_output=True, text=True, timeout=most_s
        )
    except subprocess.TimeoutExpired:
        return 124, "took too long"
    return done.returncode, done.stdout + done.stderr


def failing(folder: Path, mutants: Sequence[Mutant]) -> list[str]:
    """Tests that fail as the tree stands, as options that leave them out."""
    every = list(dict.fromkeys(t for m in mutants for t in m.tests))
    code, out = pytest(folder, every, most_s=20 * MOST_S)
    lines = [x.split(" - ")[0] for x in out.splitlines()]
    bad = [x.split(maxsplit=1)[1] for x in lines if x.startswith(("FAILED ", "ERROR "))]
    if code not in (0, 1):
        raise SystemExit(f"the tests do not run as the tree stands:\n{out[-2000:]}")
    return [f"--deselect={x}" for x in bad]


def killed(folder: Path, mutant: Mutant, skip: Sequence[str]) -> tuple[bool, str]:
    """Whether a test fails under the change, and which."""
    path = folder / mutant.file
    kept = path.read_text()
    assert kept.count(mutant.old) == 1, f"{mutant.name}: the old text stands {kept.count(mutant.old)} times"
    stat = path.stat()
    path.write_text(kept.replace(mutant.old, mutant.new))
    try:
        code, out = pytest(folder, mutant.tests, "-x", *skip)
    finally:
        path.write_text(kept)
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    first = next((x for x in out.splitlines() if x.startswith(("FAILED ", "ERROR "))), "")
    if code in (4, 5):  # of pytest: no such test, or none at all
        return False, "no test was run"
    return code != 0, first.partition(" - ")[0].removeprefix("FAILED ") or out.strip()[-100:]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the changes asked for; 1 where one survives that is not named as such."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("words", nargs="*", metavar="WORD")
    words = parser.parse_args(argv).words
    mine = [m for m in MUTANTS if not words or any(w in m.name for w in words)]
    survivors, began = [], time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutants-") as where:
        folder = copied(Path(where))
        skip = failing(folder, mine)
        print(f"{len(mine)} changes; {len(skip)} tests fail without any", flush=True)
        for k, mutant in enumerate(mine, 1):
            start = time.monotonic()
            dead, by = killed(folder, mutant, skip)
            survivors += [] if dead else [mutant]
            word = "killed" if dead else "SURVIVES"
            print(f"{k:3} {word:8} {time.monotonic() - start:5.1f} s  {mutant.name}  [{by}]", flush=True)
    known = [m for m in survivors if m.survives]
    for m in survivors:
        print(f"survivor: {m.name}{': ' + m.survives if m.survives else ''}")
    took = time.monotonic() - began
    print(
        f"{len(mine)} changes, {len(mine) - len(survivors)} killed, {len(survivors)} survive ({took:.0f} s)"
    )
    return 1 if len(survivors) > len(known) else 0


if __name__ == "__main__":
    sys.exit(main())
