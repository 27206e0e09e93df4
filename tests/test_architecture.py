"""The house stands as the README draws it: read from the source, not from what happens to be imported.

Each rule is a function from sources to lines of complaint. It has no complaint about this repository, and has
one about the same repository with a planted fault.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

from probes.engine import probe

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("probes", "kernels_numba", "kernels_cu")
PROBES = probe.names()

FLOORS = (
    ("probes.core",), ("probes", "probes.formats"), ("probes.device",), ("probes.verdict",),
    ("probes.report",), ("probes.gpu", "kernels_numba", "kernels_cu"), ("probes.engine",), ("probes.cli",),
    tuple(f"probes.{name}" for name in PROBES), ("probes.commands",), ("probes.__main__",),
)  # fmt: skip
"""From the ground up. Rooms of one floor do not know each other."""

MOST_LINES = 350
CACHES = {("probes/device/model.py", "l1")}
"""Strings that are a GPU's own words: the model's term of the L1 cache."""

Sources = Mapping[str, str]
"""Path from the repository's root -> text, of every Python file of the packages."""


@cache
def sources() -> Sources:
    files = [p for name in PACKAGES for p in (ROOT / name).rglob("*.py")]
    return {p.relative_to(ROOT).as_posix(): p.read_text() for p in sorted(files)}


@cache
def _parse(text: str) -> ast.Module:
    return ast.parse(text)


def module(path: str) -> str:
    """`probes/gpu/graph.py` -> `probes.gpu.graph`."""
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def room(name: str) -> str:
    """The package or module of FLOORS that a dotted name lies in."""
    every = [r for floor in FLOORS for r in floor]
    return max((r for r in every if name == r or name.startswith(r + ".")), key=len, default="")


def floor(name: str) -> int:
    return next(k for k, rooms in enumerate(FLOORS) if room(name) in rooms)


def imported(path: str, files: Sources) -> set[str]:
    """Every module that a file imports when it runs, lazily or not; names for types alone never run."""
    known = {module(p) for p in files}
    return {
        f"{base}.{name}" if name and f"{base}.{name}" in known else base
        for base, name in _imports(path, files[path])
    }


