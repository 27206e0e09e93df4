"""decode13 and decode13_ring on the device: a layer's weights and cache, and the oracle of its 13 kernels.

Every kernel of the first layer is held to the oracle, buffer by buffer; the words after all layers are those
of decode13's plain launches, and every arm of both chains and backends must give them.
"""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probes import l2, l2_chains, l2_ring
from probes.bench import Bench, bits
from probes.core import decode
from probes.core.layouts import layout
from probes.core.packing import pack
from probes.core.types import Unavailable
from probes.gpu import timing
from probes.gpu.memory import Buffer
from probes.gpu.timing import Output
from probes.l2_buffers import Kernels, capped
from probes.l2_launch import Chain, compare, make_room


@dataclass
class Weights:
    """The layers' weights on the device, and one layer's on the host; shared by both KV lengths."""

    host: decode.Data
    device: dict[str, Buffer]
    shared: dict[str, Buffer]
    layers: int
    finals: dict[int, NDArray[np.uint32]] = field(default_factory=dict)
    """The words after all layers, by KV length, once decode13's kernels were held to the oracle."""
    oracles: dict[int, tuple[dict[str, NDArray[Any]], decode.F16]] = field(default_factory=dict)
    """By KV length: a layer's buffers by name, and the cache that it leaves."""

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

    def oracle(self, kv: int, cache: decode.F16) -> tuple[dict[str, NDArray[Any]], decode.F16]:
        """The first layer's buffers by name, and the cache that it leaves; `cache` stays as it is."""
        if kv not in self.oracles:
            left = cache.copy()
            want = decode.run_layer(self.host, left, self.host.hidden, decode.rope_table(kv - 1))
            self.oracles[kv] = want, left
        return self.oracles[kv]


def decode_chains(
    bench: Bench, args: argparse.Namespace, case: l2.Case, kernels: Kernels,
    w: Weights, stack: ExitStack,
) -> list[Chain]:  # fmt: skip
    """A decode chain of each backend at one KV length, its first layer held to the oracle, kernel by kernel.

    Raises Unavailable where a ring does not fit here.
    """
    assert case.kv, "a decode layer has a KV length"
    plain, ring = l2_chains.decode_steps(case.kv), case.id in l2.RING
    steps = l2_ring.steps(case, bench.gpu.facts) if ring else plain
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
    bench.progress(f"{case.id} at KV {case.kv}: the oracle of a layer")
    want, left = w.oracle(case.kv, cache)
    out = []
    for backend, mine in kernels.items():
        chain = Chain(
            case, backend, mine, steps, copies,
            Output(shared[_hidden(w.layers)], w.host.hidden.size, np.empty(0, np.uint32)),
            capped(bench, args, mine, names), l2_chains.layer_bytes(case.kv),
            l2_chains.layer_bytes(case.kv) * w.layers, [shared[_hidden(k + 1)] for k in range(w.layers)],
        )  # fmt: skip
        if ring:
            chain.plain_steps = l2_ring.steps(case, bench.gpu.facts, plain=True)
            make_room(bench, chain, stack)
            if case.kv not in w.finals:  # decode13 was left out: its kernels give the words all the same
                without = replace(chain, steps=plain, plain_steps=())
                w.finals[case.kv] = check_layer(bench, without, shared, caches, want, left)
        final = check_layer(bench, chain, shared, caches, want, left)
        known = w.finals.setdefault(case.kv, final)
        compare(final, known, f"{case.id} at KV {case.kv}, {backend} against decode13 of the first backend")
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
        compare(got, expected, f"{chain.case.id} {step.name}/{chain.backend} at KV {chain.case.kv}")
    compare(caches.download(np.float16, cache.size), cache, f"{chain.case.id} KV cache/{chain.backend}")
    for layer in plain[1:]:
        layer.enqueue(bench.gpu.stream)
    return bits(chain.output.buffer.download(np.float32, chain.output.words))
