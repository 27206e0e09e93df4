"""Microbenchmark probes of LLM decode kernels at batch 1, each ending in a verdict.

A probe is a package: l1 (weight layouts), l2 (PDL), l3 (fusion). All have the same parts: table, data, plan,
arms, analysis, report. What happens when is in `engine.run`; `engine.probe` states what it asks of a part.

    python -m probes              every probe and one summary table
    python -m probes.l1           one probe
    python -m probes replay FILE  a report's verdicts again, from its samples

Three walks, room by room:

    a weight from file to verdict
        formats.gguf (bytes, checked) -> l1.data (packed by formats.packing; what must come out: formats.q6k)
        -> l1.arms (copies on the device) -> engine.bench, which has gpu.timing check, time and check again
        -> a row -> engine.judge -> verdict.bars
    an arm from table to launch
        l1.table (a variant) -> engine.arms, which asks l1.plan (device.tuning, device.pipeline: its launch),
        whether that fits here, and l1.arms (bound to buffers; kernels by engine.compiling) -> gpu.graph
        -> gpu.kernels (launched)
    samples to a verdict
        gpu.sampling (slopes of n and 2n nodes) -> engine.bench (rows) -> engine.judge, which asks l1.analysis
        what makes a pair and what blocks it -> verdict.blocks -> verdict.bars -> report.tables

Floors, lowest first: core, formats, device, verdict, report, gpu and the kernel packages, engine, cli, the
probes, commands. Imports point down only; engine.probe alone finds the probes, by name.
"""

import sys

if sys.argv[:1] == ["-m"]:  # python -m probes...: runpy imports this package before all else
    from probes.core import ends

    ends.early()
