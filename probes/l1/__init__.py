"""L1: does a dense split-plane q6_K layout beat the padded one and group-split, bit for bit?

    python -m probes.l1                 every case, both backends; predicted where there is no GPU
    python -m probes.l1 --quick         one shape, fewer windows, no model's sum
    python -m probes.l1 --form ring     only the persistent kernels with bulk copies (and the baseline)
    python -m probes.l1 --sweep         every geometry of ring and async: what the tuning table should say
    python -m probes.l1 --gguf FILE     the same on a model's own q6_K tensors

The record (GB10): yes, dpl cuts the kernel time by 17 %. Decided by the dispatcher's flip: the same binary
with PROBES_Q6K_DPL=0 and without, summed over a model's q6_K tensors, against the bar `l1.dpl`. Content bytes
are 210 per super-block; traffic counts whole 32-byte sectors; a ratio is time over the same backend's
`padded_loop`. Past the record: the forms ring and async, with dpl_ring held against padded_ring by the same
bar, and each case's fastest kernel against `l1.limit`.
"""
