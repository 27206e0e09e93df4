"""The kernels' own arithmetic without a GPU: C++ built for the host, Numba by njit, to the bit."""

from __future__ import annotations

import ctypes
import os
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from probes.core.types import Shape, Unavailable
from probes.formats import checksum, packing, q4k, q6k, q8, swiglu
from probes.formats.layouts import LAYOUTS, Layout
from tests import host_cpp
from tests.host_calls import MIRROR, pointer

SHAPES = [Shape(3, 256), Shape(1, 512), Shape(5, 8960), Shape(2, 13824), Shape(2, 18944)]
special = np.array(
    [0, -0.0, 1, -1, np.inf, -np.inf, np.nan, 88.7, 88.73, 89.5, -87.4, -103.9, -104.5, 1e-40, -1e38]
)


@cache
def host(all_layouts: tuple[Layout, ...] = LAYOUTS) -> ctypes.CDLL:

    try:
        return host_cpp.library(all_layouts)
    except Unavailable as error:
        if os.environ.get("CI"):
            pytest.fail(f"CI needs a host compiler: {error}")
        pytest.skip(str(error))


def host_q6k(
    lib: ctypes.CDLL, lay: Layout, packed: NDArray[np.uint8], x8: NDArray[np.uint8], nbe: int
) -> tuple[Any, Any]:
    od, stride = packed.shape
    out, sums = np.empty(od, np.float32), np.empty(od, np.uint32)
    function = getattr(lib, f"host_q6k_{lay.name}")
    function(
        pointer(packed),
        pointer(x8),
        pointer(out),
        pointer(sums),
        ctypes.c_int64(od),
        nbe,
        ctypes.c_int64(stride),
    )
    return out, sums


@cache
def numba_rows(lay: Layout | None) -> Any:
    """A njit loop over one row's units that writes each unit's term and the row's checksum."""
    from numba import carray, int32, njit, types

    from kernels_numba import q4k as nq4k
    from kernels_numba import q6k as nq6k
    from kernels_numba.ops import cpu_ops

    functions: SimpleNamespace = nq6k.functions(cpu_ops(), lay) if lay else nq4k.functions(cpu_ops())
    term = functions.term
    byte, single, word = (
        types.CPointer(types.uint8),
        types.CPointer(types.float32),
        types.CPointer(types.uint32),
    )
    if lay is None:
        weights, activations = functions.weights, functions.activations

        @njit(types.void(byte, byte, single, types.int32))
        def chunks(row, x8, terms, n):
            for u in range(n):
                carray(terms, n)[u] = term(weights(row, int32(u)), activations(x8, int32(u)), int32(u))

        return chunks
    load, checksum_of = functions.load, functions.checksum

    @njit(types.void(byte, byte, single, word, types.int32))
    def units(row, x8, terms, sums, nbe):
        for u in range(nbe * 8):
            unit = load(row, x8, int32(u), nbe)
            carray(terms, nbe * 8)[u] = term(unit, int32(u))
            carray(sums, 1)[0] += checksum_of(unit)

    return units


def call_numba(function: Any, *args: Any) -> None:
    """Call a njit function with raw pointers, through its C-callable twin of the same signature."""
    signature = function.nopython_signatures[0]
    kinds = [ctypes.c_void_p if str(a).endswith("*") else ctypes.c_int32 for a in signature.args]
    address = _c_function(function)
    ctypes.CFUNCTYPE(None, *kinds)(address)(*args)


@cache
def _c_function(function: Any) -> int:
    from numba import cfunc

    inner = function
    signature = function.nopython_signatures[0]
    if len(signature.args) == 4:

        @cfunc(signature)
        def four(a, b, c, d):
            inner(a, b, c, d)

        _keep.append(four)
    else:

        @cfunc(signature)
        def five(a, b, c, d, e):
            inner(a, b, c, d, e)

        _keep.append(five)
    return int(_keep[-1].address)


_keep: list[Any] = []


def numba_q6k(lay: Layout, packed: NDArray[np.uint8], x8: NDArray[np.uint8], nbe: int) -> tuple[Any, Any]:
    from probes.formats.reduction import reduce_units

    terms = np.empty((packed.shape[0], nbe * 8), np.float32)
    sums = np.zeros(packed.shape[0], np.uint32)
    for r in range(packed.shape[0]):
        call_numba(
            numba_rows(lay), pointer(packed[r]), pointer(x8), pointer(terms[r]), pointer(sums[r:]), nbe
        )
    return reduce_units(terms), sums


