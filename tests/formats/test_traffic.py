"""The trace against sets of single bytes, counted the slow way on small shapes; then its known figures."""

from __future__ import annotations

import time
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probes.core.types import BadInput, Shape
from probes.formats import traffic
from probes.formats.layouts import LAYOUTS, Layout, Piece

BY_NAME = {lay.name: lay for lay in LAYOUTS}

# A made-up fifth row: group order, blocks of 240 B that start with the scales.
SCALES_FIRST = Layout(
    "scales_first", "group", Piece(0, 240, 32), Piece(0, 240, 160), Piece(0, 240, 0), Piece(0, 240, 16), 240
)
ANY = (*LAYOUTS, SCALES_FIRST)

FFN_DOWN = Shape(5120, 13824)
LM_HEAD = Shape(152064, 5120)


def unit_loads(lay: Layout, nbe: int, unit: int) -> list[tuple[int, int]]:
    """(address, width) of one unit's weight loads, written out from the byte formats."""
    b, pair = divmod(unit, 8)
    ql, qh, sc, d = (p.plane * nbe + p.block * b + p.offset for p in (lay.ql, lay.qh, lay.sc, lay.d))
    if lay.order == "group":
        quants = [(ql + 16 * pair, 16), (qh + 8 * pair, 8)]
    else:
        chunk, g = divmod(pair, 4)
        low, high = ql + 64 * chunk + 32 * (g % 2), qh + 32 * chunk
        quants = [(low, 16), (low + 16, 16), (high, 16), (high + 16, 16)]
    return [*quants, (sc + 2 * pair, 2), (d, 2)]


