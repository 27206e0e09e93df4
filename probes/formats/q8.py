"""q8 activations in the "pad40" form: 40 bytes per 32 values.

Float16 scale `d` at 0, two zero bytes, int8 `q[32]` at 4, the int32 sum of `q` at 36. Value = d * q.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from probes.core.types import QK_K, UNIT, BadInput

U8: TypeAlias = NDArray[np.uint8]
F32: TypeAlias = NDArray[np.float32]
F64: TypeAlias = NDArray[np.float64]

PAD40 = 40  # bytes of one block of 32 activations
_BLOCK = np.dtype([("d", "<f2"), ("pad", "<u2"), ("q", "i1", (UNIT,)), ("sum", "<i4")])


def quantise(x: F32) -> U8:
    """Quantise `x` f32[id] (id % 32 == 0) to u8[id // 32 * 40].

    Per block, each step rounded to float32: d = max|x| / 127; r = 1 / d (0 where d is 0);
    q = clamp(rint(x * r), -128, 127); d is stored as float16 only after q was made from the
    float32 d. A d that is too small for float16 is stored as a subnormal or as 0.

    Raises BadInput for a NaN or infinite value, and for a block whose d overflows float16 (65520
    and up) or whose 1 / d overflows float32; names the first such value or block.
    """
    if x.ndim != 1 or x.size == 0 or x.size % UNIT:
        raise BadInput(f"activations must be one row of a positive multiple of {UNIT} values, got {x.shape}")
    if x.dtype != np.float32:
        raise BadInput(f"activations must be float32, got {x.dtype}")
    bad = np.flatnonzero(~np.isfinite(x))
    if bad.size:
        raise BadInput(f"activation {bad[0]} is {x[bad[0]]}: q8 holds finite values only")
    blocks = x.reshape(-1, UNIT)
    top = np.abs(blocks).max(axis=1)
    d = top / np.float32(127.0)
    with np.errstate(divide="ignore", over="ignore"):
        inverse = np.float32(1.0) / d
        stored = d.astype(np.float16)
    inverse[d == 0] = 0.0
    for limit, why in ((stored, "does not fit float16"), (inverse, "has no float32 inverse")):
        broken = np.isinf(limit)
        if broken.any():
            b = int(np.argmax(broken))
            span = f"{b * UNIT}..{b * UNIT + UNIT - 1}"
            raise BadInput(f"activations {span}: scale {d[b]:g} {why}; rescale them")
    out = np.zeros(len(blocks), _BLOCK)
    out["d"] = stored
    out["q"] = np.clip(np.rint(blocks * inverse[:, None]), -128, 127).astype(np.int8)
    out["sum"] = out["q"].sum(axis=1, dtype=np.int32)
    return out.view(np.uint8)


def unpack(x8: U8) -> tuple[NDArray[np.float16], NDArray[np.int8], NDArray[np.int32]]:
    """Split pad40 bytes u8[n * 40] into (d f16[n], q int8[n, 32], sum int32[n]).

    Raises BadInput unless `x8` is one row of a positive multiple of 40 bytes.
    """
    if x8.ndim != 1 or x8.dtype != np.uint8 or x8.size == 0 or x8.size % PAD40:
        raise BadInput(f"q8 bytes must be one row of a multiple of {PAD40} uint8, got {x8.dtype} {x8.shape}")
    blocks = np.ascontiguousarray(x8).view(_BLOCK)
    return blocks["d"].copy(), blocks["q"].copy(), blocks["sum"].copy()


def dequantise(x8: U8) -> F32:
    """The values d * q, f32[id]. Exact: 11 significant bits times 8 fit float32's 24."""
    d, q, _ = unpack(x8)
    return (d.astype(np.float32)[:, None] * q.astype(np.float32)).reshape(-1)


def units_for(x8: U8, id_: int) -> tuple[F32, NDArray[np.int8]]:
    """Activations of one row of `id_` weights: d f32[id // 32] and q int8[id // 256, 256].

    Raises BadInput where `x8` holds another number of values.
    """
    d, q, _ = unpack(x8)
    if q.size != id_:
        raise BadInput(f"{q.size} activations do not fit weight rows of {id_} values")
    return d.astype(np.float32), q.reshape(-1, QK_K)


def random_x8(id_: int, seed: int) -> U8:
    """Seeded activations u8[id // 32 * 40]: normal values, each block with a scale of its own (2^-6..2^6)."""
    rng = np.random.Generator(np.random.SFC64(seed))
    x = rng.standard_normal((id_ // UNIT, UNIT), dtype=np.float32)
    x *= np.exp2(rng.uniform(-6.0, 6.0, (id_ // UNIT, 1))).astype(np.float32)
    return quantise(x.reshape(-1))
