"""The protocol of Numba's ring, run as the Python it is: a thread per CUDA thread, shared memory a bytearray.

Barriers, copies and shuffles are stand-ins with the meaning that PTX gives them; a copy lands late. What a
consumer makes of a row is replaced by the row's first word, so that a row in the wrong place shows.
"""

from __future__ import annotations

import queue
import random
import threading
import time
from types import SimpleNamespace
from typing import Any

import numba
import numpy as np
import pytest

PATIENCE_S = 20.0
STRIDE = 48


class Hang(Exception):
    """Nothing went on for PATIENCE_S."""


class Block:
    """One thread block: shared memory, mbarriers, a copy engine."""

    def __init__(self, warps: int, smem: int, weights: bytes, seed: int) -> None:
        self.memory, self.weights = bytearray(b"\xa5" * smem), weights
        self.lock, self.barriers = threading.Lock(), {}
        self.jobs: queue.Queue[Any] = queue.Queue()
        self.until, self.random = time.monotonic() + PATIENCE_S, random.Random(seed)
        self.me = threading.local()
        self.warps = [threading.Barrier(32) for _ in range(warps)]
        self.all = threading.Barrier(32 * warps)

    def word(self, at: int, kind: str = "<i4") -> Any:
        return np.frombuffer(self.memory, kind, 1, int(at))[0]

    def put(self, at: int, value: Any, kind: str) -> None:
        self.memory[int(at) : int(at) + 4] = np.array([value], kind).tobytes()

    def arrive(self, at: int, bytes_: int = 0) -> None:
        with self.lock:
            b = self.barriers[int(at)]
            b.bytes += bytes_
            b.pending -= 1
            assert b.pending >= 0, "too many arrivals"
            self.settle(b)

    def settle(self, b: Any) -> None:
        if b.pending == 0 and b.bytes == 0:
            b.pending, b.phase = b.arrivals, b.phase + 1

    def init(self, at: int, arrivals: int) -> None:
        assert int(at) % 8 == 0 and int(at) not in self.barriers
        self.barriers[int(at)] = SimpleNamespace(
            arrivals=int(arrivals), pending=int(arrivals), bytes=0, phase=0
        )

    def wait(self, at: int, parity: int) -> None:
        while self.barriers[int(at)].phase % 2 == int(parity):
            if time.monotonic() > self.until:
                raise Hang(f"thread {self.me.x} waits for {at}")
            time.sleep(0)

    def copy(self, to: int, source: int, size: int, barrier: int) -> None:
        to, source, size = int(to), int(source), int(size)
        assert size and to % 16 == source % 16 == size % 16 == 0 and source + size <= len(self.weights)
        self.memory[to : to + size] = b"\xa5" * size
        self.jobs.put((to, source, size, int(barrier)))

    def engine(self) -> None:
        while (job := self.jobs.get()) is not None:
            time.sleep(self.random.random() * 1e-4)
            to, source, size, barrier = job
            with self.lock:
                self.memory[to : to + size] = self.weights[source : source + size]
                b = self.barriers[barrier]
                b.bytes -= size
                self.settle(b)


