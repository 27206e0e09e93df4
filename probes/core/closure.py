"""What one compiled thing depends on, as text: the definitions that its entry reaches, and nothing else.

Python: from an entry (the function `kernels` of one module) along every name that it uses, through imports,
to the definitions behind them. Each is written out once, in the order of first use, and a use of it is
written as its number. So comments, docstrings, annotations, import lines, moves between modules and what the
entry never uses do not count. Constants of other packages count as their values.

C++: the file and all it includes, each as canonical text without its include lines, sorted.
"""

from __future__ import annotations

import ast
import functools
import importlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from probes.core.digest import cxx_canonical, has_docstring, plain_json
from probes.core.types import BadInput

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_IMPORTS = (ast.Import, ast.ImportFrom)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_WHOLE = "*"  # all of a module: what a bare use of the module itself depends on


@dataclass
class _Module:
    """One parsed file: the statements behind each of its names, those behind none, and what is imported."""

    name: str
    names: dict[str, list[ast.stmt]] = field(default_factory=dict)
    bare: list[ast.stmt] = field(default_factory=list)
    imports: dict[str, str] = field(default_factory=dict)


def python_closure(entry: str, name: str, roots: Sequence[Path]) -> str:
    """The text of `name` of the module `entry` ('kernels_numba.l1') and of everything that it uses.

    roots: the packages' own folders; what lies in none of them counts by its dotted name alone, also where
    it was installed beside them.
    BadInput where a file cannot be read or parsed, or `entry` has no such name.
    """
    return _Closure(tuple(roots), entry.partition(".")[0]).of(entry, name)


class _Closure:
    """One walk: the definitions met so far, numbered in the order of first use."""

    def __init__(self, roots: tuple[Path, ...], package: str) -> None:
        self.roots, self.package = roots, package
        self.met: dict[tuple[str, str], int] = {}
        self.modules: dict[str, None] = {}

    def of(self, entry: str, name: str) -> str:
        module = self.module(entry)
        if module is None or name not in module.names:
            raise BadInput(f"{entry} has no {name} to follow")
        self.number(entry, name)
        out: list[str] = []
        defined = bare = 0
        while defined < len(self.met) or bare < len(self.modules):
            if defined < len(self.met):
                where, what = list(self.met)[defined]
                out.append(f"#{defined}:{self.definition(where, what)}\n")
                defined += 1
            else:
                met = self.module(list(self.modules)[bare])
                assert met is not None
                if text := self.text(met.bare, met):
                    out.append(f"bare:{text}\n")
                bare += 1
        return "".join(out)

    def definition(self, where: str, what: str) -> str:
        """One definition's text, or a constant's value where it is another package's."""
        module = self.module(where)
        assert module is not None
        if what != _WHOLE and where.partition(".")[0] != self.package:
            value = getattr(importlib.import_module(where), what)
            if not callable(value):
                return f"value {plain_json(value)}"
        self.modules.setdefault(where)
        rows = module.names.values() if what == _WHOLE else [module.names[what]]
        return self.text([s for row in rows for s in row], module)

    def number(self, where: str, what: str) -> str:
        return f"use:{self.met.setdefault((where, what), len(self.met))};"

    def module(self, name: str) -> _Module | None:
        first, *rest = name.split(".")
        paths = (root.joinpath(*rest) for root in self.roots if root.name == first)
        for file in (f for path in paths for f in (path.with_suffix(".py"), path / "__init__.py")):
            if file.is_file():
                stat = file.stat()
                return _parsed(name, file, stat.st_mtime_ns, stat.st_size)
        return None

    def use(self, origin: str, rest: list[str]) -> tuple[str, list[str]]:
        """A dotted origin and the attributes asked of it: the text of the use, and attributes left over."""
        parts = [*origin.split("."), *rest]
        for k in range(len(parts), 0, -1):
            where = ".".join(parts[:k])
            module = self.module(where)
            if module is None:
                continue
            if k < len(parts) and parts[k] in module.names:
                return self.number(where, parts[k]), parts[k + 1 :]
            if k < len(parts) and parts[k] in module.imports:
                return self.use(module.imports[parts[k]], parts[k + 1 :])
            return self.number(where, _WHOLE), parts[k:]
        return f"from:{origin};", rest

    def text(self, statements: Sequence[ast.stmt], module: _Module) -> str:
        return "".join(part for s in statements for part in self.tree(s, module, frozenset()))

    def tree(self, node: object, module: _Module, bound: frozenset[str]) -> Iterator[str]:
        """`node` as text; `bound` holds the names that an enclosing function gives a meaning of its own."""
        if isinstance(node, list):
            yield "["
            for item in node:
                if not isinstance(item, _IMPORTS):
                    yield from self.tree(item, module, bound)
            yield "]"
            return
        if not isinstance(node, ast.AST):
            yield f"{type(node).__name__}:{node!r};"
            return
        if isinstance(node, (ast.Name, ast.Attribute)) and (used := self.resolved(node, module, bound)):
            yield used
            return
        inner = bound
        if isinstance(node, _FUNCTIONS):
            inner = bound | _locals(node)
        elif isinstance(node, _COMPREHENSIONS):
            inner = bound | {n for g in node.generators for n in _stored(g.target)}
        yield f"({type(node).__name__}"
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "type_comment", "kind"):  # kind: the u of u"text"
                continue
            if name == "body" and has_docstring(node):
                value = value[1:]
            if value is None and isinstance(node, ast.Constant) and name == "value":
                yield " None"
            elif value is not None and value != []:
                yield f" {name}="
                if isinstance(node, ast.ClassDef) and name == "body":
                    own = bound | {n for s in value for n in _bound_by(s)}
                    for s in value:
                        yield from self.tree([s], module, bound if isinstance(s, _FUNCTIONS) else own)
                elif isinstance(node, ast.arguments):  # defaults are of the outside
                    yield from self.tree(value, module, bound)
                else:
                    outside = name in ("decorator_list", "args") and isinstance(node, _FUNCTIONS)
                    yield from self.tree(value, module, bound if outside else inner)
        yield ")"

    def resolved(self, node: ast.Name | ast.Attribute, module: _Module, bound: frozenset[str]) -> str:
        """The use of a definition or an import as text; '' for anything else."""
        rest: list[str] = []
        base: ast.expr = node
        while isinstance(base, ast.Attribute):
            rest.insert(0, base.attr)
            base = base.value
        if not isinstance(base, ast.Name) or base.id in bound:
            return ""
        if base.id in module.names and isinstance(base.ctx, ast.Load):
            used, left = self.number(module.name, base.id), rest
        elif base.id in module.imports:
            used, left = self.use(module.imports[base.id], rest)
        else:
            return ""
        return f"({used}{''.join(f'.{a}' for a in left)} {type(node.ctx).__name__})"


