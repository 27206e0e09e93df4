"""The compute capability that kernels are being compiled for: set by compile.py, for what depends on it."""

from __future__ import annotations

capability: tuple[int, int] = (9, 0)
"""Major and minor; statements ask for it while they are compiled."""
