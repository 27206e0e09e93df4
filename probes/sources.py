"""Which files a probe's figures depend on: its kernels in both languages and what those include.

Followed from the sources themselves (#include and import), so that a header of another probe does
not make this probe's report stale.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import kernels_cu
import kernels_numba
from kernels_cu import build
from probes import cli
from probes.core.digest import kernels_digest
from probes.device.launch_bounds import MIN_BLOCKS
from probes.formats.layouts import LAYOUTS
from probes.formats.swiglu import EXP

CU = Path(kernels_cu.__file__).parent
NUMBA = Path(kernels_numba.__file__).parent


def _follow(start: Path, needs: Callable[[Path], list[Path]]) -> list[Path]:
    """`start` and everything it needs, directly or not."""
    found, open_ = [start], [start]
    while open_:
        for path in needs(open_.pop()):
            if path not in found:
                found.append(path)
                open_.append(path)
    return found


def _included(path: Path) -> list[Path]:
    names = re.findall(r'^#include "([\w.]+)"', path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return [CU / name for name in names if (CU / name).exists()]  # a generated header is no file here


def _imported(path: Path) -> list[Path]:
    names: list[str] = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
    own = [n.removeprefix("kernels_numba.") for n in names if n.startswith("kernels_numba.")]
    return [NUMBA / f"{n}.py" for n in dict.fromkeys(own) if (NUMBA / f"{n}.py").exists()]


def sources(probe: str, backend: str = "") -> list[Path]:
    """The kernel sources behind one probe, the harness' included; of one backend or of both."""
    found: list[Path] = []
    for stem in (*cli.stems(probe), "harness"):
        if backend in ("", "cu"):
            found += _follow(CU / f"{stem}.cu", _included)
        if backend in ("", "numba"):
            found += _follow(NUMBA / f"{stem}.py", _imported)
    if backend in ("", "numba"):
        found.append(NUMBA / "compile.py")
    return list(dict.fromkeys(found))


def digest(
    probe: str, launches: Sequence[Any] = (), backend: str = "", forms: Sequence[str] | None = None
) -> str:
    """SHA-256 of a probe's kernels: parsed sources, compiler flags, layouts' table, bounds, launch rows.

    `forms` names the launch bounds that the probe's kernels have; all of them by default.
    """
    bounds = {form: blocks for form, blocks in MIN_BLOCKS.items() if forms is None or form in forms}
    flags = {
        "nvcc": build.NVCC_FLAGS,
        "layouts": [asdict(lay) for lay in LAYOUTS],
        "exp": EXP._asdict(),
        "min_blocks": bounds,
    }
    return kernels_digest(sources(probe, backend), flags, launches)