@functools.lru_cache(512)
def _parsed(name: str, file: Path, mtime_ns: int, size: int) -> _Module:
    try:
        tree = ast.parse(file.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError) as error:
        raise BadInput(f"cannot digest {file.name}: {error}") from error
    package = name if file.name == "__init__.py" else name.rpartition(".")[0]
    out = _Module(name)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for a in node.names:
                top = a.name.partition(".")[0]
                out.imports[a.asname or top] = a.name if a.asname else top
        elif isinstance(node, ast.ImportFrom):
            up = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*up, *([node.module] if node.module else [])])
            out.imports |= {a.asname or a.name: f"{base}.{a.name}" for a in node.names}
    for s in tree.body[has_docstring(tree) :]:
        names = _bound_by(s)
        for bound in names:
            out.names.setdefault(bound, []).append(s)
        said = isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant)  # a constant's docstring
        only_imports = isinstance(s, ast.If) and all(isinstance(x, _IMPORTS) for x in s.body + s.orelse)
        if not names and not said and not only_imports and not isinstance(s, _IMPORTS):
            out.bare.append(s)
    return out


def _bound_by(node: ast.AST) -> set[str]:
    """Names that a statement binds in its own scope; imports aside."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return {node.name}
    if isinstance(node, (ast.Lambda, *_COMPREHENSIONS)):
        return set()
    found = {node.id} if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load) else set[str]()
    if isinstance(node, ast.ExceptHandler) and node.name:
        found = {node.name}
    return found.union(*map(_bound_by, ast.iter_child_nodes(node)))


def _stored(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}


def _locals(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> set[str]:
    """Names that belong to a function: its arguments and what its body binds."""
    a = node.args
    found = {x.arg for x in (*a.posonlyargs, *a.args, *a.kwonlyargs, a.vararg, a.kwarg) if x}
    body = node.body if isinstance(node.body, list) else []
    told = {n for s in body for x in ast.walk(s) if isinstance(x, ast.Global) for n in x.names}
    return found.union(*map(_bound_by, body)) - told


_INCLUDE = re.compile(r'^[^\S\n]*#[^\S\n]*include[^\S\n]*"([\w./]+)"', re.MULTILINE)


def included(path: Path) -> tuple[list[Path], list[str]]:
    """A C++ file and all that it includes from beside it; and included names that are no file there.

    The second are generated headers. BadInput where a file cannot be read.
    """
    found, missing = [path], set[str]()
    for source in found:  # grows on the way
        try:
            names = _INCLUDE.findall(source.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise BadInput(f"cannot digest {path.name}: {error}") from error
        for name in names:
            file = path.parent / name
            if not file.is_file():
                missing.add(name)
            elif file not in found:
                found.append(file)
    return found, sorted(missing)


def cxx_closure(path: Path) -> str:
    """The canonical text of a C++ file and of all that it includes, sorted. BadInput as `included`."""
    out = set()
    for file in included(path)[0]:
        try:
            out.add(cxx_canonical(file.read_text(encoding="utf-8")))
        except ValueError as error:
            raise BadInput(f"cannot digest {file.name}: {error}") from error
    return "\n".join(sorted(out))
