"""A report's JSON file: written whole or not at all, as rows come, and read back with suspicion."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

from probes.core.digest import digest
from probes.core.types import BadInput
from probes.report import bounds, schema1
from probes.report.provenance import Head
from probes.report.rows import Row

Closing = Callable[[Sequence[Row]], list[Row]]


class ReportFile:
    """A report on its way to disk: `with ReportFile(path, head) as f: f.add(row)`.

    closing: the rows that follow from those so far, such as verdicts; made anew at each write, so that a run
    killed at any moment leaves the verdicts of what it had finished.

    Entry fails where the place cannot be written, before anything is measured. An older file stays until the
    first `add`; each replaces the file as a whole, so that a killed run leaves its finished rows. Leaving
    without an exception marks it complete. Raises BadInput.
    """

    def __init__(self, path: Path, head: Head, closing: Closing = lambda rows: []) -> None:
        self.path, self.head, self.given, self._closing = path, head, list[Row](), closing
        self.closed: list[Row] = []

    @property
    def rows(self) -> list[Row]:
        """All rows as they were last written."""
        return [*self.given, *self.closed]

    def __enter__(self) -> ReportFile:
        check_writable(self.path)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.head.complete = True
            self.add()

    def add(self, *rows: Row) -> None:
        """Append finished rows and write the file."""
        self.given.extend(rows)
        self.closed = self._closing(self.given)
        write_json(self.path, self.head, self.rows)


def write_json(path: Path, head: Head, rows: Sequence[Row]) -> None:
    """Replace `path` by head and rows, in one step. BadInput where that fails: the old file then stays."""
    head.rows_sha256 = rows_sha256(rows)
    top = json.dumps(head.to_json(), indent=1, allow_nan=False, ensure_ascii=False)
    body = ",\n".join(json.dumps(r.to_json(), allow_nan=False, ensure_ascii=False) for r in rows)
    write_text(path, f'{top[:-2]},\n "rows": [\n{body}\n ]\n}}\n')


def rows_sha256(rows: Sequence[Row]) -> str:
    """SHA-256 (hex) of rows: of the fields that say something, so that a field more changes nothing."""
    return digest([{k: v for k, v in asdict(r).items() if v not in (None, [], {})} for r in rows])


def write_text(path: Path, text: str) -> None:
    """Replace a text file in one step (a temporary file beside it, then a rename), and make its folder.

    Follows a symbolic link. BadInput on whatever the file system refuses, and on what is no regular file.
    """
    _written(path, text, keep=True)


def check_writable(path: Path) -> None:
    """Try to write beside `path` what a report's first bytes would be, and take it away again. BadInput."""
    _written(path, " " * 4096, keep=False)


def _written(path: Path, text: str, keep: bool) -> None:
    try:
        if not path.name:
            raise ValueError("that names no file")
        target = path.resolve()
        if target.exists() and not target.is_file():
            raise ValueError("it is there and is no regular file")
        temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            with open(temporary, "w", encoding="utf-8", newline="\n") as f:
                f.write(text)
            if keep:
                os.replace(temporary, target)
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink()
    except (OSError, ValueError, RuntimeError) as e:
        why = e.strerror if isinstance(e, OSError) and e.strerror else str(e)
        raise BadInput(f"cannot write {path}: {why}; choose another place") from e


def read_json(path: Path) -> tuple[Head, list[Row]]:
    """Head and rows of a report. BadInput, one line, on anything that is not one."""
    try:
        data = json.loads(bounds.text_of(path), parse_constant=_refuse)
    except OSError as e:
        raise BadInput(f"cannot read {path}: {e.strerror or e}") from e
    except (ValueError, RecursionError) as e:
        raise BadInput(f"{path} is not a report's JSON: {e}") from e
    try:
        if not isinstance(data, dict) or not isinstance(data.get("rows"), list):
            raise BadInput("an object with a list of rows is expected")
        rows: list[Any] = data.pop("rows")
        head = Head.from_json(data)
        bounds.check_count(rows)
        found = [_row(i, r) for i, r in enumerate(rows)]
        bounds.check(found, head.schema)
        return head, schema1.upgraded(found) if head.schema == 1 else found
    except BadInput as e:
        raise BadInput(f"{path} is not a report of this version: {e}") from e


def _row(index: int, data: object) -> Row:
    try:
        return Row.from_json(data)
    except BadInput as e:
        raise BadInput(f"rows[{index}]: {e}") from e


def _refuse(word: str) -> NoReturn:
    raise ValueError(f"{word} is not a number a report may hold")
