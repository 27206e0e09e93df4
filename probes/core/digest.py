"""Which kernels made a figure: a SHA-256 that changes with the code, and not with its comments.

A report states it, and so do the recorded register counts; where it no longer matches the sources, the
figures are of other kernels. Python counts as its syntax tree without docstrings and positions, written
out here because `ast.dump` differs between Python versions; C++ as its tokens without comments, with line
ends kept only where they end a preprocessor directive.
"""

from __future__ import annotations

import ast
import dataclasses
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from probes.core.types import BadInput

CXX_SUFFIXES = (".cu", ".cuh", ".cpp", ".cc", ".h", ".hpp")

_TOKEN = re.compile(
    r"""
    (?P<comment>//[^\n]*|/\*.*?\*/)
  | (?P<open>/\*)
  | (?P<raw>(?:u8|[uUL])?R"(?P<mark>[^()\\\s]{0,16})\(.*?\)(?P=mark)")
  | (?P<string>(?:u8|[uUL])?(?:"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'))
  | (?P<word>[A-Za-z_$][\w$]*)
  | (?P<number>\.?\d(?:[eEpP][+-]|'?\w|\.)*)
  | (?P<line>\n)
  | (?P<blank>[^\S\n]+)
  | (?P<operator><<<|>>>|<<=|>>=|<=>|->\*|\.\.\.)
  | (?P<operator2>::|\+\+|--|->|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%&|^]=|\#\#|\.\*|.)
    """,
    re.VERBOSE | re.DOTALL,
)


def kernels_digest(
    paths: Iterable[Path | str],
    flags: Mapping[str, Any] | None = None,
    launches: Sequence[Any] = (),
) -> str:
    """SHA-256 (hex) of source files, compiler flags and launch rows.

    Files count by name and content, in no particular order; `flags` by key; `launches` (dataclasses or
    plain JSON values) in the order given. BadInput on a file that cannot be read or parsed.
    """
    files = sorted((Path(p).name, source_digest(Path(p))) for p in paths)
    body = json.dumps([files, flags or {}, list(launches)], sort_keys=True, default=_plain)
    return hashlib.sha256(body.encode()).hexdigest()


def source_digest(path: Path) -> str:
    """SHA-256 (hex) of one file by its suffix: .py, C++, else the bytes with \\n line ends."""
    try:
        data = path.read_bytes().replace(b"\r\n", b"\n")
        if path.suffix == ".py":
            text = python_canonical(data.decode())
        elif path.suffix in CXX_SUFFIXES:
            text = cxx_canonical(data.decode())
        else:
            return hashlib.sha256(data).hexdigest()
    except (OSError, SyntaxError, ValueError) as e:
        raise BadInput(f"cannot digest {path.name}: {e}") from e
    return hashlib.sha256(text.encode()).hexdigest()


def python_canonical(source: str) -> str:
    """The syntax tree of Python source as text: no comments, docstrings, positions or empty fields."""
    return "".join(_tree(ast.parse(source)))


def _tree(node: object) -> Iterator[str]:
    if isinstance(node, ast.AST):
        yield f"({type(node).__name__}"
        for name, value in ast.iter_fields(node):
            if name == "body" and _has_docstring(node):
                value = value[1:]
            if value is None and isinstance(node, ast.Constant) and name == "value":
                yield " None"
            elif value is not None and value != [] and name != "kind":  # kind: the u of u"text"
                yield f" {name}="
                yield from _tree(value)
        yield ")"
    elif isinstance(node, list):
        yield "["
        for item in node:
            yield from _tree(item)
        yield "]"
    else:
        yield f"{type(node).__name__}:{node!r};"


def _has_docstring(node: ast.AST) -> bool:
    if not isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
        return False
    return ast.get_docstring(node, clean=False) is not None


def cxx_canonical(source: str) -> str:
    """C++ or CUDA source as tokens separated by spaces; a directive ends in a line end.

    Strings and character constants stay as they are; `f (x)` right after a #define's name keeps apart
    from `f(x)`, since it means another macro. ValueError on a comment that never ends.
    """
    out: list[str] = []
    directive: list[str] | None = None
    after_blank, at_line_start = True, True
    for m in _TOKEN.finditer(re.sub(r"\\[^\S\n]*\n", "", source)):
        kind, text = m.lastgroup, m.group()
        if kind == "mark":
            kind = "raw"
        if kind == "open":
            raise ValueError("a /* comment is never closed")
        if kind in ("blank", "comment"):
            after_blank = True
            continue
        if kind == "line":
            if directive is not None:
                out.append("\n")
                directive = None
            after_blank = at_line_start = True
            continue
        if directive is None and text == "#" and at_line_start:
            directive = []
        if directive is not None:
            if text == "(" and directive[:2] == ["#", "define"] and len(directive) == 3 and not after_blank:
                text = "(()"  # no such token elsewhere: the bracket of a macro's parameters
            directive.append(text)
        out.append(text)
        after_blank = at_line_start = False
    return " ".join(out)


def _plain(x: object) -> object:
    if dataclasses.is_dataclass(x) and not isinstance(x, type):
        return dataclasses.asdict(x)
    if isinstance(x, (set, frozenset)):
        return sorted(map(str, x))
    if isinstance(x, Path):
        return x.name
    raise BadInput(f"cannot digest a {type(x).__name__}: give plain values or dataclasses, got {x!r}")
