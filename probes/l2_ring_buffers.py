"""ffn_down24 and attn_v24 on the device: cold weights, activations handed on, and the words of all launches.

What must come out is made by the one-row-per-block kernel of decode13 (`l2_q6k_plain`, which has its own
proofs) on activations that the host rotated; rows of some launches are held to the NumPy oracle here, so that
no ring and no rotation on the device vouches for itself. Beside each chain stands one that only reads.
"""

from __future__ import annotations

import argparse
from contextlib import ExitStack

import numpy as np
from numpy.typing import NDArray

from probes import l2, l2_chains, l2_ring
from probes.bench import Bench, bits
from probes.core import chains, checksum, decode, q6k
from probes.core.layouts import layout
from probes.core.packing import pack
from probes.core.types import LaunchConfig, Unavailable
from probes.gpu import timing
from probes.gpu.kernels import Kernel, Launch, int32
from probes.gpu.memory import Buffer
from probes.gpu.timing import Output
from probes.l2_buffers import Kernels
from probes.l2_launch import Chain, compare, make_room
from probes.l2_ring import Matrix

ORACLE_ROWS = 256
"""Rows that the oracle checks, of each launch that it looks at."""


def matrix_chains(
    bench: Bench, args: argparse.Namespace, case: l2.Case, kernels: Kernels, stack: ExitStack
) -> list[Chain]:
    """A chain of one matrix of each backend, and the one that reads the same bytes.

    Raises Unavailable where the ring does not fit here, or the weights do not.
    """
    m, n = l2_ring.MATRICES[case.id], chains.CHAIN
    steps = l2_ring.steps(case, bench.gpu.facts)
    plain_steps = l2_ring.steps(case, bench.gpu.facts, plain=True)
    bench.progress(f"{case.id}: {n} matrices of {m.shape}")
    raw = decode.weights(m.shape, bench.seed + 11, "q6_K")
    packed, x8 = pack(raw, layout("dpl")), l2_ring.activations(m, bench.seed + 12)
    size, words = packed.nbytes, m.shape.od
    tiles, rest = divmod(size, chains.CONSTANTS.tile)
    assert not rest, "a chain that reads the same bytes reads whole tiles"
    free, _ = bench.gpu.free_bytes()
    count = timing.rotation(size * n, bench.gpu.facts.l2_bytes, free)
    if size * n * count > free:
        raise Unavailable(f"{case.id} needs {size * n >> 20} MiB on the GPU, {free >> 20} are free")
    weights = stack.enter_context(Buffer.of(packed, n * count))
    start = chains.start(tiles, bench.seed)
    shared = {
        name: stack.enter_context(buffer)
        for name, buffer in (
            ("start8", Buffer.of(x8)), ("a8", Buffer(x8.nbytes)), ("b8", Buffer(x8.nbytes)),
            ("out", Buffer(4 * words * n)), ("start", Buffer.of(start)), ("a", Buffer(4 * tiles)),
            ("b", Buffer(4 * tiles)),
        )
    }  # fmt: skip
    fixed = {name: buffer.address for name, buffer in shared.items()}
    fixed |= {f"out.{k}": fixed["out"] + 4 * words * k for k in range(n)}
    copies = [
        {**fixed, **{f"w.{k}": weights.address + (c * n + k) * weights.pitch for k in range(n)}}
        for c in range(count)
    ]
    first = next(iter(kernels.values()))
    want = expected(bench, m, raw, x8, first["l2_q6k_plain"], weights.address)
    outputs = (
        Output(shared["out"], want.size, want.reshape(-1)),
        Output(shared["b"], tiles, chains.stream(checksum.read_xors(packed.reshape(-1)), start, n)),
    )
    out = []
    for backend, mine in kernels.items():
        each, plain_read = (
            Chain(
                case, backend, mine, own, copies, output, content_bytes=size * n,
                rotation_bytes=size * n * count,
            )
            for own, output in zip(
                (steps, l2_chains.stream_steps(tiles=tiles, launches=n)), outputs, strict=True
            )
        )  # fmt: skip
        each.reads, each.plain_steps = plain_read, plain_steps
        make_room(bench, each, stack)
        out.append(each)
    return out


def expected(
    bench: Bench, m: Matrix, raw: NDArray[np.uint8], x8: NDArray[np.uint8], plain: Kernel, weights: int
) -> NDArray[np.uint32]:
    """Words u32[launches, od] of W . rotate(x8, k), made by the kernel `plain` on the packed `weights`.

    raw: the same weights, for the oracle. Raises WrongResult where a row is not the oracle's.
    """
    n, words, pitch = chains.CHAIN, m.shape.od, -(-x8.nbytes // 256) * 256
    inputs = np.zeros((n, pitch), np.uint8)
    for k in range(n):
        inputs[k, : x8.nbytes] = l2_ring.rotate(x8, k)
    with Buffer.of(inputs) as x, Buffer(4 * words * n) as out:
        out.poison()
        for k in range(n):
            pointers = (weights, x.address + k * pitch, out.address + 4 * words * k)
            end = (int32(m.shape.nbe), int32(m.row_stride), int32(0), 0)
            Launch(plain, LaunchConfig(words, l2_chains.BLOCK), (*pointers, *end)).enqueue(bench.gpu.stream)
        found = out.download(np.uint32, words * n).reshape(n, words)
    rng = np.random.default_rng(bench.seed + 13)
    for k in sorted({0, n - 1, *(int(x) for x in rng.integers(1, n - 1, 2))}):
        rows = np.sort(rng.choice(words, min(words, ORACLE_ROWS), replace=False)).astype(np.int64)
        own = np.ascontiguousarray(inputs[k, : x8.nbytes])
        compare(found[k, rows], bits(q6k.reference(raw, own, rows)), f"{m.name} launch {k}, {plain.name}")
    return found
