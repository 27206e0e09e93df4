"""One engine for every probe: it owns the sequence, and a probe's rooms hand it their pieces.

probe.py      the words of the protocol: cases, variants, contests, plans' owner, a probe's parts by name
bench.py      a GPU with the harness' kernels: arms become rows (check, time, check again)
plan.py       a variant's launch on a device, and the row that it makes before anything is launched
arms.py       plans bound to buffers: what can be launched here, and why the rest cannot
run.py        one run: measured or predicted rows, judged, written as they come
judge.py      contests -> verdict rows, pure
predict.py    rows for a device that is not there
sweep.py      launches swept over geometries, and what a tuning table should hold
limit.py      how near to a plain read, and what the profiler says keeps a kernel from it
profile.py    --counters: a child under the profiler
processes.py  --processes: the same run in fresh processes, samples joined
machine_code.py  which instructions a compiled kernel holds
digests.py    which sources and launches a report's figures depend on
"""
