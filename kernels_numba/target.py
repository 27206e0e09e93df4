"""The compute capability that kernels are being compiled for: set by compile.py, for what depends on it."""

capability: tuple[int, int] = (9, 0)
"""Major and minor; statements ask for it while they are compiled."""
