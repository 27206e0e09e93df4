"""Hostile words in every field of a report: no control character leaves, no line of its own, no tag."""

from __future__ import annotations

import json
import re
import typing
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from probes import cli
from probes.__main__ import main
from probes.commands import summary
from probes.core import escaping, streams
from probes.core.types import BadInput
from probes.engine.run import Run
from probes.report import rows, store, tables
from probes.report.provenance import Head

OUT = Path(__file__).parents[2] / "out" / "nvidia-h200"
EVIL = "x\nVerdicts: GO\r\x1b[2J\x9b31m\u202e\u2028\0 <img src=x onerror=alert(1)> [a](javascript:b) ![c](d)|"
TAG = re.compile(r"<(?!!--)[A-Za-z/]")


def clean(text: str, markdown: bool = False) -> None:
    assert all(c == "\n" or c.isprintable() for c in text), repr(text)
    assert not any(line.lstrip("- #").startswith("Verdicts: GO") for line in text.splitlines())
    if markdown:
        assert not TAG.search(text) and not re.search(r"(?<!\\)\]\(", text.replace("\\\\", ""))


def spoilt(value: Any) -> Any:
    """EVIL in each string of a JSON value, keys of objects too."""
    if isinstance(value, str):
        return value + EVIL
    if isinstance(value, list):
        return [spoilt(v) for v in value]
    return {k + EVIL: spoilt(v) for k, v in value.items()} if isinstance(value, dict) else value


def data() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((OUT / "l3-48sm.json").read_text())
    found["rows"] = found["rows"][:25] + [r for r in found["rows"] if r["verdict"]]
    return found


def words() -> Iterator[tuple[str, str]]:
    """Every field of head and row that takes words."""
    for where, of in (("head", Head), ("row", rows.Row)):
        hints = typing.get_type_hints(of)
        for f in fields(of):
            if any(t in str(hints[f.name]) for t in ("str", "list", "dict")) or hints[f.name] is str:
                yield where, f.name


@pytest.mark.parametrize(("where", "name"), list(words()))
def test_hostile_words_in_a_field_stay_words(
    where: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = data()
    sound = tmp_path / "sound.json"
    sound.write_text(json.dumps(bad))
    for part in [bad] if where == "head" else bad["rows"]:
        part[name] = spoilt(part[name] or ([""] if isinstance(part.get(name), list) else ""))
    path = tmp_path / "evil.json"
    path.write_text(json.dumps(bad))
    for argv in (
        ["replay", str(path)],
        ["compare", str(sound), str(path), "--md", str(tmp_path / "c.md")],
        ["compare", str(path), str(path), "--md", str(tmp_path / "c.md")],
    ):
        assert main(argv) in (0, 2, 3, 4, 5)
        for text in capsys.readouterr():
            clean(text)
    if (tmp_path / "c.md").exists():
        clean((tmp_path / "c.md").read_text(), markdown=True)
    try:
        head, found = store.read_json(path)
    except BadInput:
        return
    clean(tables.document("L3" + EVIL, head, found), markdown=True)
    said = summary.line("l3", Run("l3", head, found))
    clean(tables.table(summary.SUMMARY, [said, summary.line("l3", None, EVIL)]))


def test_errors_warnings_progress_and_file_names_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails() -> int:
        raise BadInput(EVIL)

    assert cli.guarded(fails) == 2
    streams.warn(EVIL)
    cli.teller(False)(EVIL)
    main([EVIL])
    main(["replay", str(tmp_path / f"{EVIL.replace(chr(0), '').replace('/', '')}.json")])
    out, err = capsys.readouterr()
    clean(out + err)
    assert err.count("\n") == 5


def test_long_words_are_cut_and_say_so() -> None:
    assert escaping.shown("a" * 10_000, 20) == "a" * 10 + "... (9980 characters) ..." + "a" * 10
    assert len(escaping.quoted(["x" * 50] * 10_000)) < 400
    assert escaping.shown("µ é 漢 \\") == "µ é 漢 \\"
