"""Launches captured into a CUDA graph, replayed as one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from probes.gpu.driver import call, fail, released
from probes.gpu.kernels import Launch, Launches


@dataclass
class Graph:
    """An instantiated graph. `nodes` was read back from the captured graph, not counted here."""

    nodes: int
    _exec: Any
    _stream: Any
    edges: int = 0
    programmatic: int = 0
    """Edges of the captured graph, and those of them that programmatic dependent launch made."""

    def replay(self) -> None:
        """Enqueue one replay on the stream that the graph was captured from."""
        call("cuGraphLaunch", self._exec, self._stream)

    def close(self) -> None:
        if self._exec is not None:
            released("cuGraphExecDestroy", self._exec)
            self._exec = None


class Eager(Graph):
    """Launches one after another, with a graph's face: nothing is captured, every replay launches anew."""

    _ready: list[tuple[Any, Any, tuple[Any, ...]]]

    @classmethod
    def of(cls, stream: Any, launches: Iterable[Launch | Launches]) -> Eager:
        """The launches made ready, so that a replay costs no more than the launches themselves."""
        flat = [x for s in launches for x in (s.launches if isinstance(s, Launches) else (s,))]
        made = cls(len(flat), None, stream)
        made._ready = [(x.kernel, x.core_config(), x.args) for x in flat]
        return made

    def replay(self) -> None:
        """Enqueue every launch."""
        from cuda.core import launch

        for kernel, config, args in self._ready:
            try:
                launch(self._stream, config, kernel.handle, *args)
            except Exception as error:
                fail(f"launching {kernel.name}", error)


def capture(stream: Any, launches: Iterable[Launch | Launches]) -> Graph:
    """Capture the launches in order on `stream`, instantiate and upload the graph."""
    from cuda.bindings import driver

    raw = driver.CUstream(int(stream.handle))
    mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
    call("cuStreamBeginCapture", raw, mode)
    try:
        for launch in launches:
            launch.enqueue(stream)
    except BaseException:
        released("cuStreamEndCapture", raw)
        raise
    graph = call("cuStreamEndCapture", raw)
    try:
        _, nodes = call("cuGraphGetNodes", graph)
        edges, programmatic = _edges(graph)
        made = Graph(int(nodes), call("cuGraphInstantiate", graph, 0), raw, edges, programmatic)
    finally:
        released("cuGraphDestroy", graph)
    try:
        call("cuGraphUpload", made._exec, raw)
    except BaseException:
        made.close()
        raise
    return made


def _edges(graph: Any) -> tuple[int, int]:
    """(edges, programmatic ones) of a captured graph."""
    from cuda.bindings import driver

    *_, count = call("cuGraphGetEdges", graph)
    if not count:
        return 0, 0
    _, _, data, count = call("cuGraphGetEdges", graph, count)
    wanted = int(driver.CUgraphDependencyType.CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC)
    kinds = [d.type if isinstance(d.type, int) else ord(d.type) for d in data[: int(count)]]
    return int(count), sum(k == wanted for k in kinds)
