"""L2's kernels with a row per block: the oracle's words on every machine, and where they wait."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from probes.core.types import Shape, Unavailable
from probes.engine import machine_code
from probes.formats import layer as decode_layer
from probes.formats import q6k
from probes.formats.layouts import layout
from probes.formats.packing import pack
from probes.l2 import chains, data, table
from probes.l2.chains import TAIL, TRIGGER, Matrix
from tests.kernels.machines import given, over, room, written

FORMS = tuple(dict.fromkeys(f for forms in table.ROWS.values() for f in forms))
KINDS = ("plain", "late")


ONE, TWO = (Shape(3, 256), Shape(5, 5120), Shape(2, 8192)), (Shape(3, 8448), Shape(5, 13824), Shape(2, 16384))
"""A unit to a thread at most, or two: 1 to 256 units of 32 values, 257 to 512."""

GPU_ONE, GPU_TWO = (Shape(1023, 5120), Shape(64, 8192)), (Shape(517, 13824), Shape(64, 8448))


def cases(one: tuple[Shape, ...], two: tuple[Shape, ...], kinds: tuple[str, ...] = KINDS) -> list[Any]:
    return [c for f in FORMS for c in product([f], two if f.endswith("two") else one, kinds)]


@over(
    "form,shape,kind",
    cu=cases(ONE, TWO),
    numba=cases((Shape(2, 512),), (Shape(2, 8448),), ("plain",)),
    gpu=cases((*ONE, *GPU_ONE), (*TWO, *GPU_TWO)),
    small=cases(GPU_ONE[1:], GPU_TWO[1:]),
)
def test_rows_equal_the_oracle_and_hand_their_activations_on(
    machine: Any, form: str, shape: Shape, kind: str
) -> None:
    lay, m = layout(form.partition("_")[0]), Matrix("m", "q6k", shape)
    raw, x8 = decode_layer.weights(shape, 3, "q6_K"), data.activations(m, 4)
    w, x, want = given(pack(raw, lay)), given(x8), q6k.reference(raw, x8).view(np.uint32)
    for order, hand_on in product(machine.orders, (True, False)):
        out, following = room(shape.od), room(x8.size // 4)
        args = w, x, following if hand_on else None, out, shape.nbe, lay.row_stride(shape.nbe)
        flags = TAIL if hand_on else TRIGGER
        name = f"l2_{form}_{kind}"
        machine.run(name, (*args, flags, None), shape.od, chains.BLOCK, order=order, pdl=kind == "late")
        np.testing.assert_array_equal(written(out, name), want, err_msg=f"{name} order {order}")
        if hand_on:
            handed = written(following, name).view(np.uint8)
            np.testing.assert_array_equal(handed, data.rotate(x8, 1), err_msg=name)


@pytest.mark.toolchain
@pytest.mark.sampled(2, "")
@pytest.mark.parametrize("backend", ["cu", "numba"])
@pytest.mark.parametrize("arch", ["sm_90", "sm_121"])
def test_the_late_kind_asks_for_its_weights_and_then_waits(backend: Any, arch: str) -> None:
    """A unit has 4 loads in group order, 6 in GGUF's. Of the plain kind none waits."""
    names = [f"l2_{f}_{kind}" for f in FORMS for kind in KINDS]
    try:
        found = machine_code.kernels("l2", names, backend, arch)
    except Unavailable as error:
        pytest.skip(str(error))
    for form in FORMS:
        plain, ops = (found[f"l2_{form}_{kind}"] for kind in KINDS)
        assert machine_code.first(plain, machine_code.WAIT) == -1
        assert machine_code.count(plain, machine_code.TRIGGER) == 0
        assert machine_code.count(ops, machine_code.WAIT) == 1, form
        assert machine_code.count(ops, machine_code.TRIGGER) == 2, "at once, and at the tail"
        waits = machine_code.first(ops, machine_code.WAIT)
        unit = 4 if layout(form.partition("_")[0]).order == "group" else 6
        asked = machine_code.count(ops[:waits], machine_code.LOAD)
        assert asked == unit * (2 if form.endswith("two") else 1), f"{form}: {asked}"
