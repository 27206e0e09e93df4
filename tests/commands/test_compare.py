"""`compare` as a user has it: what it says and writes, how it ends, and what it makes of bad files."""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from probes import __main__ as main
from probes.commands import compare as command
from probes.core.types import BadInput, Unavailable
from probes.engine.sides import Report
from probes.report import store
from probes.report.rows import Row
from tests.engine import two_runs
from tests.engine.two_runs import Build, head
from tests.host_gpu import HostGpu
from tests.host_run import Commands

ROOT = Path(__file__).resolve().parents[2]
BUILD = Build(groups=1)

Say = Callable[..., tuple[int, str, str]]


def written(path: Path, report: Report) -> Path:
    store.write_json(path, report.head, report.rows)
    return path


@pytest.fixture
def old(tmp_path: Path) -> Path:
    return written(tmp_path / "old.json", two_runs.run(BUILD, 1))


@pytest.fixture
def new(tmp_path: Path) -> Path:
    return written(tmp_path / "new.json", two_runs.run(BUILD, 2))


@pytest.fixture
def worse(tmp_path: Path) -> Path:
    return written(tmp_path / "worse.json", two_runs.run(BUILD, 2, {(0, "arm0"): 0.06}))


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Say:
    """Run compare: exit code, stdout, stderr."""

    def run(*argv: object) -> tuple[int, str, str]:
        code = main.main(["compare", *map(str, argv)])
        return code, *capsys.readouterr()

    return run


def refused(done: tuple[int, str, str], *words: str) -> None:
    code, _, err = done
    assert code == 2 and err.startswith("error: ") and err.count("\n") == 1, done
    assert "Traceback" not in err and len(err) < 600
    for word in words:
        assert word in err


def test_a_slower_row_is_said_and_ends_with_4(say: Say, old: Path, worse: Path, tmp_path: Path) -> None:
    files = {k: tmp_path / f"said.{k}" for k in ("csv", "json", "md")}
    code, out, _ = say(old, worse, *(x for k, p in files.items() for x in (f"--{k}", p)))
    assert code == 4
    first = next(x for x in out.splitlines() if x.startswith("l1/"))
    assert first.split()[0] == "l1/case0/arm0/cu" and first.endswith("SLOWER    beyond-margin")
    assert (
        "drift: " in out and "by 6 rows (reads " in out and "taken out" in out and "kernels: the same" in out
    )
    rows = list(csv.DictReader(files["csv"].open()))
    got = json.loads(files["json"].read_text())
    assert len(rows) == len(got["rows"]) == len(BUILD.rows) + len(BUILD.pairs)
    assert all(r["baseline"] for r in rows) and {r["kind"] for r in rows} == {"time", "lever"}
    by = {(r["kind"], r["variant"]): r for r in got["rows"]}
    arm = by["time", "arm0"]
    assert arm["answer"] == "SLOWER" and 1.01 < arm["ratio_low"] < arm["ratio"] < arm["ratio_high"] < 1.1
    lever = by["lever", "arm0:base"]
    assert lever["baseline"] == "base" and lever["answer"] == "SLOWER" and 0.3 < lever["old"] < 3
    assert got["counts"]["SLOWER"] == 2 and got["drift"]["rows"] == 6
    text = files["md"].read_text()
    assert text.startswith("# Two runs compared") and "| l1/case0/arm0/cu " in text and "| baseline " in text


def test_exit_codes(say: Say, old: Path, new: Path, worse: Path) -> None:
    assert say(old, new)[0] == 0
    assert say(old, new, "--fail-on", "unclear")[0] == 5
    assert say(old, worse, "--fail-on", "unclear")[0] == 4
    assert say(old, worse, "--margin", "20")[0] == 0


def test_one_file_twice_is_the_same_everywhere(say: Say, old: Path) -> None:
    code, out, _ = say(old, old, "--fail-on", "unclear")
    lines = [x for x in out.splitlines() if x.startswith("l1/")]
    assert code == 0 and len(lines) == len(BUILD.rows) + len(BUILD.pairs)
    assert all(x.split()[-2:] == ["SAME", "identical"] for x in lines)


