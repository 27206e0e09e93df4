"""The CUDA C++ twins: nvcc builds one library per kernel file, ctypes loads it, kernels come out by name.

The .cu files hold kernels: l1, l1_ring, l2, l3, and harness (read ceiling, clock, empty launch). The headers
are their parts; host.cpp builds those that need no GPU for the tests. build.py runs the compilers, caches in
out/build/<hash>/ and loads.
"""
