"""How each L1 form is launched: geometry and arguments of all of them, in one place.

    loop, pf, pf3, stream   one row per block
    ring, async             a persistent grid; its geometry out of core/tuning, or by l1_ring's default rule

Every launch begins as a `Planned`, so nothing is launched that was not checked.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from probes import l1, l1_ring
from probes.core import tuning
from probes.core.layouts import Layout
from probes.core.ring import Plan
from probes.core.types import LaunchConfig, Shape, Unavailable

if TYPE_CHECKING:
    from probes.core.device import DeviceFacts
    from probes.core.tuning import Geometry
    from probes.gpu.kernels import Kernel, Launch


@dataclass(frozen=True, slots=True)
class Planned:
    """One variant's launches: what every one of them shares. `note` is what a row says of the geometry."""

    form: str
    shape: Shape
    row_stride: int
    config: LaunchConfig
    note: str = ""
    ring: Plan | None = None

    def launch(self, kernel: Kernel, pointers: tuple[int, int, int], counter: int = 0) -> Launch:
        """A launch of weights, activations and result at `pointers`.

        counter: for a ring, the address of one word that is 0, of no other launch that may run meanwhile.
        """
        from probes.gpu.kernels import Launch, int32

        shape, stride = self.shape, self.row_stride
        if self.ring:
            return l1_ring.ring_launch(kernel, self.ring, pointers, counter, shape.nbe, stride, shape.od)
        return Launch(kernel, self.config, (*pointers, int32(shape.nbe), int32(stride)))


def plan(
    form: l1.Form, lay: Layout, shape: Shape, row_stride: int, facts: DeviceFacts, blocks_per_sm: int = 0
) -> Planned:
    """The launch of one variant on a device; blocks_per_sm replaces the persistent forms' own count.

    Raises BadInput (a stride that cannot be) and Unavailable with the reason for a SKIPPED row.
    """
    if refusal := form.refuses(shape):
        raise Unavailable(refusal)
    tuned = tuning.l1(facts.slug, shape, lay.name)
    source = "tuned" if tuned else "by the default rule"
    if form.name in tuning.FORMS:
        geometry = tuned[form.name] if tuned else l1_ring.default_geometry(shape, row_stride, facts)
        if blocks_per_sm:
            geometry, source = replace(geometry, blocks_per_sm=blocks_per_sm), "as asked"
        return ring(form.name, lay, shape, row_stride, geometry, facts, source)
    l1.check_launch(lay, form.name, shape, row_stride)
    return Planned(form.name, shape, row_stride, l1.launch_config(shape))


def ring(
    form: str, lay: Layout, shape: Shape, row_stride: int, geometry: Geometry, facts: DeviceFacts,
    source: str = "",
) -> Planned:  # fmt: skip
    """The form ring or async in one geometry. Raises BadInput and Unavailable as `plan`."""
    made = l1_ring.plan(shape, lay, row_stride, geometry, facts, form)
    stages = f"{made.stages} stage{'s' if made.stages > 1 else ''}"
    note = f"geometry {geometry}, {stages}{', ' + source if source else ''}"
    return Planned(form, shape, row_stride, made.config, note, made)
