"""A report's verdicts again, from its samples."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from probes.report import provenance
from probes.report.provenance import Head
from tests.l1.l1_rows import judged, measured


def collect() -> Head:
    """A head of a run of L1 in C++ alone."""
    return provenance.collect(
        mode="measure", device="test", seed=0, kernels_sha256="0", probes=("l1",), argv=["l1", "--backend"]
    )


def test_replay_gives_the_files_verdicts_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from probes import __main__ as main
    from probes.report import store

    head = collect()
    rows = measured(0.83)
    path = tmp_path / "l1.json"
    store.write_json(path, head, [*rows, *judged(rows)])
    assert main.main(["replay", str(path)]) == 0
    out = capsys.readouterr().out
    assert "model_14b" in out and "was" not in out.split("Verdicts")[1]
    data = json.loads(path.read_text())
    for row in data["rows"]:
        if row["verdict"] == "GO":
            row["verdict"] = "NO-GO"
    data["bars_sha256"] = "moved"
    path.write_text(json.dumps(data))
    main.main(["replay", str(path)])
    out = capsys.readouterr().out
    assert "was NO-GO in the file" in out and "the bars are not those" in out


def test_replay_says_what_it_cannot_judge(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rows twice, rows that no check stands behind, and verdicts whose rows are gone."""
    from probes import __main__ as main
    from probes.report import store

    head = collect()
    rows, path = measured(0.83), tmp_path / "l1.json"
    verdicts = judged(rows)
    store.write_json(path, head, [*rows, rows[0], *verdicts])
    assert main.main(["replay", str(path)]) == 2
    assert f"two rows {rows[0].id} with samples" in capsys.readouterr().err
    store.write_json(path, head, [*(r for r in rows if r.variant != "dispatch_dpl"), *verdicts])
    assert main.main(["replay", str(path)]) == 4
    assert "was GO in the file and cannot be judged" in capsys.readouterr().out
    store.write_json(path, head, [*(replace(r, bitwise=None) for r in rows), *verdicts])
    assert main.main(["replay", str(path)]) == 4


def test_replay_believes_samples_not_what_stands_beside_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from probes import __main__ as main
    from probes.report import store

    head = collect()
    rows = measured(0.83)
    for row in rows:
        if row.variant == "dispatch_dpl":
            row.time_s = 1.0
    path = tmp_path / "l1.json"
    store.write_json(path, head, rows)
    main.main(["replay", str(path)])
    out = capsys.readouterr().out
    assert " s saved" not in out.replace("µs saved", "").replace("ms saved", "")
    with_zero = [replace(r, samples_s=[0.0, *r.samples_s[1:]]) if r.samples_s else r for r in rows]
    store.write_json(path, head, with_zero)
    assert main.main(["replay", str(path)]) == 2
    assert re.search(r"l1.json: l1/\S+ has a sample of 0.0 s", capsys.readouterr().err)
    for row in rows:
        row.bitwise = False
    store.write_json(path, head, rows)
    assert main.main(["replay", str(path)]) == 4
    assert "none was reached" in capsys.readouterr().out
