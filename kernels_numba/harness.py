"""The harness' own kernels: the read ceiling, the SM clock, an empty launch. Twins of harness.cu."""

from typing import Any

from numba import int32, int64, types, uint32

from kernels_numba.ops import BYTES, LONGS, WORDS, gpu_ops


def kernels() -> dict[str, tuple[Any, Any]]:
    """Every kernel as name -> (Python function, signature), ready for compile.py."""
    from numba import cuda

    ops = gpu_ops()
    load16, globaltimer, clock64, smid = ops.load16, ops.globaltimer, ops.clock64, ops.smid

    @ops.jit
    def vector(src, i, vectors):  # one 16-byte word, or zeros past the end
        if i < vectors:
            return load16(src, i * 16)
        return uint32(0), uint32(0), uint32(0), uint32(0)

    def read(src, out, vectors):  # block b: the XOR of its 16 KiB tile
        t = int32(cuda.threadIdx.x)
        first = int64(cuda.blockIdx.x) * 1024 + t
        a = vector(src, first, vectors)
        b = vector(src, first + 256, vectors)
        c = vector(src, first + 512, vectors)
        d = vector(src, first + 768, vectors)
        x = uint32(a[0] ^ a[1] ^ a[2] ^ a[3] ^ b[0] ^ b[1] ^ b[2] ^ b[3])
        x = uint32(x ^ c[0] ^ c[1] ^ c[2] ^ c[3] ^ d[0] ^ d[1] ^ d[2] ^ d[3])
        sums = cuda.shared.array(8, uint32)
        for k in range(5):
            x = uint32(x ^ uint32(cuda.shfl_xor_sync(0xFFFFFFFF, int32(x), 16 >> k)))
        if t & 31 == 0:
            sums[t >> 5] = x
        cuda.syncthreads()
        if t == 0:
            for k in range(1, 8):
                x = uint32(x ^ sums[k])
            out[cuda.blockIdx.x] = x

    def clock(out):  # {SM cycles, nanoseconds, SM id}
        ns = globaltimer()
        out[0] = clock64()
        out[1] = ns
        out[2] = types.uint64(smid())

    def empty():  # the launch itself
        return

    return {
        "harness_read": (read, types.void(BYTES, WORDS, types.int64)),
        "harness_clock": (clock, types.void(LONGS)),
        "harness_empty": (empty, types.void()),
    }
