"""Bytes, and the arithmetic that must come out of them: formats, layouts, the reference order, the oracles.

q6k.py, q4k.py, q8.py   the byte formats: random data, the float32 oracle
kquant.py               what q6_K and q4_K share
reduction.py            the reference order: how one row's terms become one float32
swiglu.py               the fixed exp sequence and SwiGLU
layouts.py, packing.py  where the pieces of a q6_K super-block lie in a stored row; packing and unpacking
traffic.py              which bytes the warps of a kernel ask for, and what memory moves to answer
checksum.py             what the checksum kernels must return
layer.py, chains.py     a decode layer's 13 kernels in NumPy; the synthetic chains
gguf.py                 weights out of a GGUF file, which may be damaged or hostile
"""
