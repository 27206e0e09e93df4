"""The L1 kernels on a GPU: the oracle's bits, refused where wrong, occupancy as predicted."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest

from probes import l1, l1_launch
from probes.core.types import Backend, BadInput, LaunchConfig, Shape, Unavailable, WrongResult
from probes.device.occupancy import occupancy
from probes.engine.bench import BACKENDS, bits, cap_smem
from probes.formats import checksum, layouts, packing, q6k, q8
from probes.formats.layouts import LAYOUTS, Layout
from tests.kernels.backends import built, of, sized

pytestmark = pytest.mark.gpu

ZERO = np.zeros(4, np.uint32)
SHAPES = [
    *(c.shape for c in l1.CASES if c.shape.od < 10_000),
    Shape(512, 8960),  # the record's unit test of pf; pf3's are ffn_down_7b, 16640 and 24576
    Shape(4096, 1024),  # and of loop
    Shape(2048, 5120),  # lm_head's rows, fewer of them: 152064 rows are checked in every run
    Shape(2048, 3584),
    *(Shape(od, id_) for od in (1, 3, 1023) for id_ in (256, 8448, 16384, 16640, 24576)),
]

SMALL = [Shape(3, id_) for id_ in (256, 8448, 16640)]


@pytest.fixture(scope="module")
def kernels(bench: Any) -> dict[str, Any]:
    """Kernels by backend."""

    def build(backend: Backend) -> dict[str, Any]:
        out: dict[str, Any] = {}
        for stem in l1.STEMS:
            names = [f"l1_{name}" for name, _, form in l1.variants() if form.stem == stem]
            out |= bench.kernels(stem, names, backend)
        return out

    return built(build)


def run_planned(bench: Any, kernel: Any, planned: Any, packed: np.ndarray, x8: np.ndarray) -> np.ndarray:
    """One launch as the probe makes it, with a counter word that must be 0 again afterwards."""
    from probes import l1_arms
    from probes.gpu.memory import Buffer

    od = planned.shape.od
    with Buffer.of(packed) as w, Buffer.of(x8) as x, Buffer(4 * od) as out, Buffer.of(ZERO) as counter:
        out.poison()
        l1_arms.make_room(bench, kernel, planned)
        planned.launch(kernel, (w.address, x.address, out.address), counter.address).enqueue(bench.gpu.stream)
        found = out.download(np.uint32, od)
        assert counter.download(np.uint32, 1)[0] == 0
        return found


def run(bench: Any, kernel: Any, packed: np.ndarray, x8: np.ndarray, shape: Shape) -> np.ndarray:
    from probes.gpu.kernels import Launch, int32
    from probes.gpu.memory import Buffer

    with Buffer.of(packed) as w, Buffer.of(x8) as x, Buffer(4 * shape.od) as out:
        out.poison()
        args = (w.address, x.address, out.address, int32(shape.nbe), int32(packed.shape[1]))
        Launch(kernel, l1.launch_config(shape), args).enqueue(bench.gpu.stream)
        return out.download(np.uint32, shape.od)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("shape", sized(SHAPES, SMALL), ids=str)
def test_every_layout_and_form_equals_the_oracle(
    bench: Any, kernels: Any, backend: str, shape: Shape
) -> None:
    mine = of(kernels, backend)
    for seed in (1, 20):
        raw, x8 = q6k.random_raw(shape, seed), q8.random_x8(shape.id, seed + 1)
        want = bits(q6k.reference(raw, x8))
        for name, lay, form in l1.variants():
            packed = packing.pack(raw, lay)
            try:
                planned = l1_launch.plan(form, lay, shape, packed.shape[1], bench.gpu.facts)
            except Unavailable:  # pf and pf3 outside their ranges, ring on an older GPU
                continue
            expected = checksum.stream_sums(packed, lay, shape.nbe, x8) if form.name == "stream" else want
            got = run_planned(bench, mine[f"l1_{name}"], planned, packed, x8)
            what = f"{backend} {name} {shape} seed {seed} {planned.note}"
            np.testing.assert_array_equal(got, expected, err_msg=what)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("form", "most", "units"), [("pf", 512, 592), ("pf3", 768, 800)])
def test_past_its_range_a_form_would_drop_units_and_is_refused(
    bench: Any, kernels: Any, backend: str, form: str, most: int, units: int
) -> None:
    shape, lay = Shape(4, 32 * units), layouts.layout("padded")
    raw, x8 = q6k.random_raw(shape, 3), q8.random_x8(shape.id, 4)
    packed = packing.pack(raw, lay)
    got = run(bench, of(kernels, backend)[f"l1_padded_{form}"], packed, x8, shape)
    assert (got != bits(q6k.reference(raw, x8))).all()
    cut = np.ascontiguousarray(raw.reshape(4, -1, 210)[:, : most // 8].reshape(4, -1))
    np.testing.assert_array_equal(got, bits(q6k.reference(cut, x8[: most * 40])))
    with pytest.raises(BadInput, match=f"has {units}"):
        l1.check_launch(lay, form, shape, packed.shape[1])


@pytest.mark.parametrize("backend", BACKENDS)
def test_occupancy_from_resources_alone_equals_the_drivers(bench: Any, kernels: Any, backend: str) -> None:
    for kernel in of(kernels, backend).values():
        for block, smem in ((256, 0), (256, 4096), (256, 20000), (128, 0), (64, 1000)):
            ours = occupancy(kernel.resources, block, smem, bench.gpu.facts).blocks_per_sm
            assert ours == kernel.blocks_per_sm(block, smem), (kernel.name, block, smem)


@pytest.mark.parametrize("backend", BACKENDS)
def test_blocks_per_sm_are_held(bench: Any, kernels: Any, backend: str) -> None:
    kernel = of(kernels, backend)["l1_padded_loop"]
    most = kernel.blocks_per_sm(256)
    for blocks in range(1, most + 1):
        assert kernel.blocks_per_sm(256, cap_smem(kernel, 256, blocks, bench.gpu)) == blocks


def arm_of(bench: Any, kernel: Any, stack: ExitStack, spoil: bool = False) -> Any:
    from probes.gpu.kernels import Launch, int32
    from probes.gpu.memory import Buffer
    from probes.gpu.timing import Arm, Output

    shape, lay = Shape(64, 1024), layouts.layout("padded")
    raw, x8 = q6k.random_raw(shape, 5), q8.random_x8(shape.id, 6)
    packed, want = packing.pack(raw, lay), bits(q6k.reference(raw, x8)).copy()
    if spoil:
        want[17] ^= 1
    w, x = stack.enter_context(Buffer.of(packed, 5)), stack.enter_context(Buffer.of(x8))
    out = stack.enter_context(Buffer(4 * shape.od))
    tail = (x.address, out.address, int32(shape.nbe), int32(packed.shape[1]))
    launches = [Launch(kernel, l1.launch_config(shape), (w.address + k * w.pitch, *tail)) for k in range(5)]
    return Arm("padded_loop", launches, Output(out, shape.od, want))


def test_no_time_without_a_check(bench: Any, kernels: Any) -> None:
    from probes.gpu import timing

    backend = next(b for b in BACKENDS if not isinstance(kernels[b], Unavailable))
    with ExitStack() as stack:
        wrong = arm_of(bench, kernels[backend]["l1_padded_loop"], stack, spoil=True)
        with pytest.raises(WrongResult, match="element 17"):
            wrong.build(bench.gpu.stream)
        with pytest.raises(AssertionError, match="build"):
            timing.sample(bench.gpu.stream, [wrong], 2, bench.clock(), 0)
        right = arm_of(bench, kernels[backend]["l1_padded_loop"], stack)
        right.build(bench.gpu.stream)
        assert [g.nodes for g in right.graphs] == [5, 10]
        found = timing.sample(bench.gpu.stream, [right], 3, bench.clock(), 0)["padded_loop"]
        assert found.time_s.shape == (3, 2)
        assert np.nanmedian(found.clock_hz) > 1e8
        right.close()


@pytest.mark.small
def test_a_read_is_checked_too(bench: Any) -> None:
    from probes.gpu.memory import Buffer

    data = np.random.default_rng(1).integers(0, 256, 5 * checksum.READ_TILE_BYTES + 160, dtype=np.uint8)
    want = checksum.read_xors(data)
    for backend in BACKENDS:
        with Buffer.of(data, 3) as buffer, Buffer(4 * want.size) as out:
            try:
                arm = bench.read_arm("read", backend, buffer, out, data.nbytes, 3, want)
            except Unavailable as error:
                pytest.skip(str(error))
            arm.build(bench.gpu.stream)
            arm.recheck()
            arm.close()


def test_a_full_gpu_is_said_in_one_line(bench: Any) -> None:
    from probes.gpu.memory import Buffer

    with pytest.raises(Unavailable, match="no room left"):
        Buffer(1 << 46)


def test_a_device_that_is_not_there() -> None:
    from probes.gpu import facts

    with pytest.raises(BadInput, match="there is no device 99"):
        facts.open_gpu(99)


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_empty_launch(bench: Any, backend: Any) -> None:
    from probes.gpu.graph import capture
    from probes.gpu.kernels import Launch

    try:
        kernel = bench.harness("harness_empty", backend)
    except Unavailable as error:
        pytest.skip(str(error))
    graph = capture(bench.gpu.stream, [Launch(kernel, LaunchConfig(1, 32), ())] * 7)
    assert graph.nodes == 7
    graph.replay()
    bench.gpu.stream.sync()
    graph.close()


def test_a_fifth_layout_runs_with_one_row(bench: Any) -> None:
    """Both twins take a made-up layout from its row alone."""
    from kernels_cu import build
    from kernels_numba import compile as numba_compile
    from probes.core.types import Binary
    from probes.formats.layouts import Piece
    from probes.gpu.kernels import bind

    mirror = Layout(
        "mirror", "group", Piece(80, 128, 0), Piece(16, 64, 0), Piece(0, 16, 0), Piece(208, 2, 0), 210
    )
    shape, arch = Shape(37, 2560), bench.gpu.facts.arch
    raw, x8 = q6k.random_raw(shape, 8), q8.random_x8(shape.id, 9)
    packed, want = packing.pack(raw, mirror), bits(q6k.reference(raw, x8))
    name, table = "l1_mirror_loop", (*LAYOUTS, mirror)
    try:
        both = [build.binaries("l1.cu", [name], arch, layouts=table)[name]]
    except Unavailable:
        both = []
    path = numba_compile.compiled("l1", [name], arch, layouts=table)[name]
    both.append(Binary(name=name, backend="numba", entry=name, cubin=path.read_bytes()))
    for binary in both:
        np.testing.assert_array_equal(run(bench, bind(binary), packed, x8, shape), want)
