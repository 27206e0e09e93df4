"""The Numba kernels' own Python, run on the host: emulator.py with a ring's shared memory.

`launch(...)` runs all blocks of a kernel that `make(ops)` returns, one after another in the order that is
asked for: a thread per CUDA thread, shared memory a bytearray. Barriers, copies and shuffles are stand-ins
with the meaning that PTX gives them; a copy lands late.
"""

from __future__ import annotations

import queue
import random
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.numba_on_host import emulator as numba_on_host
from tests.numba_on_host.emulator import GATE, OPS, Meeting, Pointer, Turnstile

PATIENCE_S = 60.0


_BETWEEN = threading.Lock()


class Hang(Exception):
    """Nothing went on for PATIENCE_S."""


class Block(numba_on_host.Cuda):
    """One thread block, as numba.cuda and as ring.statements: shared memory, mbarriers, a copy engine."""

    def __init__(self, grid: int, threads: int, smem: int, seed: int) -> None:
        super().__init__(grid, threads)
        self.blockDim = SimpleNamespace(x=threads)
        self._warps = [Meeting(32, PATIENCE_S) for _ in range(threads // 32)]
        self._all = Meeting(threads, PATIENCE_S)
        self.together, self.told = Turnstile(), Turnstile()  # all arrived; the next word handed over
        self.memory = bytearray(b"\xa5" * smem)
        self.barriers: dict[int, Any] = {}
        self.prefetched: list[tuple[int, int]] = []
        self.copied, self.arrived = 0, 0
        self.pieces: dict[int, list[tuple[int, Pointer]]] = {}  # by thread: not arrived for yet
        self.cluster, self.rank, self.gone = [self], 0, False
        self.joined = 0
        self.jobs: queue.Queue[Any] = queue.Queue()
        self.until, self.random = time.monotonic() + PATIENCE_S, random.Random(seed)

    # numba.cuda

    def syncwarp(self) -> None:
        self._warps[self._own.thread // 32].wait()

    def shfl_sync(self, mask: int, value: Any, lane: int) -> Any:
        return self._exchange(value, int(lane))

    def all_sync(self, mask: int, value: Any) -> bool:
        warp = self._own.thread // 32
        self._exchange(value, 0)
        return all(self._boxes[(self._own.turn - 1) & 1][warp * 32 : warp * 32 + 32])

    # ring.statements

    def block_arrive(self, threads: int) -> None:
        """bar.arrive: counted, and not waited for."""
        assert int(threads) == self.blockDim.x
        with self._lock:
            self.arrived += 1
            if self.arrived == self.blockDim.x:
                self.together.open()

    def block_join(self, threads: int) -> None:
        """bar.sync of a barrier that is used once."""
        self.block_arrive(threads)
        while not self.rest(self.together, "the block"):
            pass

    def rest(self, gate: Turnstile, what: Any, most_s: float = 0.5) -> bool:
        """Until the gate opens, or for most_s; whether it did. Raises Hang."""
        if gate.passed(most_s):
            return True
        if time.monotonic() > max(b.until for b in self.cluster):
            raise Hang(f"thread {self._own.thread} waits for {what}")
        return False

    def word(self, at: int, kind: str = "<i4") -> Any:
        assert int(at) % 4 == 0
        return np.frombuffer(self.memory, kind, 1, int(at))[0]

    def words(self, at: int, count: int, kind: str) -> tuple[Any, ...]:
        assert int(at) % (4 * count) == 0, f"{4 * count} bytes at {at} are not aligned"
        return tuple(self.word(int(at) + 4 * k, kind) for k in range(count))

    def half(self, at: int) -> Any:
        return np.uint32(np.frombuffer(self.memory, "<u2", 1, int(at))[0])

    def put(self, at: int, value: Any, kind: str) -> None:
        self.memory[int(at) : int(at) + 4] = np.array([value], kind).tobytes()

    def expect(self, at: int, bytes_: int) -> None:
        with self._lock:
            self.barriers[int(at)].bytes += int(bytes_)

    def arrive(self, at: int) -> None:
        with self._lock:
            b = self.barriers[int(at)]
            b.pending -= 1
            assert b.pending >= 0, "too many arrivals"
            self.settle(b)

    def leave(self, at: int) -> None:
        """Arrive; where that ends a phase, whoever waited for it goes on before this thread does."""
        phase = self.barriers[int(at)].phase
        self.arrive(at)
        if self.barriers[int(at)].phase != phase:
            time.sleep(2e-3)

    def settle(self, b: Any) -> None:
        if b.pending == 0 and b.bytes == 0:
            opened, b.ended = b.ended, Turnstile()
            b.pending, b.phase = b.arrivals, b.phase + 1
            opened.open()
            self.until = time.monotonic() + PATIENCE_S  # something goes on

    def init(self, at: int, arrivals: int) -> None:
        assert int(at) % 8 == 0 and int(at) not in self.barriers
        self.barriers[int(at)] = SimpleNamespace(
            arrivals=int(arrivals), pending=int(arrivals), bytes=0, phase=0, ended=Turnstile()
        )

    def wait(self, at: int, parity: int) -> None:
        b = self.barriers[int(at)]
        while True:
            ended = b.ended  # taken before the look: a phase that ends after it opens this one
            if b.phase % 2 != int(parity):
                return
            self.rest(ended, at)

    def copy(self, to: int, source: Pointer, size: int, barrier: int) -> None:
        to, size = int(to), int(size)
        assert size and to % 16 == source.offset % 16 == size % 16 == 0
        assert source.offset >= 0 and source.offset + size <= source.array.size
        self.memory[to : to + size] = b"\xa5" * size
        self.copied += 1  # by one thread
        self.jobs.put((to, source, size, int(barrier)))

    def copy_16(self, to: int, source: Pointer) -> None:
        assert int(to) % 16 == source.offset % 16 == 0
        assert source.offset >= 0 and source.offset + 16 <= source.array.size
        self.memory[int(to) : int(to) + 16] = b"\xa5" * 16
        self.pieces.setdefault(self._own.thread, []).append((int(to), source))

    def arrive_copied(self, at: int) -> None:
        self.jobs.put((self.pieces.pop(self._own.thread, []), int(at)))

    def prefetch(self, source: Pointer, size: int) -> None:
        assert size and source.offset % 16 == size % 16 == 0
        assert source.offset + int(size) <= source.array.size
        self.prefetched.append((source.offset, int(size)))

    def draw(self, counter: Pointer, last: int) -> Any:
        with _BETWEEN:
            old = int(counter[0])
            counter[0] = 0 if old >= int(last) else old + 1
        return np.uint32(old)

    def hand_over(self, at: Pointer, word: int) -> None:
        with _BETWEEN:
            at[0] = word
            first = self.cluster[0]
            told, first.told = first.told, Turnstile()
            told.open()

    def handed_over(self, at: Pointer) -> tuple[Any, Any]:
        """Both words at once, as they are; where one is missing, after a rest: who needs it asks again."""
        assert at.offset % 2 == 0, "a pair of words is not aligned"
        with _BETWEEN:
            both, told = (np.uint32(at[0]), np.uint32(at[1])), self.cluster[0].told
        if not all(both):
            self.rest(told, "a word", most_s=5e-3)
        return both

    def take_back(self, at: Pointer) -> None:
        """Both words at once."""
        assert at.offset % 2 == 0, "a pair of words is not aligned"
        with _BETWEEN:
            at[0], at[1] = 0, 0

    def engine(self) -> None:
        while (job := self.jobs.get()) is not None:
            time.sleep(self.random.random() * 1e-4)
            if len(job) == 2:
                for to, source in job[0]:
                    self.memory[to : to + 16] = source.array[source.offset : source.offset + 16].tobytes()
                self.arrive(job[1])
                continue
            to, source, size, barrier = job
            with self._lock:
                self.memory[to : to + size] = source.array[source.offset : source.offset + size].tobytes()
                b = self.barriers[barrier]
                b.bytes -= size
                self.settle(b)

    def statements(self) -> SimpleNamespace:
        return SimpleNamespace(
            memory=lambda: np.uint32(0),
            block_arrive=self.block_arrive,
            block_join=self.block_join,
            barrier_init=self.init,
            barriers_ready=lambda: None,
            barrier_arrive=self.arrive,
            barrier_arrive_if=lambda at, arrive: self.leave(at) if arrive else None,
            barrier_expect=self.expect,
            barrier_wait=self.wait,
            bulk_copy=self.copy,
            copy_16=self.copy_16,
            barrier_arrive_copied=self.arrive_copied,
            bulk_prefetch=self.prefetch,
            load16=lambda at: self.words(at, 4, "<u4"),
            load8=lambda at: self.words(at, 2, "<u4"),
            load2=self.half,
            load_word=self.word,
            load_floats=lambda at: self.words(at, 4, "<f4"),
            store_word=lambda at, v: self.put(at, v, "<i4"),
            store_float=lambda at, v: self.put(at, v, "<f4"),
            pinned=lambda w: w,
            draw=self.draw,
            hand_over=self.hand_over,
            handed_over=self.handed_over,
            take_back=self.take_back,
            no_counter=lambda: None,
            is_null=lambda p: p is None,
        )

    def all_of(self, kernel: Callable[..., None], args: tuple[Any, ...], block: int, threads: int) -> None:
        """The block to its end, its copy engine too."""
        ended = []

        def whole(*given: Any) -> None:
            kernel(*given)
            ended.append(self._own.thread)

        engine = threading.Thread(target=self.engine)
        engine.start()
        try:
            self.run(whole, args, block, threads)
        finally:
            self.jobs.put(None)
            engine.join()
            self.gone = True
        assert not any(self.pieces.values()), "copies that no barrier counts"
        assert len(ended) == threads, "some thread waits for another that is gone"
        assert all(b.bytes == 0 for b in self.barriers.values()), "a copy is left over"


def stand_in(block_units: int, most_held: int, scale: float = 1.0) -> Callable[[Any], SimpleNamespace]:
    """A weight format (ring_rows.py) whose every unit's term is the row's first word, times `scale`."""

    def rows(ops: Any) -> SimpleNamespace:
        from kernels_numba import ring

        asm = ring.statements()
        return SimpleNamespace(
            units=block_units,
            most_held=most_held,
            most_threads=0,
            activation=lambda x8, u: None,
            hold=lambda a, owned: owned,
            place=lambda u, nbe: u,
            pin=lambda p: p,
            group_of=lambda u: None,
            lane_of=lambda thread: None,
            piece=lambda row, at: asm.load_word(row),
            term=lambda p, owned, group: np.float32(p * scale if owned else 0),
        )

    return rows


def launch(
    make: Callable[[Any], Any], args: Iterable[Any], grid: int, threads: int, smem: int, order: Iterable[int],
    seed: int = 0, gate: Callable[[Block], SimpleNamespace] = lambda block: GATE, cluster: int = 1,
) -> list[tuple[int, int]]:  # fmt: skip
    """Run clusters of blocks in `order`. Arrays become Pointers, other values stay. Returns what was fetched.

    gate: gives a block the parts of kernels_numba.pdl that only a GPU has. Blocks of a cluster run at once.
    """
    import numba

    from kernels_numba import ops, pdl, ring

    ops.gpu_ops()  # what a kernel's maker compares OPS with: not over stand-ins
    given = tuple(Pointer(a) if isinstance(a, np.ndarray) else a for a in args)
    found = []
    for number in order:
        blocks = [Block(grid, threads, smem, seed + number * cluster + k) for k in range(cluster)]
        kernels = []
        for rank, block in enumerate(blocks):
            block.cluster, block.rank = blocks, rank
            parts = gate(block)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(numba, "cuda", block, raising=False)
                patch.setattr(pdl, "parts", lambda kind, parts=parts: parts)
                patch.setattr(ring, "statements", block.statements)
                kernels.append(make(OPS))
        with ThreadPoolExecutor(cluster) as pool:
            ends = [
                pool.submit(block.all_of, kernel, given, number * cluster + rank, threads)
                for rank, (block, kernel) in enumerate(zip(blocks, kernels, strict=True))
            ]
        for block, end in zip(blocks, ends, strict=True):
            end.result()
            found += block.prefetched
    return found
