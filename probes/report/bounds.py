"""How large a report may be, and the refusal of a larger one before it costs anything.

Each bound lies well above any run's report: the largest of an H200 has 2 MB, 1137 rows, 70 cases, 256 samples
in a row and 16,080 in all.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from probes.core.types import BadInput
from probes.report.rows import Row

MAX_BYTES = 32 << 20
MAX_LISTS = 1 << 17  # of objects and lists together, each some 60 bytes and up in memory
MAX_VALUES = 3 << 19  # in all lists and objects together: some 1.6 million
MAX_ROWS = 4096
MAX_CASES = 512  # a KV length counts as a case of its own
MAX_SAMPLES = 1 << 18  # of all rows, in windows and in blocks
MAX_OLD_SAMPLES = 1 << 15  # of all rows before schema 3, each drawn 2000 times over


def text_of(path: Path) -> str:
    """A report's text. BadInput by its size before it is read, and by its counts before it is parsed.

    OSError where it cannot be read, ValueError where it is not UTF-8.
    """
    if not path.is_file() and path.exists():
        raise BadInput(f"{path} is no regular file")
    with path.open("rb") as file:
        if (size := os.fstat(file.fileno()).st_size) <= MAX_BYTES:
            data = file.read(MAX_BYTES + 1)  # it may grow in the meantime
            size = len(data)
    if size > MAX_BYTES:
        raise BadInput(f"{path} has {size} bytes, more than any report: {MAX_BYTES} are read")
    lists, values = data.count(b"{") + data.count(b"["), data.count(b",")
    for what, count, most in (("objects and lists", lists, MAX_LISTS), ("values", values, MAX_VALUES)):
        if count > most:
            raise BadInput(f"{path} holds {count} {what}, more than any report: {most} are read")
    return data.decode("utf-8")


def check_count(rows: Sequence[object]) -> None:
    """BadInput for more rows than any report has; before they are looked at."""
    _check("rows", len(rows), MAX_ROWS)


def check(rows: Sequence[Row], schema: int) -> None:
    """BadInput for more cases or samples than any report has."""
    _check("cases", len({r.group for r in rows}), MAX_CASES)
    _check("samples", sum(len(r.samples_s) + len(r.blocks_s) for r in rows), MAX_SAMPLES)
    if schema < 3:
        _check(f"samples of schema {schema}", sum(len(r.samples_s) for r in rows), MAX_OLD_SAMPLES)


def _check(what: str, count: int, most: int) -> None:
    if count > most:
        raise BadInput(f"it holds {count} {what}, more than any report: {most} are read")
