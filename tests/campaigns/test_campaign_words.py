"""Mutated device profiles and tuning tables, and command lines made of true, misspelt and odd words."""

from __future__ import annotations

import random
import tomllib
from pathlib import Path
from typing import Any

import pytest

from probes.__main__ import main
from probes.core.types import BadInput
from probes.device import facts, tuning
from tests.campaigns import Tally, budget
from tests.campaigns.test_campaign_reports import ODD, spoil

DEVICE = Path(facts.__file__).parent
WORDS = (
    "--list --mode predict measure --device 0 -1 --device-profile gb10 h200 h2000 --backend cu numba nummba "
    "--quick --windows 4 1 --blocks 16 17 --processes 2 --seed 7 --blocks-per-sm 40 --counters --json --md "
    "--record -q --case decode13 --zzz --json= -- replay compare selfcheck l1 --runs -1 --planted nan "
    "--margin inf --fail-on slower /dev/null . --help"
).split()


def test_mutated_profiles_and_tuning_tables(request: pytest.FixtureRequest) -> None:
    profiles = [tomllib.loads(p.read_text()) for p in sorted((DEVICE / "profiles").glob("*.toml"))]
    texts = [p.read_text() for p in sorted((DEVICE / "tuned").glob("*.toml"))]
    tally, said = Tally("profiles and tuning tables", budget(request) / 2), list[str]()

    def profile(dice: random.Random) -> None:
        table: dict[str, Any] = dict(dice.choice(profiles))
        table["sources"] = dict(table["sources"])
        place = dice.choice((table, table, table["sources"]))
        name = dice.choice([n for n in place if n != "sources"])
        kind = dice.randrange(3)
        if kind == 0:
            del place[name]
        else:
            place[name if kind == 1 else f"{name}s"] = spoil(place[name], dice)
        read = facts._parse("mutated", table)
        assert read.sms >= 1 and read.dram_bps > 0

    def tuned(dice: random.Random) -> None:
        text = dice.choice(texts)
        at = dice.randrange(len(text))
        odd = dice.choice(("", "0", "-1", "=", "]", '"', "x", "\n", str(ODD[8])))
        tuning.parse(text[:at] + odd + text[at + 1 :])

    def run(seed: int) -> bool:
        dice = random.Random(seed)
        try:
            dice.choice((profile, tuned))(dice)
        except BadInput as error:
            said.append(str(error))
            return True
        return False

    for seed in tally.inputs():
        tally.take(lambda seed=seed: run(seed))  # type: ignore[misc]  # the seed is bound as a default
    assert said and not any("\n" in line for line in said)
    print(tally)


def test_command_lines_of_odd_words(
    tmp_path: Path, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    tally = Tally("command lines", budget(request) / 2)

    def run(seed: int) -> bool:
        dice = random.Random(seed)
        argv = [dice.choice(WORDS) for _ in range(dice.randint(1, 5))]
        if dice.random() < 0.5:
            word = dice.choice(argv)
            argv.append(word[: dice.randrange(len(word) + 1)] + dice.choice("x\x1b\n=é"))
        code = main(argv)
        out, err = capsys.readouterr()
        assert code in (0, 2, 3), (argv, code)
        assert all(c == "\n" or c.isprintable() for c in out + err), argv
        if code == 2:
            lines = [x for x in err.splitlines() if not x.startswith(("[", "warning: "))]
            assert 1 <= len(lines) <= 3 and all(x.startswith("error: ") for x in lines), (argv, err)
        return code == 2

    for seed in tally.inputs():
        tally.take(lambda seed=seed: run(seed))  # type: ignore[misc]  # the seed is bound as a default
    print(tally)
