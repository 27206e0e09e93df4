"""The 13 kernels of a decode layer in NumPy float32, each with its order of operations: the oracle of L2.

Every operation rounds to float32 by itself (no FMA). The butterfly is that of `reduction`.

    rms_quantise      sum of squares in the reference order (256 threads, thread t takes t, t + 256, …), then
                      r = 1 / sqrt(sum / n + eps), y = (x * r) * gamma, then q8
    matmul            q4k.reference, q6k.reference: the reference order
    rope_store        pairs (i, i + 64) of a head: a*c - b*s and b*c + a*s; k and v are stored as f16
    attention_split   per 64 positions and KV head: 4 dims a lane, ((q0k0 + q1k1) + q2k2) + q3k3, butterfly,
                      * scale; m = max; p = exp(s - m), lane sums p[lane] + p[lane + 32], butterfly;
                      acc = even positions ascending from 0, odd ones ascending from 0, even + odd
    attention_combine M = max of m; w = exp(m - M); L = sum of l*w, A = sum of acc*w, splits ascending from 0;
                      A / L
    quantise, swiglu_quantise, add   elementwise; q8 and exp as in the modules of those names

The KV cache is f16.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from probes.core.types import BadInput, Shape
from probes.formats import kquant, q4k, q6k, q8
from probes.formats.q8 import F32, U8
from probes.formats.reduction import butterfly, reduce_units
from probes.formats.swiglu import exp, swiglu

F16: TypeAlias = NDArray[np.float16]
Buffers: TypeAlias = dict[str, NDArray[Any]]


class Constants(NamedTuple):
    """Compile-time sizes that both kernel languages read."""

    head: int  # values of one head
    group: int  # query heads that share one KV head
    chunk: int  # positions of one attention split
    part: int  # floats of one split's result: `head` sums, then m, l and two zeros


CONSTANTS: Final = Constants(head=128, group=5, chunk=64, part=132)

EPS: Final = float(np.float32(1e-6))
SCALE: Final = float(np.float32(1.0 / np.sqrt(128.0)))  # 1 / sqrt(head) as a float32


@dataclass(frozen=True, slots=True)
class Layer:
    """Sizes of one decode layer; the default is a 14B model's."""

    hidden: int = 5120
    ffn: int = 13824
    kv_heads: int = 8

    @property
    def heads(self) -> int:
        return self.kv_heads * CONSTANTS.group

    @property
    def kv_values(self) -> int:
        """Values of one position's keys, or values."""
        return self.kv_heads * CONSTANTS.head

    @property
    def qkv(self) -> Shape:
        """Query, key and value rows, q4_K."""
        return Shape(self.heads * CONSTANTS.head + 2 * self.kv_values, self.hidden)

    @property
    def o(self) -> Shape:
        """Attention output, q4_K."""
        return Shape(self.hidden, self.heads * CONSTANTS.head)

    @property
    def gate_up(self) -> Shape:
        """Gate rows, then up rows, q4_K."""
        return Shape(2 * self.ffn, self.hidden)

    @property
    def down(self) -> Shape:
        """Down projection, q6_K."""
        return Shape(self.hidden, self.ffn)


LAYER_14B: Final = Layer()


