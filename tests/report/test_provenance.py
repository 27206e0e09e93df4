"""What a report says of where it comes from: command lines, versions, the state of git."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from probes.report import provenance
from probes.report.provenance import Head, clean_argv


def test_command_lines_lose_their_machine(tmp_path: Path) -> None:
    here = tmp_path / "home" / "probes"
    argv = [str(here / "probes" / "l1.py"), "--case", "ffn_down_14b", "--json", str(here / "out" / "l1.json"),
            "--gguf=/models/secret/x.gguf", "--out", "../../elsewhere/runs", "--md", "~/x.md",
            "--seed=3"]  # fmt: skip
    assert clean_argv(argv, here) == [
        "-m probes.l1", "--case", "ffn_down_14b", "--json", "out/l1.json",
        "--gguf=x.gguf", "--out", "runs", "--md", "x.md", "--seed=3",
    ]  # fmt: skip
    assert clean_argv([str(here / "probes" / "__main__.py")], here) == ["-m probes"]
    assert clean_argv(["/usr/bin/pytest"], here) == ["pytest"]


def test_a_collected_head(monkeypatch: pytest.MonkeyPatch) -> None:
    got = provenance.collect(mode="predict", device="gb10", seed=1, kernels_sha256="00", argv=["-m", "x"])
    assert Head.from_json(json.loads(json.dumps(got.to_json()))) == got
    assert got.versions["python"].startswith("3.")
    assert "numpy" in got.versions
    assert got.time_utc.endswith("Z")
    assert len(got.bars_sha256) == 64


def test_git_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    monkeypatch.delenv(provenance.GIT_VARIABLE, raising=False)
    assert provenance.git_state(tmp_path) is None
    monkeypatch.setenv(provenance.GIT_VARIABLE, "abc123-dirty")
    assert provenance.git_state(tmp_path) == {"commit": "abc123", "dirty": True, "stated": True}
    try:
        who = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
        for args in (["init", "-q"], [*who, "commit", "-q", "--allow-empty", "-m", "x"]):
            subprocess.run(["git", "-C", str(tmp_path), *args], check=True, timeout=20, capture_output=True)
    except OSError:
        pytest.skip("git is not installed")
    state = provenance.git_state(tmp_path)
    assert state is not None
    assert len(state["commit"]) == 40
    assert state["dirty"] is False
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "l1.json").write_text("{}")
    assert provenance.git_state(tmp_path) == state  # a report is no change to the code
    (tmp_path / "x.py").write_text("")
    assert provenance.git_state(tmp_path) == {**state, "dirty": True}
    monkeypatch.setenv("PATH", "")
    assert provenance.git_state(tmp_path) == {"commit": "abc123", "dirty": True, "stated": True}
