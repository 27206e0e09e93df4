"""What several GPU test files share."""

from __future__ import annotations

import pytest

from probes.gpu import timing


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three copies of the weights instead of 4 GiB of them."""
    monkeypatch.setattr(timing, "rotation", lambda *sizes: 3)
