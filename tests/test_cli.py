"""The command line: one clear line and exit code 2 for a user's mistake, never a traceback, nothing lost."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from probes.gpu import facts
from probes.report import store

ROOT = Path(__file__).resolve().parents[1]
GGUF = ROOT / "tests" / "data" / "minilm-ffn_down-48rows.gguf"
no_gpu = pytest.mark.skipif(facts.look().count > 0, reason="says what happens without a GPU")


def probes(*argv: str, cwd: Path, module: str = "probes.l1", **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", module, *argv],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), **env},
        capture_output=True,
        text=True,
        timeout=120,
    )


def refused(run: subprocess.CompletedProcess[str], *words: str) -> None:
    """Exit code 2, one line that holds every word, no traceback."""
    assert run.returncode == 2, run.stderr
    said = run.stderr.strip().splitlines()
    assert "Traceback" not in run.stderr
    assert "Nothing was measured" not in run.stdout, "the mistake comes first"
    assert said[-1].startswith(("error: ", "python -m probes"))
    for word in words:
        assert word in run.stderr, run.stderr
    assert len([line for line in said if line.startswith("error: ")]) <= 1


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--case", "ffn_dwn_14b"], ["ffn_dwn_14b", "ffn_down_14b"]),
        (["--layout", "paded"], ["paded", "padded"]),
        (["--form", "ring0"], ["ring0", "loop"]),
        (["--backend", "rocm"], ["rocm", "numba"]),
        (["--device-profile", "gb11"], ["gb11", "gb10"]),
        (["--mode", "guess"], ["guess", "measure"]),
        (["--windows", "1"], ["--windows", "1"]),
        (["--windows", "many"], ["many"]),
        (["--processes", "0"], ["--processes", "0"]),
        (["--seed", "-1"], ["--seed", "-1"]),
        (["--blocks-per-sm", "33"], ["33"]),
        (["--blocks-per-sm", "0"], ["--blocks-per-sm", "0"]),
        (["--record", "--mode", "predict"], ["--record"]),
        (["--sweep"], ["--sweep", "needs a GPU"]),
        (["--sweep", "--form", "pf"], ["ring and async"]),
        (["--sweep", "--gguf", str(GGUF)], ["--gguf"]),
        (["--no-such-flag"], ["--no-such-flag"]),
        (["--gguf", "absent.gguf"], ["absent.gguf"]),
        (["--gguf", str(GGUF), "--tensor", "blk.0.ffn_dwn.weight"], ["blk.0.ffn_down.weight"]),
        (["--gguf", str(GGUF), "--tensor", "blk.0.ffn_down_q4.weight"], ["Q4_K"]),
        (["--gguf", str(GGUF), "--case", "ffn_down_14b"], ["--tensor"]),
    ],
)
def test_a_mistake_is_one_clear_line(argv: list[str], words: list[str], tmp_path: Path) -> None:
    mode = [] if {"--mode", "--no-such-flag"} & set(argv) else ["--mode", "predict"]
    refused(probes(*mode, *argv, cwd=tmp_path), *words)


def test_a_command_that_is_none_and_a_sweep_without_a_gpu(tmp_path: Path) -> None:
    refused(probes("selfchek", cwd=tmp_path, module="probes"), "no command 'selfchek'", "selfcheck")
    refused(probes("--mode", "predict", "--sweep", cwd=tmp_path, module="probes.l3"), "it needs a GPU")


@no_gpu
def test_measure_without_a_driver(tmp_path: Path) -> None:
    refused(probes("--mode", "measure", cwd=tmp_path), "--mode predict")
    refused(probes("selfcheck", cwd=tmp_path, module="probes"), "cannot measure")
    refused(probes("--record", cwd=tmp_path), "measured reports only")


def test_a_file_that_is_no_gguf(tmp_path: Path) -> None:
    for name, data in (
        ("empty.gguf", b""),
        ("text.gguf", b"hello world, no model here"),
        ("cut.gguf", GGUF.read_bytes()[:5000]),
    ):
        (tmp_path / name).write_bytes(data)
        refused(probes("--mode", "predict", "--gguf", name, cwd=tmp_path), name)


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    refused(probes("--mode", "predict", "--case", "attn_v_7b", "--out", "file", cwd=tmp_path), "cannot write")
    refused(
        probes("--mode", "predict", "--case", "attn_v_7b", "--json", "file/x.json", cwd=tmp_path),
        "cannot write",
    )
    if os.geteuid() != 0:
        (tmp_path / "locked").mkdir()
        (tmp_path / "locked").chmod(stat.S_IRUSR | stat.S_IXUSR)
        refused(probes("--mode", "predict", "--out", "locked", cwd=tmp_path), "cannot write")


def test_a_full_disk(tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    code = (
        "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000));"
        "from probes import cli;"
        "sys.exit(cli.main('l1', '--mode predict --case attn_v_7b --json x.json'.split()))"
    )
    run = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    refused(run, "cannot write x.json")


def test_a_report_that_is_none(tmp_path: Path) -> None:
    for text in ("", "{", "[]", '{"schema": 1}', '{"schema": 99, "rows": []}', "null"):
        (tmp_path / "x.json").write_text(text)
        refused(probes("replay", "x.json", cwd=tmp_path, module="probes"), "x.json")
    refused(probes("replay", "absent.json", cwd=tmp_path, module="probes"), "absent.json")


@no_gpu
def test_no_gpu_predicts_and_says_so_first(tmp_path: Path) -> None:
    started = time.monotonic()
    run = probes("--json", "p.json", "--md", "p.md", cwd=tmp_path, PROBES_BUILD_DIR="nowhere")
    assert time.monotonic() - started < 10
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith("Nothing was measured")
    assert "measured on" not in run.stdout.lower().replace("nothing was measured", "")
    head, rows = store.read_json(tmp_path / "p.json")
    assert (head.mode, head.device, head.complete) == ("predict", "gb10", True)
    assert {r.source for r in rows} == {"predicted", "recorded"}
    assert (tmp_path / "p.md").read_text().startswith("# L1")
    assert not (tmp_path / "nowhere").exists()
    refused(probes("replay", "p.json", cwd=tmp_path, module="probes"), "predicted")


@no_gpu
def test_every_probe_together(tmp_path: Path) -> None:
    run = probes(cwd=tmp_path, module="probes")
    assert run.returncode == 0, run.stderr
    assert run.stdout.count("predicted for gb10, not measured") == 3
    assert "form_b: NO-GO" in run.stdout.split("Summary")[1]
    assert (tmp_path / "out" / "runs" / "l1.json").exists()


def test_what_stops_every_probe_is_told_once(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for argv, said in (
        (("--windows", "1"), "--windows must be at least 2, got 1"),
        (("--out", "file"), "cannot write"),
        (("--mode", "predict", "--device-profile", "nothing"), "nothing"),
    ):
        run = probes(*argv, cwd=tmp_path, module="probes")
        refused(run, said)
        assert len(run.stderr.splitlines()) == 1 and not run.stdout, run.stderr


def test_no_gguf_package(tmp_path: Path) -> None:
    (tmp_path / "gguf.py").write_text("raise ImportError('not here')")
    env = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    run = subprocess.run(
        [sys.executable, "-m", "probes.l1", "--mode", "predict", "--gguf", str(GGUF)],
        cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    refused(run, "pip install gguf")


def test_ctrl_c_keeps_the_finished_rows(tmp_path: Path) -> None:
    """Stopped after its second case: both are in the file, which says that it is not complete."""
    code = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a background job's is to ignore it
        "from probes.engine import predict\n"
        "plain = predict.predicted\n"
        "def slow(name, facts, args):\n"
        "    for k, rows in enumerate(plain(name, facts, args)):\n"
        "        if k == 2: print('READY', flush=True); time.sleep(30)\n"
        "        yield rows\n"
        "predict.predicted = slow\n"
        "from probes import cli; sys.exit(cli.main('l1', ['--mode', 'predict', '--json', 'p.json']))\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert child.stdout
    while "READY" not in (line := child.stdout.readline()):
        assert line, "the child ended before it was stopped"
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=20)
    assert child.returncode == 130
    assert "rows were finished are kept" in err and "Traceback" not in err
    head, rows = store.read_json(tmp_path / "p.json")
    assert not head.complete
    assert {r.case for r in rows} == {"ffn_down_14b", "lm_head_14b"}


def test_list_names_everything(tmp_path: Path) -> None:
    run = probes("--list", cwd=tmp_path)
    assert run.returncode == 0
    for word in (
        "lm_head_7b",
        "gpl_stream",
        "dispatch_dpl",
        "gs_async",
        "padded_ring_aa",
        "l1.dpl",
        "l1.limit",
    ):
        assert word in run.stdout


@pytest.mark.parametrize("module", ["probes", "probes.l1", "probes.l2", "probes.l3"])
def test_help_loads_nothing_heavy(module: str, tmp_path: Path) -> None:
    """Counted, not timed: a clock would fail on a busy machine, and pass for a slow import on a fast one."""
    code = (
        "import runpy, sys\n"
        "try: runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)\n"
        "finally: print(*sorted(sys.modules))"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, module, "--help"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert run.returncode == 0 and "--windows" in run.stdout, run.stderr
    assert "exit codes" in run.stdout
    heavy = {"numpy", "tabulate", "numba", "cuda", "gguf", "psutil", "matplotlib", "pynvml"}
    assert not heavy & {name.partition(".")[0] for name in run.stdout.splitlines()[-1].split()}


def test_no_nvcc_is_said_with_the_cure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from kernels_cu import build
    from probes.core.types import Unavailable

    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "cuda.pathfinder", None)
    build.find_nvcc.cache_clear()
    try:
        with pytest.raises(Unavailable, match=r"no nvcc on PATH.*cu13"):
            build.library("l1.cu", "sm_90")
    finally:
        build.find_nvcc.cache_clear()


def test_a_mistake_leaves_the_last_report_alone(tmp_path: Path) -> None:
    assert probes("--mode", "predict", "--case", "attn_v_7b", cwd=tmp_path).returncode == 0
    report = tmp_path / "out" / "runs" / "l1.json"
    before = report.read_bytes()
    refused(probes("--mode", "predict", "--case", "nope", cwd=tmp_path), "nope")
    assert report.read_bytes() == before


def test_places_that_would_lose_something_are_refused(tmp_path: Path) -> None:
    case = ["--mode", "predict", "--case", "attn_v_7b"]
    refused(probes(*case, "--json", "same.json", "--md", "same.json", cwd=tmp_path), "two files")
    refused(probes(*case, "--json", "x.md", cwd=tmp_path), "two files")
    refused(probes(*case, "--out", "out/nvidia-h200", cwd=tmp_path), "--record")
    refused(probes(*case, "--json", "", cwd=tmp_path), "--json must name a file")
    refused(probes(*case, "--out", "", cwd=tmp_path), "--out: must name a folder, got ''")
    refused(probes(*case, "--md", "/", cwd=tmp_path), "--md must name a file")
    os.mkfifo(tmp_path / "pipe")
    refused(probes(*case, "--json", "pipe", cwd=tmp_path), "no regular file")
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
    refused(probes("replay", "pipe", cwd=tmp_path, module="probes"), "no regular file")


def test_a_terminal_without_greek_and_a_full_one(tmp_path: Path) -> None:
    case = ["--mode", "predict", "--case", "attn_v_7b"]
    assert probes(*case, cwd=tmp_path, PYTHONIOENCODING="ascii").returncode == 0
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    with open("/dev/full", "w") as full:
        run = subprocess.run(
            [sys.executable, "-m", "probes.l1", *case],
            cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=full, stderr=subprocess.PIPE,
            text=True, timeout=60,
        )  # fmt: skip
    assert run.returncode == 2 and "Traceback" not in run.stderr and "cannot write" in run.stderr


def test_a_broken_nvcc_is_said_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from kernels_cu import build
    from probes.core.types import Unavailable

    fake = tmp_path / "nvcc"
    fake.write_text("#!/bin/sh\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    build.find_nvcc.cache_clear()
    try:
        with pytest.raises(Unavailable, match="does not work"):
            build.library("l1.cu", "sm_90")
    finally:
        build.find_nvcc.cache_clear()
        build._version.cache_clear()


def test_a_profiled_child_ends_with_0(monkeypatch: pytest.MonkeyPatch) -> None:
    """It judges nothing, which is no failure: the profiler passes its exit code on."""
    from probes import cli
    from probes.engine.run import Run
    from probes.report import provenance

    head = provenance.collect(mode="measure", device="test", seed=0, kernels_sha256="0", argv=["l1"])
    monkeypatch.setattr(cli, "run", lambda name, args: Run(name, head))
    monkeypatch.setattr(cli, "show", lambda done: cli.code_of(done))
    assert cli.main("l1", ["--once"]) == 0
    assert cli.main("l1", []) == 3
