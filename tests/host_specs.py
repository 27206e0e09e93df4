"""What a bench wants to know of a small arm on the stand-in GPU."""

from __future__ import annotations

from probes.engine.bench import Spec
from probes.engine.plan import Planned
from probes.engine.probe import Case, Variant
from tests.host_arms import arm, kernel
from tests.host_gpu import HostGpu


def spec(host: HostGpu, rotation_bytes: int | None = None, name: str = "read") -> Spec:
    """Of an arm of host_arms."""
    read = kernel(host, "harness_read")
    config = arm(host).launches[0].config  # type: ignore[union-attr]  # a single launch
    planned = Planned(variant=Variant(name=name), kernel=read.name, config=config, content_bytes=1)
    return Spec(Case(id="case"), planned, read, rotation_bytes)
