"""Switches and names mean what they say: on and off, misspelt flags, tensors that are called as cases are."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from probes.__main__ import main
from probes.core import flags
from probes.core.types import BadInput, Shape
from probes.engine import probe, processes
from probes.l1 import table as l1
from probes.l2 import table as l2


@pytest.mark.parametrize(("word", "on"), [
    ("1", True), ("true", True), ("ON", True), ("Yes", True),
    ("0", False), ("False", False), ("off", False), ("no", False),
])  # fmt: skip
def test_a_switch_is_on_or_off(word: str, on: bool) -> None:
    shape = Shape(8, 5120)
    assert l1.dispatch(shape, True, {"PROBES_Q6K_DPL": word}) == ("dpl_loop" if on else "padded_loop")
    assert l1.dispatch(Shape(8, 13824), True, {"PROBES_Q6K_PF": word}) == ("dpl_pf" if on else "dpl_loop")
    assert l2.dispatch(l2.arm("pdl_late"), {"PROBES_PDL": word}) is on
    flags.check_environment({"PROBES_PDL": word, "PROBES_BUILD_DIR": "anywhere"})


@pytest.mark.parametrize(("env", "words"), [
    ({"PROBES_PDL": "of"}, ("PROBES_PDL is 'of'", "0, false, off or no")),
    ({"PROBES_Q6K_DPL": ""}, ("PROBES_Q6K_DPL is ''",)),
    ({"PROBES_PLD": "0"}, ("PROBES_PLD", "did you mean PROBES_PDL?")),
    ({"PROBES_Z": "0"}, ("PROBES_Z", "there are PROBES_PDL")),
])  # fmt: skip
def test_any_other_word_is_refused(
    env: dict[str, str], words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str], tmp_path: Path,
) -> None:  # fmt: skip
    with pytest.raises(BadInput) as said:
        flags.check_environment(env)
    assert all(w in str(said.value) for w in words)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    assert main(["--mode", "predict", "--out", str(tmp_path)]) == 2
    done = capsys.readouterr()
    assert str(said.value) in done.err and done.out == "" and not list(tmp_path.iterdir())


@pytest.mark.parametrize("argv", [["replay", "x.json"], ["compare", "a", "b"], ["selfcheck"], ["--list"]])
def test_every_command_reads_the_switches(
    argv: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PROBES_PDL", "maybe")
    assert main(argv) == 2
    done = capsys.readouterr()
    assert "PROBES_PDL is 'maybe'" in done.err and done.out == ""


@pytest.mark.parametrize(("argv", "words"), [
    (["--quik"], "no flag --quik; did you mean --quick"),
    (["--blcoks=16"], "no flag --blcoks; did you mean --blocks"),
    (["--zzz"], "no flag --zzz; see python -m probes --help"),
    (["--onse"], "no flag --onse"),
    (["--backend", "numbaa"], "did you mean numba?"),
    (["replay", "--sed", "x.json"], "no flag --sed"),
    (["compare", "a", "b", "--magin", "2"], "did you mean --margin"),
    (["selfcheck", "--run", "2"], "did you mean --runs"),
])  # fmt: skip
def test_a_misspelt_flag_is_one_line(argv: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 2
    done = capsys.readouterr()
    assert done.out == ""
    assert words in done.err and done.err.count("\n") == 1
    assert "usage" not in done.err and "--once" not in done.err


NAMES = "ffn_down_14b sweep_x sweep_ring_decode13 model_14b all tensor:all".split()


@pytest.mark.parametrize("name", NAMES)
def test_a_tensor_that_is_called_as_a_case_is_a_tensor(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from probes.formats import gguf

    found = [argparse.Namespace(name=name, type_name="Q6_K", od=5120, id=13824)]
    monkeypatch.setattr(gguf, "tensors", lambda path: found)
    args = probe_args("--gguf", "model.gguf")
    (case,) = l1.cases(args, 132, lambda *_: 0)
    assert case.id == f"tensor:{name}" and case.tensors == (name,)
    assert not list(probe.report("l1").recorded(case)), "the record timed no file of the user's"


def test_a_misspelt_command_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compre", "a"]) == 2
    assert capsys.readouterr().err == "error: there is no command 'compre'; did you mean compare?\n"


def test_a_tensor_of_another_name_keeps_it() -> None:
    assert l1.tensor_id("blk.0.ffn_down.weight") == "blk.0.ffn_down.weight"


def test_a_value_that_begins_with_a_dash_reaches_the_children() -> None:
    from probes import cli

    given = ["--gguf=-m.gguf", "--tensor=-t", "--layout", "dpl", "--layout", "gs", "--case=-x"]
    argv = processes.child_argv("l1", probe_args(*given, "--windows=4", "--blocks=16"), Path("-out.json"), 2)
    back = cli.parser("l1").parse_args(argv)
    assert (back.gguf, back.tensor, back.layout) == (Path("-m.gguf"), "-t", ["dpl", "gs"])
    assert (back.case, back.seed, back.json, back.md) == (["-x"], 2, Path("-out.json"), Path("-out.md"))


def probe_args(*argv: str) -> argparse.Namespace:
    from probes import cli

    return cli.parser("l1").parse_args(argv)
