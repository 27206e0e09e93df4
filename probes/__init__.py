"""Microbenchmark probes of LLM decode kernels at batch 1, each ending in a verdict.

A probe is a package: l1 (weight layouts), l2 (PDL), l3 (fusion). All have the same parts: table, data, plan,
arms, analysis, report. What happens when is in `engine.run`; `engine.probe` states what it asks of a part.

    python -m probes              every probe and one summary table
    python -m probes.l1           one probe
    python -m probes replay FILE  a report's verdicts again, from its samples

Three walks, room by room:

    a weight from file to verdict
        formats.gguf (bytes, checked) -> l1.data (packed; what must come out by formats.q6k)
        -> l1.arms (copies on the device) -> gpu.timing (checked, timed, checked)
        -> engine.bench (a row) -> engine.judge -> verdict.bars
    an arm from table to launch
        l1.table (a variant) -> l1.plan with device.facts and device.tuning (its launch)
        -> engine.arms (does it fit here?) -> l1.arms (bound to buffers) -> gpu.kernels (launched)
    samples to a verdict
        gpu.timing (slope of n and 2n nodes) -> engine.bench (a row) -> engine.judge (pairs, the A/A floor)
        -> verdict.intervals -> verdict.bars -> report.tables

Floors, lowest first: core, formats, device, verdict, report, gpu and the kernel packages, engine, cli, the
probes, commands. Imports point down only.
"""
