"""What decides a verdict needs no CUDA: it imports where CUDA, Numba and NVML are refused (invariant 8)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from probes.engine import probe

ROOT = Path(__file__).parents[1]
BLOCKED = ("cuda", "numba", "pynvml")
CODE = """
import importlib, sys
from importlib.abc import MetaPathFinder
blocked = set(sys.argv[1].split(","))

class Refuse(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in blocked:
            raise ModuleNotFoundError(f"{name} is refused here")

sys.meta_path.insert(0, Refuse())
for name in sys.argv[2:]:
    importlib.import_module(name)
loaded = {name.partition(".")[0] for name in sys.modules}
assert not loaded & blocked, loaded & blocked
"""


def imported(names: list[str], folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Import them in a fresh process that refuses CUDA, from `folder`."""
    argv = [sys.executable, "-c", CODE, ",".join(BLOCKED), *names]
    return subprocess.run(argv, cwd=folder, capture_output=True, text=True, timeout=120, check=False)


def deciding() -> list[str]:
    """All of probes.verdict, and each probe's analysis."""
    folder = ROOT / "probes" / "verdict"
    verdict = [f"probes.verdict.{p.stem}" for p in sorted(folder.glob("*.py")) if p.stem != "__init__"]
    return ["probes.verdict", *verdict, *(f"probes.{name}.analysis" for name in probe.names())]


def test_analysis_and_verdict_import_where_cuda_is_blocked() -> None:
    names = deciding()
    rules = {f"probes.verdict.{name}" for name in ("bars", "blocks", "windows")}
    assert {*rules, "probes.l1.analysis"} <= set(names)
    assert len(names) >= 7
    done = imported(names)
    assert done.returncode == 0, done.stderr


def test_a_kernel_does_not() -> None:
    """The block blocks: Numba's kernels cannot be imported without Numba."""
    done = imported(["kernels_numba.l1"])
    assert done.returncode == 1 and "numba is refused here" in done.stderr


@pytest.mark.parametrize("line", ["import numba", "from cuda.bindings import driver", "import pynvml"])
def test_a_planted_import_is_found(tmp_path: Path, line: str) -> None:
    (tmp_path / "planted.py").write_text(f"from probes.verdict import bars\n{line}\n")
    (tmp_path / "probes").symlink_to(ROOT / "probes")
    done = imported(["planted"], tmp_path)
    assert done.returncode == 1 and "is refused here" in done.stderr
    (tmp_path / "planted.py").write_text("from probes.verdict import bars\n")
    assert imported(["planted"], tmp_path).returncode == 0
