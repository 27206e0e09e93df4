"""The committed reports: of these kernels, these bars and this README, with verdicts that replay."""

from __future__ import annotations

from pathlib import Path

import pytest

from probes import cli, readme
from probes.core.types import BadInput, Unavailable
from probes.device import resources
from probes.report import store
from probes.verdict import bars

ROOT = Path(__file__).resolve().parents[2]
REPORTS = sorted(
    p for name in cli.PROBES for p in (ROOT / "out").glob(f"*/{name}*.json") if p.parent.name != "runs"
)
DEVICE = ROOT / "out" / readme.DEVICE


def probe_of(path: Path) -> str:
    """l3 of l3.json and of l3-48sm.json."""
    return path.stem.partition("-")[0]


@pytest.mark.parametrize("path", REPORTS, ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_a_report_is_of_the_kernels_as_they_are_or_says_that_it_is_stale(path: Path) -> None:
    head, rows = store.read_json(path)
    assert head.complete and head.mode == "measure"
    assert head.device == path.parent.name
    if head.kernels_sha256 != cli.digest(path.stem, head.device):
        assert readme.stale_mark(head), (
            f"{path.name} was measured with other kernels: measure again with --record, "
            "or, only where no GPU is to be had, add a note 'stale: reason' to its head"
        )
        assert readme.stale_mark(head) in (ROOT / "README.md").read_text()
    assert head.bars_sha256 == bars.bars_sha256()
    assert rows


@pytest.mark.parametrize("path", REPORTS, ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_verdicts_replay_from_the_samples(path: Path) -> None:
    head, rows = store.read_json(path)
    kept = {r.id: (r.verdict, r.ratio_to_baseline, r.noise_floor) for r in rows if r.verdict}
    close = {
        i: (v, pytest.approx(ratio, rel=1e-12), pytest.approx(f, rel=1e-12))
        for i, (v, ratio, f) in kept.items()
    }
    again = cli.part(probe_of(path), "report").judge([r for r in rows if not r.verdict], head.seed)
    assert {r.id: (r.verdict, r.ratio_to_baseline, r.noise_floor) for r in again} == close
    swept = any("@" in r.variant for r in rows)
    assert bool(kept) is not swept, "every report decides something, but for a sweep over launches"
    assert swept is path.stem.endswith(("-sweep", "-geometries"))


@pytest.mark.parametrize("path", REPORTS, ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_every_time_has_a_check_behind_it(path: Path) -> None:
    _, rows = store.read_json(path)
    for row in rows:
        if row.samples_s:
            nothing_to_check = row.probe == "l2" and row.case == "empty"
            assert row.bitwise is (None if nothing_to_check and row.variant[:5] != "read_" else True), row.id
            assert row.source == "measured"


def test_the_readme_is_made_from_the_reports() -> None:
    text = (ROOT / "README.md").read_text()
    assert readme.filled(text, DEVICE) == text


def test_recorded_resources_are_of_the_kernels_as_they_are() -> None:
    from probes import sources

    try:
        head = resources.resources_head()
    except Unavailable as error:
        pytest.fail(str(error))
    for name in cli.PROBES:
        for backend in ("cu", "numba"):
            assert head.sources_sha256[f"{name}.{backend}"] == sources.digest(name, backend=backend), (
                "a kernel changed: run python -m probes resources"
            )


@pytest.mark.toolchain
def test_recorded_resources_are_what_the_compilers_say() -> None:
    """Of this run's build folder: Numba always, C++ where there is an nvcc of the recorded version."""
    from kernels_cu import build
    from kernels_numba import compile as numba_compile
    from probes.commands.resources import ARCHS

    known = resources.load_resources()
    made = [row for arch in ARCHS for row in numba_compile.offline("l1", arch)]
    made += numba_compile.offline("l1_ring", ARCHS[0])
    try:
        if build.compiler_version() == resources.resources_head().tool["nvcc"]:
            made += [row for stem in cli.stems("l1") for row in build.offline(f"{stem}.cu", ARCHS[0])]
    except Unavailable:
        pass
    for row in made:
        assert known[row.backend, row.name, row.arch] == row.resources, row
    assert len(made) >= 32


@pytest.mark.toolchain
@pytest.mark.parametrize("arch", ["sm_75", "sm_121"])
def test_other_targets_compile(arch: str) -> None:
    """The oldest GPU that the kernels are meant for, and the record's."""
    from kernels_cu import build
    from kernels_numba import compile as numba_compile

    names = ["l1_padded_loop", "l1_gpl_pf"]
    assert set(numba_compile.compiled("l1", names, arch)) == set(names)
    try:
        made = {row.name for row in build.offline("l1.cu", arch)}
    except Unavailable as error:
        pytest.skip(f"C++ not built: {error}")
    assert set(names) <= made


def test_a_readme_that_lags_is_refused(tmp_path: Path) -> None:
    if not (DEVICE / "l1.json").exists():
        pytest.skip("no committed report yet")
    with pytest.raises(BadInput, match="begin"):
        readme.filled("no markers here", DEVICE)
