"""L2's synthetic chains on the device: weights, results, and the words that must come out."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import ExitStack
from typing import TypeAlias

import numpy as np

from probes import l2, l2_chains
from probes.bench import Bench, cap_smem
from probes.core import chains, checksum
from probes.core.types import Backend, Unavailable
from probes.gpu import timing
from probes.gpu.kernels import Kernel
from probes.gpu.memory import Buffer
from probes.gpu.timing import Output
from probes.l2_launch import Chain

Kernels: TypeAlias = dict[Backend, dict[str, Kernel]]

EMPTY_COPIES = 8
"""Empty chains in a replay: 192 launches, so that a slope is not lost in the events' own step."""


def capped(
    bench: Bench, args: argparse.Namespace, kernels: dict[str, Kernel], names: set[str]
) -> dict[str, int]:
    """Shared memory by kernel that holds every kind of it to --blocks-per-sm; empty without the flag.

    A ring is left alone: its grid is persistent and holds itself to its blocks.
    """
    if not args.blocks_per_sm:
        return {}
    out = {}
    for name in sorted(names - set(l2_chains.RINGS)):
        kinds = [k for n, k in kernels.items() if n.rpartition("_")[0] == f"l2_{name}"]
        smem = max(cap_smem(k, l2_chains.BLOCK, args.blocks_per_sm, bench.gpu) for k in kinds)
        for k in kinds:
            k.allow_smem(smem)
        out[name] = smem
    return out


def stream_chains(
    bench: Bench, args: argparse.Namespace, case: l2.Case, kernels: Kernels, stack: ExitStack
) -> list[Chain]:
    """bandwidth24 of each backend: copies of one seeded weight, 24 to a chain."""
    steps = l2_chains.stream_steps()
    size, tiles, n = steps[0].weight_bytes, steps[0].grid, len(steps)
    data = np.random.SFC64(bench.seed).random_raw(size // 8).view(np.uint8)
    free, _ = bench.gpu.free_bytes()
    count = timing.rotation(size * n, bench.gpu.facts.l2_bytes, free)
    if size * n * count > free:
        raise Unavailable(f"bandwidth24 needs {size * n >> 20} MiB on the GPU, {free >> 20} are free")
    weights = stack.enter_context(Buffer.of(data, n * count))
    start = chains.start(tiles, bench.seed)
    first, a, b = (stack.enter_context(x) for x in (Buffer.of(start), Buffer(4 * tiles), Buffer(4 * tiles)))
    want = chains.stream(checksum.read_xors(data), start, n)
    copies = []
    for c in range(count):
        own = {f"w.{k}": weights.address + (c * n + k) * weights.pitch for k in range(n)}
        copies.append({**own, "start": first.address, "a": a.address, "b": b.address})
    names = {s.kernel for s in steps}
    return [
        Chain(
            case, backend, mine, steps, copies, Output(b, tiles, want), capped(bench, args, mine, names),
            content_bytes=size * n, rotation_bytes=size * n * count,
        )
        for backend, mine in kernels.items()
    ]  # fmt: skip


def compute_chain(
    bench: Bench, case: l2.Case, backend: Backend, kernels: dict[str, Kernel], kernel: str, waves: float,
    smem: int, stack: ExitStack, copies: int = 2,
) -> Chain:  # fmt: skip
    """A compute chain whose launches fill `waves` waves with the plain kernel's blocks per SM."""
    blocks = min(
        k.blocks_per_sm(l2_chains.BLOCK, smem)
        for n, k in kernels.items()
        if n.rpartition("_")[0] == f"l2_{kernel}"
    )
    if not blocks:
        raise Unavailable(f"{kernel} with {smem} B of shared memory does not fit on an SM")
    grid = l2_chains.tail_grid(bench.gpu.facts.sms, blocks, waves)
    wide = kernel == "wide"
    iters = l2_chains.wide_iters() if wide else l2_chains.COMPUTE_ITERS
    words = chains.CONSTANTS.wide if wide else chains.CONSTANTS.narrow
    threads = grid * l2_chains.BLOCK
    start = chains.start(threads, bench.seed)
    first, a, b = (
        stack.enter_context(x) for x in (Buffer.of(start), Buffer(4 * threads), Buffer(4 * threads))
    )
    addresses = {"start": first.address, "a": a.address, "b": b.address}
    steps = l2_chains.compute_steps(grid, kernel, iters)
    want = chains.compute_fast(words, iters, start, len(steps))
    return Chain(
        case, backend, kernels, steps, [addresses] * copies, Output(b, threads, want), {kernel: smem}
    )


def compute_chains(
    bench: Bench, args: argparse.Namespace, case: l2.Case, kernels: Kernels, stack: ExitStack
) -> list[Chain]:
    """compute24 of each backend."""
    out = []
    for backend, mine in kernels.items():
        smem = capped(bench, args, mine, {"compute"}).get("compute", 0)
        out.append(compute_chain(bench, case, backend, mine, "compute", l2_chains.COMPUTE_WAVES, smem, stack))
    return out


def empty_chains(
    bench: Bench, args: argparse.Namespace, case: l2.Case, kernels: Kernels, stack: ExitStack
) -> list[Chain]:
    """The empty chain of each backend; its output is a word that stays as it was."""
    nothing = stack.enter_context(Buffer(16))
    kept = Output(nothing, 1, np.array([0xFFFFFFFF], np.uint32))
    steps = l2_chains.empty_steps()
    return [Chain(case, b, mine, steps, [{}] * EMPTY_COPIES, kept) for b, mine in kernels.items()]


Maker = Callable[[Bench, argparse.Namespace, l2.Case, Kernels, ExitStack], list[Chain]]
SYNTHETIC: dict[str, Maker] = {
    "bandwidth24": stream_chains,
    "compute24": compute_chains,
    "empty": empty_chains,
}
