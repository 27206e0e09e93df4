"""A report that is larger than any run's is refused in one line; what is read costs work linear in it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from probes.commands import replay
from probes.core.types import BadInput
from probes.report import bounds, store
from probes.report.rows import Row
from probes.verdict import windows

REPORT = Path(__file__).parents[2] / "out" / "nvidia-h200" / "l1.json"
OLD = Path(__file__).parents[1] / "data" / "schema1" / "l1.json"


def spoilt(tmp_path: Path, change: Callable[[dict[str, Any]], Any], report: Path = REPORT) -> Path:
    data = json.loads(report.read_text())
    change(data)
    path = tmp_path / "spoilt.json"
    path.write_text(json.dumps(data))
    return path


def many(data: dict[str, Any], count: int, cases: int) -> None:
    """`count` rows of `cases` cases, with the samples of real ones."""
    real = [r for r in data["rows"] if r["case"] == "ffn_down_14b" and r["role"] != "verdict"]
    real = [r for k in range(7) for r in real[k::7]]  # contests among the timed rows
    data["rows"] = []
    for i in range(count):
        k, place = divmod(i // cases, len(real))
        row = dict(real[place], case=f"c{i % cases}")
        row["variant"] += f"_{k}" if k else ""
        row["samples_s"] = [x * (1 + 1e-6 * i) for x in row["samples_s"]]
        data["rows"].append(row)


def timed(data: dict[str, Any]) -> dict[str, Any]:
    return next(r for r in data["rows"] if r.get("samples_s"))


HOSTILE: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "rows": (lambda d: d.update(rows=[{}] * 10_000), "10000 rows"),
    "cases": (lambda d: many(d, 600, 600), "600 cases"),
    "a row's samples": (
        lambda d: timed(d).update(samples_s=[1e-4] * 100_000, windows=50_000),
        "100000 samples",
    ),
    "a row's blocks": (lambda d: timed(d).update(blocks_s=[1e-4] * 100_000), "100000 samples"),
    "samples": (
        lambda d: [r.update(samples_s=[1e-4] * 512, windows=256) for r in d["rows"]],
        "samples, more",
    ),
    "processes": (lambda d: timed(d).update(processes=25_000, windows=None), "25000 processes"),
    "values": (lambda d: d.update(rows=[0] * 1_600_000), "values"),
    "lists": (lambda d: d.update(rows=[[]] * 140_000), "objects and lists"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_more_than_any_report_holds_is_refused(tmp_path: Path, kind: str) -> None:
    change, word = HOSTILE[kind]
    with pytest.raises(BadInput, match=word) as refused:
        store.read_json(spoilt(tmp_path, change))
    assert len(str(refused.value)) < 400


def test_an_old_report_s_samples_have_a_bound_of_their_own(tmp_path: Path) -> None:
    def change(data: dict[str, Any]) -> None:
        for row in data["rows"]:
            if row.get("samples_s"):
                row.update(samples_s=[1e-4] * 120, windows=60, processes=1)

    with pytest.raises(BadInput, match="samples of schema 1"):
        store.read_json(spoilt(tmp_path, change, OLD))


def test_a_large_file_is_refused_by_its_size(tmp_path: Path) -> None:
    path = tmp_path / "large.json"
    with path.open("wb") as file:
        file.truncate(500 << 20)
    started = time.process_time()
    with pytest.raises(BadInput, match="524288000 bytes"):
        store.read_json(path)
    assert time.process_time() - started < 0.1  # not read


def test_a_file_that_grows_while_it_is_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = spoilt(tmp_path, lambda d: None)
    monkeypatch.setattr(bounds, "MAX_BYTES", path.stat().st_size - 1)
    small = type("Stat", (), {"st_size": 1})
    monkeypatch.setattr(bounds.os, "fstat", lambda fd: small)
    with pytest.raises(BadInput, match="bytes, more than any report"):
        store.read_json(path)


def test_the_work_of_a_replay_is_linear_in_its_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0
    real = Row.group.fget
    assert real

    def group(row: Row) -> str:
        nonlocal looks
        looks += 1
        return str(real(row))

    def spent(count: int) -> int:
        nonlocal looks
        path = spoilt(tmp_path, lambda d: many(d, count, count // 40))
        looks = 0
        replay.main([str(path)])
        return looks

    monkeypatch.setattr(Row, "group", property(group))
    few, more = spent(400), spent(1600)
    assert more < 4.5 * few  # 4 times the rows; 16 times where each row looks at each


@pytest.mark.parametrize("shape", [(1, 8), (3, 5), (2, 129)])
def test_a_bootstrap_in_pieces_gives_the_same_bits(
    shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(5)
    a, b = (rng.lognormal(0, 0.1, (*shape, 2)) for _ in range(2))
    whole = windows.weighted_ratio([(3, a, b), (2, b, a)], seed=1)
    drawn: list[int] = []
    real = windows._per_process

    def seen(count: float, ratios: windows.F64, times: windows.F64) -> tuple[windows.F64, windows.F64]:
        drawn.append(ratios.size)
        return real(count, ratios, times)

    monkeypatch.setattr(windows, "PIECE", 1000)
    monkeypatch.setattr(windows, "_per_process", seen)
    assert windows.weighted_ratio([(3, a, b), (2, b, a)], seed=1) == whole
    assert max(drawn) <= 1000 and len(drawn) > 3
