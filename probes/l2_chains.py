"""The chains of L2 as tables: which kernel, how many blocks, which buffers, how many bytes.

A Step names its arguments: a string is a buffer (NULL is none), an int a 32-bit integer, a float a float32.
Nothing here knows a GPU: the same tables drive the launches, the tests on the host and the prediction. The
chains of ring kernels, which need a device's facts, are in `l2_ring`.
"""

from __future__ import annotations

from dataclasses import dataclass

from probes.core import chains, q4k
from probes.core.decode import CONSTANTS, EPS, LAYER_14B, SCALE, Layer, splits
from probes.core.layouts import layout
from probes.core.types import BadInput, Shape

BLOCK = 256
RINGS = ("q4k_ring", "q6k_ring")
LATE = (
    "stream", "compute", "wide", "rms_quantise", "q4k", "q6k", "rope_store", "attention_split", *RINGS,
)  # fmt: skip
"""Kernels that have something to do before they need their predecessor; the others have no late kind."""

TRIGGER, STAMP, TAIL = 1, 2, 4
"""The kernels' flags: let the successor start at once; record start and end; let it start at the tail."""

TAILS = ("stream", "compute", "wide", "q4k", "q6k", *RINGS)
"""Kernels that know TAIL; in an arm with a tail the others let their successor start at once."""

NULL = "null"
"""The buffer that is none: a pointer of value 0."""

MOST_SPLITS = 256
"""What attention_combine holds in shared memory."""

STREAM_TILES = 3540
"""bandwidth24: 58.0 MB a launch, the size of a 14B ffn_down."""

COMPUTE_ITERS = 160
"""compute24: steps of a narrow thread's words; about 11 us a full wave on an H200."""

COMPUTE_WAVES = 1.5
"""compute24: waves of each launch, as recorded for the fused kernel on a GB10 (432 blocks on 48 x 6)."""


@dataclass(frozen=True, slots=True)
class Step:
    """One launch of a chain."""

    name: str
    kernel: str
    grid: int
    args: tuple[str | int | float, ...]
    block: int = BLOCK
    weight_bytes: int = 0
    """Bytes that no other launch of the chain reads and that come from cold memory."""
    smem_bytes: int = 0
    """Dynamic shared memory that the kernel itself uses: a ring's stages."""

    def entry_point(self, kind: str) -> str:
        """The compiled kernel of one kind; a kernel without a late kind takes its entry kind."""
        own = "entry" if kind == "late" and self.kernel not in LATE else kind
        return f"l2_{self.kernel}_{own}"

    def flags(self, trigger: str) -> int:
        """The kernel's `flags` for a successor that starts at the `end`, the `start` or the `tail`."""
        if trigger == "tail" and self.kernel in TAILS:
            return TAIL
        return 0 if trigger == "end" else TRIGGER


def q4k_bytes(shape: Shape) -> int:
    """Stored bytes of a q4_K matrix."""
    return shape.od * shape.nbe * q4k.BLOCK


def down_stride(layer: Layer) -> int:
    """Row stride of the down projection in the dpl layout, bytes."""
    return layout("dpl").row_stride(layer.down.nbe)


