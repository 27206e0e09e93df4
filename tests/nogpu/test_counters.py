"""Reading the profiler's CSV, and waiting for our own work to leave NVML's window."""

from __future__ import annotations

import pytest

from probes.core.types import Unavailable
from probes.gpu import counters, facts

CSV = """==PROF== Connected to process 7
"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size","Device","CC","Section Name","Metric Name","Metric Unit","Metric Value"
"0","7","python3","127.0.0.1","l1_padded_loop(const unsigned char *)","1","7","(256, 1, 1)","(5120, 1, 1)","0","9.0","Command line profiler metrics","dram__bytes_read.sum","byte","61,970,432"
"0","7","python3","127.0.0.1","l1_padded_loop(const unsigned char *)","1","7","(256, 1, 1)","(5120, 1, 1)","0","9.0","Command line profiler metrics","gpu__time_duration.sum","ns","22,912"
"1","7","python3","127.0.0.1","l1_dpl_loop","1","7","(256, 1, 1)","(5120, 1, 1)","0","9.0","Command line profiler metrics","dram__bytes_read.sum","byte","58113024"
"1","7","python3","127.0.0.1","l1_dpl_loop","1","7","(256, 1, 1)","(5120, 1, 1)","0","9.0","Command line profiler metrics","gpu__time_duration.sum","ns","21000"
"""  # noqa: E501  # the profiler's own lines


def test_launches_come_out_in_order_with_bytes_and_seconds() -> None:
    first, second = counters.parse(CSV)
    assert (first.kernel, first.dram_bytes_read) == ("l1_padded_loop", 61_970_432)
    assert first.time_s == pytest.approx(22.912e-6)
    assert (second.kernel, second.dram_bytes_read) == ("l1_dpl_loop", 58_113_024)


@pytest.mark.parametrize("text", ["", "==ERROR== ERR_NVGPUCTRPERM: no permission", CSV.splitlines()[1]])
def test_a_profiler_that_says_nothing_is_said_so(text: str) -> None:
    with pytest.raises(Unavailable, match=r"gave no counters"):
        counters.parse(text)


def test_no_profiler(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Unavailable, match="no ncu on PATH"):
        counters.profile(["true"], ".*")


def test_our_own_work_is_given_time_to_leave_the_window() -> None:
    seen = iter([90, 60, 3])
    assert facts._busy_percent(lambda: next(seen)) == 3
    assert facts._busy_percent(lambda: 55, patience_s=0.2) == 55


def test_a_devices_folder_is_named_after_it() -> None:
    assert facts.slug_of("NVIDIA H200") == "nvidia-h200"
    assert facts.slug_of("NVIDIA GeForce RTX 4090 / D") == "nvidia-geforce-rtx-4090-d"


def test_our_own_process_is_no_neighbour() -> None:
    assert facts._others([], 7, False) == 0
    assert facts._others([7], 7, True) == 0
    assert facts._others([7, 9], 7, True) == 1
    assert facts._others([412], 7, True) == 0  # a container: our own, under another id
    assert facts._others([412, 9], 7, True) == 1
    assert facts._others([412], 7, False) == 1
