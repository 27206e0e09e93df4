"""A digest of sources moves with the code and stays with its comments."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from probes.core.digest import cxx_canonical, kernels_digest, python_canonical, source_digest
from probes.core.types import BadInput, LaunchConfig

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

PY = '''\
"""A module."""
import math

def f(x):
    """Doc."""
    # a comment
    return x + 1, "text", None
'''


@pytest.mark.parametrize(
    "other",
    [
        CXX.replace("// adds", "// adds, quickly"),
        CXX.replace("/* one */", ""),
        CXX.replace("{\n", "\n{\n\n\n").replace("  if", "\t\tif"),
        CXX.replace("a[n] + +1", "a[ n ]+ +1"),
        CXX.replace("a[n] + +1", "a[n] /* ' */ + // \" \n +1"),
        CXX.replace("((x) + (x))", "\\\n  ((x) + (x))"),
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


@pytest.mark.parametrize(
    "other",
    [
        PY.replace("A module.", "Another."),
        PY.replace("    # a comment\n", "\n\n"),
        PY.replace('    """Doc."""\n', ""),
        PY.replace("x + 1,", "(x\n            + 1),"),
        PY.replace('"text"', "'te' 'xt'"),
    ],
)
def test_python_form_does_not_count(other: str) -> None:
    assert other != PY
    assert python_canonical(other) == python_canonical(PY)


@pytest.mark.parametrize(
    "other",
    [
        PY.replace("+ 1", "+ 2"),
        PY.replace("+ 1", "+ 1.0"),
        PY.replace("+ 1", "- 1"),
        PY.replace('"text"', 'b"text"'),
        PY.replace("None", "0"),
        PY.replace("import math", "import cmath as math"),
        PY.replace("def f(x)", "def f(x, *y)"),
    ],
)
def test_python_code_counts(other: str) -> None:
    assert other != PY
    assert python_canonical(other) != python_canonical(PY)


def test_python_text_does_not_depend_on_the_interpreter() -> None:
    """Empty and version-bound fields (type_params, type_ignores) are left out: the same from 3.11 to 3.13."""
    assert python_canonical("def f(a): return a") == (
        "(Module body=[(FunctionDef name=str:'f'; args=(arguments args=[(arg arg=str:'a';)])"
        " body=[(Return value=(Name id=str:'a'; ctx=(Load)))])])"
    )


def test_digest_of_files(tmp_path: Path) -> None:
    (tmp_path / "l1.cu").write_text(CXX)
    (tmp_path / "l1.py").write_text(PY)
    paths = [tmp_path / "l1.cu", tmp_path / "l1.py"]
    base = kernels_digest(paths, {"std": "c++17", "arch": ["sm_90"]}, [LaunchConfig(1, 256)])
    assert len(base) == 64
    assert base == kernels_digest(paths[::-1], {"arch": ["sm_90"], "std": "c++17"}, [LaunchConfig(1, 256)])
    assert base != kernels_digest(paths, {"std": "c++20", "arch": ["sm_90"]}, [LaunchConfig(1, 256)])
    assert base != kernels_digest(paths, {"std": "c++17", "arch": ["sm_90"]}, [LaunchConfig(2, 256)])
    (tmp_path / "l1.cu").write_text(CXX.replace("// adds", "") + "\r\n")
    assert base == kernels_digest(paths, {"std": "c++17", "arch": ["sm_90"]}, [LaunchConfig(1, 256)])
    (tmp_path / "l1.py").write_text(PY.replace("+ 1", "+ 2"))
    assert base != kernels_digest(paths, {"std": "c++17", "arch": ["sm_90"]}, [LaunchConfig(1, 256)])


def test_other_files_count_as_bytes(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_bytes(b"x = 1\n")
    before = source_digest(file)
    file.write_bytes(b"x = 1\r\n")
    assert source_digest(file) == before
    file.write_bytes(b"x = 2\n")
    assert source_digest(file) != before


@dataclass
class Odd:
    value: object


def test_what_cannot_be_digested(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"gone\.cu"):
        kernels_digest([tmp_path / "gone.cu"])
    (tmp_path / "bad.py").write_text("def")
    with pytest.raises(BadInput, match=r"bad\.py"):
        kernels_digest([tmp_path / "bad.py"])
    with pytest.raises(BadInput, match="object"):
        kernels_digest([], {}, [Odd(object())])
