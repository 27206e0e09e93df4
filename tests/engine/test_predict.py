"""Predictions are those of the suite before it had one engine (commit 7c388bc): figures out of its files.

Neither a launch nor an account of it may have moved. Sums over all rows show that; a few rows show what.
"""

from __future__ import annotations

import argparse
import re
from dataclasses import replace
from functools import cache
from math import fsum
from typing import Any

import pytest

from probes import cli
from probes.core.types import BadInput
from probes.device import facts as profiles
from probes.engine import predict, probe
from probes.report.rows import Row


def flags(name: str, *argv: str) -> argparse.Namespace:
    return cli.parser(name).parse_args(argv)


def rows(name: str, device: str, *argv: str) -> list[Row]:
    found = predict.predicted(name, profiles.load(device), flags(name, *argv))
    return [r for case in found for r in case]


@cache
def whole(name: str, device: str) -> list[Row]:
    """All that a run without flags predicts; the record's rows apart."""
    return [r for r in rows(name, device) if r.source == "predicted"]


@pytest.mark.parametrize(
    ("name", "device", "count", "skipped", "registers", "grid", "smem", "waves", "seconds"),
    [
        ("l1", "gb10", 288, 80, 13264, 5108480, 3766528, 10821.037037037036, 0.16339500608383234),
        ("l1", "h200", 288, 80, 13146, 5123552, 5938176, 3683.138047138047, 0.009243200225054945),
        ("l1", "a100", 288, 128, 9078, 5108480, 2634624, 4591.275720164609, 0.015132339538989702),
        ("l1", "rtx4090", 288, 128, 9141, 5110784, 1643712, 4064.222222222222, 0.030609960634920635),
        ("l2", "gb10", 174, 0, 4872, 52730, 1043136, 227.25173611111111, 0.11500828066800393),
        ("l2", "h200", 174, 0, 4715, 62090, 897888, 87.65408098845599, 0.01052643709790654),
        ("l2", "a100", 16, 16, 0, 0, 0, 0.0, 0.0),
        ("l2", "rtx4090", 16, 16, 0, 0, 0, 0.0, 0.0),
        ("l3", "gb10", 12, 0, 734, 85056, 190816, 415.3, 0.0038384306586826344),
        ("l3", "h200", 12, 0, 719, 85728, 190816, 141.42424242424244, 0.00022560327032967035),
        ("l3", "a100", 12, 4, 432, 84672, 1472, 170.0, 0.00031241290828837667),
        ("l3", "rtx4090", 12, 4, 434, 84672, 1472, 143.4375, 0.0006319542857142857),
    ],
)
def test_all_rows_of_a_device_add_up_as_before(
    name: str, device: str, count: int, skipped: int, registers: int, grid: int, smem: int, waves: float,
    seconds: float,
) -> None:  # fmt: skip
    found = whole(name, device)
    assert (len(found), sum(bool(r.skipped) for r in found)) == (count, skipped)
    assert sum(r.registers or 0 for r in found) == registers
    assert sum(r.grid or 0 for r in found) == grid
    assert sum(r.smem_bytes or 0 for r in found) == smem
    assert fsum(r.waves or 0.0 for r in found) == pytest.approx(waves, rel=1e-12)
    assert fsum(r.time_s or 0.0 for r in found) == pytest.approx(seconds, rel=1e-12)
    assert {r.source for r in found} == {"predicted"} and {r.device for r in found} == {device}
    assert not any(r.samples_s or r.verdict for r in found)


@pytest.mark.parametrize(
    ("name", "device", "group", "variant", "time_s", "registers", "blocks", "grid", "waves", "ratio"),
    [
        ("l1", "gb10", "ffn_down_14b", "dpl_loop", 233.86139720559e-6, 39, 6, 5120, 5120 / 288,
         0.93832957567),
        ("l1", "h200", "ffn_down_14b", "gpl_ring", 14.065116483516483e-6, 86, 2, 132, 0.5, 0.94325073710),
        ("l1", "a100", "attn_v_14b", "padded_async", 2.249887199607651e-6, 96, 3, 128, 128 / 324, 1.0),
        ("l2", "gb10", "bandwidth24", "plain", 5604.824910179641e-6, None, None, None, None, 1.0),
        ("l2", "gb10", "compute24", "pdl_late", 304.9131513647644e-6, None, None, None, None, 0.86398920013),
        ("l2", "h200", "decode13_ring@128", "pdl_late_tail", 38.158516043956044e-6, None, None, None, None,
         0.69287684472),
        ("l2", "h200", "decode13_ring@128", "kernel_gate_up", None, 72, 7, 528, 528 / 924, None),
        ("l3", "gb10", "gate_up_14b", "form_b", 319.8692215568862e-6, 47, 5, 432, 1.8, 1.0),
        ("l3", "h200", "gate_up_14b", "form_c", 18.80027252747253e-6, 72, 3, 264, 264 / 396, 1.0),
    ],
)  # fmt: skip
def test_some_rows_are_those_of_before(
    name: str, device: str, group: str, variant: str, time_s: float | None, registers: int | None,
    blocks: int | None, grid: int | None, waves: float | None, ratio: float | None,
) -> None:  # fmt: skip
    (row,) = (r for r in whole(name, device) if (r.group, r.variant, r.backend) == (group, variant, "cu"))
    assert (row.registers, row.blocks_per_sm, row.grid) == (registers, blocks, grid)
    for found, want in ((row.time_s, time_s), (row.waves, waves), (row.ratio_to_baseline, ratio)):
        assert found == (None if want is None else pytest.approx(want, rel=1e-9))


