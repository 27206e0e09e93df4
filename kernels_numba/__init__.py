"""The Numba CUDA twins: the kernels of kernels_cu, under the same names and with the same arguments.

`kernels()` of harness, l1, l1_ring, l2 and l3 gives name -> (Python function, signature); compile.py makes
cubins of them. Their parts are functions of `ops`: `gpu_ops()` for cuda.jit, `cpu_ops()` for njit.
"""

import numpy as np

if not hasattr(np, "row_stack"):  # numba-cuda 0.30 still names it; numpy 2.5 dropped it
    np.row_stack = np.vstack
