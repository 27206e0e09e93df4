"""What q4_K and q6_K share: rows of super-blocks, float16 scales, and the walk of the oracle over them.

Rows are u8[..., nbe * block]. A sub-block holds the values of one scale; two of them make the term of a unit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from probes.core.types import QK_K, UNIT, BadInput, Shape
from probes.formats import q8
from probes.formats.q8 import F32, U8
from probes.formats.reduction import CHUNK_VALUES, reduce_units, spread


class Format(NamedTuple):
    """One format: its name, bytes of a super-block, values of a sub-block, where its float16 scales lie."""

    name: str
    block: int
    sub: int
    scales: dict[str, int]


def blocks(raw: U8, form: Format) -> U8:
    """`raw` u8[..., nbe * block] as u8[..., nbe, block]; BadInput for any other length or type."""
    if raw.dtype != np.uint8 or raw.ndim < 1 or raw.shape[-1] == 0 or raw.shape[-1] % form.block:
        got = f"{raw.dtype} {raw.shape}"
        raise BadInput(f"{form.name} rows must be a multiple of {form.block} uint8, got {got}")
    return raw.reshape(*raw.shape[:-1], -1, form.block)


def check_scales(raw: U8, what: str, form: Format, part: tuple[int, int] | None = None) -> None:
    """Raise BadInput naming the first super-block of `raw` with a scale that is not finite.

    part: of a flat piece u8[n * block], the super-block that it begins at and how many a row has.
    """
    found = blocks(raw, form)
    for name, at in form.scales.items():
        bad = (found[..., at + 1] & np.uint8(0x7C)) == 0x7C
        if bad.any():
            where = np.unravel_index(int(np.argmax(bad)), bad.shape)
            value = np.ascontiguousarray(found[where][at : at + 2]).view("<f2")[0]
            row, block = divmod(part[0] + int(where[-1]), part[1]) if part else (where[0], where[-1])
            place = f"row {row}, super-block {block}"
            raise BadInput(f"{what}: {name} is {value} in {place}; the tensor is damaged")


def random_raw(shape: Shape, seed: int, form: Format) -> U8:
    """Seeded random weights u8[od, nbe * block]: every byte random, scales finite and below 2.

    A scale keeps its random sign and mantissa, and its top exponent bit is cleared: one block in sixteen has
    a subnormal (rarely zero) scale. NaN, which random bits give too, never equals itself.
    """
    size = shape.od * shape.nbe * form.block
    words = np.random.SFC64(seed).random_raw(-(-size // 8))
    raw: U8 = words.view(np.uint8)[:size].reshape(shape.od, shape.nbe, form.block)
    for at in form.scales.values():
        raw[:, :, at + 1] &= np.uint8(0xBF)
    return raw.reshape(shape.od, shape.nbe * form.block)


def reference(
    raw: U8, x8: U8, rows: NDArray[np.int64] | None, form: Format,
    decode: Callable[[U8], U8], contributions: Callable[[U8, F32, F32, F32], F32],
) -> F32:  # fmt: skip
    """Rows of `raw` u8[od, nbe * block] (all, or the k of `rows`) times `x8` u8[id // 32 * 40], f32[k].

    contributions(blocks, d8, dot, sx): every sub-block's part of the product, f32[nbe, k, 256 // sub], of
    blocks u8[nbe, k, block] and per sub-block d8, the exact sum of q * x and that of x.
    """
    found = blocks(raw, form)
    if found.ndim != 3:
        raise BadInput(f"weights must be rows by bytes, got shape {raw.shape}")
    nbe, subs = found.shape[1], QK_K // form.sub
    d8, x = q8.units_for(x8, nbe * QK_K)
    x_spread = spread(x, form.sub)
    x_sum = x.reshape(nbe, 1, subs, form.sub).sum(axis=3, dtype=np.int32).astype(np.float32)
    d8_sub = np.repeat(d8.reshape(nbe, 1, QK_K // UNIT), UNIT // form.sub, axis=2)
    wanted = np.arange(len(found)) if rows is None else rows
    out = np.empty(len(wanted), np.float32)
    step = max(1, CHUNK_VALUES // (nbe * QK_K))
    for first in range(0, len(wanted), step):
        # Super-block first, row second: one BLAS call per super-block over all rows of the chunk.
        part = np.ascontiguousarray(found[wanted[first : first + step]].transpose(1, 0, 2))
        dot = np.matmul(decode(part).astype(np.float32), x_spread)
        halves = contributions(part, d8_sub, dot, x_sum)
        terms = halves[..., 0::2] + halves[..., 1::2]
        out[first : first + step] = reduce_units(terms.transpose(1, 0, 2).reshape(part.shape[1], -1))
    return out
