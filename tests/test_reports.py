"""The committed reports: of these kernels, these bars and this README.

That their verdicts replay from the samples is shown in tests/engine/test_judge.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from probes.commands import readme
from probes.core.types import BadInput, Unavailable
from probes.device import resources
from probes.engine import digests
from probes.engine import probe as protocol
from probes.report import store
from probes.verdict import bars

ROOT = Path(__file__).resolve().parents[1]
REPORTS = sorted(
    p for name in protocol.names() for p in (ROOT / "out").glob(f"*/{name}*.json") if p.parent.name != "runs"
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
    if head.kernels_sha256 != digests.report(path.stem, head.device):
        assert readme.stale_mark(head), (
            f"{path.name} was measured with other kernels: measure again with --record, "
            "or, only where no GPU is to be had, add a note 'stale: reason' to its head"
        )
        assert readme.stale_mark(head) in (ROOT / "README.md").read_text()
    assert head.bars_sha256 == bars.bars_sha256(probe_of(path))
    assert rows


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
    try:
        head = resources.recorded()[0]
    except Unavailable as error:
        pytest.fail(str(error))
    for name in protocol.names():
        for backend in ("cu", "numba"):
            assert head.sources_sha256[f"{name}.{backend}"] == digests.sources(name, backend=backend), (
                "a kernel changed: run python -m probes resources"
            )


@pytest.mark.toolchain
def test_recorded_resources_are_what_the_compilers_say() -> None:
    """Of this run's build folder: Numba always, C++ where there is an nvcc of the recorded version."""
    from kernels_cu import build
    from kernels_numba import compile as numba_compile
    from probes.commands.resources import ARCHS

    known = resources.recorded()[1]
    made = [row for arch in ARCHS for row in numba_compile.offline("l1", arch)]
    made += numba_compile.offline("l1_ring", ARCHS[0])
    try:
        if build.compiler_version() == resources.recorded()[0].tool["nvcc"]:
            made += [
                row for stem in protocol.table("l1").STEMS for row in build.offline(f"{stem}.cu", ARCHS[0])
            ]
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