def assert_bits(got: NDArray[Any], want: NDArray[Any]) -> None:
    np.testing.assert_array_equal(got.view(np.uint32), want.view(np.uint32))


@pytest.mark.parametrize("lay", [*LAYOUTS, MIRROR], ids=lambda lay: lay.name)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_q6k_units_of_both_languages_equal_the_oracle(lay: Layout, shape: Shape) -> None:
    raw, x8 = q6k.random_raw(shape, 7), q8.random_x8(shape.id, 8)
    packed = packing.pack(raw, lay)
    want, want_sums = q6k.reference(raw, x8), checksum.stream_sums(packed, lay, shape.nbe, x8)
    lib = host((*LAYOUTS, MIRROR))
    for rows in (
        lambda: host_q6k(lib, lay, packed, x8, shape.nbe),
        lambda: numba_q6k(lay, packed, x8, shape.nbe),
    ):
        got, sums = rows()
        assert_bits(got, want)
        assert_bits(sums, want_sums)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), nbe=st.integers(1, 12), lay=st.sampled_from(LAYOUTS))
def test_q6k_units_on_random_bytes(seed: int, nbe: int, lay: Layout) -> None:
    shape = Shape(2, 256 * nbe)
    raw, x8 = q6k.random_raw(shape, seed), q8.random_x8(shape.id, seed + 1)
    packed = packing.pack(raw, lay)
    want = q6k.reference(raw, x8)
    assert_bits(host_q6k(host(), lay, packed, x8, nbe)[0], want)
    assert_bits(numba_q6k(lay, packed, x8, nbe)[0], want)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), nbe=st.sampled_from([1, 2, 20, 54, 74]))
def test_q4k_chunks_of_both_languages_equal_the_oracle(seed: int, nbe: int) -> None:
    from probes.formats.reduction import reduce_units

    shape = Shape(2, 256 * nbe)
    raw, x8 = q4k.random_raw(shape, seed), q8.random_x8(shape.id, seed + 1)
    want = q4k.reference(raw, x8)
    out = np.empty(2, np.float32)
    host().host_q4k(pointer(raw), pointer(x8), pointer(out), ctypes.c_int64(2), nbe)
    assert_bits(out, want)
    terms = np.empty((2, nbe * 4), np.float32)
    for r in range(2):
        call_numba(numba_rows(None), pointer(raw[r]), pointer(x8), pointer(terms[r]), nbe * 4)
    assert_bits(reduce_units(terms), want)


@cache
def held_q4k_rows() -> Any:
    """A njit loop over one row's units: each unit's held term, and the reference's own term beside it."""
    from numba import boolean, carray, cfunc, int32, int64, njit, types

    from kernels_numba import q4k as reference
    from kernels_numba import q4k_held
    from kernels_numba.ops import cpu_ops

    unit, plain = q4k_held.functions(cpu_ops()), reference.functions(cpu_ops())
    hold, place, term, load16 = unit.hold, unit.place, unit.term, cpu_ops().load16
    activation, group_of = unit.activation, unit.group_of
    weights, activations, plain_term = plain.weights, plain.activations, plain.term
    byte, single = types.CPointer(types.uint8), types.CPointer(types.float32)

    @njit
    def piece(row, at):  # as the kernels load it out of shared memory
        a, b, c = load16(row, int64(at[0])), load16(row, int64(at[1])), load16(row, int64(at[1]) + 16)
        return a[0], a[1], a[2], a[3], b[0], b[1], b[2], b[3], c[0], c[1], c[2], c[3]

    @cfunc(types.void(byte, byte, single, single, types.int32, boolean))
    def units(row, x8, terms, plain_terms, n, owned):
        out, expected = carray(terms, n), carray(plain_terms, n)
        for k in range(n):
            u = int32(k)
            out[k] = term(piece(row, place(u, 0)), hold(activation(x8, u), owned), group_of(u & 3))
            expected[k] = plain_term(weights(row, u), activations(x8, u), u)

    _keep.append(units)
    word = ctypes.c_void_p
    return ctypes.CFUNCTYPE(None, word, word, word, word, ctypes.c_int32, ctypes.c_bool)(units.address)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), nbe=st.sampled_from([1, 2, 20, 74]), full=st.booleans())
