"""A wheel holds what the probes need at run time, and the README's commands are the ones that CI runs."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("probes", "kernels_numba", "kernels_cu")
SHIPPED = {".py", ".cu", ".cuh", ".cpp", ".h", ".toml"}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if importlib.util.find_spec("hatchling") is None:
        if os.environ.get("CI"):
            pytest.fail("hatchling is missing: CI installs the test extra")
        pytest.skip("hatchling is not installed: pip install '.[test]'")
    out = tmp_path_factory.mktemp("wheel")
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(out)],
        cwd=ROOT, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (file,) = out.glob("*.whl")
    return file


def test_the_wheel_holds_every_source(wheel: Path) -> None:
    want = {
        p.relative_to(ROOT).as_posix()
        for name in PACKAGES
        for p in (ROOT / name).rglob("*")
        if p.is_file() and p.suffix in SHIPPED and "__pycache__" not in p.parts
    }
    assert {Path(n).suffix for n in want} >= {".py", ".cu", ".cuh", ".toml"}
    with zipfile.ZipFile(wheel) as z:
        names = set(z.namelist())
    assert want - names == set()
    extra = {
        n for n in names if not n.startswith(tuple(f"{p}/" for p in PACKAGES)) and ".dist-info/" not in n
    }
    assert extra == set()
    assert any(n.endswith("licenses/LICENSE") for n in names)


def test_the_wheel_works_away_from_the_checkout(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as z:
        z.extractall(tmp_path)
    code = (
        "import probes.verdict.bars as v, probes.report.provenance as p, kernels_cu, kernels_numba\n"
        "print(v.__file__); print(len(v.bars()), p.git_state())"
    )
    env = {k: v for k, v in os.environ.items() if k != "PROBES_GIT"} | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    file, rest = done.stdout.splitlines()
    assert Path(file).is_relative_to(tmp_path)
    assert rest == "9 None"


def test_the_base_install_needs_no_toolkit() -> None:
    base = PROJECT["dependencies"]
    assert not [d for d in base if re.match(r"nvidia-(?!ml-py)|numba-cuda\[", d)]
    assert PROJECT["requires-python"] == ">=3.11"
    for d in ("numpy>=2.1,<2.6", "numba-cuda==0.30.4", "gguf==0.19.0"):
        assert d in base


def test_cuda_compilers_are_pinned_to_13_0() -> None:
    """13.1 and later make PTX that driver 580 refuses; cuobjdump and nvdisasm exist from 13.2 on only."""
    extras = PROJECT["optional-dependencies"]
    wheels = [d for name in ("offline", "cu13") for d in extras[name] if d.startswith("nvidia-")]
    assert len(wheels) == 9
    for d in wheels:
        name, _, version = d.partition("==")
        tool = name.endswith(("cuobjdump", "nvdisasm"))
        assert version.startswith("13.2." if tool else "13.0."), d


def readme_blocks() -> list[list[str]]:
    text = (ROOT / "README.md").read_text()
    return [b.strip().splitlines() for b in re.findall(r"^```sh\n(.*?)^```$", text, re.M | re.S)]


def test_the_readme_starts_with_two_commands() -> None:
    main, tests, *_ = readme_blocks()
    assert main == ["python3 -m venv .venv && .venv/bin/pip install -q . && .venv/bin/python -m probes"]
    assert len(tests) == 1
    for part in ("python3 -m venv .venv", "pip install -q '.[test]'", ".venv/bin/python -m pytest"):
        assert part in tests[0]
    first_screen = (ROOT / "README.md").read_text().splitlines()[:24]
    assert tests[0] in first_screen


def test_ci_runs_the_readme_s_test_command() -> None:
    done = subprocess.run([ROOT / ".ci" / "run", "--show"], capture_output=True, text=True, timeout=20)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == readme_blocks()[1][0]


def test_the_readme_s_links_lead_somewhere() -> None:
    text = (ROOT / "README.md").read_text()
    reports = "out/"  # a committed report may not be there yet in a work tree
    links = [t for t in re.findall(r"\]\(([^)#:]+)\)", text) if not t.startswith(reports)]
    assert links
    assert [t for t in links if not (ROOT / t).exists()] == []


def test_the_readme_s_tables_can_be_filled() -> None:
    from probes.report.tables import fill

    assert "new table" in fill((ROOT / "README.md").read_text(), "l1", "new table")
