"""What L3's kernels are made of, without a launch: quantising in both languages, tickets, seeded data."""

from __future__ import annotations

import ctypes
import os
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from probes.core.types import BadInput, Unavailable
from probes.formats import q8, swiglu
from probes.l3 import data
from probes.l3.data import Wanted
from probes.l3.plan import ROWS as RING_ROWS
from tests import host_cpp
from tests.host_calls import pointer

ROWS = RING_ROWS["form_c"]


def same(got: NDArray[Any], want: NDArray[Any]) -> None:
    np.testing.assert_array_equal(got.view(np.uint32), want.view(np.uint32))


def host() -> ctypes.CDLL:

    try:
        return host_cpp.library()
    except Unavailable as error:
        if os.environ.get("CI"):
            pytest.fail(f"CI needs a host compiler: {error}")
        pytest.skip(str(error))


# Quantising


def values() -> NDArray[np.float32]:
    """Blocks of every kind: normal values of all sizes, ties of rint, zeros, one value alone, subnormal d."""
    rng = np.random.default_rng(11)
    blocks = [rng.standard_normal(32) * s for s in 10.0 ** np.arange(-6, 6, 0.25)]
    blocks += [np.zeros(32), np.full(32, -0.0), np.eye(1, 32, 5)[0] * -3.0, np.arange(32) + 0.5]
    blocks += [np.r_[127.0, np.arange(31) + 0.5], np.r_[-127.0, -np.arange(31) - 0.5], np.full(32, 8.3e6)]
    blocks += [rng.standard_normal(32) * 1e-30, np.r_[1e-36, np.zeros(31)]]
    return np.concatenate(blocks).astype(np.float32)


def halves() -> NDArray[np.float32]:
    """Every finite f16, the floats between two of them, and random bits that are no NaN."""
    exact = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float32)
    middle = (exact[:-1].astype(np.float64) + exact[1:].astype(np.float64)) / 2
    near = np.concatenate([np.nextafter(middle.astype(np.float32), np.float32(s)) for s in (-1, 1e9)])
    random = (
        np.random.default_rng(5).integers(0, 1 << 32, 50_000, dtype=np.uint64).astype(np.uint32).view("f4")
    )
    out = np.concatenate(
        [exact, middle.astype(np.float32), near, random[~np.isnan(random)], [np.inf, 65520, 65519]]
    )
    return np.concatenate([out, -out]).astype(np.float32)


def test_f32_to_f16_of_both_languages_is_numpy_s() -> None:
    from numba import njit, types

    from kernels_numba.ops import cpu_ops

    convert = cpu_ops().half_of_float

    @njit(types.void(types.float32[::1], types.uint32[::1]))
    def run(x, out):
        for k in range(x.size):
            out[k] = convert(x[k])

    x = halves()
    with np.errstate(over="ignore"):
        want = x.astype(np.float16).view(np.uint16).astype(np.uint32)
    for convert_all in (
        lambda out: run(x, out),
        lambda out: host().host_half(pointer(x), pointer(out), ctypes.c_int64(x.size)),
    ):
        out = np.empty(x.size, np.uint32)
        convert_all(out)
        same(out, want)