def test_sides_of_several_files(say: Say, old: Path, new: Path, worse: Path, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    code, out, _ = say(old, new, "--new", worse, "--json", path)
    assert code == 4 and out.count("old: ") == 2 and out.count("new: ") == 1
    assert [x["file"] for x in json.loads(path.read_text())["old"]] == ["old.json", "new.json"]


def test_what_differs_is_refused_with_the_flag_that_permits_it(say: Say, old: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    rows = two_runs.run(BUILD, 2).rows
    for what, more in (("seeds", {"seed": 7}), ("bars", {"bars_sha256": "moved"})):
        written(other, Report("x", head(**more), rows))
        refused(say(old, other), f"the files differ in {what}: ", f"--across {what} permits it")
        assert say(old, other, "--across", what)[0] == 0
    written(other, Report("x", head(seed=7, bars_sha256="moved"), rows))
    refused(say(old, other, "--across", "seeds"), "--across bars")
    assert say(old, other, "--across", "seeds", "--across", "bars")[0] == 0


def verdicts(device: str, words: dict[str, str]) -> list[Row]:
    return [
        Row(
            probe="l1", case="ffn_down_14b", variant=v, backend="cu", source="measured", device=device,
            role="verdict", baseline="padded", verdict=word, ratio_to_baseline=0.9, ratio_low=0.89,
            ratio_high=0.91,
        )
        for v, word in words.items()
    ]  # fmt: skip


def test_across_devices_lays_verdicts_side_by_side(say: Say, tmp_path: Path) -> None:
    paths = []
    for device, words in (("nvidia-h200", {"dpl": "GO", "gs": "NO-GO"}), ("gb10", {"dpl": "INCONCLUSIVE"})):
        made = Report(device, head(device=device), [*two_runs.run(BUILD, 1).rows, *verdicts(device, words)])
        paths.append(written(tmp_path / f"{device}.json", made))
    refused(say(*paths), "differ in devices: nvidia-h200.json has nvidia-h200, gb10.json has gb10")
    code, out, _ = say(*paths, "--across", "devices", "--csv", tmp_path / "x.csv")
    assert code == 0
    lines = {x.split()[0]: x.split()[1:] for x in out.splitlines() if x.startswith("l1/")}
    assert lines["l1/ffn_down_14b/dpl"] == "padded cu GO +11.11 % INCONCLUSIVE +11.11 %".split()
    assert lines["l1/ffn_down_14b/gs"] == "padded cu NO-GO +11.11 %".split()
    rows = list(csv.DictReader((tmp_path / "x.csv").open()))
    assert [(r["device"], r["variant"], r["baseline"]) for r in rows][-1] == ("gb10", "dpl", "padded")
    bare = [written(tmp_path / f"{d}.json", Report(d, head(device=d), [])) for d in ("a", "b")]
    refused(say(*bare, "--across", "devices"), "no verdicts in a.json and b.json")


# Bad input


def spoilt(path: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    data = json.loads(path.read_text())
    change(data)
    out = path.with_name("spoilt.json")
    out.write_text(json.dumps(data))
    return out


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda d: d.pop("device"), "missing: device"), (lambda d: d["rows"][0].pop("probe"), "lacks probe"),
        (lambda d: d.pop("rows"), "a list of rows"), (lambda d: d.update(schema=2), "schema 2"),
        (lambda d: d.update(schema=9), "schema 9"), (lambda d: d.update(mode="predict"), "was predicted"),
        (lambda d: d.update(rows=[]), "no timed row in common"),
        (lambda d: d["rows"].append(d["rows"][0]), "two rows l1/case0/base/cu"),
        (lambda d: d["rows"][0]["samples_s"].__setitem__(0, 1e308), "a sample of 1e+308 s"),
        (lambda d: d["rows"][0]["samples_s"].__setitem__(0, 0.0), "a sample of 0.0 s"),
        (lambda d: d["rows"][0]["samples_s"].__setitem__(0, -1e-5), "a sample of -1e-05 s"),
        (lambda d: d["rows"][0]["samples_s"].__setitem__(0, float("nan")), "NaN is not a number"),
        (lambda d: d["rows"][0]["samples_s"].__setitem__(0, "x"), "samples_s must be"),
        (lambda d: d["rows"][0].update(samples_s=1.0), "samples_s must be"),
        (lambda d: d["rows"][-1]["blocks_s"].pop(), "whole blocks"),
        (lambda d: d["rows"][-1]["blocks_s"].__setitem__(0, 1e308), "a sample of 1e+308 s"),
    ],
)  # fmt: skip
def test_a_spoilt_file_is_one_line(say: Say, old: Path, new: Path, change: Any, word: str) -> None:
    path = spoilt(new, change)
    refused(say(old, path), word)
    refused(say(path, old), word)


