"""The command line where the driver is there and broken, where there is none, where a run is disturbed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from probes import __main__ as everything
from probes import cli
from probes.core import streams
from probes.core.types import Fault
from probes.engine import digests, probe, reads, run
from probes.report.rows import Row
from tests.host_gpu import HostGpu

MISMATCH = "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"


@pytest.fixture
def gpu(host_h200: HostGpu, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> HostGpu:
    monkeypatch.chdir(tmp_path)
    streams.warn.cache_clear()
    return host_h200


@pytest.mark.parametrize(
    "name",
    [MISMATCH, "CUDA_ERROR_NO_DEVICE", "CUDA_ERROR_SYSTEM_NOT_READY", "CUDA_ERROR_UNKNOWN"],
)  # fmt: skip
def test_a_driver_that_does_not_start(name: str, gpu: HostGpu, capsys: pytest.CaptureFixture[str]) -> None:
    gpu.fail["cuInit"] = name
    assert cli.main("l1", ["--mode", "measure"]) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.startswith("error: cannot measure: ") and name in said.err
    assert len(said.err.splitlines()) == 1
    assert cli.main("l1", ["--case", "attn_v_7b", "-q"]) == 0
    said = capsys.readouterr()
    assert [line for line in said.err.splitlines() if line.startswith("warning: ")] == said.err.splitlines()
    assert said.err.count(name) == 1 and "predicted" in said.err
    assert said.out.startswith("Nothing was measured: predicted")


def test_every_probe_with_a_driver_that_does_not_start(
    gpu: HostGpu, capsys: pytest.CaptureFixture[str]
) -> None:
    gpu.fail["cuInit"] = MISMATCH
    assert everything.main(["--mode", "measure"]) == 2
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1 and MISMATCH in said[0]
    assert everything.main(["-q"]) == 0
    said = capsys.readouterr()
    assert said.err.count("warning: ") == 1 == said.err.count(MISMATCH)
    assert said.out.count("Nothing was measured") == len(probe.names())


def test_no_driver_is_predicted_silently(gpu: HostGpu, capsys: pytest.CaptureFixture[str]) -> None:
    gpu.fail["cuInit"] = RuntimeError("Failed to dlopen libcuda.so.1")
    assert cli.main("l1", ["--case", "attn_v_7b", "-q"]) == 0
    said = capsys.readouterr()
    assert said.err == "" and said.out.startswith("Nothing was measured: predicted")
    assert cli.main("l1", ["--mode", "measure"]) == 2
    assert "no NVIDIA driver" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("where", "name"),
    [
        ("set_current", "CUDA_ERROR_OUT_OF_MEMORY"),  # 60 MiB left: the context has no room
        ("create_stream", "CUDA_ERROR_OUT_OF_MEMORY"),
        ("cuMemAlloc", "CUDA_ERROR_OUT_OF_MEMORY"),  # 420 MiB left
        ("set_current", "CUDA_ERROR_DEVICE_UNAVAILABLE"),
        ("set_current", "CUDA_ERROR_ECC_UNCORRECTABLE"),
        ("cuMemcpyHtoD", "CUDA_ERROR_ECC_UNCORRECTABLE"),
    ],
)
@pytest.mark.parametrize("mode", [[], ["--mode", "measure"]])
def test_a_gpu_that_is_full_taken_or_damaged(
    mode: list[str], where: str, name: str, gpu: HostGpu, capsys: pytest.CaptureFixture[str]
) -> None:
    gpu.fail[where] = name
    assert cli.main("l1", mode) == 2
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1 and name in said[0]


def test_too_little_left_for_the_read(gpu: HostGpu, capsys: pytest.CaptureFixture[str]) -> None:
    gpu.free = 420 << 20
    assert cli.main("l1", []) == 2
    assert "only 420 MiB free" in capsys.readouterr().err


def run_of(monkeypatch: pytest.MonkeyPatch, measure: Any) -> None:
    """A probe whose measuring is `measure`, on a GPU that is opened for real."""
    monkeypatch.setattr(reads, "reserve", lambda bench: None)
    monkeypatch.setattr(digests, "toolchain", dict)
    monkeypatch.setattr(run, "measured", measure)


def test_a_kernel_s_fault_is_one_line_and_exit_1(
    gpu: HostGpu, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def measure(name: str, bench: Any, args: Any) -> Any:
        raise Fault("lm_head_14b: gpl_ring/cu: launching l1_gpl_ring: CUDA_ERROR_ILLEGAL_ADDRESS")
        yield

    run_of(monkeypatch, measure)
    assert cli.main("l1", ["-q", "--quick"]) == 1
    assert capsys.readouterr().err.strip().startswith("FAULT: lm_head_14b: gpl_ring/cu: launching")


def test_the_environment_goes_into_head_notes_and_report(
    gpu: HostGpu, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def measure(name: str, bench: Any, args: Any) -> Any:
        yield [
            Row(probe="l1", case="c", variant="v", backend="cu", source="measured", device="nvidia-h200-48sm")
        ]

    run_of(monkeypatch, measure)
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    gpu.contexts.append(48)
    cli.main("l1", ["-q", "--quick"])
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith("Measured on nvidia-h200-48sm") and "under CUDA_LAUNCH_BLOCKING=1" in out[0]
    assert [x for x in out if x.startswith("NOTE: CUDA_LAUNCH_BLOCKING=1: ")]
    place = next(k for k, x in enumerate(out) if x.startswith("These verdicts were reached under"))
    assert out[place + 2].startswith("Verdicts")
    data = json.loads((tmp_path / "out/runs/l1.json").read_text())
    assert data["device"] == "nvidia-h200-48sm"
    assert [x for x in data["environment"] if x.startswith("CUDA_LAUNCH_BLOCKING=1")]
    assert cli.main("l1", ["-q"]) == 3  # no verdict was reached
    record = cli.parser("l1").parse_args(["--record"])
    assert run.places("l1", record, data["device"])[0] == Path("out/nvidia-h200-48sm/l1.json")
