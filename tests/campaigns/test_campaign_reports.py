"""Mutated reports through replay and compare: values of other kinds and sizes, rows doubled, text cut."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from probes.__main__ import main
from tests.campaigns import Tally, budget

ROOT = Path(__file__).parents[2]
REPORTS = (
    "out/nvidia-h200/l3-48sm.json", "tests/data/schema1/l3.json", "out/nvidia-h200/l3-48sm-geometries.json",
)  # fmt: skip
ODD: tuple[Any, ...] = (
    None, True, -1, 0, 1, 2**31, 2**63, 10**400, 1e308, 5e-324, -0.0, "", "x\x1b[2J\nGO", "\ud800", [], {},
    [[]], [None], [1e-6] * 9, ["a"], {"a": 1}, "GO", "verdict", "contest", "pair", "l1", "@", "\u202e" * 5000,
)  # fmt: skip


def spoil(value: Any, dice: random.Random) -> Any:
    """A value of another kind, or one that is almost it."""
    if isinstance(value, int | float) and not isinstance(value, bool) and dice.random() < 0.8:
        return dice.choice((value * 1e3, -value, value + 1, value * (1 + 1e-9), value / 7))
    if isinstance(value, list) and value and dice.random() < 0.8:
        return dice.choice((value[:-1], value * 2, [*value[:-1], dice.choice(ODD)], value[::-1]))
    return dice.choice(ODD)


def mutated(data: dict[str, Any], dice: random.Random) -> str:
    """One or two changes of a head or its rows, as text."""
    rows = [dict(r) for r in data["rows"]]
    out = {**data, "rows": rows}
    for _ in range(dice.randint(1, 2)):
        place = out if dice.random() < 0.2 else dice.choice(rows or [{}])
        kind = dice.randrange(8)
        if kind == 0 and rows:
            rows.append(dict(dice.choice(rows)))
        elif kind == 1 and rows:
            del rows[dice.randrange(len(rows))]
        elif kind == 2 and len(place) > 1 and place is not out:
            del place[dice.choice(list(place))]
        elif place:
            name = dice.choice([n for n in place if n != "rows"])
            place[name] = spoil(place[name], dice)
    text = json.dumps(out)
    return text[: dice.randrange(len(text))] if dice.random() < 0.03 else text


def test_mutated_reports_are_judged_or_refused(
    tmp_path: Path, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    real = [(ROOT / name, json.loads((ROOT / name).read_text())) for name in REPORTS]
    tally = Tally("reports", budget(request))
    path = tmp_path / "mutated.json"

    def run(seed: int) -> bool:
        dice = random.Random(seed)
        sound, data = dice.choice(real)
        path.write_text(mutated(data, dice))
        argv = dice.choice((["replay", str(path)], ["compare", str(sound), str(path)]))
        code = main(argv)
        out, err = capsys.readouterr()
        assert code in (0, 2, 3, 4, 5), code
        assert all(c == "\n" or c.isprintable() for c in out + err)
        assert (err.count("\n") == 1 and len(err) < 3000) if code == 2 else not err
        return code == 2

    for seed in tally.inputs():
        tally.take(lambda seed=seed: run(seed))  # type: ignore[misc]  # a lambda's default has no type
    print(tally)
    assert 0 < tally.refused < tally.tried
