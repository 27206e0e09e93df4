"""L2: does programmatic dependent launch (PDL) make a decode chain in a CUDA graph faster?

    python -m probes.l2                 every chain and arm, both backends; predicted where there is no GPU
    python -m probes.l2 --case decode13 --kv 3254 --arm pdl_late_trigger
    python -m probes.l2 --counters      also each kernel alone under the profiler
    python -m probes.l2 --sweep         also compute24 over blocks/SM, registers and tails, looking for a tax,
                                        and the ring chains over their geometry

The record (GB10): no. Neutral on a bandwidth chain, 2.8 % slower on a compute chain, -2.6 % in situ, waiting
at entry. Decided on decode13, the 13 kernels of a layer, against the bar `l2.pdl` at both KV lengths; every
other arm has its own row. An arm says where the kernels wait for their predecessor (see kernels_cu/pdl.cuh),
whether they let their successor start at once (`_trigger`), when their last weights were asked for (`_tail`)
or when they end, and whether a graph is replayed. The ring chains stream their matrices through shared memory
with room left for the successor's first rows; their bars are `l2.ring_bandwidth` and `l2.ring_decode`, for
pdl_late_tail, and `l2.chain` says how near they come to chains that only read. A time is of one chain; an
interface is the step from one launch to the next. Overlap: how long before its predecessor's last block ended
a kernel's first one started; negative is a gap.

Besides the parts that every probe has: chains.py, the chains as tables of launches; overlap.py, a chain's
proofs.
"""