def numba_quantise(x: NDArray[np.float32]) -> NDArray[np.uint32]:
    """A block as the warp of the Numba kernels makes it, lane by lane."""
    from numba import njit, types, uint32

    from kernels_numba import q8 as twin
    from kernels_numba.ops import cpu_ops

    ops = cpu_ops()
    unit = twin.functions(ops)
    scale, inverse, value = unit.scale, unit.inverse, unit.value
    half, bits = ops.half_of_float, ops.bits_of_float

    @njit(types.void(types.float32[::1], types.uint32[::1]))
    def run(x, out):
        for b in range(x.size // 32):
            top = uint32(0)
            for k in range(32):
                top = max(top, uint32(bits(x[32 * b + k]) & uint32(0x7FFFFFFF)))
            d = scale(top)
            inv = inverse(d)
            out[10 * b] = half(d)
            total = 0
            for k in range(32):
                q = value(x[32 * b + k], inv)
                total += q
                out[10 * b + 1 + k // 4] |= uint32((uint32(q) & uint32(255)) << uint32(8 * (k % 4)))
            out[10 * b + 9] = uint32(total)

    out = np.zeros(x.size // 32 * 10, np.uint32)
    run(x, out)
    return out


def test_quantising_of_both_languages_is_the_oracle_s() -> None:
    x = values()
    want = q8.quantise(x).view(np.uint32)
    out = np.empty_like(want)
    host().host_quantise(pointer(x), pointer(None), pointer(out), ctypes.c_int64(x.size))
    same(out, want)
    same(numba_quantise(x), want)


def test_swiglu_then_quantise_of_cpp_is_the_oracle_s() -> None:
    rng = np.random.default_rng(2)
    g, u = (rng.standard_normal((2, 32 * 200)) * 8).astype(np.float32)
    want = q8.quantise(swiglu.swiglu(g, u)).view(np.uint32)
    out = np.empty_like(want)
    host().host_quantise(pointer(g), pointer(u), pointer(out), ctypes.c_int64(g.size))
    same(out, want)


# Which rows a ticket of form_c names


def fills(lib: ctypes.CDLL, groups: int, rows: int) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    """Each ticket's first row, and whether it says that it is its group's last."""
    row, last = np.zeros((2, 64 * groups // rows), np.uint32)
    lib.fills_of_form_c(32 * groups, rows, pointer(row), pointer(last))
    return row, last


@given(groups=st.integers(1, 500), rows=st.sampled_from(ROWS))
def test_tickets_name_each_row_once_and_a_group_s_parts_far_apart(
    l3_on_host: ctypes.CDLL, groups: int, rows: int
) -> None:
    """The one that is told to be a group's last has its highest ticket: it waits for lower ones alone.

    Gate's rows come before all of up's, so that the last part is always one of up.
    """
    row, last = fills(l3_on_host, groups, rows)
    np.testing.assert_array_equal(np.sort(row), np.arange(0, 64 * groups, rows))
    parts = 64 // rows
    by_group = np.argsort(row % (32 * groups) // 32, kind="stable").reshape(groups, parts)  # their tickets
    np.testing.assert_array_equal(last[by_group], np.eye(1, parts, parts - 1).repeat(groups, axis=0))
    gate, up = np.split(by_group, 2, axis=1)
    assert gate.max() < groups * parts // 2 <= up.min()
    assert (row[gate] < 32 * groups).all() and (row[up] >= 32 * groups).all()
    assert (np.diff(up, axis=1) > groups - parts).all()
    assert (up[:, -1] - gate[:, -1] >= groups * parts // 4).all()


@pytest.mark.parametrize("groups", [1, 2, 3, 5, 13, 64, 67])
@pytest.mark.parametrize("rows", ROWS)
def test_tickets_of_both_languages_name_the_same(l3_on_host: ctypes.CDLL, groups: int, rows: int) -> None:
    from kernels_numba import ring_gated
    from tests.numba_on_host.emulator import OPS

    job, wide = ring_gated.gated_job(OPS), np.uint32
    ring_, j = (wide(1), wide(rows)), (None, None, None, wide(32 * groups))
    assert job.tickets(ring_, j) == 64 * groups // rows
    found = [job.fill_of(ring_, wide(k), j) for k in range(64 * groups // rows)]
    assert {count for _, count in found} == {rows}
    first = np.array([first for first, _ in found])
    up, last = first & ring_gated.UP != 0, first & ring_gated.LAST != 0
    want_row, want_last = fills(l3_on_host, groups, rows)
    np.testing.assert_array_equal((first & ring_gated.PAIR) + 32 * groups * up, want_row)
    np.testing.assert_array_equal(last, want_last)


# Data


@pytest.mark.parametrize("id_", [256, 512, 5120])
def test_seeded_sums_bend_swiglu_and_fit_q8(id_: int) -> None:
    raw, x8 = data.random_gate_up(512, id_, 0), data.random_x8(id_, 1)
    want = Wanted.of(data.oracle(raw, x8))
    g = np.abs(want.gu[:512])
    assert 0.01 < np.median(g) < 30
    d, q, _ = q8.unpack(want.q8.view(np.uint8))
    assert (d > 0).all() and d.max() < 1e4
    assert len(np.unique(q)) > 60


def test_the_first_rows_of_a_matrix_are_a_matrix() -> None:
    raw, x8 = data.random_gate_up(128, 256, 0), data.random_x8(256, 1)
    whole = Wanted.of(data.oracle(raw, x8))
    part = Wanted.of(data.oracle(data.first_rows(raw, 64), x8))
    for name in ("gu", "h", "q8"):
        same(getattr(whole.first(64), name), getattr(part, name))


def test_a_block_that_q8_cannot_hold_is_refused() -> None:
    with pytest.raises(BadInput, match="SwiGLU of this layer does not fit q8"):
        Wanted.of(np.full(64, 1e6, np.float32), "this layer")
