"""A digest of sources moves with the code and stays with its comments."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from kernels_cu import build
from kernels_numba import compile as numba_compile
from probes.core.closure import cxx_closure, python_closure
from probes.core.digest import cxx_canonical, digest
from probes.core.types import BadInput, LaunchConfig
from probes.device import launch_bounds
from probes.engine import probe
from probes.engine.digests import sources
from probes.formats import layouts
from probes.verdict import bars

CXX = """\
// adds
#include <cstdint>
#define TWICE(x) ((x) + (x))
#define PI 3
__global__ void f(float *a, int n) {
  const char *s = "a // no comment /* nor this */";
  if (n > 0x10'00 && a[0] != 1.0e-3f) a[n] = a[n] + +1; /* one */
}
"""

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    "other",
    [
        CXX.replace("// adds", "// adds, quickly"),
        CXX.replace("/* one */", ""),
        CXX.replace("{\n", "\n{\n\n\n").replace("  if", "\t\tif"),
        CXX.replace("a[n] + +1", "a[ n ]+ +1"),
        CXX.replace("a[n] + +1", "a[n] /* ' */ + // \" \n +1"),
        CXX.replace("((x) + (x))", "\\\n  ((x) + (x))"),
        CXX.replace("#include <cstdint>\n", ""),
        CXX.replace("<cstdint>", '"other/place.cuh"  // moved'),
        CXX.replace("\n", "\r\n"),
    ],
)
def test_cxx_form_does_not_count(other: str) -> None:
    assert other != CXX
    assert cxx_canonical(other) == cxx_canonical(CXX)


@pytest.mark.parametrize(
    "other",
    [
        CXX.replace("1.0e-3f", "1.0e-4f"),
        CXX.replace("0x10'00", "0x10'01"),
        CXX.replace("+ +1", "++1"),
        CXX.replace("// no comment", "// a comment"),  # inside a string
        CXX.replace("TWICE(x) (", "TWICE (x) ("),  # another macro
        CXX.replace("PI 3\n", "PI 3 "),  # the next line joins the directive
        CXX.replace("a[n] = ", "//"),
        CXX.replace("> 0x", ">= 0x"),
    ],
)
def test_cxx_code_counts(other: str) -> None:
    assert other != CXX
    assert cxx_canonical(other) != cxx_canonical(CXX)


def test_cxx_odd_tokens() -> None:
    assert cxx_canonical('R"x(a // b " /* )x" c') == 'R"x(a // b " /* )x" c'
    assert cxx_canonical("'\"' // \"\nx '/*'") == "'\"' x '/*'"
    assert cxx_canonical("f<<<g, b>>>(x)") == "f <<< g , b >>> ( x )"
    assert cxx_canonical("a = b # c\nd") == "a = b # c d"  # no directive in mid-line
    with pytest.raises(ValueError, match="never closed"):
        cxx_canonical("x /* y")


# A tree of modules. An edit is (file, what stands there, what comes in its place).
L1 = '''\
"""A module."""
from typing import Any

from kernels.ops import add, THREADS
from kernels import q6k
import numpy as np

_WORDS = (1, 2)
"""Two words."""
UNUSED = 5

def kernels(n: int = THREADS) -> Any:
    """Doc."""
    from kernels.target import capability
    ops = _ops(n)  # a comment
    return add(ops, q6k.unit(n), _WORDS, capability, np.float32(1))

def _ops(n):
    return [kernels(add) for add in n], other(n)

def other(q6k):
    return q6k.unit
'''
OPS = """\
THREADS = 256
def add(*x): return sum(x)
if THREADS > 1000: raise ValueError(THREADS)
"""
TREE = {
    "kernels/l1": L1,
    "kernels/ops": OPS,
    "kernels/q6k": "from core.table import ROWS\ndef unit(n): return ROWS[n]\ndef idle(n): return n\n",
    "kernels/target": "capability = (9, 0)\n",
    "kernels/l3": "def kernels(): return 3\n",
}
Edit = tuple[str, str, str]


def closure(
    tmp_path: Path, *edits: Edit, tree: dict[str, str] = TREE, of: Callable[..., str] = python_closure
) -> str:
    """The text of kernels.l1 after some edits; a package of tables stands beside it."""
    files = dict(tree)
    for where, old, new in edits:
        assert old in files[where], old
        files[where] = files[where].replace(old, new)
    root = tmp_path / digest(files)
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / f"{name}.py").write_text(text)
    return of("kernels.l1", "kernels", [root / "kernels", root / "core"])


def test_what_is_installed_beside_the_packages_is_not_followed(tmp_path: Path) -> None:
    """An installed package lies among all others: numpy's sources are not the kernels'."""
    assert closure(tmp_path, tree=TREE | {"numpy/__init__": "raise ImportError"}) == closure(tmp_path)


BLIND: list[Edit] = [
    ("kernels/l1", "A module.", "Another."),
    ("kernels/l1", "  # a comment", "\n\n"),
    ("kernels/l1", '    """Doc."""\n', ""),
    ("kernels/l1", '"""Two words."""\n', ""),
    ("kernels/l1", "add(ops, q6k", "add((ops),\n\n        q6k"),
    ("kernels/l1", "n: int = THREADS) -> Any", "n=THREADS)"),
    ("kernels/l1", "from kernels import q6k", "import kernels.q6k as q6k"),
    (
        "kernels/l1",
        "import numpy as np\n\n_WORDS = (1, 2)",
        "import numpy as np\nimport os\n_WORDS = (1, 2)",
    ),
    ("kernels/l1", "UNUSED = 5", "UNUSED = 6"),
    ("kernels/q6k", "def idle(n): return n", "def idle(n): return n + 1"),
    ("kernels/l3", "return 3", "return 4"),
]


@pytest.mark.parametrize("edit", BLIND)
def test_what_a_kernel_does_not_use_does_not_count(edit: Edit, tmp_path: Path) -> None:
    assert closure(tmp_path, edit) == closure(tmp_path)


COUNTS: list[Edit] = [
    ("kernels/l1", "np.float32(1)", "np.float32(2)"),
    ("kernels/l1", "np.float32(1)", "np.float64(1)"),
    ("kernels/l1", "import numpy as np", "import cupy as np"),
    ("kernels/l1", "(1, 2)", "(2, 1)"),
    ("kernels/l1", "(1, 2)", "(1.0, 2)"),
    ("kernels/l1", "def _ops(n)", "def _ops(n, *y)"),
    ("kernels/l1", "q6k.unit(n)", "q6k.idle(n)"),
    ("kernels/l1", "def other(q6k)", "def other(q)"),  # another q6k: the module's
    ("kernels/l1", "import add, THREADS", "import THREADS, add as other_add\nadd = 1"),
    ("kernels/ops", "sum(x)", "sum(x) + 1"),
    ("kernels/ops", "256", "288"),
    ("kernels/ops", "> 1000", "> 1001"),  # runs when the module is imported
    ("kernels/q6k", "ROWS[n]", "ROWS[n + 1]"),
    ("kernels/target", "(9, 0)", "(8, 0)"),
]


@pytest.mark.parametrize("edit", COUNTS)
def test_what_a_kernel_uses_counts(edit: Edit, tmp_path: Path) -> None:
    assert closure(tmp_path, edit) != closure(tmp_path)


def raw(entry: str, name: str, roots: Sequence[Path]) -> str:
    """A digest that is not blind: every byte of every file."""
    return "".join(f"{p}{p.read_text()}" for root in roots for p in sorted(root.rglob("*.py")))


def test_these_edits_see_a_digest_that_is_wrong(tmp_path: Path) -> None:
    assert all(closure(tmp_path, edit, of=raw) != closure(tmp_path, of=raw) for edit in BLIND)
    assert all(
        closure(tmp_path, edit, of=lambda *_: "") == closure(tmp_path, of=lambda *_: "") for edit in COUNTS
    )


def test_moves_do_not_count(tmp_path: Path) -> None:
    """A definition in another module, a module in another folder or by another name."""
    base = closure(tmp_path)
    moved = {
        "kernels/l1": L1.replace("def other(q6k):\n    return q6k.unit\n", "").replace(
            "import q6k", "import q6k\nfrom kernels.l3 import other"
        ),
        "kernels/l3": "def other(q6k): return q6k.unit",
    }
    assert closure(tmp_path, tree=TREE | moved) == base
    renamed = {
        name.replace("ops", "deep/ops"): text.replace("kernels.ops", "kernels.deep.ops")
        for name, text in TREE.items()
    }
    assert closure(tmp_path, tree=renamed) == base
    through = TREE | {
        "kernels/front": "from kernels.ops import add, THREADS",
        "kernels/l1": L1.replace("kernels.ops", "kernels.front"),
    }
    assert closure(tmp_path, tree=through) == base
    swapped = {"kernels/ops": OPS.replace("256", "1000"), "kernels/l1": L1.replace("1, 2", "256")}
    assert closure(tmp_path, tree=TREE | swapped) != base


def test_names_of_the_same_spelling_keep_apart(tmp_path: Path) -> None:
    """Two modules' `functions` swapped are other code, although the same statements are there."""
    tree = {
        "kernels/l1": "from kernels import a, b\ndef kernels(): return a.functions(), b.functions()\n",
        "kernels/a": "def functions(): return 1\n",
        "kernels/b": "def functions(): return 2\n",
    }
    other = tree | {"kernels/a": tree["kernels/b"], "kernels/b": tree["kernels/a"]}
    assert closure(tmp_path, tree=tree) != closure(tmp_path, tree=other)


def test_a_module_that_is_handed_on_counts_whole(tmp_path: Path) -> None:
    tree = {"kernels/l1": "from kernels import a\ndef kernels(): return f(a)\n", "kernels/a": "x = 1\n"}
    assert closure(tmp_path, tree=tree) != closure(tmp_path, ("kernels/a", "1", "2"), tree=tree)


def test_tables_of_other_packages_count_as_values(monkeypatch: pytest.MonkeyPatch) -> None:
    root = [ROOT / name for name in ("probes", "kernels_numba")]
    before = python_closure("kernels_numba.l1", "kernels", root)
    moved = tuple(replace(lay, block_stride=lay.block_stride + 16) for lay in layouts.LAYOUTS)
    monkeypatch.setattr(layouts, "LAYOUTS", moved)
    assert python_closure("kernels_numba.l1", "kernels", root) != before
    assert "block_stride" not in python_closure("kernels_numba.l3", "kernels", root)


def test_cxx_closure(tmp_path: Path) -> None:
    """Names of files and the order of includes do not count; what none of them includes neither."""
    (tmp_path / "l1.cu").write_text('#include "a.cuh"\n#include "b.cuh"\n#include "made.gen.cuh"\nint x;')
    (tmp_path / "a.cuh").write_text('#pragma once\n#include "b.cuh"\nint a;')
    (tmp_path / "b.cuh").write_text("int b;")
    (tmp_path / "l3.cuh").write_text("int c;")
    base = cxx_closure(tmp_path / "l1.cu")
    (tmp_path / "l3.cuh").write_text("int d;")
    (tmp_path / "b.cuh").rename(tmp_path / "deep.cuh")
    (tmp_path / "l1.cu").write_text('#include "deep.cuh" // first\n#include "a.cuh"\nint x;')
    (tmp_path / "a.cuh").write_text("#pragma once\nint a;")
    assert cxx_closure(tmp_path / "l1.cu") == base
    (tmp_path / "deep.cuh").write_text("int b = 1;")
    assert cxx_closure(tmp_path / "l1.cu") != base


def test_a_file_is_compiled_with_the_constants_that_it_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """So a bound, or a constant, of another probe changes neither its library nor its report."""
    l1, l3 = build.generated("l1.cu")[build.CONSTANTS], build.generated("l3.cu")[build.CONSTANTS]
    assert (
        "kMinBlocks_pf3" in l1 and "kMinBlocks_form_a" not in l1 and "kExp_" not in l1 and "kDecode" not in l1
    )
    assert "kMinBlocks_form_a" in l3 and "kMinBlocks_pf3" not in l3 and "kExp_c6" in l3
    assert list(build.generated("harness.cu")) == []
    before = {name: sources(name) for name in probe.names()}
    monkeypatch.setitem(launch_bounds.MIN_BLOCKS, "pf3", 3)
    after = {name: sources(name) for name in probe.names()}
    assert {name for name in before if before[name] != after[name]} == {"l1"}


def test_flags_are_of_the_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    before = sources("l1", [LaunchConfig(1, 256)])
    assert before == sources("l1", [LaunchConfig(1, 256)]) and len(before) == 64
    assert before != sources("l1", [LaunchConfig(2, 256)])
    monkeypatch.setattr(build, "NVCC_FLAGS", (*build.NVCC_FLAGS, "-G"))
    assert before != sources("l1", [LaunchConfig(1, 256)])
    cu = sources("l1", backend="numba")
    monkeypatch.setattr(numba_compile, "ABI", {**numba_compile.ABI, "abi": "c"})
    numba_compile.inputs.cache_clear()
    assert cu != sources("l1", backend="numba")
    monkeypatch.undo()
    numba_compile.inputs.cache_clear()


def test_bars_of_another_probe_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    before = {name: bars.bars_sha256(name) for name in probe.names()}
    changed = copy.deepcopy(bars._file())
    changed["l1"]["dpl"]["bar"] += 0.0001
    monkeypatch.setattr(bars, "_file", lambda: changed)
    after = {name: bars.bars_sha256(name) for name in probe.names()}
    assert {name for name in before if before[name] != after[name]} == {"l1"}


@dataclass
class Odd:
    value: object


def test_what_cannot_be_digested(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"gone\.cu"):
        cxx_closure(tmp_path / "gone.cu")
    (tmp_path / "bad.cu").write_text("/* never")
    with pytest.raises(BadInput, match=r"bad\.cu"):
        cxx_closure(tmp_path / "bad.cu")
    with pytest.raises(BadInput, match=r"l1\.py"):
        closure(tmp_path, ("kernels/l1", "def other", "def"))
    with pytest.raises(BadInput, match="nothing to follow"):
        python_closure("kernels_numba.l1", "nothing", [Path(numba_compile.__file__).parent])
    with pytest.raises(BadInput, match="object"):
        digest([Odd(object())])
