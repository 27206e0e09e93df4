"""The Numba CUDA twins: compiled to a cubin here, launched by the same launcher as the C++ ones.

ops.py       what Numba lacks: wide loads, dp4a, f16 to f32, with a CPU twin for each
q6k.py       one q6_K unit in any layout, as plain functions for cuda.jit and njit alike
q4k.py       one q4_K chunk               swiglu.py   the fixed exp sequence and SwiGLU
q8.py        quantising to pad40          l3.py       the L3 kernels
l2.py        the L2 kernels               pdl.py      its waits, triggers, prefetches, stamps
held.py, q4k_held.py      units for many rows with the same activations
ring.py, ring_rows.py, ring_block.py, ring_feed.py, ring_gated.py   rows through shared memory
l1_ring.py, l2_ring.py, l3_ring.py   the kernels that are made of these
decode.py, attention.py   a decode layer's small kernels   reductions.py   sums of a warp, of a block
l1.py        the L1 kernels               harness.py  read ceiling, clock, empty launch
compile.py   kernel -> PTX -> cubin (needs no GPU), cached in out/build/<hash>/; target.py: for which GPU
"""