class Cuda:
    """What the twins ask of numba.cuda."""

    def __init__(self) -> None:
        self.block: Any = None
        self.gridDim, self.blockIdx = SimpleNamespace(x=1), SimpleNamespace(x=0)

    @property
    def threadIdx(self) -> Any:
        return SimpleNamespace(x=self.block.me.x)

    def syncwarp(self) -> None:
        self.block.warps[self.block.me.x // 32].wait(PATIENCE_S)


@pytest.fixture
def twin(monkeypatch: pytest.MonkeyPatch) -> Any:
    """(cuda, prepare, consume by most rows at once, feed) over stand-ins."""
    from kernels_numba import ring, ring_block

    cuda = Cuda()

    def of_block(name: str) -> Any:
        return lambda *args: getattr(cuda.block, name)(*args)

    def draw(counter: Any, last: int) -> Any:
        with cuda.block.lock:
            old = int(counter[0])
            counter[0] = 0 if old >= int(last) else old + 1
        return np.uint32(old)

    statements = SimpleNamespace(
        barrier_init=of_block("init"),
        barriers_ready=lambda: None,
        barrier_arrive=of_block("arrive"),
        barrier_expect=of_block("arrive"),
        barrier_wait=of_block("wait"),
        bulk_copy=of_block("copy"),
        load_word=of_block("word"),
        load_floats=lambda at: tuple(cuda.block.word(int(at) + 4 * k, "<f4") for k in range(4)),
        store_word=lambda at, v: cuda.block.put(at, v, "<i4"),
        store_float=lambda at, v: cuda.block.put(at, v, "<f4"),
        pinned=lambda w: w,
        draw=draw,
        is_null=lambda counter: counter is None,
    )
    monkeypatch.setattr(ring, "statements", lambda: statements)
    monkeypatch.setattr(numba, "cuda", cuda, raising=False)
    ops = SimpleNamespace(
        jit=lambda f: f, add=lambda a, b: np.float32(a + b), advance=lambda p, n: p + int(n)
    )
    unit = SimpleNamespace(group_of=lambda pair: None)

    def passes(rows: int) -> Any:
        def run(row: int, stride: int, steps: Any, group: Any, lane: int, sums: int) -> None:
            if lane == 0:
                for r in range(rows):
                    cuda.block.put(int(sums) + 32 * r, cuda.block.word(int(row) + r * int(stride)), "<f4")

        return run

    table = {rows: passes(rows) for rows in (1, 2, 4)}
    consume = {most: ring_block.consumer(ops, unit, lambda *a: None, table, most) for most in (1, 2, 4)}
    return cuda, ring_block.preparer(ops), consume, ring_block.feeder(ops)


def run(twin: Any, od: int, rows: int, stages: int, grid: int, drawn: bool, warps: int, most: int) -> None:
    cuda, prepare, consume, feed = twin
    weights = np.zeros((od, STRIDE // 4), np.int32)
    weights[:, 0] = np.arange(od) + 7
    out, counter = np.full(od + 1, -1.0, np.float32), np.zeros(1, np.uint32)
    cuda.gridDim = SimpleNamespace(x=grid)
    sums = stages * rows * STRIDE
    full = sums + stages * rows * 32
    places = (stages, rows, STRIDE, 0, sums, full, full + 8 * stages, full + 16 * stages, full + 20 * stages)
    parts = tuple(np.uint32(v) for v in places)
    for block in range(grid):
        cuda.blockIdx = SimpleNamespace(x=block)
        cuda.block = b = Block(warps, full + 24 * stages, weights.tobytes(), seed=od + block)
        errors: list[BaseException] = []

        def thread(t: int, b: Any = b, errors: list[BaseException] = errors) -> None:
            b.me.x = t
            try:
                prepare(parts, np.int32(t), np.int32(warps))
                b.all.wait(PATIENCE_S)
                if t // 32 == warps - 1:
                    feed(parts, 0, out, counter if drawn else None, np.int32(od))
                else:
                    consume[most](parts, None, np.int32(t), np.int32(1))
            except BaseException as error:  # a thread must not end unseen
                errors.append(error)

        engine = threading.Thread(target=b.engine)
        threads = [threading.Thread(target=thread, args=(t,)) for t in range(32 * warps)]
        for t in (engine, *threads):
            t.start()
        for t in threads:
            t.join()
        b.jobs.put(None)
        engine.join()
        assert errors == []
        assert all(s.bytes == 0 for s in b.barriers.values())
    consumers = warps - 1
    np.testing.assert_array_equal(out[:od], (np.arange(od) + 7) * consumers)
    assert out[od] == -1.0
    assert counter[0] == 0


@pytest.mark.parametrize("drawn", [False, True])
@pytest.mark.parametrize(
    ("od", "rows", "stages", "grid", "warps", "most"),
    [
        (1, 1, 1, 1, 2, 1), (1, 4, 3, 2, 2, 4), (5, 1, 2, 1, 2, 1), (9, 2, 2, 2, 2, 2),
        (23, 4, 2, 2, 2, 4), (16, 4, 1, 1, 3, 4), (13, 3, 2, 1, 2, 2), (14, 7, 1, 1, 2, 4),
    ],
)  # fmt: skip
def test_every_row_comes_out_once(
    twin: Any, od: int, rows: int, stages: int, grid: int, warps: int, most: int, drawn: bool
) -> None:
    run(twin, od, rows, stages, grid, drawn, warps, most)