def each_load(lay: Layout, shape: Shape) -> list[tuple[int, int, int, int, int]]:
    """(row, unit, load, address, width), in the order a row's warps issue them."""
    out = []
    for row in range(shape.od):
        base = row * lay.row_stride(shape.nbe)
        for warp in range(-(-shape.nunits // 32)):
            units = range(32 * warp, min(32 * warp + 32, shape.nunits))
            for i in range(len(unit_loads(lay, shape.nbe, 0))):
                for u in units:
                    at, width = unit_loads(lay, shape.nbe, u)[i]
                    out.append((row, u, i, base + at, width))
    return out


def brute(lay: Layout, shape: Shape, granule: int, scope: str) -> int:
    """Bytes fetched, from sets of single bytes."""
    pieces: set[tuple[object, int]] = set()
    seen: set[int] = set()
    by_load: dict[tuple[int, int, int], set[int]] = {}
    for row, u, i, at, width in each_load(lay, shape):
        owner = {"matrix": 0, "block": (row, u // 8), "load": None}[scope]
        if scope == "load":
            by_load.setdefault((row, u // 32, i), set()).update(b // 32 for b in range(at, at + width))
        else:
            pieces |= {(owner, byte // granule) for byte in range(at, at + width)}
    for key, sectors in by_load.items():
        pieces |= {(key, sector * 32 // granule) for sector in sectors - seen}
        seen |= sectors
    return len(pieces) * granule


SHAPES = st.builds(lambda od, nbe: Shape(od, 256 * nbe), st.integers(1, 9), st.integers(1, 6))


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(ANY),
    SHAPES,
    st.sampled_from((1, 16, 32, 64, 128)),
    st.sampled_from(("matrix", "block")),
)
def test_fetched_bytes_equal_the_sets(lay: Layout, shape: Shape, granule: int, scope: traffic.Scope) -> None:
    assert traffic.fetched_bytes(lay, shape, granule, scope) == brute(lay, shape, granule, scope)


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(ANY), SHAPES, st.sampled_from((32, 64, 128)))
def test_bytes_per_load_equal_the_sets(lay: Layout, shape: Shape, granule: int) -> None:
    assert traffic.fetched_bytes(lay, shape, granule, "load") == brute(lay, shape, granule, "load")


@settings(max_examples=20, deadline=None)
@given(st.sampled_from(ANY), SHAPES)
def test_requests_equal_the_sets(lay: Layout, shape: Shape) -> None:
    got = traffic.requests(lay, shape)
    want = [Counter[str]() for _ in got.loads]
    weights = len(got.loads) - 5
    for row in range(shape.od):
        base = row * lay.row_stride(shape.nbe)
        for first in range(0, shape.nunits, 32):
            units = range(first, min(first + 32, shape.nunits))
            for i, w in enumerate(want):
                spans = [
                    (base + unit_loads(lay, shape.nbe, u)[i][0], unit_loads(lay, shape.nbe, u)[i][1])
                    if i < weights
                    else (40 * u + 8 * (i - weights), 8)
                    for u in units
                ]
                w["asked"] += sum(width for _, width in spans)
                lanes = min(32, 128 // spans[0][1])
                for g in range(0, len(spans), lanes):
                    words = {b // 4 for at, width in spans[g : g + lanes] for b in range(at, at + width)}
                    w["wavefronts"] += max(Counter(word % 32 for word in words).values())
    for load, w in zip(got.loads, want, strict=True):
        assert (load.requested_bytes, load.wavefronts) == (w["asked"], w["wavefronts"])
    assert got.requested_bytes == sum(w["asked"] for w in want)
    assert got.weight_requested_bytes == sum(w["asked"] for w in want[:weights])
    assert got.wavefronts == sum(w["wavefronts"] for w in want)


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(ANY), SHAPES)
def test_loads_touch_the_content_and_nothing_else(lay: Layout, shape: Shape) -> None:
    content = shape.od * shape.nbe * 210
    assert traffic.fetched_bytes(lay, shape, 1, "matrix") == content


@pytest.mark.parametrize("lay", ANY, ids=lambda lay: lay.name)
def test_every_load_is_aligned_to_its_width(lay: Layout) -> None:
    for nbe in (1, 2, 3, 14, 20, 54, 74):
        for load in traffic.weight_loads(lay, nbe):
            for row in range(8):
                assert not ((row * lay.row_stride(nbe) + load.address) % load.width).any()


@pytest.mark.parametrize("shape", [FFN_DOWN, LM_HEAD, Shape(1024, 5120), Shape(3584, 18944)], ids=str)
def test_sectors_of_the_model_shapes(shape: Shape) -> None:
    blocks = shape.od * shape.nbe
    assert traffic.traffic_bytes(BY_NAME["padded"], shape) == 224 * blocks
    assert traffic.traffic_bytes(BY_NAME["gs"], shape) == 224 * blocks
    for name in ("dpl", "gpl"):
        stored = shape.od * BY_NAME[name].row_stride(shape.nbe)
        assert stored <= traffic.traffic_bytes(BY_NAME[name], shape) < stored + 32


def test_the_dram_ratio_that_counters_showed() -> None:
    padded, dpl = (traffic.traffic_bytes(BY_NAME[n], FFN_DOWN) for n in ("padded", "dpl"))
    assert padded / 1e6 == pytest.approx(61.97, rel=0.001)  # profiler, H200
    assert dpl / 1e6 == pytest.approx(58.11, rel=0.001)
    assert padded / dpl == pytest.approx(1.0663, abs=5e-4)


@pytest.mark.parametrize(
    ("scope", "want"),
    [
        ("matrix", (224.0, 224.0, 210.1, 210.1)),
        ("block", (224.0, 256.0, 288.0, 416.0)),  # 210 / 256 is the record's useful share of padded
        ("load", (224.0, 320.0, 210.1, 244.7)),
    ],
)
def test_the_table_of_the_module(scope: traffic.Scope, want: tuple[float, ...]) -> None:
    blocks = FFN_DOWN.od * FFN_DOWN.nbe
    got = [
        round(traffic.fetched_bytes(BY_NAME[name], FFN_DOWN, granule, scope) / blocks, 1)
        for name in ("padded", "dpl")
        for granule in (32, 64)
    ]
    assert tuple(got) == want
    assert traffic.__doc__ is not None and " ".join(f"{x:.1f}" for x in want) in " ".join(
        traffic.__doc__.split()
    )


def test_group_order_asks_for_each_byte_once_but_d() -> None:
    got = traffic.requests(BY_NAME["gpl"], FFN_DOWN)
    assert got.weight_requested_bytes == FFN_DOWN.od * FFN_DOWN.nunits * 28


@pytest.mark.parametrize("granularity", [0, -32, 48, 512])
def test_a_bad_granularity_is_refused(granularity: int) -> None:
    with pytest.raises(BadInput, match=f"got {granularity}"):
        traffic.fetched_bytes(BY_NAME["padded"], FFN_DOWN, granularity, "matrix")


@pytest.mark.parametrize("nbe", [768, 1030])
@pytest.mark.parametrize("lay", LAYOUTS, ids=lambda lay: lay.name)
def test_a_long_row_counts_as_if_traced_whole(lay: Layout, nbe: int, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = Shape(3, 256 * nbe)
    kinds: list[tuple[int, traffic.Scope]] = [(32, "matrix"), (64, "load"), (128, "block")]

    def counted() -> list[object]:
        fetched = [traffic.fetched_bytes.__wrapped__(lay, shape, size, scope) for size, scope in kinds]
        return [traffic.requests.__wrapped__(lay, shape), *fetched]

    short = counted()
    monkeypatch.setattr(traffic, "REPEAT", 1 << 20)
    assert short == counted()


def test_the_longest_row_costs_no_more_than_a_short_one() -> None:
    start = time.process_time()
    for lay in LAYOUTS:
        shape = Shape(7, 1 << 24)
        traffic.requests(lay, shape)
        traffic.fetched_bytes(lay, shape, 64, "load")
    assert time.process_time() - start < 2.0  # minutes when each address was traced
