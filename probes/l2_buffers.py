"""L2's chains on the device: weights, caches, results, and the oracle that the kernels are held to."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from probes import l2, l2_chains
from probes.bench import Bench, bits, cap_smem
from probes.core import chains, checksum, decode
from probes.core.layouts import layout
from probes.core.packing import pack
from probes.core.types import Backend, Unavailable
from probes.gpu import timing
from probes.gpu.kernels import Kernel
from probes.gpu.memory import Buffer
from probes.gpu.timing import Output
from probes.l2_launch import Chain, compare

Kernels: TypeAlias = dict[Backend, dict[str, Kernel]]

EMPTY_COPIES = 8
"""Empty chains in a replay: 192 launches, so that a slope is not lost in the events' own step."""


def capped(
    bench: Bench, args: argparse.Namespace, kernels: dict[str, Kernel], names: set[str]
) -> dict[str, int]:
    """Shared memory by kernel that holds every kind of it to --blocks-per-sm; empty without the flag."""
    if not args.blocks_per_sm:
        return {}
    out = {}
    for name in names:
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


@dataclass
class Weights:
    """The layers' weights on the device, and one layer's on the host; shared by both KV lengths."""

    host: decode.Data
    device: dict[str, Buffer]
    shared: dict[str, Buffer]
    layers: int
    finals: dict[int, NDArray[np.uint32]] = field(default_factory=dict)
    """The words after all layers, by KV length, once a chain was held to the oracle."""

    @classmethod
    def make(cls, bench: Bench, stack: ExitStack) -> Weights:
        """Seeded weights of one layer, copied until the layers are cold. Raises Unavailable without room."""
        bench.progress("decode13: weights of a 14B layer")
        host = decode.data(decode.LAYER_14B, bench.seed)
        free, _ = bench.gpu.free_bytes()
        size = l2_chains.layer_bytes(1)
        count = timing.rotation(size, bench.gpu.facts.l2_bytes, free)
        if 2 * size * count > free:
            raise Unavailable(
                f"decode13 needs {2 * size * count >> 20} MiB on the GPU, {free >> 20} are free"
            )
        device = {
            name: stack.enter_context(Buffer.of(array, count))
            for name, array in (
                ("w.qkv", host.qkv), ("w.o", host.o), ("w.gate_up", host.gate_up),
                ("w.down", pack(host.down, layout("dpl"))),
            )
        }  # fmt: skip
        shared = {
            name: stack.enter_context(Buffer.of(array))
            for name, array in (("gamma0", host.gamma[0]), ("gamma1", host.gamma[1]), ("h0", host.hidden))
        }
        for name in ("h1", "h2"):
            shared[name] = stack.enter_context(Buffer(host.hidden.nbytes))
        return cls(host, device, shared, count)


def decode_chains(
    bench: Bench, args: argparse.Namespace, case: l2.Case, kernels: Kernels,
    w: Weights, stack: ExitStack,
) -> list[Chain]:  # fmt: skip
    """decode13 of each backend at one KV length, its first layer held to the oracle, kernel by kernel."""
    assert case.kv, "decode13 has a KV length"
    steps = l2_chains.decode_steps(case.kv)
    names = {s.kernel for s in steps}
    cache = decode.cache(decode.LAYER_14B, case.kv, bench.seed + 9)
    table = decode.rope_table(case.kv - 1)
    caches = stack.enter_context(Buffer.of(cache, w.layers))
    shared = {
        **w.shared,
        "table": stack.enter_context(Buffer.of(table)),
        **{n: stack.enter_context(Buffer(s)) for n, s in l2_chains.activation_bytes(case.kv).items()},
    }
    fixed = {name: buffer.address for name, buffer in shared.items()}
    copies = []
    for k in range(w.layers):
        own = {name: buffer.address + k * buffer.pitch for name, buffer in w.device.items()}
        own |= {
            "w.cache": caches.address + k * caches.pitch,
            "in": fixed[_hidden(k)],
            "out": fixed[_hidden(k + 1)],
        }
        copies.append({**fixed, **own})
    bench.progress(f"decode13 at KV {case.kv}: the oracle of a layer")
    want = decode.run_layer(w.host, cache, w.host.hidden, table)
    out = []
    for backend, mine in kernels.items():
        chain = Chain(
            case, backend, mine, steps, copies,
            Output(shared[_hidden(w.layers)], w.host.hidden.size, np.empty(0, np.uint32)),
            capped(bench, args, mine, names), l2_chains.layer_bytes(case.kv),
            l2_chains.layer_bytes(case.kv) * w.layers, [shared[_hidden(k + 1)] for k in range(w.layers)],
        )  # fmt: skip
        final = check_layer(bench, chain, shared, caches, want, cache)
        known = w.finals.setdefault(case.kv, final)
        compare(final, known, f"decode13 at KV {case.kv}, {backend} against the other backend")
        chain.output = Output(chain.output.buffer, chain.output.words, known)
        out.append(chain)
    return out


def _hidden(k: int) -> str:
    """The buffer of the residual stream before layer k: the input, then two by turns."""
    return "h0" if k == 0 else f"h{1 + (k - 1) % 2}"


def check_layer(
    bench: Bench, chain: Chain, shared: dict[str, Buffer], caches: Buffer,
    want: dict[str, NDArray[Any]], cache: decode.F16,
) -> NDArray[np.uint32]:  # fmt: skip
    """Hold each kernel of the first layer to the oracle; returns the words after all layers, plainly run.

    want: buffers by name; cache: the first layer's as the oracle left it. Raises WrongResult.
    """
    for name, buffer in shared.items():
        if name in l2_chains.activation_bytes(1) or name in ("h1", "h2"):
            buffer.poison()
    plain = chain.launches(l2.arm(l2.BASELINE))
    for step, launch in zip(chain.steps, plain[0].launches, strict=True):
        launch.enqueue(bench.gpu.stream)
        name = l2_chains.WRITES[step.name]
        expected = want[name]
        buffer = shared[_hidden(1) if name == "h" else name]
        got = buffer.download(expected.dtype, expected.size)
        compare(got, expected, f"decode13 {step.name}/{chain.backend} at KV {chain.case.kv}")
    compare(caches.download(np.float16, cache.size), cache, f"decode13 KV cache/{chain.backend}")
    for layer in plain[1:]:
        layer.enqueue(bench.gpu.stream)
    return bits(chain.output.buffer.download(np.float32, chain.output.words))
