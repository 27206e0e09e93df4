"""What keeps a kernel from a plain read's time: the rule, and the one table of all three probes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from probes.engine import limit
from probes.l2 import report as l2_report
from probes.l3 import report as l3_report
from probes.report.rows import Row


@pytest.mark.parametrize(
    ("share", "issue", "time_us", "read_us", "ring", "want"),
    [
        (0.95, 0.30, 150, 145, True, "memory"),
        (0.90, 0.99, 150, 145, True, "memory"),
        (0.89, 0.60, 150, 145, True, "issue slots"),
        (0.50, 0.65, 4, 3, True, "issue slots"),
        (0.60, 0.30, 18, 15, True, "start and end of the launch"),
        (0.60, 0.30, 21, 15, True, "stages wait for their sums"),
        (0.50, 0.10, 10, 12, False, "nothing"),
        (0.10, 0.10, 6.9, 2, False, "latency"),
        (0.85, 0.30, 31, 25, True, "stages wait for their sums"),
        (0.85, 0.30, 21, 20.1, True, "start and end of the launch"),  # as with a read just under 20 us
        (0.85, 0.30, 21, 19.9, True, "start and end of the launch"),
        (0.40, 0.30, 45, 19, False, "latency"),
        (0.01, 0.02, 3, 0, False, "start and end of the launch"),
        (0.01, 0.02, 9, 0, False, "latency"),
        (None, 0.70, 18, 15, True, "issue slots"),
        (0.95, None, 18, None, True, "memory"),
        (None, 0.30, 18, 15, True, ""),
        (0.60, None, 18, 15, True, ""),
        (0.60, 0.30, 18, None, True, ""),
    ],
)
def test_what_keeps_a_kernel_from_a_plain_read(
    share: float | None, issue: float | None, time_us: float, read_us: float | None, ring: bool, want: str
) -> None:
    read_s = None if read_us is None else read_us * 1e-6
    assert limit.keeps(share, issue, time_us * 1e-6, read_s, ring) == want


def row(variant: str, **more: Any) -> Row:
    base: dict[str, Any] = {
        "probe": "l3", "case": "gate_up_14b", "backend": "cu", "source": "measured", "device": "x",
        "time_s": 24e-6, "same_bytes_read_s": 19.5e-6, "read_ceiling_gbps": 4600.0, "grid": 264,
        "smem_bytes": 1 << 16, "dram_bytes_read": 79_626_240, "profiler_time_s": 26e-6,
        "profiler_dram_fraction": 0.66, "profiler_issue_fraction": 0.45, "samples_s": [24e-6] * 4,
    }  # fmt: skip
    return Row(variant=variant, **{**base, **more})


LARGE = row(
    "read_large", role="ceiling", time_s=2e-4, profiler_dram_fraction=0.94, profiler_issue_fraction=0.1
)


def lines(text: str) -> dict[tuple[str, str], list[str]]:
    """A Markdown table's lines by case and variant."""
    cells = [[c.strip() for c in line.split("|")[1:-1]] for line in text.splitlines() if line[:1] == "|"]
    return {(c[0], c[1]): c for c in cells}


def test_l3_shows_every_variant_and_nothing_else() -> None:
    variants = ("pair", "form_a", "pair_ring", "form_c")
    rows = [
        LARGE,
        *(row(v) for v in variants),
        row("pair_aa", role="again"),
        row("form_b", profiler_time_s=None),
    ]
    text = next(s for s in l3_report.sections(rows, True) if "What is left to a plain read" in s)
    found = lines(text)
    assert [v for _, v in list(found)[2:]] == list(variants)
    assert "which the large read brings to 94.0 %" in text
    ring, pair = found["gate_up_14b", "pair_ring"], found["gate_up_14b", "pair"]
    want = ["3063", "66.6 %", "66.0 %", "45.0 %", "16.50 MiB", "24.00 µs", "26.00 µs", "4.50 µs", "81.2 %"]
    assert ring[3:] == [*want, "start and end of the launch"]
    assert pair[7] == "" and pair[-1] == "start and end of the launch"
    assert not [s for s in l3_report.sections([LARGE], True) if "What is left" in s]


def test_without_the_new_metrics_the_rest_of_the_table_stands() -> None:
    old = row("form_c", profiler_dram_fraction=None, profiler_issue_fraction=None)
    (figures,) = limit.of_variants([old], {"form_c": True})
    assert figures.share == pytest.approx(3062.5 / 4600, rel=1e-3) and figures.keeps == ""
    (text,) = limit.section([figures], "", True)
    head = next(iter(lines(text).values()))
    assert "DRAM GB/s" in head and "issue" not in head and "kept from 1.00 by" not in head


def test_the_share_is_of_what_the_large_read_reaches() -> None:
    near = row("form_c", profiler_dram_fraction=0.85)
    (figures,) = limit.of_variants([near, LARGE], {"form_c": True})
    assert figures.share == pytest.approx(0.85 / 0.94) and figures.keeps == "memory"


def left(rows: list[Row]) -> list[str]:
    """L2's section of kernels under the profiler, none where nothing was profiled."""
    return [s for s in l2_report.sections(rows, True) if "What is left to a plain read" in s]


def test_l2_holds_each_kernel_alone_against_a_read_of_its_bytes() -> None:
    def alone(variant: str, **more: Any) -> Row:
        own = {"probe": "l2", "case": "decode13_ring", "kv": 128, "time_s": None, "same_bytes_read_s": None}
        of, _, kind = variant.rpartition("_")
        own |= {"of": of, "role": "read" if kind == "read" else "alone"}
        return row(f"profiled_{variant}", **{**own, "samples_s": [], "read_ceiling_gbps": None, **more})

    big = {"content_bytes": 79_626_240}
    rows = [
        replace(LARGE, probe="l2", case="decode13_ring", kv=128),
        alone("gate_up_plain", **big),
        alone("gate_up_late", **big, profiler_time_s=40e-6),
        alone("gate_up_read", **big, profiler_time_s=22e-6),
        alone("gate_up_read", **big, profiler_time_s=21e-6, backend="numba"),
        alone("attention_split_late", content_bytes=1 << 19, profiler_time_s=4e-6),
        alone("add_plain", dram_bytes_read=40_000, profiler_time_s=3e-6, profiler_issue_fraction=0.01),
        row("kernel_gate_up", probe="l2", case="decode13_ring", kv=128, role="kernel", of="gate_up"),
    ]
    (text,) = left(rows)
    assert "an arm has no meaning here" in text
    found = lines(text)
    names = ["gate_up_plain", "gate_up_late", "attention_split_late", "add_plain"]
    assert [v for _, v in list(found)[2:]] == names
    plain, late = (found["decode13_ring@128", f"gate_up_{kind}"] for kind in ("plain", "late"))
    assert plain[3:] == [
        "3063", "66.6 %", "66.0 %", "45.0 %", "16.50 MiB", "26.00 µs", "5.00 µs", "80.8 %",
        "start and end of the launch",
    ]  # fmt: skip
    assert late[-2:] == ["52.5 %", "stages wait for their sums"]
    split, add = (found["decode13_ring@128", f"{n}"] for n in ("attention_split_late", "add_plain"))
    assert split[7] == "" and split[-2:] == ["", ""], "no read stands beside it"
    assert add[-4:] == ["3.00 µs", "", "", "start and end of the launch"], "no weights: beyond no read"
    assert left([r for r in rows if r.role not in ("alone", "read")]) == []