def test_held_q4k_terms_of_numba_have_the_reference_s_bits(seed: int, nbe: int, full: bool) -> None:
    """Activations of random bytes, or full ones: 127 everywhere, whose sums are as large as they get."""
    from probes.formats.reduction import reduce_units

    shape = Shape(2, 256 * nbe)
    raw, x8 = q4k.random_raw(shape, seed), q8.random_x8(shape.id, seed + 1)
    if full:
        x8 = q8.quantise(np.where(np.arange(shape.id) % 64 < 32, -5.0, 5.0).astype(np.float32))
        raw.reshape(-1, q4k.BLOCK)[:, 4:] = 0xFF
    terms, plain = np.empty((2, 2, nbe * 4), np.float32)
    for r in range(2):
        row = (pointer(raw[r]), pointer(x8), pointer(terms[r]), pointer(plain[r]), nbe * 4)
        held_q4k_rows()(*row, True)
    assert_bits(terms, plain)
    assert_bits(reduce_units(terms), q4k.reference(raw, x8))
    held_q4k_rows()(*row, False)
    assert (terms[1] == 0).all(), "a lane without a unit must add nothing"


def sample_floats(n: int = 200_000) -> NDArray[np.float32]:
    bits = np.random.default_rng(3).integers(0, 2**32, n, dtype=np.uint64).astype(np.uint32)
    near = np.random.default_rng(4).uniform(-110, 95, n).astype(np.float32)
    return np.concatenate([bits.view(np.float32), near, special.astype(np.float32)])


def same_but_nan(got: NDArray[np.float32], want: NDArray[np.float32]) -> None:
    """To the bit, except that a NaN is any NaN."""
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    keep = ~np.isnan(want)
    assert_bits(got[keep], want[keep])


def test_exp_and_swiglu_of_cpp_equal_the_oracle() -> None:
    x = sample_floats()
    u = x[::-1].copy()
    out = np.empty_like(x)
    host().host_exp(pointer(x), pointer(out), ctypes.c_int64(x.size))
    same_but_nan(out, swiglu.exp(x))
    host().host_swiglu(pointer(x), pointer(u), pointer(out), ctypes.c_int64(x.size))
    same_but_nan(out, swiglu.swiglu(x, u))


def test_exp_and_swiglu_of_numba_equal_the_oracle() -> None:
    from numba import float32, njit, void

    from kernels_numba import swiglu as twin
    from kernels_numba.ops import cpu_ops

    functions = twin.functions(cpu_ops())
    exp, gated = functions.exp, functions.swiglu

    @njit(void(float32[::1], float32[::1], float32[::1], float32[::1]))
    def both(x, u, e, s):
        for k in range(x.size):
            e[k] = exp(x[k])
            s[k] = gated(x[k], u[k])

    x = sample_floats()
    u = x[::-1].copy()
    e, s = np.empty_like(x), np.empty_like(x)
    both(x, u, e, s)
    same_but_nan(e, swiglu.exp(x))
    same_but_nan(s, swiglu.swiglu(x, u))


def test_every_f16_converts_alike() -> None:
    """d and d8 pass through f16 -> f32 in all three: all 63488 finite halves, subnormals too."""
    from numba import njit, types

    from kernels_numba.ops import cpu_ops

    convert = cpu_ops().float_of_half

    @njit(types.void(types.uint32[::1], types.float32[::1]))
    def run(bits, out):
        for k in range(bits.size):
            out[k] = convert(bits[k])

    bits = np.arange(65536, dtype=np.uint32)
    out = np.empty(65536, np.float32)
    run(bits, out)
    with np.errstate(invalid="ignore"):
        same_but_nan(out, bits.astype(np.uint16).view(np.float16).astype(np.float32))


def test_a_read_xor_is_the_xor_of_its_tile() -> None:
    data = np.random.default_rng(1).integers(0, 256, 3 * checksum.READ_TILE_BYTES + 48, dtype=np.uint8)
    got = checksum.read_xors(data)
    assert got.size == 4
    for k in range(4):
        tile = data[k * checksum.READ_TILE_BYTES : (k + 1) * checksum.READ_TILE_BYTES].view(np.uint32)
        want = 0
        for word in tile.tolist():
            want ^= word
        assert got[k] == want
