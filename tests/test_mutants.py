"""The table of single changes holds today's texts, and a small part of it is run: each must make a test fail.

The whole of it: `python -m tests.mutants`, see docs/harness.md.
"""

from __future__ import annotations

import ast
import random
import re
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.mutants import Mutant
from tests.mutants import __main__ as runner
from tests.mutants.table import MUTANTS

ROOT = runner.ROOT
CHEAP = {
    "tests/gpu/test_sampling.py", "tests/gpu/test_timing.py", "tests/engine/test_contests.py",
    "tests/engine/test_block_rule.py",
}  # fmt: skip
"""Files of a second each."""
PART, SEED, MOST_S = 2, 1, 30.0


def cheap() -> list[Mutant]:
    return [m for m in MUTANTS if {*m.tests} <= CHEAP and not m.survives]


def test_each_old_text_stands_exactly_once_in_its_file() -> None:
    texts = {m.file: (ROOT / m.file).read_text() for m in MUTANTS}
    assert [m.name for m in MUTANTS if texts[m.file].count(m.old) != 1] == []
    assert [m.name for m in MUTANTS if m.old == m.new] == []


def test_changes_are_many_of_every_part_and_no_two_alike() -> None:
    assert len({(m.file, m.old, m.new) for m in MUTANTS}) == len(MUTANTS) >= 120
    where = {m.file.rpartition("/")[0] for m in MUTANTS}
    assert where >= {
        "probes/gpu", "probes/verdict", "probes/engine", "probes/l1", "probes/l2", "probes/l3",
        "probes/report", "probes/commands", "kernels_cu", "kernels_numba",
    }  # fmt: skip


def test_every_change_leaves_a_file_that_can_be_read() -> None:
    """A change that is no Python would be seen by any test."""
    for m in MUTANTS:
        if m.file.endswith(".py"):
            ast.parse((ROOT / m.file).read_text().replace(m.old, m.new))


def test_the_tests_that_a_change_names_are_there() -> None:
    for m in MUTANTS:
        assert m.tests
        for test in m.tests:
            file, _, name = test.partition("::")
            text = (ROOT / file).read_text()
            assert not name or f"def {name.partition('[')[0]}(" in text, test


def test_the_docs_state_the_count_and_each_survivor() -> None:
    text = (ROOT / "docs" / "harness.md").read_text()
    known = [m for m in MUTANTS if m.survives]
    (found,) = re.findall(r"\*\*(\d+) changes, (\d+) killed, (\d+) survive\*\*", text)
    assert tuple(map(int, found)) == (len(MUTANTS), len(MUTANTS) - len(known), len(known))
    assert all(m.file in text and m.survives in text for m in known)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return runner.copied(tmp_path_factory.mktemp("mutants"))


def test_a_few_changes_are_seen(tree: Path) -> None:
    began = time.monotonic()
    for mutant in random.Random(SEED).sample(cheap(), PART):
        dead, by = runner.killed(tree, mutant, [])
        assert dead and by.startswith("tests/"), f"{mutant.name}: {by}"
    assert time.monotonic() - began < MOST_S


def test_a_change_of_no_meaning_survives(tree: Path) -> None:
    """The runner can tell, and leaves the tree as it was."""
    own = next(m for m in cheap() if m.file.endswith("block_rule.py"))
    same = replace(own, new=own.old, tests=("tests/engine/test_contests.py",))
    dead, by = runner.killed(tree, same, [])
    assert not dead and "passed" in by
    assert (tree / own.file).read_text() == (ROOT / own.file).read_text()
    dead, by = runner.killed(tree, replace(same, tests=("tests/engine/test_contests.py::none",)), [])
    assert not dead and by == "no test was run"
