"""Hashes of code and of what was decided with it: canonical text, so that a form does not count, and SHA-256.

A report and the recorded register counts state which kernels they are of. C++ counts as its tokens without
comments and include lines. Python: see closure.py.
"""

from __future__ import annotations

import ast
import dataclasses
import hashlib
import json
import re
from pathlib import Path
from typing import Any

from probes.core.types import BadInput

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


def digest(*values: object) -> str:
    """SHA-256 (hex) of plain JSON values, dataclasses and sets. BadInput on anything else."""
    return hashlib.sha256(plain_json(values).encode()).hexdigest()


def plain_json(value: object) -> str:
    """A value as JSON with sorted keys. BadInput on what has no plain form."""
    return json.dumps(value, sort_keys=True, default=_plain)


def has_docstring(node: ast.AST) -> bool:
    """Whether the body of a module, class or function begins with one."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return isinstance(node, kinds) and ast.get_docstring(node, clean=False) is not None


def cxx_canonical(source: str) -> str:
    """C++ or CUDA source as tokens separated by spaces; directives end in a line end, includes are left out.

    Strings and character constants stay as they are; `f (x)` right after a #define's name keeps apart
    from `f(x)`, since it means another macro. ValueError on a comment that never ends.
    """
    out: list[str] = []
    directive: list[str] | None = None
    after_blank, at_line_start = True, True
    for m in _TOKEN.finditer(re.sub(r"\\[^\S\n]*\n", "", source.replace("\r\n", "\n")) + "\n"):
        kind, text = m.lastgroup, m.group()
        if kind == "open":
            raise ValueError("a /* comment is never closed")
        if kind in ("blank", "comment"):
            after_blank = True
            continue
        if kind == "line":
            if directive and directive[:2] != ["#", "include"]:
                out += [*directive, "\n"]
            directive = None
            after_blank = at_line_start = True
            continue
        if directive is None and text == "#" and at_line_start:
            directive = []
        if directive is not None:
            if text == "(" and directive[:2] == ["#", "define"] and len(directive) == 3 and not after_blank:
                text = "(()"  # no such token elsewhere: the bracket of a macro's parameters
            directive.append(text)
        else:
            out.append(text)
        after_blank = at_line_start = False
    return " ".join(out)


def _plain(x: Any) -> object:
    if dataclasses.is_dataclass(x) and not isinstance(x, type):
        return dataclasses.asdict(x)
    if isinstance(x, (set, frozenset)):
        return sorted(map(str, x))
    if isinstance(x, Path):
        return x.name
    raise BadInput(f"cannot digest a {type(x).__name__}: give plain values or dataclasses, got {x!r}")
