"""The CUDA C++ twins: nvcc builds one library per probe, ctypes loads it, kernels come out by name.

common.cuh   exact float32 steps, integer dots, wide loads; all __host__ __device__
q6k.cuh      one q6_K unit in any layout
q4k.cuh      one q4_K chunk
swiglu.cuh   the fixed exp sequence and SwiGLU
q8.cuh       quantising to pad40
l1.cu        the L1 kernels          harness.cu  read ceiling, clock, empty launch
l2.cu        the L2 kernels          l3.cu       the L3 kernels
pdl.cuh      L2: waits, triggers, prefetches, time stamps
decode.cuh, attention.cuh   L2: a decode layer's small kernels
host.cpp     the same headers built by the host compiler, for tests without a GPU
build.py     nvcc and the host compiler -> out/build/<hash>/, ctypes loading
"""
