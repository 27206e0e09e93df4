"""What a predecessor writes is there from a kernel's wait on, and not before: every kernel of L2 waits first.

Both emulators make the wait visible: inputs hold NaNs until the first thread has come to it.
"""

from __future__ import annotations

import ctypes
import threading
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from probes.core.types import Shape
from probes.device import pipeline
from probes.formats import chains as words
from probes.formats import checksum, q4k, q6k
from probes.formats import layer as decode_layer
from probes.formats.layouts import layout
from probes.formats.packing import pack
from probes.l2 import chains, data
from probes.l2.chains import TAIL, TRIGGER, Matrix
from tests import host_calls
from tests.fixtures import on_host
from tests.host_calls import TINY
from tests.kernels.machines import HostNumba, given, ring, room, written
from tests.numba_on_host.emulator import GATE

WAITING = ("entry", "late")
LAYER = {s.name: s for s in chains.decode_steps(1, TINY)}
BEFORE = ("gamma", "table", "w.")
"""What is there before a chain begins; the cache alone is written by one launch and read by the next."""


@pytest.fixture(scope="session")
def pdl_on_host(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """L2's kernels with waits and triggers that can be seen."""
    lib = on_host("pdl", tmp_path_factory.mktemp("pdl_on_host"))
    for name in ("pdl_waits", "pdl_triggers", "pdl_made"):
        getattr(lib, name).restype = ctypes.c_int64
    return lib


def octets(array: NDArray[Any]) -> NDArray[np.uint8]:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


@dataclass
class Cpp:
    """The C++ kernels."""

    lib: ctypes.CDLL

    def run(
        self, kernel: str, args: list[Any], hidden: list[Any], grid: int, block: int = 256, smem: int = 0
    ) -> tuple[int, int]:
        """One launch; `hidden`: (array, what the predecessor writes there). Waits and triggers, by thread."""
        self.lib.pdl_begin()
        keep = [host_calls.aligned(a) if isinstance(a, np.ndarray) else a for a in args]
        true = {id(a): np.ascontiguousarray(value) for a, value in hidden}
        for own, a in zip(args, keep, strict=True):
            if id(own) in true:
                to, value = ctypes.c_void_p(a.ctypes.data), true[id(own)]
                self.lib.pdl_written(to, host_calls.pointer(value), ctypes.c_int64(value.nbytes))
        addresses = [a.ctypes.data if isinstance(a, np.ndarray) else 0 if a is None else a for a in keep]
        host_calls.run(self.lib, kernel, addresses, grid, block, smem)
        for own, a in zip(args, keep, strict=True):
            if isinstance(own, np.ndarray) and own.flags.writeable:
                own[...] = a
        return self.lib.pdl_waits(), self.lib.pdl_triggers()


@dataclass
class Numba:
    """The Numba kernels' Python: the first and the last block."""

    waits: int = 0
    machine: HostNumba = field(default_factory=HostNumba)

    def run(
        self, kernel: str, args: list[Any], hidden: list[Any], grid: int, block: int = 256, smem: int = 0
    ) -> tuple[int, int]:
        self.waits, lock = 0, threading.Lock()

        def wait() -> None:
            with lock:
                self.waits += 1
                for array, value in hidden if self.waits == 1 else ():
                    array.reshape(-1).view(np.uint8)[:] = (
                        np.ascontiguousarray(value).reshape(-1).view(np.uint8)
                    )

        kind = kernel.rpartition("_")[2]
        own = {"begin": lambda flags, stamps: wait()} if kind == "entry" else {}
        own |= {"late_wait": wait} if kind == "late" else {}
        self.machine.gate = lambda block: SimpleNamespace(**vars(GATE) | own)
        self.machine.run(kernel, args, grid, block, smem, few=True)
        return self.waits, 0


def layer(step: chains.Step) -> tuple[list[Any], list[Any], NDArray[Any], NDArray[Any]]:
    """A launch of a decode layer at KV length 1: arguments, what is hidden, where it writes, what it must."""
    d, cache = decode_layer.data(TINY, 3), decode_layer.cache(TINY, 1, 4)
    before, table = cache.copy(), decode_layer.rope_table(0)
    want = decode_layer.run_layer(d, cache, d.hidden, table, TINY)
    true = {
        "in": d.hidden, "gamma0": d.gamma[0], "gamma1": d.gamma[1], "table": table, "w.qkv": d.qkv,
        "w.o": d.o, "w.gate_up": d.gate_up, "w.down": pack(d.down, layout("dpl")),
        "w.cache": before if step.kernel == "rope_store" else cache,
        **{k: v for k, v in want.items() if k != "h"},
    }  # fmt: skip
    name = chains.WRITES[step.name]
    out = room(want[name].nbytes // 4)
    args: list[Any] = []
    hidden: list[Any] = []
    for a in step.args:
        if not isinstance(a, str) or a == ("out" if name == "h" else name):
            args.append(out if isinstance(a, str) else a)
            continue
        value = np.ascontiguousarray(true[a])
        there = a.startswith(BEFORE) and (a != "w.cache" or step.kernel == "rope_store")
        args.append(value.copy() if there else np.full_like(value.view(np.uint8), 0xFF).view(value.dtype))
        if not there:
            hidden.append((args[-1], value))
    return [*args, 0, None], hidden, out, want[name]


KERNELS = {s.kernel: n for n, s in LAYER.items()}


def seen(machine: Any, step: chains.Step, kind: str) -> tuple[bool, int]:
    """Whether a launch gave its words though its inputs come with its wait, and how often it waited."""
    args, hidden, out, want = layer(step)
    waits, _ = machine.run(step.entry_point(kind), args, hidden, step.grid, step.block)
    got, right = written(out), np.ascontiguousarray(want).reshape(-1).view(np.uint32)
    hit = got != 0xFFFFFFFF if isinstance(machine, Numba) else np.full(got.size, True)
    return bool(hit.any() and (got[hit] == right[hit]).all()), waits


@pytest.mark.parametrize("kind", WAITING)
@pytest.mark.parametrize("kernel", KERNELS)
def test_every_kernel_of_a_layer_reads_its_inputs_after_its_wait(
    pdl_on_host: ctypes.CDLL, kernel: str, kind: str
) -> None:
    step = LAYER[KERNELS[kernel]]
    right, waits = seen(Cpp(pdl_on_host), step, kind)
    assert right and waits == step.grid * step.block, "each thread waits once"
    assert seen(Cpp(pdl_on_host), step, "plain") == (False, 0), "and the plain kind never does"


@pytest.mark.parametrize("kernel", ["attention_split", "rope_store", "rms_quantise"])
def test_so_do_the_Numba_twins(kernel: str) -> None:
    step = LAYER[KERNELS[kernel]]
    right, waits = seen(Numba(), step, "late")
    assert right and waits == step.block * len({0, step.grid - 1})
    assert seen(Numba(), step, "plain") == (False, 0)


@pytest.mark.parametrize("kind", WAITING)
def test_a_stream_reads_its_predecessor_s_words_after_its_wait(pdl_on_host: ctypes.CDLL, kind: str) -> None:
    raw = np.random.default_rng(1).integers(0, 256, 2 * checksum.READ_TILE_BYTES, dtype=np.uint8)
    start, out, hidden = words.start(2, 3), room(2), np.full(2, 0xFFFFFFFF, np.uint32)
    waits, _ = Cpp(pdl_on_host).run(f"l2_stream_{kind}", [raw, hidden, out, 0, None], [(hidden, start)], 2)
    np.testing.assert_array_equal(written(out), words.stream(checksum.read_xors(raw), start, 1))
    assert waits == 2 * 256


class Matmul:
    """A ring's launch: six tickets of one row, two stages, one block."""

    def __init__(self, form: str) -> None:
        self.m = Matrix("m", form, Shape(6, 512))
        raw = decode_layer.weights(self.m.shape, 3, "q4_K" if form == "q4k" else "q6_K")
        self.x8 = data.activations(self.m, 4)
        self.want = (q4k if form == "q4k" else q6k).reference(raw, self.x8).view(np.uint32)
        self.w = given(raw if form == "q4k" else pack(raw, layout("dpl")))

    def run(self, lib: ctypes.CDLL, kind: str, flags: int = 0, hide: bool = True) -> tuple[bool, int, int]:
        """(whether the rows are right, waits, triggers)."""
        made: pipeline.Plan = ring(self.m.units, self.m.row_stride, 1, 2, 1, False)
        out, c = room(self.m.shape.od), made.config
        x = given(np.full_like(self.x8, 0xFF) if hide else self.x8)
        ints = self.m.shape.nbe, self.m.row_stride, self.m.shape.od, made.rows, made.stages, 0, flags
        args = [self.w, x, None, out, *ints, None]
        hidden = [(x, self.x8)] if hide else []
        waits, triggers = Cpp(lib).run(
            f"l2_{self.m.form}_ring_{kind}", args, hidden, c.grid, c.block, c.smem_bytes
        )
        return bool((written(out) == self.want).all()), waits, triggers


@pytest.mark.parametrize("form", ["q4k", "q6k"])
def test_a_ring_s_consumers_read_their_activations_after_their_wait(
    pdl_on_host: ctypes.CDLL, form: str
) -> None:
    mine = Matmul(form)
    right, waits, _ = mine.run(pdl_on_host, "late")
    assert right and waits, "the producer warp has no need to"
    assert mine.run(pdl_on_host, "entry")[0]
    assert mine.run(pdl_on_host, "plain") == (False, 0, 0) and mine.run(pdl_on_host, "plain", 0, False)[0]


@pytest.mark.parametrize("form", ["q4k", "q6k"])
@pytest.mark.parametrize("kind", WAITING)
def test_a_ring_s_tail_trigger_comes_once_all_rows_were_asked_for(
    pdl_on_host: ctypes.CDLL, form: str, kind: str
) -> None:
    mine = Matmul(form)
    right, _, triggers = mine.run(pdl_on_host, kind, TAIL)
    assert right and (triggers, pdl_on_host.pdl_made()) == (1, 6), "by one thread, behind six copies"
    right, _, triggers = mine.run(pdl_on_host, kind, TRIGGER)
    assert right and triggers > 1 and pdl_on_host.pdl_made() == 0, "at once, by every thread"
    assert mine.run(pdl_on_host, kind, 0)[2] == 0 == mine.run(pdl_on_host, "plain", TAIL | TRIGGER, False)[2]
