"""A stage is released once its last piece was read: the next tile's copy spoils what is read behind that."""

from __future__ import annotations

import pytest

from tests.kernels.test_l1_ring_numba import launch


@pytest.mark.parametrize("nbe", [100, 160])
def test_a_stage_is_not_released_before_a_row_s_last_unit(nbe: int) -> None:
    """Two and three units a thread, and one stage: each copy waits for nothing but the release."""
    launch(9, 1, 1, 1, False, 8, nbe)
