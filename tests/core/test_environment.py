"""Variables and tools that change what is measured: told in the head, in notes and over the verdicts."""

from __future__ import annotations

import json

import pytest

from probes.core import environment
from probes.core.types import BadInput
from probes.report import tables
from probes.report.provenance import Head
from probes.report.rows import Row

ROW = Row(
    probe="l1", case="c", variant="v", backend="cu", source="measured", device="nvidia-h200",
    verdict="GO", reason="a gain",
)  # fmt: skip


def head(lines: list[str]) -> Head:
    return Head(
        mode="measure", device="nvidia-h200", seed=0, kernels_sha256="0" * 64, argv=["x"], environment=lines
    )


@pytest.mark.parametrize("row", environment.SETTINGS, ids=lambda row: row.name)
def test_every_variable_is_told(row: environment.Setting) -> None:
    name = row.name.replace("*", "ANYTHING")
    (line,) = environment.told({name: "7"})
    assert line == f"{name}=7: {row.means}"
    assert (environment.beside([line]) == f"{name}=7") is row.timed
    assert [environment.told({name: usual}) for usual in ("", *row.usual)] == [[]] * (1 + len(row.usual))


def test_no_variable_is_told_by_another_ones_row() -> None:
    names = [row.name for row in environment.SETTINGS if not row.name.endswith("*")]
    for name in names:
        (line,) = environment.told({name: "7"})
        assert line.endswith(next(r.means for r in environment.SETTINGS if r.name == name))
    assert environment.told({"HOME": "7", "CUDA_HOME": "7", "CUDA_LAUNCH_BLOCKING_": "1"}) == []


def test_a_value_tells_no_folder() -> None:
    told = environment.told(
        {
            "NVCC_CCBIN": "/opt/gcc/bin/g++",
            "NVCC_APPEND_FLAGS": "-G -I/opt/include\n" + "x" * 99,
            "CUDA_INJECTION64_PATH": "/opt/a:/opt/b/libsanitizer-collection.so",
        }
    )
    assert not any("/opt" in line or "\n" in line for line in told)
    assert told[0].startswith("CUDA_INJECTION64_PATH=a:libsanitizer-collection.so: ")
    assert told[1].startswith("NVCC_APPEND_FLAGS=-G include xxx") and "…: " in told[1]
    assert told[2] == "NVCC_CCBIN=g++: nvcc uses this host compiler"


def test_what_would_spoil_a_run_is_ignored_before_numba_reads_it() -> None:
    environ = {"NUMBA_ENABLE_CUDASIM": "1", "NUMBA_CUDA_DEBUGINFO": "1", "CUDA_LAUNCH_BLOCKING": "1"}
    late = environment.settle(dict(environ), read=True)
    assert environment.beside(late) == ", ".join(
        ["CUDA_LAUNCH_BLOCKING=1", "NUMBA_CUDA_DEBUGINFO=1", "NUMBA_ENABLE_CUDASIM=1"]
    )
    told = environment.settle(environ, read=False)
    assert environ == {"CUDA_LAUNCH_BLOCKING": "1"}
    assert len(told) == 3 and told[1].startswith("NUMBA_CUDA_DEBUGINFO=1 is ignored: ")
    assert environment.beside(told) == "CUDA_LAUNCH_BLOCKING=1"


@pytest.mark.parametrize(("start", "tool"), environment.TOOLS)
def test_a_tool_shows_by_its_library(start: str, tool: str) -> None:
    line = f"7f00-7f01 r-xp 00000000 08:01 42 /opt/some tool/{start}-2025.so.1\n"
    other = "7f02-7f03 r-xp 00000000 08:01 43 /usr/lib/libcuda.so.1\n7f04-7f05 rw-p 0 00:00 0 [heap]\n"
    assert [x.partition(": ")[0] for x in environment.tools(other + line * 2)] == [tool]
    assert environment.tools(other) == []


def test_a_debugger_shows_by_its_process() -> None:
    assert environment.tracer("Name:\tpython\nTracerPid:\t41\n")
    assert environment.tracer("Name:\tpython\nTracerPid:\t0\n") == environment.tracer("") == []


def test_the_head_keeps_it_and_one_of_before_has_none() -> None:
    lines = environment.told({"CUDA_LAUNCH_BLOCKING": "1"})
    data = json.loads(json.dumps(head(lines).to_json()))
    assert list(data)[-2:] == ["environment", "rows_sha256"] and Head.from_json(data) == head(lines)
    plain = head([]).to_json()
    assert plain.pop("environment") == [] and Head.from_json(plain) == head([])
    with pytest.raises(BadInput, match="environment must be list"):
        Head.from_json({**data, "environment": "CUDA_LAUNCH_BLOCKING"})


def test_the_report_says_it_in_its_first_line_its_notes_and_over_the_verdicts() -> None:
    lines = environment.told({"CUDA_LAUNCH_BLOCKING": "1", "CUDA_VISIBLE_DEVICES": "3"})
    text = tables.document("L1", head(lines), [ROW])
    assert "under CUDA_LAUNCH_BLOCKING=1." in text.splitlines()[2]
    assert [x for x in text.splitlines() if x.startswith("NOTE: ")] == [f"NOTE: {x}" for x in lines]
    over = tables.verdicts_under(head(lines))
    assert "CUDA_LAUNCH_BLOCKING=1" in over and "VISIBLE" not in over
    assert text.index(over) < text.index("### Verdicts") < text.index("a gain")
    quiet = tables.document("L1", head(environment.told({"CUDA_VISIBLE_DEVICES": "3"})), [ROW])
    assert "under" not in quiet.splitlines()[2] and "reached under" not in quiet
