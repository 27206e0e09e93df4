"""The chains of L2 as tables: which kernel, how many blocks, which buffers, how many bytes.

A Step names its arguments: a string is a buffer (NULL is none), an int a 32-bit integer, a float a float32.
Nothing here knows a GPU: the same tables drive the launches, the tests on the host and the prediction.

A ring's block never ends before its last row, so a successor finds only what shared memory is left. A
geometry that names no stages takes at most its `SHARE` of an SM: the successor's first stages fill while it
still sums. Tickets are dealt, so no launch waits for a counter that another one uses. The PDL arms of a chain
share one geometry; the plain graph has the one that suits it best (`chosen`: a tuned row, else the rule).

A launch writes the activations, rotated by one unit, for its successor: launch k multiplies rotate(x8, k).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from probes.core.types import BadInput, Shape
from probes.device import pipeline, tuning
from probes.device.facts import DeviceFacts
from probes.device.tuning import Geometry
from probes.formats import chains, q4k
from probes.formats.layer import CONSTANTS, EPS, LAYER_14B, SCALE, Layer, splits
from probes.formats.layouts import layout
from probes.l2 import table
from probes.l2.table import CHAIN, ChainCase, ReadChain

BLOCK = 256
RINGS = ("q4k_ring", "q6k_ring")
ENDS = (*(f for forms in table.ROWS.values() for f in forms), "stream_8k", "stream_bulk")
"""Kernels that are plain or late, and have no entry kind."""

LATE = (
    "stream", "compute", "wide", "rms_quantise", "q4k", "q6k", "rope_store", "attention_split", *RINGS, *ENDS,
)  # fmt: skip
"""Kernels that have something to do before they need their predecessor; the others have no late kind."""

TRIGGER, STAMP, TAIL = 1, 2, 4
"""The kernels' flags: let the successor start at once; record start and end; let it start at the tail."""

TAILS = ("stream", "compute", "wide", "q4k", "q6k", *RINGS, *ENDS)
"""Kernels that know TAIL; in an arm with a tail the others let their successor start at once."""

NULL = "null"
"""The buffer that is none: a pointer of value 0."""

STREAM_TILES = 3540
"""bandwidth24: 58.0 MB a launch, the size of a 14B ffn_down."""

COMPUTE_ITERS = 160
"""compute24: steps of a narrow thread's words; about 11 us a full wave on an H200."""


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
    smem_bytes: int = 0  # dynamic shared memory that the kernel itself uses: a ring's stages

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
    table.check_kv(kv)
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
"""What each launch of a decode layer writes, by its name in `formats.layer.run_layer` (`out` is 'h')."""


def layer_bytes(kv: int, layer: Layer = LAYER_14B) -> int:
    """Cold bytes of one layer: weights and KV cache."""
    return sum(step.weight_bytes for step in decode_steps(kv, layer))


def hidden(k: int) -> str:
    """The buffer of the residual stream before layer k: the input, then two by turns."""
    return "h0" if k == 0 else f"h{1 + (k - 1) % 2}"


def ping_pong(k: int) -> tuple[str, str]:
    """(what launch k of a synthetic chain reads, what it writes)."""
    return ("start" if k == 0 else "ab"[(k - 1) % 2]), "ab"[k % 2]


def stream_steps(
    tiles: int = STREAM_TILES, launches: int = CHAIN, form: ReadChain | None = None
) -> tuple[Step, ...]:
    """bandwidth24, or a chain of reads: launch k reads its own weights `w.k`."""
    f = form or ReadChain("")
    own = f.block, tiles * f.tile, f.smem_bytes
    return tuple(Step("stream", f.kernel, tiles, (f"w.{k}", *ping_pong(k)), *own) for k in range(launches))


def compute_steps(
    grid: int, kernel: str = "compute", iters: int = COMPUTE_ITERS, launches: int = CHAIN
) -> tuple[Step, ...]:
    """compute24: `grid` blocks a launch, of `compute` (few registers) or `wide` (many)."""
    step = chains.STEP - 2**32 if chains.STEP >= 2**31 else chains.STEP
    return tuple(
        Step(kernel, kernel, grid, (*ping_pong(k), chains.FACTOR, step, iters)) for k in range(launches)
    )


def empty_steps(launches: int = CHAIN) -> tuple[Step, ...]:
    """Launches that do nothing."""
    return tuple(Step("empty", "empty", 1, (), 32) for _ in range(launches))


def tail_grid(sms: int, blocks_per_sm: int, waves: float) -> int:
    """Blocks of a launch of `waves` waves; at least one."""
    return max(1, round(sms * blocks_per_sm * waves))


def wide_iters(iters: int = COMPUTE_ITERS) -> int:
    """Steps of a wide thread that do about as many multiply-adds as a narrow one's `iters`."""
    return max(2, round(iters * chains.CONSTANTS.narrow / chains.CONSTANTS.wide))


SHARE = 2
"""Launches that are to have room on an SM at the same time: a launch and its successor."""

DEFAULT_ROWS = (8, 4, 2, 1)
"""Rows per fill where nobody swept, the best first."""


@dataclass(frozen=True, slots=True)
class ChainRing:
    """A matrix's ring with dealt tickets, fills prefetched into L2, and the plain graph's own ring if any."""

    ring: Geometry
    ahead: int = 0
    plain: Geometry | None = None

    @property
    def row(self) -> tuning.Chosen:
        """As it stands in a tuning table."""
        out: dict[str, Geometry | int] = {"ring": self.ring, "ahead": self.ahead}
        return out | ({"plain": self.plain} if self.plain else {})


