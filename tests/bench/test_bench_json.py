"""What dashboards read of `--benchmark-json`: the suite's own benchmarks written, and read back as they do.

github-action-benchmark (tool: pytest) takes fullname, stats.ops, stats.stddev, stats.mean and stats.rounds;
`pytest-benchmark compare` takes the file itself.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]

GPU = """
import pytest

from tests.bench.built import built, clock, described, timed
from tests.bench.test_built import bench_of


@pytest.mark.benchmark(timer=clock, warmup=False)
@pytest.mark.parametrize("variant", ["dpl_ring", "padded_ring"])
def test_kernel(small_l1, benchmark, variant):
    bench = bench_of(small_l1)
    with built("l1", bench, "--case", "ffn_down_14b", "--backend", "cu") as found:
        spec, arm = found.arms[f"ffn_down_14b/{variant}/cu"]
        base = found.arms["ffn_down_14b/padded_loop/cu"][1]
        timed(benchmark, bench, arm, base, "l1.dpl", **described(bench, "l1", spec))
"""
"""A GPU benchmark as tests/bench has them, on the stand-in GPU."""


def pytest_run(path: Path, *argv: str) -> Path:
    """Run benchmarks in a process of their own; the JSON that they leave."""
    out = path.parent / f"{path.stem}.json"
    command = [
        sys.executable, "-m", "pytest", "-q", "-n", "0", "-c", str(ROOT / "pyproject.toml"),
        "--rootdir", str(ROOT), "-p", "no:cacheprovider", "--benchmark-only",
        f"--benchmark-json={out}", *argv,
    ]  # fmt: skip
    env = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}  # no worker's
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return out


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("bench")
    test = folder / "test_gpu.py"
    test.write_text(GPU)
    host = pytest_run(folder / "host", f"{ROOT / 'tests/bench/test_bench_host.py'}::test_random_weights")
    return [pytest_run(test, "-p", "tests.fixtures", str(test)), host]


def action(data: dict[str, Any]) -> list[dict[str, Any]]:
    """What github-action-benchmark shows of a file (extractPytestResult)."""
    return [
        {
            "name": b["fullname"], "value": b["stats"]["ops"], "unit": "iter/sec",
            "range": f"stddev: {b['stats']['stddev']}", "mean": b["stats"]["mean"],
            "rounds": b["stats"]["rounds"],
        }
        for b in data["benchmarks"]
    ]  # fmt: skip


def test_what_dashboards_read_is_there(files: list[Path]) -> None:
    gpu, host = (json.loads(f.read_text()) for f in files)
    assert [b["name"] for b in gpu["benchmarks"]] == ["test_kernel[dpl_ring]", "test_kernel[padded_ring]"]
    assert [b["name"] for b in host["benchmarks"]] == ["test_random_weights"]
    for data in (gpu, host):
        assert {"machine_info", "commit_info", "datetime", "version"} <= data.keys()
        for shown, b in zip(action(data), data["benchmarks"], strict=True):
            assert shown["name"].endswith(b["name"])
            for name in ("mean", "stddev", "ops", "min", "max", "median", "iqr"):
                assert math.isfinite(b["stats"][name]), name
            assert (
                shown["mean"] > 0
                and shown["value"] == pytest.approx(1 / shown["mean"])
                and shown["rounds"] > 2
            )
    info = gpu["benchmarks"][0]["extra_info"]
    wanted = {"registers", "waves", "ratio_to_baseline", "ratio_low", "ratio_high", "verdict", "content_gbps"}
    assert wanted <= info.keys()
    assert "gbps" in host["benchmarks"][0]["extra_info"]
    assert all(b["stats"]["mean"] < 1e-3 for b in gpu["benchmarks"]), (
        "seconds of the GPU, not of this process"
    )


def test_pytest_benchmark_compares_them(files: list[Path]) -> None:
    command = [
        sys.executable,
        "-m",
        "pytest_benchmark",
        "compare",
        *map(str, files),
        "--columns=mean,stddev,ops",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=files[0].parent)
    assert done.returncode == 0, done.stderr
    assert "test_kernel[dpl_ring]" in done.stdout and "test_random_weights" in done.stdout