@cache
def _imports(path: str, text: str) -> list[tuple[str, str]]:
    """(module, name out of it or '') of each import."""
    package = module(path) if path.endswith("/__init__.py") else module(path).rpartition(".")[0]

    def visit(node: ast.AST) -> Iterator[tuple[str, str]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
                continue
            if isinstance(child, ast.Import):
                yield from ((a.name, "") for a in child.names)
            elif isinstance(child, ast.ImportFrom):
                up = package.split(".")[: len(package.split(".")) - child.level + 1] if child.level else []
                base = ".".join([*up, *([child.module] if child.module else [])])
                yield from ((base, a.name) for a in child.names)
            yield from visit(child)

    return list(visit(_parse(text)))


def own(name: str) -> bool:
    return name.split(".")[0] in PACKAGES


# The rules


def same_rooms(files: Sources) -> list[str]:
    """l1, l2 and l3 hold the same files, and at most two more, which the package's docstring names."""
    parts = {n: {p.rpartition("/")[2] for p in files if p.startswith(f"probes/{n}/")} for n in PROBES}
    common = set.intersection(*parts.values())
    wanted = {f"{x}.py" for x in "__init__ __main__ table data plan arms analysis report".split()}
    out = [f"{n} lacks {x}" for n, found in parts.items() for x in sorted(wanted - found)]
    for name, found in parts.items():
        more = sorted(found - wanted)
        told = ast.get_docstring(_parse(files[f"probes/{name}/__init__.py"])) or ""
        out += [f"{name} has {len(more)} more parts: {more}"] if len(more) > 2 else []
        out += [f"{name}'s docstring does not name {x}" for x in more if x not in told]
    return out + [f"every probe has {x}, which no rule asks for" for x in sorted(common - wanted)]


def no_circles(files: Sources) -> list[str]:
    """No module imports itself by way of others, lazy imports counted."""
    edges = {module(p): {n for n in imported(p, files) if own(n) and n != module(p)} for p in files}
    done: set[str] = set()

    def walk(name: str, above: tuple[str, ...]) -> Iterator[str]:
        if name in above:
            yield " -> ".join([*above[above.index(name) :], name])
        elif name not in done:
            for other in sorted(edges.get(name, ())):
                yield from walk(other, (*above, name))
            done.add(name)

    return [circle for name in sorted(edges) for circle in walk(name, ())]


def points_down(files: Sources) -> list[str]:
    """A room imports itself and lower floors."""
    return [
        f"{module(p)} (floor {floor(module(p))}) imports {n} (floor {floor(n)})"
        for p in files
        for n in sorted(imported(p, files))
        if own(n) and room(n) != room(module(p)) and floor(n) >= floor(module(p))
    ]


def knows_no_tenant(files: Sources) -> list[str]:
    """No probe's or variant's name is a string in core ... engine; docstrings are prose."""
    tables = [probe.table(n) for n in PROBES]
    listed = [line.split() for t in tables for line in t.listing()]
    known = {words[1] for words in listed if words[0] in ("variant", "case")}
    named = re.compile(r"(?<![a-z0-9])(" + "|".join(PROBES) + r")(?![a-z0-9])")
    out = []
    for p, text in files.items():
        if not p.startswith("probes/") or floor(module(p)) >= floor("probes.cli"):
            continue
        prose = {id(n.value) for n in ast.walk(_parse(text)) if isinstance(n, ast.Expr)}
        for node in ast.walk(_parse(text)):
            if not isinstance(node, ast.Constant) or not isinstance(node.value, str) or id(node) in prose:
                continue
            if (node.value in known or named.search(node.value)) and (p, node.value) not in CACHES:
                out.append(f"{p}:{node.lineno}: {node.value!r}")
    return out


def unique_classes(files: Sources) -> list[str]:
    """A top-level class has its name to itself."""
    seen: dict[str, list[str]] = {}
    for p, text in files.items():
        for node in _parse(text).body:
            if isinstance(node, ast.ClassDef):
                seen.setdefault(node.name, []).append(p)
    return [f"{name} in {' and '.join(where)}" for name, where in sorted(seen.items()) if len(where) > 1]


def short_files(files: Sources) -> list[str]:
    """No file passes 350 lines."""
    return [f"{p} has {n} lines" for p, text in files.items() if (n := text.count("\n")) > MOST_LINES]


def says_what_for(files: Sources) -> list[str]:
    """Every module has a docstring."""
    return [f"{p} has no docstring" for p, text in files.items() if not ast.get_docstring(_parse(text))]


RULES: dict[Callable[[Sources], list[str]], list[dict[str, str]]] = {
    same_rooms: [
        {"probes/l1/extra.py": '"""x"""'},
        {"probes/l2/third.py": '"""x"""'},
        {f"probes/{n}/common.py": '"""x"""' for n in PROBES},
        {"probes/l3/plan.py": ""},
    ],
    no_circles: [
        {"probes/core/types.py": "import probes.core.digest", "probes/core/digest.py": "from . import types"},
        {"probes/report/rows.py": "def f():\n    from probes.report import store"},
        {"probes/verdict/bars.py": "from . import bars2", "probes/verdict/bars2.py": "from .bars import x"},
    ],
    points_down: [
        {"probes/core/types.py": "from probes.gpu import timing"},
        {"probes/formats/q6k.py": "def f():\n    import kernels_cu.build"},
        {"probes/device/model.py": "from probes.verdict import bars"},
        {"probes/verdict/bars.py": "from probes.report.rows import Row"},
        {"probes/gpu/graph.py": "from kernels_numba import l1"},
        {"kernels_cu/build.py": "import probes.engine.bench"},
        {"probes/engine/run.py": "from probes import cli"},
        {"probes/engine/run.py": "from ..l2 import table"},
        {"probes/l1/plan.py": "from probes.l2 import table"},
        {"probes/l1/plan.py": "from probes.commands import replay"},
    ],
    knows_no_tenant: [
        {"probes/engine/run.py": 'x = "l1"'},
        {"probes/device/tuning.py": 'x = f"l3_{1}"'},
        {"probes/engine/judge.py": 'x = row.variant == "padded_loop"'},
        {"probes/engine/judge.py": 'x = row.variant == "pair"'},
        {"probes/verdict/record.py": 'x = ["decode13"]'},
    ],
    unique_classes: [{"probes/l1/plan.py": "class Row:\n    pass"}],
    short_files: [{"probes/cli.py": "\n" * (MOST_LINES + 1)}],
    says_what_for: [{"probes/cli.py": "x = 1"}],
}  # fmt: skip
"""Each rule, and changes that it must see: files with their new text, '' for a file taken away."""


@pytest.mark.parametrize("rule", RULES, ids=lambda r: r.__name__)
def test_the_rule_holds(rule: Callable[[Sources], list[str]]) -> None:
    assert rule(sources()) == []


@pytest.mark.parametrize(
    ("rule", "fault"),
    [pytest.param(r, f, id=f"{r.__name__}-{k}") for r, faults in RULES.items() for k, f in enumerate(faults)],
)
def test_the_rule_sees_a_fault(rule: Callable[[Sources], list[str]], fault: dict[str, str]) -> None:
    changed = {p: t for p, t in {**sources(), **fault}.items() if t or p not in fault}
    assert set(rule(changed)) - set(rule(sources()))


# What a module loads is seen by loading it

HEAVY = {"numpy", "numba", "cuda", "llvmlite", "pynvml", "tabulate", "psutil", "matplotlib", "gguf"}


def loaded(code: str) -> set[str]:
    """Names in sys.modules once `code` has run in a fresh process."""
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys; print(*sys.modules)"],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    return set(done.stdout.split())


LIGHT = ["probes.cli", *(f"probes.{name}.table" for name in PROBES)]


@pytest.mark.parametrize("name", LIGHT)
def test_tables_and_the_command_line_are_light(name: str) -> None:
    assert loaded(f"import {name}") & HEAVY == set()


@pytest.mark.parametrize("name", ["probes", *(f"probes.{name}" for name in PROBES)])
def test_help_loads_nothing_heavy(name: str) -> None:
    run = f"runpy.run_module({name!r}, run_name='__main__')"
    code = f"import runpy, sys\nsys.argv = ['x', '--help']\ntry: {run}\nexcept SystemExit: pass"
    assert loaded(code) & HEAVY == set()


@pytest.mark.parametrize("module", ["numpy", "numba.cuda", "cuda.core"])
def test_a_heavy_import_is_seen(module: str) -> None:
    assert loaded(f"import probes.cli, {module}") & HEAVY


# No machine's paths

TEXT = {".py", ".cu", ".cuh", ".cpp", ".h", ".toml", ".md", ".json", ".txt", ".yml", ""}
PATH = re.compile(r"(?<![\w.~/])/(?:work|tmp|root|home|Users)/\w")


def test_no_machine_paths() -> None:
    """Neither sources nor committed reports say where on somebody's machine they were made."""
    named = ("README.md", "pyproject.toml", ".gitignore", ".gitattributes", ".ci/run", ".ci/restamp")
    files = [ROOT / n for n in named]
    for folder in (*PACKAGES, "tests", "out", "docs", "examples"):
        for p in (ROOT / folder).rglob("*"):
            skip = {"__pycache__", "build", "runs"} & set(p.relative_to(ROOT).parts)
            if p.is_file() and not skip and p.suffix in TEXT:
                files.append(p)
    hits = [
        f"{p.relative_to(ROOT)}:{n}"
        for p in files
        for n, line in enumerate(p.read_text(errors="replace").splitlines(), 1)
        if PATH.search(line)
    ]
    assert hits == []
    assert PATH.search("see /ho" + "me/somebody/x")