Choices = Mapping[str, ChainRing]
"""Geometries by a matrix's name, in place of the chosen ones."""


@dataclass(frozen=True, slots=True)
class Matrix:
    """One matrix of a chain: q4_K as stored, or q6_K in the dpl layout."""

    name: str
    form: str
    shape: Shape

    @property
    def row_stride(self) -> int:
        """Bytes from one row to the next."""
        nbe = self.shape.nbe
        return nbe * q4k.BLOCK if self.form == "q4k" else layout("dpl").row_stride(nbe)

    @property
    def units(self) -> int:
        """What a row's virtual threads share: units of 64 values (q4_K) or of 32 (q6_K)."""
        return self.shape.nbe * (4 if self.form == "q4k" else 8)


MATRICES: dict[str, Matrix] = {
    "ffn_down24": Matrix("ffn_down", "q6k", Shape(5120, 13824)),
    "attn_v24": Matrix("attn_v", "q6k", Shape(1024, 5120)),
}
"""The chains of one matrix."""


def tuned(slug: str, chain: str, matrix: str) -> ChainRing | None:
    """The tuning table's row of one matrix, None without one. Raises BadInput for one that cannot be."""
    row = tuning.row(slug, "l2", chain, matrix)
    return None if row is None else as_ring(row, f"[l2.{chain}] {matrix}")


def as_ring(row: tuning.Chosen, where: str) -> ChainRing:
    """A tuning table's row. Raises BadInput for one that cannot be."""
    ring, ahead, plain = row.get("ring"), row.get("ahead"), row.get("plain")
    known = row.keys() - {"plain"} == {"ring", "ahead"}
    if not known or not isinstance(ring, Geometry) or not isinstance(ahead, int) or isinstance(plain, int):
        raise BadInput(f'{where}: a row is {{ ring = "4r1b0s-dealt", ahead = 0 }}, got {dict(row)}')
    for geometry in (ring, plain):
        if geometry and (geometry.drawn or geometry.sets != 1):
            raise BadInput(f"{where}: a chain's tickets are dealt to one consumer group, got {geometry}")
    return ChainRing(ring, ahead, plain)


def default_geometry(m: Matrix, facts: DeviceFacts) -> Geometry:
    """The rule without a tuned row: one block per SM, dealt tickets, two stages at least.

    A fill holds the most rows of 8, 4, 2, 1 that fit twice beside the successor and leave each SM a fill.
    """
    most = pipeline.room(SHARE, facts)
    fitting = [r for r in DEFAULT_ROWS if 2 * pipeline.stage_bytes(r, m.row_stride) <= most]
    if not fitting:
        return Geometry(1, 1)
    return Geometry(next((r for r in fitting if -(-m.shape.od // r) >= facts.sms), fitting[-1]), 1)


def chosen(case: str, m: Matrix, facts: DeviceFacts) -> ChainRing:
    """The geometry of one matrix on a device: its tuning table's, else the rule's."""
    return tuned(facts.slug, case, m.name) or ChainRing(default_geometry(m, facts))


def step_of(
    m: Matrix, buffers: tuple[str, str, str, str], choice: ChainRing, facts: DeviceFacts, plain: bool = False
) -> Step:
    """One launch; `buffers`: weights, activations, where they go on to, result. plain: in the plain graph.

    Raises Unavailable with the reason for a SKIPPED row (see `device.pipeline.plan`).
    """
    od, nbe = m.shape.od, m.shape.nbe
    geometry = replace(choice.plain if plain and choice.plain else choice.ring, drawn=False)
    fills = -(-od // max(1, geometry.rows))
    share = 1 if geometry.stages else SHARE
    made = pipeline.plan(m.units, m.row_stride, fills, geometry, facts, share=share)
    return Step(
        m.name, f"{m.form}_ring", made.config.grid,
        (*buffers, nbe, m.row_stride, od, made.rows, made.stages, choice.ahead),
        made.config.block, od * m.row_stride, made.config.smem_bytes,
    )  # fmt: skip


def steps(
    case: ChainCase, facts: DeviceFacts, choices: Choices | None = None, plain: bool = False
) -> tuple[Step, ...]:
    """The launches of a chain of ring kernels, in PDL arms or in the plain graph. Raises as `step_of`."""

    def step(m: Matrix, buffers: tuple[str, str, str, str]) -> Step:
        choice = (choices or {}).get(m.name) or chosen(case.chain, m, facts)
        return step_of(m, buffers, choice, facts, plain)

    if m := MATRICES.get(case.chain):
        hands = [ping_pong(k) for k in range(table.CHAIN)]
        return tuple(step(m, (f"w.{k}", f"{a}8", f"{b}8", f"out.{k}")) for k, (a, b) in enumerate(hands))
    assert case.kv, "a decode layer has a KV length"
    out = []
    for s in decode_steps(case.kv):
        if found := matrix_of(s):
            w, x8, result = (str(a) for a in s.args[:3])
            s = step(found, (w, x8, NULL, result))
        out.append(s)
    return tuple(out)


def matrix_of(step: Step) -> Matrix | None:
    """The matrix of a decode layer's launch, None where it is no matrix."""
    if step.kernel not in ("q4k", "q6k"):
        return None
    od = step.grid * (8 if step.kernel == "q4k" else 1)  # a row per warp, a row per block
    return Matrix(step.name, step.kernel, Shape(od, 256 * int(step.args[3])))