@pytest.mark.parametrize(
    "change",
    [
        lambda d: [r.update(sm_clock_hz=1e308) for r in d["rows"]],
        lambda d: [r.update(throttled_samples=[-5, 2**40]) for r in d["rows"]],
        lambda d: [r.update(block_clock_hz=[1e308] * len(r["block_clock_hz"])) for r in d["rows"]],
        lambda d: [r.update(fraction_of_ceiling=1e308, time_s=1e308) for r in d["rows"]],
        lambda d: [r.update(of=None, baseline=None) for r in d["rows"]],
        lambda d: [r.update(blocks_s=[t * (1e-5 / 1e5) for t in r["blocks_s"]]) for r in d["rows"] if 0],
        lambda d: d["rows"][0].update(samples_s=[1e-10, 1e5] * 4),
        lambda d: d.update(git={"commit": ["odd"], "dirty": {}}, argv=[], driver=None),
    ],
)
def test_odd_values_are_no_traceback(say: Say, old: Path, new: Path, tmp_path: Path, change: Any) -> None:
    path = spoilt(new, change)
    for pair in ((old, path), (path, old), (path, path)):
        code, out, err = say(*pair, "--json", tmp_path / "out.json")
        assert code in (0, 4) and out and not err
        json.loads((tmp_path / "out.json").read_text(), parse_constant=lambda x: pytest.fail(x))


def test_names_out_of_a_file_stay_in_their_line(say: Say, old: Path, new: Path) -> None:
    path = spoilt(new, lambda d: d["rows"][0].update(case="a\nb\x1b[2J", samples_s=[1e308]))
    refused(say(old, path), "l1/a\\nb")
    path = spoilt(new, lambda d: [r.update(processes=2**62) for r in d["rows"] if r["role"] == "contest"])
    refused(say(old, path), "processes")
    refused(say(old, spoilt(new, lambda d: d.update(driver=[1]))), "driver")
    path = spoilt(new, lambda d: [r.update(case="a\nb\x1b[2J") for r in d["rows"][:1]])
    _, out, _ = say(old, path)
    assert "\x1b" not in out and "only-in-new: l1/a\\nb\\x1b[2J/base/cu" in out


def test_one_row_in_common(say: Say, old: Path, new: Path) -> None:
    path = spoilt(new, lambda d: d.update(rows=d["rows"][:1]))
    code, out, _ = say(old, path)
    assert code == 0 and "drift: unknown, 0 reads and A/A arms are in both" in out and "no-controls" in out
    assert "1 UNCLEAR" in out and "only-in-old: l1/case0/alone0/cu" in out


def test_files_that_are_no_reports(say: Say, old: Path, tmp_path: Path) -> None:
    path = tmp_path / "bad.json"
    for text, word in (
        ("", "not a report's JSON"), ("[" * 200_000, "more than any report"), ("[" * 100_000, "JSON"),
        ('{"rows": [' * 50_000, "JSON"),
        ("[]", "an object"), ('{"rows": 1e999}', "an object"), (b"\xed\xa0\x80", "JSON"),
    ):  # fmt: skip
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        refused(say(old, path), word)
    with path.open("wb") as f:
        f.truncate(500 << 20)  # sparse: 500 MB that nobody reads
    refused(say(old, path), "more than any report")
    refused(say(old, tmp_path / "none.json"), "cannot read", "No such file")
    refused(say(old, tmp_path), "no regular file")


def test_flags_that_nobody_could_honour(say: Say, old: Path, new: Path) -> None:
    refused(say(old), "two files are compared, OLD NEW", "got 1")
    refused(say(old, new, old), "got 3")
    for value in ("nan", "-1", "100", "inf"):
        refused(say(old, new, f"--margin={value}"), "--margin must be from 0 to below 100")
    refused(say(old, new, "--json", old), "are one file")
    refused(say(old, new, "--csv", new.parent / "x", "--md", new.parent / "x"), "are one file")
    refused(say(old, new, "--md", "/dev/null/x"), "cannot write")
    refused(say(old, "--run", "--new", new), "leave out --new")
    refused(say(old, new, "--run"), "takes one file")


