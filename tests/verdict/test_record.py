"""Recorded figures agree with each other, and recorded resources survive a round trip."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probes.core.types import BadInput, Offline, Resources, Unavailable
from probes.device import resources
from probes.device.resources import ResourcesHead
from probes.verdict.record import Figure, all_figures, figure, figures

CASES = {
    "l1": {"ffn_down_14b", "lm_head_14b", "attn_v_14b", "14b_tg128", "14b_3254", "7b_tg128", "7b_1641"}
    | {"14b", "7b", "all"},
    "l2": {"bandwidth24", "compute24", "decode13", "empty"},
    "l3": {"gate_up_14b"},
}


def number(probe: str, case: str, variant: str, metric: str) -> float:
    found = figure(probe, case, variant, metric)
    assert found is not None, (probe, case, variant, metric)
    return found.number


def test_every_row_is_well_formed_and_given_once() -> None:
    rows = all_figures()
    assert len({(f.probe, f.case, f.variant, f.metric) for f in rows}) == len(rows)
    for f in rows:
        assert f.case in CASES[f.probe], f
        assert all((f.variant, f.metric, f.unit, f.where)), f
        assert (f.unit == "word") == isinstance(f.value, str), f
        assert (f.unit == "flag") == isinstance(f.value, bool), f


@pytest.mark.parametrize("case", ["ffn_down_14b", "lm_head_14b"])
def test_l1_times_follow_from_the_rates(case: str) -> None:
    padded, dpl = (number("l1", case, v, "content_gbps") for v in ("padded", "dpl"))
    assert padded / dpl - 1 == pytest.approx(number("l1", case, "dpl", "time_change"), abs=6e-4)
    assert number("l1", case, "gs", "time_change") > number("l1", case, "dpl", "time_change")


@pytest.mark.parametrize("case", ["14b_tg128", "14b_3254", "7b_tg128", "7b_1641"])
def test_l1_throughput_follows_from_tokens(case: str) -> None:
    before, after = (number("l1", case, v, "tokens_per_s") for v in ("padded", "dpl"))
    assert after / before - 1 == pytest.approx(number("l1", case, "dpl", "throughput_change"), abs=2e-4)


def test_l1_passed_its_bar() -> None:
    assert (
        number("l1", "14b_3254", "dpl", "throughput_change")
        >= number("l1", "14b_3254", "dpl", "bar")
        == 0.004
    )


def test_l3_figures_agree() -> None:
    pair, fused = (number("l3", "gate_up_14b", v, "time_s") for v in ("pair", "form_b"))
    assert fused / pair - 1 == pytest.approx(number("l3", "gate_up_14b", "form_b", "time_change"), abs=5e-4)
    content = 27648 * (5120 // 256) * 144
    for variant, time_s in (("pair", pair), ("form_b", fused)):
        assert content / time_s / 1e9 == pytest.approx(
            number("l3", "gate_up_14b", variant, "content_gbps"), abs=0.15
        )
    grid, blocks = (number("l3", "gate_up_14b", "form_b", m) for m in ("grid", "blocks_per_sm"))
    assert grid / (48 * blocks) == number("l3", "gate_up_14b", "form_b", "waves") == 1.5
    parts = [number("l3", "gate_up_14b", "form_b", f"time_change_from_{m}") for m in ("waves", "latency")]
    assert sum(parts) == pytest.approx(0.28)


@pytest.mark.parametrize(
    ("probe", "case", "variant", "word"),
    [
        ("l1", "ffn_down_14b", "dpl", "GO"),
        ("l2", "decode13", "pdl_entry", "NO-GO"),
        ("l3", "gate_up_14b", "form_b", "NO-GO"),
    ],
)
def test_verdicts(probe: str, case: str, variant: str, word: str) -> None:
    found = figure(probe, case, variant, "verdict")
    assert found is not None and found.value == word


def test_a_figure_answers_for_its_very_variant() -> None:
    rate = figure("l1", "ffn_down_14b", "dpl", "content_gbps")
    assert rate is not None and rate.value == 212.9
    assert figure("l1", "ffn_down_14b", "dpl_loop", "content_gbps") is None
    assert figure("l1", "ffn_down_14b", "gpl_loop", "content_gbps") is None
    assert {f.variant for f in figures("l3", "gate_up_14b", "form_b_staged")} == {"form_b_staged"}
    assert figures("l9") == ()


def test_what_holds_for_all_cases_answers_for_each() -> None:
    registers = figure("l1", "attn_v_14b", "dpl", "registers")
    assert registers is not None and registers.value == 48


def test_a_word_is_not_a_number() -> None:
    verdict = figure("l1", "all", "dpl", "verdict")
    assert verdict is not None
    with pytest.raises(BadInput, match="'GO', not a number"):
        _ = verdict.number


def test_a_figure_can_be_zero() -> None:
    assert Figure("l2", "decode13", "pdl_entry", "x", 0, "1", "here").number == 0.0


# Resources

HEAD = ResourcesHead({"cu": "ab" * 32, "numba": "cd" * 32}, {"nvcc": "13.0.88", "numba-cuda": "0.30.4"})
ROWS = [
    Offline("l1_padded_loop", "numba", "sm_121", Resources(32, 32, 0)),
    Offline("l1_padded_loop", "cu", "sm_121", Resources(40, 32, 0)),
    Offline("l1_dpl_pf", "cu", "sm_90", Resources(48, 32, 40)),
]


def test_round_trip_is_sorted_and_exact() -> None:
    text = resources.dump_resources(ROWS, HEAD)
    assert text == resources.dump_resources(reversed(ROWS), HEAD)
    head, kernels = resources.parse_resources(text)
    assert head == HEAD
    assert kernels == {(r.backend, r.name, r.arch): r.resources for r in ROWS}
    assert list(kernels) == sorted(kernels)


@settings(max_examples=30, deadline=None)
@given(st.text(min_size=1), st.integers(0, 255), st.integers(0, 10**6))
def test_any_name_survives(name: str, registers: int, spill: int) -> None:
    row = Offline(name, "cu", "sm_90", Resources(registers, 0, spill))
    head = ResourcesHead({"cu": name}, {name: "1"})
    assert resources.parse_resources(resources.dump_resources([row], head)) == (
        head,
        {("cu", name, "sm_90"): row.resources},
    )


def test_a_kernel_given_twice_is_refused() -> None:
    with pytest.raises(BadInput, match="given twice"):
        resources.dump_resources([ROWS[0], ROWS[0]], HEAD)
    text = resources.dump_resources(ROWS, HEAD)
    again = text + text[text.index("[[kernel]]") :]
    with pytest.raises(BadInput, match="given twice"):
        resources.parse_resources(again)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("schema = 1", "schema = 2", "schema 2, not 1"),
        ("registers = 32", "registers = -1", "registers of 'l1_padded_loop' must be a count, got -1"),
        ("registers = 32", 'registers = "many"', "got 'many'"),
        ("spill_bytes = 40\n", "", "needs exactly"),
        ('backend = "numba"', 'backend = "hip"', "got 'hip'"),
        ("schema = 1", "schema = ", "not valid TOML"),
    ],
)
def test_a_bad_file_names_its_fault(old: str, new: str, message: str) -> None:
    text = resources.dump_resources(ROWS, HEAD)
    assert old in text
    with pytest.raises(BadInput, match=message):
        resources.parse_resources(text.replace(old, new, 1))


def serve(monkeypatch: pytest.MonkeyPatch, folder: Path, text: str | None) -> None:
    if text is not None:
        (folder / "resources.toml").write_text(text)
    monkeypatch.setattr(resources, "PATH", folder / "resources.toml")
    resources.recorded.cache_clear()


@pytest.fixture(autouse=True)
def _fresh() -> object:
    yield
    resources.recorded.cache_clear()


def test_nothing_recorded_says_what_to_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    serve(monkeypatch, tmp_path, None)
    for ask in (resources.recorded, resources.archs):
        with pytest.raises(Unavailable, match="python -m probes resources"):
            ask()


def test_lookup_by_kernel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    serve(monkeypatch, tmp_path, resources.dump_resources(ROWS, HEAD))
    assert resources.recorded()[1]["cu", "l1_dpl_pf", "sm_90"] == Resources(48, 32, 40)
    assert resources.recorded()[0].tool["nvcc"] == "13.0.88"
    assert resources.recorded_resources("numba", "l1_padded_loop", "sm_121").registers == 32
    with pytest.raises(Unavailable, match=r"l1_dpl_pf on sm_75: take a device of sm_90, or measure"):
        resources.recorded_resources("cu", "l1_dpl_pf", "sm_75")
    with pytest.raises(Unavailable, match=r"nor on any other; run `python -m probes resources`"):
        resources.recorded_resources("cu", "nothing", "sm_90")


def test_the_committed_resources_if_any_can_be_read() -> None:
    try:
        kernels = resources.recorded()[1]
    except Unavailable as err:
        pytest.skip(str(err))
    digests = resources.recorded()[0].sources_sha256
    assert {backend for backend, _, _ in kernels} == {name.split(".")[1] for name in digests}
