"""L3: does fusing gate + up + SwiGLU + quantise pay, or do the waves eat it?

    python -m probes.l3                    the pair and every fused form; predicted without a GPU
    python -m probes.l3 --sweep            form_b's grid from 0.25 to 4 waves: the loss taken apart
    python -m probes.l3 --geometries       the ring kernels in many geometries, for the tuning table
    python -m probes.l3 --sms 48           the same inside a 48-SM partition; with --blocks-per-sm 6 the
                                           recorded geometry: 432 blocks in 1.50 waves
    python -m probes.l3 --match-waves 1.5  the whole chip, nf chosen so that form_b runs in 1.5 waves

The record (GB10): form_b loses by 28.2 %, and the waves are blamed for half of it. Decided by the time of a
form against the pair's, cold, against the bar `l3.fused` (faster at all). Content bytes are 144 per q4_K
super-block; waves are grid / (SMs x blocks per SM) of the kernel that reads the weights. Past the record:
form_c, a fusion by rows in a persistent grid, against pair_ring, the pair with the same matrix kernel, by the
bar `l3.row_grained`.

Besides the parts that every probe has: waves.py, form_b's time against its waves.
"""
