"""The house stands as the README draws it: read from the source, not from what happens to be imported.

Floors: probes.core < probes.gpu, kernels_numba, kernels_cu < probes.cli and other modules of probes <
probes.l1, l2, l3 <
probes.selfcheck < probes.__main__. Imports point down only.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("probes", "kernels_numba", "kernels_cu")
SOURCES = sorted(p for name in PACKAGES for p in (ROOT / name).rglob("*.py"))
HOUSES = ("probes.gpu", "kernels_numba", "kernels_cu")

CUDA = {"cuda", "pynvml", "cupti", "numba_cuda"}
LIGHT = ("types", "verdict", "rows", "provenance", "store", "report", "digest")
"""Modules of core that a `--help` may touch: they load neither NumPy nor tabulate."""


PROBE = re.compile(r"probes\.l\d+(?=[._]|$)")
"""A probe and its parts: probes.l1, probes.l1_report."""


def module(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path, text: str | None = None) -> list[tuple[str, bool]]:
    """Every imported dotted name, and whether importing the module itself runs that import."""
    tree = ast.parse(path.read_text() if text is None else text)
    package = module(path).split(".")
    if path.name != "__init__.py":
        package = package[:-1]
    found: list[tuple[str, bool]] = []

    def visit(node: ast.AST, top: bool) -> None:
        for child in ast.iter_child_nodes(node):
            inside = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
            if isinstance(child, ast.Import):
                found.extend((a.name, top) for a in child.names)
            elif isinstance(child, ast.ImportFrom):
                up = package[: len(package) - child.level + 1] if child.level else []
                base = ".".join([*up, *([child.module] if child.module else [])])
                found.extend((f"{base}.{a.name}", top) for a in child.names)
            visit(child, top and not inside)

    visit(tree, True)
    return found


def within(name: str, *packages: str) -> bool:
    return any(name == p or name.startswith(p + ".") for p in packages)


def floor(name: str) -> int:
    if within(name, "probes.core") or name == "probes":
        return 0
    if within(name, *HOUSES):
        return 1
    if within(name, "probes.__main__"):
        return 5
    if within(name, "probes.selfcheck"):
        return 4
    return 3 if PROBE.match(name) else 2


def house(name: str) -> str:
    """The package or module that a project name belongs to: what may import freely inside itself."""
    for p in ("probes.core", *HOUSES):
        if within(name, p):
            return p
    probe = PROBE.match(name)
    return probe.group() if probe else "probes" if floor(name) == 2 else ".".join(name.split(".")[:2])


def breaks(path: Path, text: str | None = None) -> list[str]:
    """What the imports of one file break, as readable lines."""
    me = module(path)
    out = []
    for name, top in imports(path, text):
        if within(name, *PACKAGES) and not (house(name) == house(me) or floor(name) < floor(me)):
            out.append(f"{me} (floor {floor(me)}) imports {name} (floor {floor(name)})")
        if within(me, "probes.core"):
            if name.split(".")[0] in CUDA or within(name, "numba.cuda"):
                out.append(f"{me} imports {name}: core never imports CUDA")
            if top and within(name, "numba", "llvmlite", "gguf", "tabulate", "matplotlib", "psutil"):
                out.append(f"{me} imports {name} at module level: import it where it is used")
    return out


@pytest.mark.parametrize("path", SOURCES, ids=module)
def test_imports_point_down(path: Path) -> None:
    assert breaks(path) == []


@pytest.mark.parametrize(
    ("file", "line", "bad"),
    [
        ("probes/core/x.py", "from probes.gpu import timing", True),
        ("probes/core/x.py", "def f():\n  import kernels_cu.build", True),
        ("probes/core/x.py", "from numba import cuda", True),
        ("probes/core/x.py", "import numba", True),
        ("probes/core/x.py", "def f():\n  import numba", False),
        ("probes/core/x.py", "def f():\n  from cuda.core import Device", True),
        ("probes/core/x.py", "from ..gpu import timing", True),
        ("probes/core/x.py", "from . import types", False),
        ("probes/gpu/x.py", "from kernels_numba import l1", True),
        ("probes/gpu/x.py", "from probes import cli", True),
        ("probes/gpu/x.py", "from probes.core import types", False),
        ("kernels_cu/x.py", "import kernels_numba", True),
        ("kernels_cu/x.py", "import probes.gpu.graph", True),
        ("kernels_numba/x.py", "import probes.core.types", False),
        ("probes/cli.py", "import probes.l1", True),
        ("probes/cli.py", "import kernels_cu.build, probes.gpu.facts", False),
        ("probes/l1.py", "from probes.l2 import PROBE", True),
        ("probes/l1.py", "from probes import cli", False),
        ("probes/l1_report.py", "from probes.l1 import CASES", False),
        ("probes/l1_report.py", "from probes.l3 import CASES", True),
        ("probes/cli.py", "from probes import l1_report", True),
        ("probes/__main__.py", "from probes import l1, cli", False),
    ],
)
def test_the_rule_itself_can_fail(file: str, line: str, bad: bool) -> None:
    assert bool(breaks(ROOT / file, line)) is bad


@pytest.mark.parametrize("name", LIGHT)
def test_light_modules_stay_light(name: str) -> None:
    code = f"import sys, probes.core.{name}; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    heavy = {"numpy", "tabulate", "numba", "cuda", "gguf", "psutil", "matplotlib"} & set(done.stdout.split())
    assert heavy == set()


@pytest.mark.parametrize("path", SOURCES, ids=module)
def test_modules_say_what_they_are_for(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text())), "a module docstring is missing"


TEXT = {".py", ".cu", ".cuh", ".cpp", ".h", ".toml", ".md", ".json", ".txt", ".yml", ""}


def test_no_machine_paths() -> None:
    """Neither sources nor committed reports say where on somebody's machine they were made."""
    pattern = re.compile(r"(?<![\w.~/])/(?:work|tmp|root|home|Users)/\w")
    files = [ROOT / n for n in ("README.md", "pyproject.toml", ".gitignore", ".gitattributes", ".ci/run")]
    for folder in (*PACKAGES, "tests", "out"):
        for p in (ROOT / folder).rglob("*"):
            skip = {"__pycache__", "build", "runs"} & set(p.relative_to(ROOT).parts)
            if p.is_file() and not skip and p.suffix in TEXT:
                files.append(p)
    hits = [
        f"{p.relative_to(ROOT)}:{n}"
        for p in files
        for n, line in enumerate(p.read_text(errors="replace").splitlines(), 1)
        if pattern.search(line)
    ]
    assert hits == []
