"""The plain reads' kernels, every form on every machine: each tile's XOR, a short last one's too."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kernels_cu import build
from probes.core.types import Unavailable
from probes.engine import bench, machine_code, reads
from probes.formats import chains as words
from probes.formats import checksum
from probes.l2 import chains, table
from tests.kernels.machines import given, over, room, written

FORMS = {f.kernel: f for f in reads.FORMS}
SIZES = (32768, 4096, 16, 3 * 32768 + 20480 + 48)
"""One tile of either size, the smallest there is, several with a short last one."""


@over(
    "kernel,size",
    cu=[(f, n) for f in FORMS for n in SIZES],
    numba=[(f, n) for f in FORMS for n in (32768, 4096 + 48)],
    gpu=[(f, n) for f in FORMS for n in (*SIZES, 300 * 32768)],
    small=[(f, SIZES[-1]) for f in FORMS],
)
def test_a_read_gives_every_tile_s_xor(machine: Any, kernel: str, size: int) -> None:
    form = FORMS[kernel]
    data = given(np.random.default_rng(size).integers(0, 256, size, dtype=np.uint8))
    config, want = form.config(size), checksum.read_xors(data, form.tile)
    assert config.grid == want.size
    for order in machine.orders:
        out = room(want.size)
        args = data, out, np.int64(size // 16)
        machine.run(kernel, args, config.grid, config.block, config.smem_bytes, order=order)
        np.testing.assert_array_equal(written(out, kernel), want)


CHAINS = {r.kernel: r for r in table.READS.values()}


@over(
    "kernel,kind,tiles,launches",
    cu=[(r, kind, 3, 4) for r in CHAINS for kind in ("plain", "late")],
    numba=[(r, "plain", 2, 1) for r in CHAINS],
    gpu=[(r, kind, 300, 24) for r in CHAINS for kind in ("plain", "late")],
    small=[(r, "late", 300, 24) for r in CHAINS],
)
def test_a_chain_of_reads_gives_its_words(
    machine: Any, kernel: str, kind: str, tiles: int, launches: int
) -> None:
    """Every tile of a launch is mixed with a word that its predecessor wrote."""
    read = CHAINS[kernel]
    host = np.random.default_rng(1).integers(0, 256, tiles * read.tile, dtype=np.uint8)
    w, start = given(host), words.start(tiles, 2)
    named = {"start": given(start), "a": room(tiles), "b": room(tiles)} | {
        f"w.{k}": w for k in range(launches)
    }
    for step in chains.stream_steps(tiles=tiles, launches=launches, form=read):
        args = [named[str(a)] for a in step.args]
        machine.run(
            step.entry_point(kind), (*args, chains.TAIL, None), step.grid, step.block, step.smem_bytes,
            order=machine.orders[-1], pdl=kind == "late",
        )  # fmt: skip
    want = words.stream(checksum.read_xors(host, read.tile), start, launches)
    np.testing.assert_array_equal(written(named[chains.ping_pong(launches - 1)[1]]), want)


def test_every_form_is_compiled_with_the_harness() -> None:
    assert set(reads.KERNELS) | {"harness_clock"} == set(bench.HARNESS)


@pytest.mark.toolchain
@pytest.mark.parametrize("backend", ["cu", "numba"])
def test_all_of_a_tile_is_asked_for_before_any_of_it_is_used(backend: Any) -> None:
    """In the machine code of sm_90: so many loads in a row as a thread has, or a bulk copy."""
    from kernels_numba import compile as numba_compile

    try:
        if backend == "cu":
            found = machine_code.opcodes(build.library("harness.cu", "sm_90"))
        else:
            made = numba_compile.compiled("harness", list(reads.KERNELS), "sm_90")
            found = {n: machine_code.opcodes(p)[n] for n, p in made.items()}
    except Unavailable as error:
        pytest.skip(str(error))
    for form in FORMS.values():
        ops = found[form.kernel]
        if form.smem_bytes:
            assert machine_code.count(ops, machine_code.COPY) == 1
            assert machine_code.count(ops, machine_code.WAIT) == 1
            assert machine_code.first(ops, machine_code.TRIGGER) < machine_code.first(ops, machine_code.COPY)
            continue
        assert machine_code.first(ops, machine_code.WAIT) == -1
        longest, run = 0, 0
        for op in (op for op in ops if op.startswith((machine_code.LOAD, "LOP3", "SHFL"))):
            run = run + 1 if op.startswith(machine_code.LOAD) else 0
            longest = max(longest, run)
        assert longest >= form.tile // 16 // form.block, f"{form.kernel}: {longest}"
