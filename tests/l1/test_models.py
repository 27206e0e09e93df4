"""Model ledgers and the fold, against the recorded figures."""

from __future__ import annotations

import pytest

from probes.core.types import BadInput, Shape
from probes.formats import layouts
from probes.formats.layouts import layout, ledger
from probes.l1 import analysis, table

BIG, SMALL = table.MODELS


def test_tables_are_the_shapes_of_the_record() -> None:
    by_case = {t.case: t for m in table.MODELS for t in m.tensors}
    assert list(by_case) == [f"{t}_{m}" for m in ("14b", "7b") for t in ("ffn_down", "lm_head", "attn_v")]
    assert by_case["ffn_down_14b"].shape == Shape(5120, 13824) and by_case["ffn_down_14b"].count == 24
    assert by_case["lm_head_14b"].shape == Shape(152064, 5120) and by_case["lm_head_14b"].count == 1
    assert by_case["attn_v_14b"].shape == Shape(1024, 5120) and by_case["attn_v_14b"].count == 24
    assert by_case["ffn_down_7b"].shape == Shape(3584, 18944) and by_case["ffn_down_7b"].count == 14
    assert by_case["lm_head_7b"].shape == Shape(152064, 3584)
    assert by_case["attn_v_7b"].shape == Shape(512, 3584) and by_case["attn_v_7b"].count == 14


def test_the_layer_rule() -> None:
    assert table.q6k_layers(48) == 24 and table.q6k_layers(28) == 14 and table.q6k_layers(32) == 16


def test_bytes_of_the_record() -> None:
    def held(one: table.Model, name: str) -> int:
        return sum(t.count * ledger(layout(name), t.shape).stored_bytes for t in one.tensors)

    content = sum(t.count * ledger(layout("dpl"), t.shape).content_bytes for t in BIG.tensors)
    assert content == 2_135_347_200
    assert round(held(BIG, "dpl") / 1e9, 2) == 2.14 and round(held(SMALL, "dpl") / 1e9, 2) == 1.25
    assert held(BIG, "gpl") == held(BIG, "dpl")
    # row padding is all that dpl adds to the content: 4 B a row of ffn_down, 8 of lm_head and attn_v
    assert held(BIG, "dpl") - content == 24 * 5120 * 4 + 152064 * 8 + 24 * 1024 * 8
    assert held(BIG, "gs") == content * 224 // 210


def test_the_recorded_fold_gives_the_recorded_gain() -> None:
    """padded to dpl: ffn_down 176.5 to 212.9 GB/s, lm_head 208.3 to 250.0; 22.00 tok/s before."""
    parts = []
    for case, before, after in (("ffn_down_14b", 176.5e9, 212.9e9), ("lm_head_14b", 208.3e9, 250.0e9)):
        tensor = next(t for t in BIG.tensors if t.case == case)
        content = tensor.shape.od * tensor.shape.nbe * layouts.BLOCK_BYTES
        parts.append((tensor.count, content / before - content / after))
    assert round(sum(n * dt for n, dt in parts) * 1e3, 2) == 1.86
    gain = analysis.fold(1 / 22.00, parts)
    assert round(gain * 100, 2) == 4.27
    assert round(22.00 * (1 + gain), 2) == 22.94  # the tok/s that were measured


def test_fold_edges() -> None:
    assert analysis.fold(0.04, []) == 0.0
    assert analysis.fold(0.04, [(10, -0.001)]) == pytest.approx(0.04 / 0.05 - 1)
    with pytest.raises(BadInput, match="do not fit a decode step"):
        analysis.fold(0.04, [(40, 0.001)])
    for step in (0.0, -1.0, float("nan")):
        with pytest.raises(BadInput, match="positive time"):
            analysis.fold(step, [])