def decode_steps(kv: int, layer: Layer = LAYER_14B) -> tuple[Step, ...]:
    """The 13 launches of a decode layer at KV length `kv` (the new position included).

    Buffers `in`, `out` and `w.*` are a layer's own, all others are shared by the layers. Raises BadInput
    for a KV length that the kernels cannot hold.
    """
    if not 1 <= kv <= MOST_SPLITS * CONSTANTS.chunk:
        raise BadInput(f"the KV length must be 1 to {MOST_SPLITS * CONSTANTS.chunk}, got {kv}")
    for shape in (layer.qkv, layer.o, layer.gate_up):
        if shape.od % 8 or shape.nbe * 4 > 256:
            raise BadInput(f"the q4_K kernel takes od % 8 == 0 and id <= 16384, got {shape}")
    if layer.hidden % BLOCK or layer.ffn % BLOCK:
        raise BadInput(f"hidden and ffn must be multiples of {BLOCK}, got {layer.hidden} and {layer.ffn}")
    attention, n = layer.heads * CONSTANTS.head, splits(kv)
    hidden_grid, cache = layer.hidden // BLOCK, 2 * kv * layer.kv_values * 2

    def matmul(name: str, shape: Shape, weights: str, x8: str, out: str) -> Step:
        size = q4k_bytes(shape)
        return Step(name, "q4k", shape.od // 8, (weights, x8, out, shape.nbe), weight_bytes=size)

    return (
        Step("rms_quantise", "rms_quantise", hidden_grid, ("in", "gamma0", "x8", layer.hidden, EPS)),
        matmul("qkv", layer.qkv, "w.qkv", "x8", "qkv"),
        Step(
            "rope_store", "rope_store", layer.qkv.od // BLOCK,
            ("qkv", "table", "q", "w.cache", layer.heads, layer.kv_heads, kv),
        ),
        Step(
            "attention_split", "attention_split", layer.kv_heads * n,
            ("q", "w.cache", "parts", layer.kv_heads, kv, n, SCALE), weight_bytes=cache,
        ),
        Step(
            "attention_combine", "attention_combine", layer.heads, ("parts", "attention", n), CONSTANTS.head
        ),
        Step("quantise", "quantise", attention // BLOCK, ("attention", "a8")),
        matmul("o", layer.o, "w.o", "a8", "o"),
        Step("add", "add", hidden_grid, ("in", "o", "middle")),
        Step("rms_quantise_2", "rms_quantise", hidden_grid, ("middle", "gamma1", "m8", layer.hidden, EPS)),
        matmul("gate_up", layer.gate_up, "w.gate_up", "m8", "gu"),
        Step("swiglu_quantise", "swiglu_quantise", layer.ffn // BLOCK, ("gu", "f8", layer.ffn)),
        Step(
            "down", "q6k", layer.down.od, ("w.down", "f8", "down", layer.down.nbe, down_stride(layer)),
            weight_bytes=layer.down.od * down_stride(layer),
        ),
        Step("add_2", "add", hidden_grid, ("middle", "down", "out")),
    )  # fmt: skip


def activation_bytes(kv: int, layer: Layer = LAYER_14B) -> dict[str, int]:
    """Sizes of the buffers that the layers of a decode chain share."""
    attention = layer.heads * CONSTANTS.head
    pad40 = 40 / 32
    return {
        "x8": int(layer.hidden * pad40), "qkv": 4 * layer.qkv.od, "q": 4 * attention,
        "parts": 4 * layer.heads * splits(kv) * CONSTANTS.part, "attention": 4 * attention,
        "a8": int(attention * pad40), "o": 4 * layer.hidden, "middle": 4 * layer.hidden,
        "m8": int(layer.hidden * pad40), "gu": 8 * layer.ffn, "f8": int(layer.ffn * pad40),
        "down": 4 * layer.hidden,
    }  # fmt: skip


WRITES = {
    "rms_quantise": "x8", "qkv": "qkv", "rope_store": "q", "attention_split": "parts",
    "attention_combine": "attention", "quantise": "a8", "o": "o", "add": "middle", "rms_quantise_2": "m8",
    "gate_up": "gu", "swiglu_quantise": "f8", "down": "down", "add_2": "h",
}  # fmt: skip
"""What each launch of a decode layer writes, by its name in `core.decode.run_layer` (`out` is 'h' there)."""


def layer_bytes(kv: int, layer: Layer = LAYER_14B) -> int:
    """Cold bytes of one layer: weights and KV cache."""
    return sum(step.weight_bytes for step in decode_steps(kv, layer))


def ping_pong(k: int) -> tuple[str, str]:
    """(what launch k of a synthetic chain reads, what it writes)."""
    return ("start" if k == 0 else "ab"[(k - 1) % 2]), "ab"[k % 2]


def stream_steps(tiles: int = STREAM_TILES, launches: int = chains.CHAIN) -> tuple[Step, ...]:
    """bandwidth24: launch k reads its own weights `w.k`."""
    size = tiles * chains.CONSTANTS.tile
    return tuple(
        Step("stream", "stream", tiles, (f"w.{k}", *ping_pong(k)), weight_bytes=size) for k in range(launches)
    )


def compute_steps(
    grid: int, kernel: str = "compute", iters: int = COMPUTE_ITERS, launches: int = chains.CHAIN
) -> tuple[Step, ...]:
    """compute24: `grid` blocks a launch, of `compute` (few registers) or `wide` (many)."""
    step = chains.STEP - 2**32 if chains.STEP >= 2**31 else chains.STEP
    return tuple(
        Step(kernel, kernel, grid, (*ping_pong(k), chains.FACTOR, step, iters)) for k in range(launches)
    )


def empty_steps(launches: int = chains.CHAIN) -> tuple[Step, ...]:
    """Launches that do nothing."""
    return tuple(Step("empty", "empty", 1, (), 32) for _ in range(launches))


def tail_grid(sms: int, blocks_per_sm: int, waves: float) -> int:
    """Blocks of a launch of `waves` waves; at least one."""
    return max(1, round(sms * blocks_per_sm * waves))


def wide_iters(iters: int = COMPUTE_ITERS) -> int:
    """Steps of a wide thread that do about as many multiply-adds as a narrow one's `iters`."""
    return max(2, round(iters * chains.CONSTANTS.narrow / chains.CONSTANTS.wide))


def kernel_names() -> list[str]:
    """Every compiled kernel of the chains."""
    kernels = [*dict.fromkeys(s.kernel for s in decode_steps(1)), "stream", "compute", "wide", "empty"]
    kernels += RINGS
    return [
        f"l2_{k}_{kind}"
        for k in kernels
        for kind in ("plain", "entry", "late")
        if kind != "late" or k in LATE
    ]