@pytest.mark.parametrize(
    ("name", "device", "variant", "said"),
    [
        ("l1", "h200", "gpl_pf3", "pf3 is right only for 512 < units <= 768; 152064x5120 has 160"),
        ("l1", "rtx4090", "gpl_ring", "bulk copies need sm_90, this GPU is sm_89"),
        ("l2", "a100", "plain", "programmatic dependent launch needs sm_90 or later, a100 is sm_80"),
        ("l3", "a100", "form_c", "bulk copies need sm_90, this GPU is sm_80"),
    ],
)
def test_what_does_not_run_there_says_why(name: str, device: str, variant: str, said: str) -> None:
    assert said in {r.skipped for r in whole(name, device) if r.variant == variant}


def test_a_row_that_does_not_fit_keeps_what_it_costs() -> None:
    """Registers and blocks per SM say why: 5 of the 6 blocks asked for fit on each of 48 SMs."""
    argv = ("--sms", "48", "--blocks-per-sm", "6", "--backend", "cu", "--variant", "form_c")
    (row,) = (r for r in rows("l3", "h200", *argv) if r.variant == "form_c")
    assert row.skipped == "of its 288 blocks 240 fit at once, and a ring is planned for all"
    assert (row.registers, row.spill_bytes, row.smem_bytes, row.grid) == (72, 0, 35568, 288)
    assert (row.blocks_per_sm, row.limiter, row.content_bytes) == (5, "registers", 79626240)
    assert row.waves is row.tail_fraction is row.time_s is None and row.device == "h200-48sm"


def test_one_chain_at_a_length_of_its_own() -> None:
    argv = ("--case", "decode13_ring", "--arm", "pdl_late_tail", "--kv", "777", "--backend", "cu")
    found = {r.variant: r for r in rows("l2", "gb10", *argv) if r.time_s}
    assert {v: r.kv for v, r in found.items()} == {"plain": 777, "pdl_late_tail": 777}
    assert found["plain"].time_s == pytest.approx(729.7107864271457e-6, rel=1e-12)
    assert found["pdl_late_tail"].ratio_to_baseline == pytest.approx(0.9643694454246692, rel=1e-12)


def test_a_kernel_that_was_never_recorded_for_a_device_is_skipped_with_the_reason() -> None:
    facts = replace(profiles.load("h200"), slug="other", arch="sm_77")
    args = flags("l3", "--variant", "form_b")
    found = [r for case in predict.predicted("l3", facts, args) for r in case if r.source == "predicted"]
    assert {r.variant for r in found} == {"pair", "form_b"}
    assert all("sm_77" in (r.skipped or "") and r.content_bytes == 79626240 for r in found)


@pytest.mark.parametrize(
    ("name", "flag", "what"),
    [
        ("l1", "--sweep", "geometries"),
        ("l2", "--sweep", "launches"),
        ("l3", "--sweep", "launches"),
        ("l3", "--geometries", "geometries"),
    ],
)
def test_a_sweep_is_not_predicted(name: str, flag: str, what: str) -> None:
    told = f"{flag} (--tune)" if what == "geometries" else flag
    said = f"^{re.escape(told)} measures {what}, and this run would predict: it needs a GPU$"
    with pytest.raises(BadInput, match=said):
        rows(name, "h200", flag)


def test_the_oracle_is_shown_before_anything_is_predicted(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise RuntimeError("not shown")

    for name in probe.names():
        part: Any = probe.data(name)
        monkeypatch.setattr(part, "show", fail)
        with pytest.raises(RuntimeError, match="not shown"):
            next(predict.predicted(name, profiles.load("h200"), flags(name)))
