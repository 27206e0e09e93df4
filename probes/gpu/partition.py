"""Some SMs of the GPU as a green context, in which everything else runs unchanged.

What the partition's stream launches stays on its SMs; memory, kernels and L2 are the whole GPU's. The context
is current while it is open.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from probes.core.types import BadInput, Fault, Unavailable
from probes.device import tuning
from probes.device.facts import DeviceFacts
from probes.gpu import carveout
from probes.gpu.driver import call, released, tried
from probes.gpu.facts import Gpu


def granularity(facts: DeviceFacts) -> int:
    """SMs that a partition must be a multiple of, by the driver's documentation: 8 from sm_90 on, else 2."""
    return 8 if facts.compute_capability >= (9, 0) else 2


def check(count: int, total: int, unit: int, least: int = 1) -> None:
    """BadInput for a partition of `count` SMs out of `total` that the GPU cannot make."""
    if count < 1:
        raise BadInput(f"--sms must be at least 1, got {count}")
    if count > total:
        raise BadInput(f"--sms {count} is more than the GPU's {total} SMs")
    if count % unit or count < least:
        lowest = -(-max(least, unit) // unit) * unit
        below, above = max(lowest, count // unit * unit), -(-max(count, lowest) // unit) * unit
        near = " or ".join(str(n) for n in dict.fromkeys((below, above)) if n <= total)
        rule = f"a multiple of {unit} SMs, {max(least, unit)} at least"
        raise BadInput(f"--sms {count}: a partition of this GPU is {rule}; try {near}")


def name_of(facts: DeviceFacts, count: int) -> DeviceFacts:
    """The facts of a partition: `count` SMs, and a slug that says so (nvidia-h200-48sm)."""
    return replace(facts, sms=count, slug=f"{tuning.device_and_part(facts.slug)[0]}-{count}sm")


@contextmanager
def partition(gpu: Gpu, count: int) -> Iterator[Gpu]:
    """`gpu` cut down to `count` SMs, with a stream of its own; the context is current until the exit.

    Raises BadInput for a count that the GPU cannot make, Unavailable where GPU or driver knows no partitions.
    """
    from cuda.core import ContextOptions, SMResourceOptions

    whole = _made("SM partitions", lambda: gpu.dev.resources.sm)
    total, unit = int(whole.sm_count), int(whole.coscheduled_alignment) or granularity(gpu.facts)
    check(count, total, unit, int(whole.min_partition_size) or unit)
    if count == total:
        yield gpu
        return
    groups, _ = _made(f"a partition of {count} SMs", lambda: whole.split(SMResourceOptions(count=count)))
    got = int(groups[0].sm_count)
    if got != count:
        raise BadInput(f"--sms {count}: the driver makes a partition of {got} SMs instead; ask for that many")
    context = _made("a green context", lambda: gpu.dev.create_context(ContextOptions(resources=[groups[0]])))
    call("cuCtxPushCurrent", context.handle)
    try:
        gpu.environment.extend(x for x in carveout.reset() if x not in gpu.environment)
        with tried(f"a partition of {count} SMs"):
            stream = context.create_stream()
            yield replace(gpu, facts=name_of(gpu.facts, count), stream=stream)
            stream.sync()
    finally:
        released("cuCtxPopCurrent")


def _made(what: str, make: Any) -> Any:
    """What `make` gives; Unavailable where cuda.core, driver or GPU say that they cannot."""
    try:
        with tried(what):
            return make()
    except (Fault, NotImplementedError, AttributeError) as error:
        said = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise Unavailable(f"this GPU or driver cannot make {what}: {said}") from error
