"""The live device: facts, memory, launches, graphs, clocks, samples and counters.

driver.py    one checker for every driver call, and what each failure means to a user
facts.py     open a GPU: what it is, who else is on it
sms.py       the SMs that this process has of it, and the slug that says so
carveout.py  L2 set aside for persisting accesses: given back
memory.py    device buffers: allocate, copy, poison
kernels.py   a Binary of either backend -> a launchable kernel and its resources
graph.py     launches captured into a graph that can be replayed
timing.py    check before time; interleaved windows; slope of n and 2n nodes; clock per sample
partition.py  some SMs as a GPU of their own (green context)
counters.py  the profiler's DRAM bytes, durations, DRAM and issue rates
"""
