"""L3's verdicts out of made-up samples, and the loss taken apart from made-up sweeps."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probes.engine import judge as engine
from probes.l3 import analysis, waves
from probes.l3 import report as l3_report
from probes.l3 import table as l3
from probes.report import tables
from probes.report.rows import Row
from probes.verdict import blocks
from tests.block_rows import paired

# Verdicts


def judge(rows: list[Row], best: bool = False) -> list[Row]:
    """The verdicts on flips of one lever, or those on best against best; each pair in blocks of its own."""
    timed = paired(rows, l3.CONTESTS, analysis)
    return [r for r in engine.judge(timed, l3.CONTESTS, analysis) if (r.variant == "fused_best") is best]


def measured(variant: str, scale: float, seed: int) -> Row:
    rng = np.random.default_rng(seed)
    times = [100e-6 * scale * float(x) for x in rng.normal(1, 0.001, 20)]
    row = Row(probe="l3", case="gate_up_14b", variant=variant, backend="cu", source="measured", device="x")
    row.role, row.of = ("again", l3.AGAIN[variant]) if variant in l3.AGAIN else ("variant", None)
    row.samples_s, row.windows, row.processes, row.time_s = times, 10, 1, float(np.median(times))
    row.grid, row.waves, row.blocks_per_sm, row.registers = 432, 0.65, 5, 47
    row.fraction_of_ceiling, row.bitwise, row.load_balance = 0.36, True, 1.22
    return row


def arms(form_b: float, form_a: float = 0.9) -> list[Row]:
    scales = {"pair": 1.0, "pair_aa": 1.0, "form_b": form_b, "form_b_aa": form_b, "form_b_staged": 1.4}
    return [measured(v, s, k) for k, (v, s) in enumerate({**scales, "form_a": form_a}.items())]


def test_forms_are_judged_against_the_pair() -> None:
    rows = judge(arms(1.275))
    assert [(r.variant, r.verdict) for r in rows] == [
        ("form_b", "NO-GO"), ("form_b_staged", "NO-GO"), ("form_a", "GO"),
    ]  # fmt: skip
    first = rows[0]
    assert (first.recorded, first.agrees) == ("NO-GO", True)
    assert first.reason and "432 blocks at 5 per SM on 133 SMs are 0.65 waves" in first.reason
    assert "latency or issue slots bind" in first.reason
    assert rows[1].recorded is None and rows[1].agrees is None
    assert rows[2].agrees is False
    assert judge(arms(1.275)) == rows


def test_a_win_at_whole_waves_disagrees_with_the_record() -> None:
    assert judge(arms(0.98))[0].verdict == "GO"
    assert judge(arms(1.0))[0].verdict == "INCONCLUSIVE"


def rings(form_c: float, stray: float = 0.0) -> list[Row]:
    """The pair, and the ring kernels at half its time; form_c that much slower than pair_ring.

    stray: what pair_ring a second time is slower than itself.
    """
    names = {"pair": 1.0, "pair_ring": 0.5, "pair_ring_aa": 0.5 * (1 + stray), "form_c": 0.5 * form_c}
    names["form_a"] = 0.8
    out = [measured(v, s, k) for k, (v, s) in enumerate(names.items())]
    for row in out:
        row.same_bytes_read_s, row.registers = 42e-6, 80 if row.variant == "form_c" else 72
        row.fraction_of_same_bytes_read = row.same_bytes_read_s / (row.time_s or 1.0)
        row.geometry, row.grid = "8r2b2s3x-drawn", 264
        if row.variant == "form_c":
            row.geometry, row.grid, row.waves = "4r3b2s-dealt", 396, 0.75
    return out


def form_c_of(rows: list[Row]) -> Row:
    (row,) = [r for r in judge(rows) if r.variant == "form_c"]
    return row


@pytest.mark.parametrize(
    ("form_c", "stray", "want"),
    [
        (0.90, 0.0, "GO"),
        (0.97, 0.0, "NO-GO"),  # 3 % is a gain, and not the bar's 5 %
        (1.10, 0.0, "NO-GO"),
        (0.95, 0.0, "INCONCLUSIVE"),
        (0.97, 0.2, "INCONCLUSIVE"),  # the ring's own A/A pair strays too far to tell
    ],
)
def test_form_c_is_judged_against_the_ring_s_own_pair(form_c: float, stray: float, want: str) -> None:
    rows = rings(form_c, stray)
    row = form_c_of(rows)
    assert (row.variant, row.verdict, row.recorded, row.agrees) == ("form_c", want, None, None)
    assert row.ratio_to_baseline == pytest.approx(form_c, abs=3e-3)
    word = "saves" if form_c < 1 else "costs"
    assert row.reason and f"the fusion {word}" in row.reason and "bar >= +5.00 %" in row.reason
    assert "takes 84 % of pair_ring's time, so no fusion could save more than 8.0" in row.reason
    assert "what is not reading binds" in row.reason
    assert "in geometry 4r3b2s-dealt against 8r2b2s3x-drawn, 396 blocks in 0.75 waves" in row.reason
    assert row.reason.endswith("0.75 waves against 264 in 0.65, 80 registers against 72")
    assert form_c_of(rows) == row


def test_a_reason_says_nothing_of_what_a_row_lacks() -> None:
    rows = rings(0.9)
    for row in rows:
        row.geometry = row.waves = row.registers = None
    reason = form_c_of(rows).reason
    assert reason and reason.endswith("of that read")


def test_what_placement_adds_is_told_from_every_a_a_pair_of_a_run() -> None:
    def judged(stray: float) -> dict[str, Row]:
        more = [r for r in rings(0.9, stray) if r.variant not in ("pair", "form_a")]
        return {r.variant: r for r in judge([*arms(0.9), *more])}

    usual, coarse = judged(0.0), judged(0.3)
    flips = [v for c in l3.CONTESTS for v in c.variants if not c.sides]
    assert list(usual) == list(coarse) == flips
    assert usual["form_b"].verdict == usual["form_c"].verdict == "GO"
    assert coarse["form_b"].verdict == coarse["form_c"].verdict == "INCONCLUSIVE"
    for name in flips:
        assert (usual[name].noise_floor or 1) < 0.01 and (coarse[name].noise_floor or 0) > 0.1


def test_best_against_best_is_the_fastest_fusion_against_the_fastest_pair() -> None:
    for form_c, of, want in ((0.9, "form_c", "GO"), (1.1, "form_c", "NO-GO"), (1.9, "form_a", "NO-GO")):
        (row,) = judge(rings(form_c), best=True)
        assert (row.of, row.baseline, row.verdict) == (of, "pair_ring", want)
    rows = rings(0.9)
    next(r for r in rows if r.variant == "form_c").bitwise = None
    (row,) = judge(rows, best=True)
    assert row.of == "form_a", "what is not right to the bit is no side"


@pytest.mark.parametrize("variant", ["form_c", "pair_ring"])
def test_weights_that_were_not_cold_decide_nothing_for_form_c(variant: str) -> None:
    rows = rings(0.9)
    row = next(r for r in rows if r.variant == variant)
    row.notes.append("hot: a note decides nothing")
    assert form_c_of(rows).verdict == "GO"
    row.cold = False
    found = form_c_of(rows)
    assert found.verdict == "INCONCLUSIVE" and "the weights were not cold" in (found.reason or "")


@pytest.mark.parametrize("variant", ["form_c", "pair_ring"])
def test_a_ring_that_does_not_fit_at_once_decides_nothing(variant: str) -> None:
    rows = rings(0.9)
    assert form_c_of(rows).verdict == "GO"
    next(r for r in rows if r.variant == variant).waves = 1.2
    row = form_c_of(rows)
    assert row.verdict == "INCONCLUSIVE" and "do not fit at once (1.20 waves)" in row.reason


def test_a_form_that_outruns_a_read_of_its_bytes_decides_nothing() -> None:
    row = form_c_of(rings(0.8))
    assert row.verdict == "INCONCLUSIVE" and "form_c is at 105 % of a plain read" in (row.reason or "")


def test_the_matmul_form_and_the_fusion_are_told_apart() -> None:
    first = l3_report.sections(rings(0.9), True)[0]
    assert first.startswith("### What beats the recorded pair here")
    assert "the matmul form, gate_up_14b, cu: pair_ring over pair 0.5" in first
    assert "the fusion, both by the ring, gate_up_14b, cu: form_c over pair_ring 0.8998" in first
    assert "both together, gate_up_14b, cu: form_c over pair 0.4500" in first
    assert "| form_a" in first and "0.80" in first
    assert "What beats the recorded pair here" in l3_report.readme(rings(0.9))
    assert "What beats" not in "".join(l3_report.sections(arms(0.9), True)), "no ring kernel was measured"


def test_without_an_a_a_pair_what_placement_adds_is_what_was_seen_before() -> None:
    found = judge([r for r in arms(1.2) if not r.variant.endswith("_aa")])
    assert [r.verdict for r in found] == ["NO-GO", "NO-GO", "GO"]
    assert {r.noise_floor for r in found} == {math.expm1(blocks.REACH * blocks.PRIOR)}


# The sweep

SLOTS = 660


def sweep(time_of: Callable[[float], float], slots: int = SLOTS, pair_row_s: float = 4e-9) -> list[Row]:
    rows = []
    for grid in l3.grids(slots, [432]):
        pair_s = pair_row_s * 64 * grid
        for name, seconds in (("form_b", time_of(grid / slots)), ("pair", pair_s), ("form_b_staged", 2e-4)):
            case = f"sweep_{grid}_blocks"
            row = Row(probe="l3", case=case, variant=name, backend="cu", source="measured", sweep=l3.WAVES)
            row.time_s, row.grid, row.waves, row.shape = seconds, grid, grid / slots, [64 * grid, 5120]
            row.samples_s = [seconds]
            row.ratio_to_baseline, row.device, row.load_balance = seconds / pair_s, "x", 1.1
            rows.append(row)
    return rows


def test_grids_hold_whole_waves_the_step_past_each_and_the_case_s_own() -> None:
    found = l3.grids(SLOTS, [432])
    assert found == sorted(set(found))
    assert {165, 432, 660, 661, 1320, 1321, 1980, 1981, 2640} <= set(found)
    assert len(found) == 31 + 3 + 1
    assert len(l3.grids(SLOTS, [432], quick=True)) == 16 + 3 + 1
    assert min(l3.grids(3, [])) == 1


@settings(max_examples=25, deadline=None)
@given(a=st.floats(0, 2e-5), b=st.floats(2e-5, 4e-4), share=st.floats(0, 1))
def test_the_fit_finds_the_sawtooth_that_made_the_times(a: float, b: float, share: float) -> None:
    c = share * b
    found = waves.points(sweep(lambda w: a + b * w + c * (math.ceil(w) - w)), "cu")
    fit = waves.fit(found)
    assert fit is not None
    assert (fit.a, fit.b, fit.c) == pytest.approx((a, b, c), rel=1e-6, abs=1e-12)
    assert fit.rms < 1e-9
    ceil = waves.fit(found, "ceil")
    assert ceil is not None and (ceil.rms < 1e-9) == (share > 1 - 1e-9)


def test_too_few_points_are_not_fitted() -> None:
    found = waves.points(sweep(lambda w: 1e-4 * math.ceil(w)), "cu")
    assert waves.fit(found[:3]) is None
    assert waves.told(found[:2]) == []
    assert waves.parts(found, 433) is None
    assert waves.parts([p for p in found if p.waves < 1], 432) is None


def test_the_parts_multiply_to_the_loss() -> None:
    """Whole waves 10 % slower than the pair, and each wave as long as a full one."""
    per_wave = 1.10 * 4e-9 * 64 * SLOTS
    found = waves.points(sweep(lambda w: per_wave * math.ceil(w)), "cu")
    for grid in (432, round(1.5 * SLOTS)):
        taken = waves.parts(found, grid)
        assert taken is not None
        w = grid / SLOTS
        assert taken.wave_part == pytest.approx(math.ceil(w) / w - 1)
        assert taken.latency_part == pytest.approx(0.10)
        assert taken.rest == pytest.approx(0.0, abs=1e-12)
        assert (1 + taken.wave_part) * (1 + taken.latency_part) == pytest.approx(1 + taken.loss)
    whole = waves.parts(found, SLOTS)
    assert whole is not None and whole.wave_part == 0.0 and whole.loss == pytest.approx(0.10)


def test_the_report_takes_the_loss_apart_beside_the_record() -> None:
    rows = [*arms(1.275), *sweep(lambda w: 1.1e-4 + 2e-4 * math.ceil(w))]
    text = "\n".join(l3_report.sections(rows, True))
    assert "recorded, estimated there" in text and "measured, cu" in text
    assert "opening a wave costs 100 % of a full one" in text
    assert "+28.2 %" in text and "+15 %" in text
    judged = judge(rows)
    assert judged[0].reason and "in the sweep waves cost" in judged[0].reason
    assert "measured, cu" in l3_report.readme([*rows, *judged])
    assert "--sweep measures" in "\n".join(l3_report.sections(arms(1.2), False))


def test_a_sweep_s_points_are_no_tables_of_their_own() -> None:
    from probes.report import provenance

    rows = [*arms(1.2), *sweep(lambda w: 1e-4 * math.ceil(w))]
    head = provenance.collect(mode="measure", device="x", seed=0, kernels_sha256="0" * 64)
    text = tables.document("L3", head, rows)
    assert "gate_up_14b" in text and "sweep_" not in text


def test_the_plot_is_drawn_beside_the_report(tmp_path: Path) -> None:
    rows = sweep(lambda w: 1.1e-4 + 2e-4 * math.ceil(w))
    assert l3_report.plots(arms(1.2), tmp_path / "l3.md") == []
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        assert "pip install" in l3_report.plots(rows, tmp_path / "l3.md")[0]
        return
    assert l3_report.plots(rows, tmp_path / "deep" / "l3.md") == [
        "![Time per row against waves](l3-waves.png)"
    ]
    assert (tmp_path / "deep" / "l3-waves.png").read_bytes().startswith(b"\x89PNG")
