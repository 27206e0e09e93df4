"""Microbenchmark probes of LLM decode kernels at batch 1, each ending in a verdict.

Reading order: `l1.py` (a probe: its question, tables and bars), `core/` (formats, oracle, layouts,
statistics and verdicts: pure Python and NumPy), `bench.py` (how arms become rows), `gpu/` (the live
device), then the kernels themselves in `kernels_numba` and `kernels_cu`.

    python -m probes              every probe and one summary table
    python -m probes.l1           one probe
    python -m probes replay FILE  a report's verdicts again, from its samples
"""
