"""A report's JSON file: written whole or not at all, as rows come, and read back with suspicion."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

from probes.core import ends, streams
from probes.core.digest import digest
from probes.core.types import BadInput
from probes.report import bounds, files, schema1
from probes.report.provenance import Head
from probes.report.rows import Row

Closing = Callable[[Sequence[Row]], list[Row]]


class ReportFile:
    """A report on its way to disk: `with ReportFile(path, head) as f: f.add(row)`.

    closing: the rows that follow from those so far, such as verdicts; made anew at each write, so that a run
    killed at any moment leaves the verdicts of what it had finished.

    Entry fails where the place cannot be written, before anything is measured. An older file stays until the
    first `add`; each replaces the file as a whole, so that a killed run leaves its finished rows. Leaving
    without an exception marks it complete; leaving with one writes what an interrupted `add` did not. Where
    another run writes to the same place, head and user are told. Raises BadInput; rows that it keeps from
    their place are kept elsewhere, which it says.
    """

    def __init__(self, path: Path, head: Head, closing: Closing = lambda rows: []) -> None:
        self.path, self.head, self.given, self._closing = path, head, list[Row](), closing
        self.closed: list[Row] = []
        self._owed = False
        self._stamp: tuple[int, int] | None = None

    @property
    def rows(self) -> list[Row]:
        """All rows as they were last written."""
        return [*self.given, *self.closed]

    def __enter__(self) -> ReportFile:
        check_place(self.path, self.head)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.head.complete = True
        if kind is None or self._owed:
            self.add()

    def add(self, *rows: Row) -> None:
        """Append finished rows and write the file."""
        self._owed = True
        self.given.extend(rows)
        self.closed = self._closing(self.given)
        ends.check()
        now = files.stamp(self.path)
        if self._stamp and now and now != self._stamp:
            self._another()
        try:
            self._stamp = write_json(self.path, self.head, self.rows)
        except BadInput as error:
            self._owed = False
            kept = files.salvaged(_text(self.head, self.rows), self.path.name)
            raise BadInput(f"{error}; {kept}") from error
        self._owed = False

    def _another(self) -> None:
        line = f"another run writes to {self.path.name}, too: each replaces the other's rows"
        if line not in self.head.notes:
            self.head.notes.append(line)
            streams.warn(line)


def check_place(path: Path, head: Head) -> None:
    """BadInput where a report cannot be written, or would replace what it must not."""
    if head.mode != "measure":
        files.check_not_measured(path, "a prediction")
    files.check_writable(path)


def write_json(path: Path, head: Head, rows: Sequence[Row]) -> tuple[int, int]:
    """Replace `path` by head and rows, in one step; its stamp. BadInput: the old file stays."""
    if head.mode != "measure":
        files.check_not_measured(path, "a prediction")
    return files.write(path, _text(head, rows))


def _text(head: Head, rows: Sequence[Row]) -> str:
    head.rows_sha256 = rows_sha256(rows)
    top = json.dumps(head.to_json(), indent=1, allow_nan=False, ensure_ascii=False)
    body = ",\n".join(json.dumps(r.to_json(), allow_nan=False, ensure_ascii=False) for r in rows)
    return f'{top[:-2]},\n "rows": [\n{body}\n ]\n}}\n'


def rows_sha256(rows: Sequence[Row]) -> str:
    """SHA-256 (hex) of rows: of the fields that say something, so that a field more changes nothing."""
    return digest([{k: v for k, v in asdict(r).items() if v not in (None, [], {})} for r in rows])


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
