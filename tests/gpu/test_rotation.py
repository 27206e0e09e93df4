"""How many weight copies a launch rotates over: cold where memory allows, never more than it holds."""

from __future__ import annotations

import pytest

from probes.gpu.timing import rotation

GIB = 1 << 30
H200_L2 = 62_914_560


@pytest.mark.parametrize(
    ("stored", "free", "copies"),
    [
        (58_081_280, 140 * GIB, 37),  # ffn_down_14b in dpl: 2 GiB
        (4_308_992, 140 * GIB, 499),  # attn_v_14b: 2 GiB
        (1_507_328, 140 * GIB, 768),  # attn_v_7b: 2 GiB would be 1,425 nodes; 768 are 1.08 GiB
        (1_000_000, 140 * GIB, 1074),  # smaller still: 1 GiB comes before the node limit
        (639_885_312, 140 * GIB, 4),
        (639_885_312, 6 * GIB, 1),
        (4_308_992, 6 * GIB, 249),  # a sixth of what is free
    ],
)
def test_copies(stored: int, free: int, copies: int) -> None:
    assert rotation(stored, H200_L2, free) == copies


def test_cold_means_four_caches_or_a_gibibyte_where_there_is_room() -> None:
    for stored in range(100_000, 50_000_000, 777_777):
        assert rotation(stored, H200_L2, 140 * GIB) * stored >= max(4 * H200_L2, GIB)
        assert rotation(stored, GIB, 140 * GIB) * stored >= 4 * GIB
        assert rotation(stored, H200_L2, 2 * GIB) * stored <= 2 * GIB // 6
