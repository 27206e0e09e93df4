""".ci/restamp rewrites a hash only where nothing that was measured is another: each of its refusals, once."""

from __future__ import annotations

import json
import shutil
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any

import pytest

from probes.commands import resources
from probes.core.cubin import Section
from probes.core.types import Resources
from probes.device import resources as recorded

ROOT = Path(__file__).resolve().parents[1]
OLD, NEW = "ab" * 32, "cd" * 32


@pytest.fixture(scope="module")
def script() -> Any:
    loader = SourceFileLoader("restamp", str(ROOT / ".ci" / "restamp"))
    spec = spec_from_loader("restamp", loader)
    assert spec
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module


KEY = ("cu", "sm_90", 0, "l1_padded_loop")
SECTIONS = {
    ".text": Section(".text", 1, 4, 0, b"code"),
    ".nv.constant0": Section(".nv.constant0", 1, 2, 0, b"\0\0"),
    ".nv.shared": Section(".nv.shared", 8, 32, 0, b""),
    ".rela.text": Section(".rela.text", 4, 24, 0, bytes(range(24))),
    ".nv.info": Section(".nv.info", 1, 4, 0, b"info"),
}


@pytest.mark.parametrize(
    ("name", "data", "size", "counts"),
    [
        (".text", b"cOde", 4, True),
        (".nv.constant0", b"\0\1", 2, True),
        (".nv.constant3", b"\0", 1, True),
        (".nv.shared", b"", 48, True),
        (".rela.text", b"\1" + bytes(range(1, 24)), 24, True),  # the place
        (".rela.text", bytes(range(12)) + b"\7" * 4 + bytes(range(16, 24)), 24, False),  # the symbol's number
        (".nv.info", b"else", 4, False),
    ],
)
def test_what_must_be_equal_of_a_kernel(script: Any, name: str, data: bytes, size: int, counts: bool) -> None:
    base = {KEY: (Resources(40, 32, 0), script.facts(SECTIONS))}
    other = {KEY: (Resources(40, 32, 0), script.facts(SECTIONS | {name: Section(name, 1, size, 0, data)}))}
    assert script.compare(base, base) == []
    found = script.compare(base, other)
    assert bool(found) is counts
    assert all("l1_padded_loop" in line and name in line for line in found)


def test_costs_and_lost_kernels_count(script: Any) -> None:
    base = {KEY: (Resources(40, 32, 0), {})}
    assert "registers=40" in script.compare(base, {KEY: (Resources(41, 32, 0), {})})[0]
    assert "only in the base" in script.compare(base, {})[0]
    assert "only in this tree" in script.compare({}, base)[0]


PLACES = {
    "base": ("probes/core/bars.toml", "probes/core/resources.toml"),
    "here": ("probes/verdict/bars.toml", "probes/device/resources.toml"),
}


@pytest.fixture
def trees(tmp_path: Path) -> tuple[Path, Path]:
    """Two small trees with one report each, alike but for the folders that their tables lie in."""
    head = {"kernels_sha256": OLD, "bars_sha256": "12" * 32, "rows": []}
    for name in ("base", "here"):
        out = tmp_path / name / "out" / "gpu"
        out.mkdir(parents=True)
        (out / "l1.json").write_text(json.dumps(head))
        (out / "l1.md").write_text(f"bars {'12' * 6}, kernels {OLD[:12]}")
        bars, resources = PLACES[name]
        for file, text in (
            (bars, "[l1.dpl]\nbar = 1\n[l3.fused]\nbar = 2\n"),
            (resources, f'[sources_sha256]\n"l1.cu" = "{OLD}"\n'),
        ):
            path = tmp_path / name / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    return tmp_path / "base", tmp_path / "here"


def run(script: Any, trees: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, **more: Any) -> int:
    """restamp() on the two trees; `more` replaces what the base or this one says, or the kernels."""
    base, here = trees
    said = {
        base: {"reports": {"gpu/l1": OLD}, "launches": {"gpu/l1": "[1]"}, "bars": {"l1": "12" * 32},
               "sources": {"l1.cu": OLD}},
        here: {"reports": {"gpu/l1": NEW}, "launches": {"gpu/l1": "[1]"}, "bars": {"l1": "34" * 32},
               "sources": {"l1.cu": NEW}},
    }  # fmt: skip
    said[base] |= more.get("base", {})
    said[here] |= more.get("here", {})
    kernels = {base: {KEY: (1, {})}, here: {KEY: (more.get("kernel", 1), {})}}
    monkeypatch.setattr(script, "ROOT", here)
    monkeypatch.setattr(script, "ask", lambda tree, flag, otherwise: said[tree])
    monkeypatch.setattr(script, "cubins", lambda tree, otherwise: kernels[tree])
    return int(script.restamp(base, False, False))


def text(trees: tuple[Path, Path]) -> str:
    here = trees[1]
    files = ("out/gpu/l1.json", "out/gpu/l1.md", PLACES["here"][1])
    return "\n".join((here / name).read_text() for name in files)


def test_hashes_are_replaced_where_all_is_equal(
    script: Any, trees: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = text(trees)
    assert run(script, trees, monkeypatch) == 0
    assert text(trees) == before.replace(OLD, NEW).replace(OLD[:12], NEW[:12]).replace(
        "12" * 32, "34" * 32
    ).replace("12" * 6, "34" * 6)
    again = text(trees)
    assert run(script, trees, monkeypatch) == 0 and text(trees) == again


@pytest.mark.parametrize(
    "more",
    [
        {"kernel": 2},
        {"here": {"launches": {"gpu/l1": "[2]"}}},
        {"base": {"reports": {"gpu/l1": "ef" * 32}, "sources": {"l1.cu": "ef" * 32}}},  # stale in the base
    ],
)
def test_nothing_is_replaced_where_something_is_not(
    script: Any, trees: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, more: dict[str, Any]
) -> None:
    before = text(trees)
    run(script, trees, monkeypatch, **more)
    assert text(trees) == before


def test_a_bar_that_moved_keeps_its_hash(
    script: Any, trees: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    (bars,) = (trees[1] / "probes").rglob("bars.toml")
    bars.write_text(bars.read_text().replace("bar = 1", "bar = 3"))
    assert run(script, trees, monkeypatch) == 0
    assert "34" * 6 not in text(trees) and NEW in text(trees)


def test_a_report_that_is_not_the_base_s_is_left_alone(
    script: Any, trees: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = trees[1] / "out" / "gpu" / "l1.json"
    file.write_text(file.read_text().replace(OLD, "98" * 32))
    before = file.read_text()
    assert run(script, trees, monkeypatch) == 0
    assert file.read_text() == before


def test_what_the_script_asks_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`resources --digests`: each committed report's digest and launch rows, and resources.toml's own."""
    monkeypatch.chdir(ROOT)
    found = resources.digests()
    heads = {
        f"{p.parent.name}/{p.stem}": json.loads(p.read_text())["kernels_sha256"]
        for p in (ROOT / "out").glob("*/l*.json")
        if p.parent.name not in ("runs", "build")
    }
    assert found["reports"] == heads and found["launches"].keys() == heads.keys()
    assert found["sources"] == recorded.recorded()[0].sources_sha256
    assert found["launches"]["nvidia-h200/l1"] != found["launches"]["nvidia-h200/l1-sweep"]
    shutil.copytree(ROOT / "out", tmp_path / "out", ignore=shutil.ignore_patterns("build", "runs"))
    monkeypatch.chdir(tmp_path)
    assert resources.digests() == found