def test_help_is_light() -> None:
    run = "from probes.__main__ import main\ntry: main(['compare', '--help'])\nfinally: print(*sys.modules)"
    code = f"import sys\n{run}"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env={**os.environ}, capture_output=True, text=True, timeout=60
    )
    assert "--fail-on" in done.stdout and done.returncode == 0
    assert not {"numpy", "tabulate", "numba", "cuda"} & set(done.stdout.splitlines()[-1].split())


# --run


def test_run_takes_over_what_is_safe() -> None:
    rows = two_runs.run(BUILD, 1).rows

    def flags(*argv: str) -> Any:
        return command.flags_of(Report("b.json", head(argv=["-m probes.l1", *argv], seed=5), rows))

    name, args = flags(
        "-q", "--case", "attn_v_7b", "--backend=cu", "--blocks", "16", "--json", "x.json", "--record"
    )
    assert name == "l1" and args.case == ["attn_v_7b"] and args.backend == ["cu"] and args.blocks == 16
    assert (args.seed, args.mode, args.json, args.record, args.windows) == (5, "measure", None, False, None)
    with pytest.raises(BadInput, match="was measured with --gguf"):
        flags("--gguf", "model.gguf")
    with pytest.raises(BadInput, match="cannot take over its command line"):
        flags("--blocks", "17")
    two = [*rows, replace(rows[0], probe="l2")]
    with pytest.raises(BadInput, match="holds l1 and l2"):
        command.flags_of(Report("b.json", head(), two))
    with pytest.raises(BadInput, match="holds none"):
        command.flags_of(Report("b.json", head(), [replace(rows[0], probe="x")]))


def test_run_measures_and_compares(
    small_l3: HostGpu, commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("probes.engine.compare._doubt", lambda row: "")  # such small weights are not cold
    base = commands("l3", "--backend", "cu", "--blocks", "16", "--variant", "form_a")
    assert base.rows
    kept = (commands.folder / "l3.json").rename(commands.folder / "base.json")
    data = json.loads(kept.read_text())
    data["argv"] = [
        "-m probes.l3",
        "--backend",
        "cu",
        "--blocks=16",
        "--variant",
        "form_a",
        "--json",
        "l3.json",
    ]
    kept.write_text(json.dumps(data))
    usual = small_l3.seconds
    small_l3.seconds = lambda x: usual(x) * (1.05 if x.kernel == "l3_form_a" else 1.0)
    done = commands("", "compare", str(kept), "--run", "--out", str(commands.folder / "runs"))
    assert done.code == 4, done
    assert "NOTE: measured 1 time, pooled; 0 rows stay UNCLEAR" in done.out
    first = next(x for x in done.out.splitlines() if x.startswith("l3/"))
    assert "/form_a/cu" in first and "SLOWER" in first
    assert {r.variant for r in store.read_json(commands.folder / "runs" / "base-new1.json")[1]} == {
        r.variant for r in (*base.rows, *base.verdicts)
    }


def test_run_measures_again_where_rows_are_unclear(
    say: Say, old: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[Any, int]] = []

    def measured(name: str, args: Any) -> None:
        asked.append((args.case, args.processes))
        if len(asked) == 5:
            raise Unavailable("the GPU is gone")
        written(args.json, two_runs.run(BUILD, 10 + len(asked)))

    monkeypatch.setattr("probes.cli.run", measured)
    code, out, _ = say(old, "--run", "--out", tmp_path / "runs")
    assert code == 0 and "NOTE: measured 3 times, pooled; " in out and out.count("new: old-new") == 3
    assert asked == [(None, 1), (["case0"], 2), (["case0"], 2)]
    code, out, _ = say(old, "--run", "--out", tmp_path / "runs")
    assert code == 0 and "measured 1 time, pooled;" in out and "not be measured again: the GPU is gone" in out


def test_the_docs_name_flags_and_codes_that_there_are() -> None:
    text = (ROOT / "docs" / "compare.md").read_text()
    known = {flag for action in command.parser()._actions for flag in action.option_strings}
    for line in text.splitlines():
        if "-m probes compare " in line:
            assert {w for w in line.split() if w.startswith("--")} <= known, line
    source = "".join(
        (ROOT / p).read_text() for p in ("probes/engine/compare.py", "probes/verdict/comparison.py")
    )
    codes = set(re.findall(r'"((?:doubt:)?[a-z]+(?:-[a-z]+)+)"', source)) - {"reads-alone"}
    codes = {c.removeprefix("doubt:") for c in codes}
    assert len(codes) > 10 and {c for c in codes if f"`{c}`" not in text} == set()