def splits(kv: int) -> int:
    """Attention splits of `kv` positions."""
    return -(-kv // CONSTANTS.chunk)


def rms(x: F32, gamma: F32, eps: float = EPS) -> F32:
    """(x * r) * gamma of x f32[n], r = 1 / sqrt(sum(x*x) / n + eps)."""
    mean = reduce_units((x * x)[None, :])[0] / np.float32(x.size)
    r = np.float32(1.0) / np.sqrt(mean + np.float32(eps))
    return np.asarray((x * r) * gamma, np.float32)


def rms_quantise(x: F32, gamma: F32, eps: float = EPS) -> U8:
    """pad40 bytes u8[n // 32 * 40] of rms(x)."""
    return q8.quantise(rms(x, gamma, eps))


def swiglu_quantise(gu: F32) -> U8:
    """pad40 bytes of swiglu(gate, up), gu f32[2 * nf]: gate first."""
    gate, up = gu.reshape(2, -1)
    return q8.quantise(swiglu(gate, up))


def rope_table(position: int) -> F32:
    """cos then sin of position * 1e6^(-i / 64), i < 64, f32[128]: made on the host, in float64."""
    half = CONSTANTS.head // 2
    angle = position * 1e6 ** (-np.arange(half) / half)
    return np.concatenate([np.cos(angle), np.sin(angle)]).astype(np.float32)


def rotate(heads: F32, table: F32) -> F32:
    """Rotary embedding of f32[h, 128] by f32[128] of cos and sin, halves paired."""
    half = CONSTANTS.head // 2
    a, b = heads[:, :half], heads[:, half:]
    c, s = table[:half], table[half:]
    return np.concatenate([a * c - b * s, b * c + a * s], axis=1)


def rope_store(qkv: F32, table: F32, layer: Layer = LAYER_14B) -> tuple[F32, F16, F16]:
    """Rotated queries f32[heads * 128], and the new key and value f16[kv_heads, 128]."""
    d = CONSTANTS.head
    q, k, v = np.split(qkv.reshape(-1, d), [layer.heads, layer.heads + layer.kv_heads])
    return rotate(q, table).reshape(-1), rotate(k, table).astype(np.float16), v.astype(np.float16)


def attention_split(q: F32, cache: F16, kv: int, scale: float = SCALE) -> F32:
    """Partial results f32[heads, splits, 132]: 128 sums, m, l, two zeros.

    q: f32[heads * 128]; cache: f16[2, kv_heads, kv, 128], keys then values.
    """
    c = CONSTANTS
    kv_heads, n = cache.shape[1], splits(kv)
    if cache.shape != (2, kv_heads, kv, c.head) or q.size != kv_heads * c.group * c.head:
        raise BadInput(f"a cache of shape {cache.shape} does not fit {q.size} queries and {kv} positions")
    out = np.zeros((kv_heads * c.group, n, c.part), np.float32)
    valid = np.arange(n * c.chunk) < kv
    for head in range(kv_heads * c.group):
        keys, values = cache[:, head // c.group].astype(np.float32)
        product = keys.reshape(kv, 32, 4) * q.reshape(-1, 32, 4)[head]
        lanes = product[..., 0]
        for k in range(1, 4):
            lanes = lanes + product[..., k]
        flat = np.full(n * c.chunk, -np.inf, np.float32)
        flat[:kv] = butterfly(lanes) * np.float32(scale)
        s = flat.reshape(n, c.chunk)
        m = s.max(axis=1)
        p = np.where(valid.reshape(n, c.chunk), exp(s - m[:, None]), np.float32(0.0))
        out[head, :, c.head] = m
        out[head, :, c.head + 1] = butterfly(p[:, :32] + p[:, 32:])
        v = np.zeros((n, c.chunk, c.head), np.float32)
        v.reshape(-1, c.head)[:kv] = values
        half = np.zeros((2, n, c.head), np.float32)
        for k in range(c.chunk):  # past the end p is +0 and v too: adding +0 changes nothing
            half[k % 2] += p[:, k, None] * v[:, k]
        out[head, :, : c.head] = half[0] + half[1]
    return out


def attention_combine(parts: F32) -> F32:
    """Attention output f32[heads * 128] of attention_split's parts f32[heads, splits, 132]."""
    d = CONSTANTS.head
    m = parts[:, :, d]
    weighted = parts[:, :, : d + 2] * exp(m - m.max(axis=1)[:, None])[..., None]
    total = np.zeros_like(weighted[:, 0])
    for s in range(parts.shape[1]):
        total += weighted[:, s]
    return np.asarray(total[:, :d] / total[:, d + 1 :], np.float32).reshape(-1)


def weights(shape: Shape, seed: int, kind: str) -> U8:
    """Seeded weights, raw rows u8[od, …] of `kind` q4_K or q6_K, that keep a unit-sized input unit-sized.

    Every byte is random except d and dmin: a subnormal f16 of random sign, n to 2n - 1 units of 2^-24, with
    n such that a row's dot with values of size 1 has a size of about 1 at 14B's widths.
    """
    if kind not in ("q4_K", "q6_K"):
        raise BadInput(f"weights are q4_K or q6_K, got {kind!r}")
    form, least = (q4k.FORM, 512) if kind == "q4_K" else (q6k.FORM, 64)
    raw, size = kquant.random_raw(shape, seed, form), (shape.od, shape.nbe)
    rng = np.random.default_rng(seed)
    blocks = raw.reshape(*size, form.block)
    for offset in form.scales.values():
        bits = rng.integers(least, 2 * least, size, dtype=np.uint16)
        bits |= rng.integers(0, 2, size, dtype=np.uint16) << np.uint16(15)
        blocks[:, :, offset : offset + 2] = bits.astype("<u2")[..., None].view(np.uint8)
    return raw


@dataclass(frozen=True)
class Data:
    """One layer's seeded data on the host; every layer of a chain holds a copy of its own."""

    qkv: U8
    o: U8
    gate_up: U8
    down: U8
    gamma: F32  # f32[2, hidden]: before attention, before the feed-forward part
    hidden: F32  # the first layer's input, f32[hidden]


def data(layer: Layer, seed: int) -> Data:
    """Seeded weights and input of a layer."""
    rng = np.random.default_rng(seed)
    return Data(
        weights(layer.qkv, seed + 1, "q4_K"),
        weights(layer.o, seed + 2, "q4_K"),
        weights(layer.gate_up, seed + 3, "q4_K"),
        weights(layer.down, seed + 4, "q6_K"),
        rng.uniform(0.5, 1.5, (2, layer.hidden)).astype(np.float32),
        rng.standard_normal(layer.hidden).astype(np.float32),
    )


def cache(layer: Layer, kv: int, seed: int) -> F16:
    """A seeded KV cache f16[2, kv_heads, kv, 128] of unit-sized values."""
    shape = (2, layer.kv_heads, kv, CONSTANTS.head)
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32).astype(np.float16)


def last_position(kv_cache: F16) -> tuple[int, int, int, int]:
    """Where a cache's last position lies in its bytes: (offset, pitch, width, rows)."""
    planes, heads, kv, size = kv_cache.shape
    width = kv_cache.itemsize * size
    return (kv - 1) * width, kv * width, width, planes * heads


def run_layer(d: Data, kv_cache: F16, h: F32, table: F32, layer: Layer = LAYER_14B) -> Buffers:
    """All 13 kernels in order on input h f32[hidden]; every buffer by name.

    `kv_cache` gains the last position, in place, as the kernels do.
    """
    kv = kv_cache.shape[2]
    out: Buffers = {}
    out["x8"] = rms_quantise(h, d.gamma[0])
    out["qkv"] = q4k.reference(d.qkv, out["x8"])
    out["q"], kv_cache[0, :, kv - 1], kv_cache[1, :, kv - 1] = rope_store(out["qkv"], table, layer)
    out["parts"] = attention_split(out["q"], kv_cache, kv)
    out["attention"] = attention_combine(out["parts"])
    out["a8"] = q8.quantise(out["attention"])
    out["o"] = q4k.reference(d.o, out["a8"])
    out["middle"] = h + out["o"]
    out["m8"] = rms_quantise(out["middle"], d.gamma[1])
    out["gu"] = q4k.reference(d.gate_up, out["m8"])
    out["f8"] = swiglu_quantise(out["gu"])
    out["down"] = q6k.reference(d.down, out["f8"])
    out["h"] = out["middle"] + out["down"]
    return out
