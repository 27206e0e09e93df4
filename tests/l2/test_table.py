"""L2 without a GPU: flags, tables, the flip, predictions, machine code; bad input in one line."""

from __future__ import annotations

from typing import Any

import pytest

from probes import cli
from probes.core.types import BadInput, LaunchConfig, Resources, Unavailable
from probes.device import facts as profiles
from probes.device.occupancy import beside, last_wave
from probes.engine import machine_code, predict, processes
from probes.l2 import chains, plan, report, table
from probes.l2.table import ChainCase
from probes.report.rows import Row

ARCHS = ("sm_90", "sm_121")


def arguments(*argv: str) -> Any:
    return cli.parser("l2").parse_args(list(argv))


def cases(*argv: str) -> list[tuple[str, int | None]]:
    """(id, KV length) of a run's cases; six blocks of any kernel fit on an SM."""
    args = arguments(*argv)
    table.check_flags(args)
    return [(c.id, c.kv) for c in table.cases(args, 48, lambda symbol: {"cu": 6, "numba": 6})]


KERNELS = plan.kernels(arguments("--sweep"))["l2"]
"""Every kernel of every chain."""


def test_cases_and_arms_follow_the_flags() -> None:
    ids = cases()
    assert ids == [
        ("bandwidth24", None), ("compute24", None), ("decode13", 128), ("decode13", 3254),
        ("ffn_down24", None), ("decode13_ring", 128), ("decode13_ring", 3254), ("empty", None),
    ]  # fmt: skip
    swept = {i for i, _ in cases("--sweep")}
    assert swept == {*table.CHAINS} and set(table.ON_DEMAND) == swept - {i for i, _ in ids}
    assert cases("--case", "decode13", "--kv", "77") == [("decode13", 77)]
    chain = ChainCase(id="decode13", chain="decode13", kv=128)
    some = [a.name for a in table.variants(arguments("--arm", "pdl_late"), chain)]
    assert some == ["plain", "plain_aa", "plain_ab", "pdl_late"]
    again = processes.own_flags("l2", arguments("--arm", "eager", "--kv", "5", "--sweep"))
    assert vars(arguments(*again)) == vars(arguments("--arm", "eager", "--kv", "5", "--sweep"))


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--case", "decode12"], "decode13"),
        (["--kv", "0"], "got 0"),
        (["--kv", "20000"], "1 to 16384, got 20000"),
        (["--case", "empty", "--kv", "5"], "--kv is the KV length of decode13"),
        (["--case", "empty", "--sweep"], "--sweep varies compute24"),
        (["--case", "attn_v24", "--kv", "5"], "--kv is the KV length of decode13 and decode13_ring"),
        (["--case", "attn_v24", "--arm", "eager"], "--arm eager does not run on attn_v24"),
        (["--case", "empty", "--arm", "pdl_late_tail"], "--arm pdl_late_tail does not run on empty"),
    ],
)
def test_bad_flags_are_refused_in_one_line(argv: list[str], words: str) -> None:
    with pytest.raises(BadInput, match=words) as error:
        cases(*argv)
    assert "\n" not in str(error.value)


def test_the_flip_is_the_environment() -> None:
    for a in table.ARMS:
        assert table.dispatch(a, {"PROBES_PDL": "0"}) is False
        assert table.dispatch(a, {}) is (a.pdl and a.env is None)
    off = table.arm("pdl_entry_off")
    assert (off.kind, off.trigger) == (table.arm("pdl_entry").kind, table.arm("pdl_entry").trigger)
    assert [a.trigger for a in table.ARMS if a.name.endswith("_trigger")] == ["start", "start"]


def test_the_tables_are_the_record_s_chains() -> None:
    steps = chains.decode_steps(3254)
    assert len(steps) == 13 == len(chains.WRITES)
    assert [s.kernel for s in steps].count("q4k") == 3
    assert [s.grid for s in steps if s.kernel == "q4k"] == [7168 // 8, 5120 // 8, 27648 // 8]
    assert steps[3].grid == 8 * 51
    assert chains.layer_bytes(3254) - chains.layer_bytes(0 + 1) == 2 * 2 * 3253 * 1024
    assert len(chains.stream_steps()) == len(chains.compute_steps(9)) == 24
    reads = [s.args[-2] for s in chains.stream_steps()]
    writes = [s.args[-1] for s in chains.stream_steps()]
    assert reads == ["start", *writes[:-1]]
    for kind in ("plain", "entry", "late"):
        assert {s.entry_point(kind) for s in steps} <= set(KERNELS)
    assert chains.tail_grid(48, 6, 1.5) == 432


@pytest.mark.toolchain
def test_every_kernel_of_the_tables_exists_in_both_languages() -> None:
    from kernels_cu import build
    from kernels_numba import l2 as twins

    wanted = {*KERNELS, "l2_sleeper"}
    assert set(twins.kernels()) == wanted
    try:
        assert {o.name for o in build.offline("l2.cu", "sm_90")} == wanted
    except Unavailable as error:
        pytest.skip(str(error))


@pytest.mark.toolchain
@pytest.mark.sampled(1, "")
@pytest.mark.parametrize("backend", ["cu", "numba"])
@pytest.mark.parametrize("arch", ARCHS)
def test_the_machine_code_waits_where_it_should(backend: Any, arch: str) -> None:
    """The wait is in every entry and late kernel, in no plain one, before the loads or after the prefetch."""
    names = KERNELS
    if backend == "numba":  # a disassembly each
        names = [n for n in names if n.rpartition("_")[0] in ("l2_stream", "l2_q4k", "l2_q6k_ring")]
    try:
        found = machine_code.kernels("l2", names, backend, arch)
    except Unavailable as error:
        pytest.skip(str(error))
    for name, ops in found.items():
        base, _, kind = name.rpartition("_")
        waits, load = machine_code.first(ops, machine_code.WAIT), machine_code.first(ops, machine_code.LOAD)
        kernel, triggers = base.removeprefix("l2_"), machine_code.count(ops, machine_code.TRIGGER)
        assert machine_code.count(ops, machine_code.WAIT) == (0 if kind == "plain" else 1), name
        if kernel in chains.RINGS:  # the feeder copies, the consumers wait: two warps' code
            assert machine_code.count(ops, machine_code.COPY) > 0, name
            assert triggers >= 2 if kind != "plain" else triggers == 0, "at once, and at the tail"
            assert machine_code.count(ops, machine_code.PREFETCH) == (1 if kind == "late" else 0), name
            continue
        assert triggers == (0 if kind == "plain" else 2 if kernel in chains.TAILS else 1), name
        if kernel in chains.ENDS:  # what is read stands before the wait
            copy = machine_code.first(ops, machine_code.COPY)
            asked = copy if kernel == "stream_bulk" else load
            assert asked >= 0 and (kind == "plain" or asked < waits), name
            continue
        if kind == "entry":
            assert load == -1 or waits < load, name
            assert (
                machine_code.first(ops, machine_code.TRIGGER) < waits
                and machine_code.first(ops, machine_code.PREFETCH) == -1
            )
        if kind == "late" and base == "l2_stream":
            assert load < waits, "the weights are read before the wait"
            assert machine_code.count(ops[:waits], machine_code.LOAD) == 4
        elif kind == "late" and base not in ("l2_compute", "l2_wide"):
            assert 0 <= machine_code.first(ops, machine_code.PREFETCH) < waits, name


@pytest.mark.toolchain
def test_what_a_predecessor_wrote_is_never_read_as_constant() -> None:
    """ld.global.nc may be moved above the wait, so only weights, gamma and rope tables are read that way."""
    try:
        found = machine_code.kernels("l2", KERNELS, "cu", "sm_90")
    except Unavailable as error:
        pytest.skip(str(error))
    constant = {
        name.rpartition("_")[0]: sum(op.startswith("LDG") and "CONSTANT" in op for op in ops)
        for name, ops in found.items()
    }
    assert {k for k, n in constant.items() if n} == {
        "l2_stream",
        "l2_stream_8k",
        "l2_q4k",
        "l2_q6k",
        "l2_rms_quantise",
        "l2_rope_store",
    }
    assert (constant["l2_stream"], constant["l2_q4k"], constant["l2_q6k"]) == (4, 3, 6)
    assert (constant["l2_rms_quantise"], constant["l2_rope_store"]) == (1, 2)


@pytest.mark.sampled(1, "")
@pytest.mark.toolchain
@pytest.mark.parametrize("arch", ARCHS)
def test_every_numba_kernel_compiles(arch: str) -> None:
    from kernels_numba import compile as numba_compile

    found = {o.name: o.resources for o in numba_compile.offline("l2", arch)}
    assert set(found) == {*KERNELS, "l2_sleeper"}
    assert not [name for name, r in found.items() if r.spill_bytes or r.registers > 128]
    assert found["l2_wide_plain"].registers > 48, "its words are in registers"


@pytest.mark.toolchain
def test_older_targets_compile_without_the_instructions() -> None:
    from kernels_cu import build

    try:
        assert build.offline("l2.cu", "sm_75")
    except Unavailable as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("profile", ["gb10", "h200", "a100"])
def test_predicted_rows_say_so(profile: str) -> None:
    facts = profiles.load(profile)
    for rows in predict.predicted("l2", facts, arguments()):
        assert rows and not [r for r in rows if r.verdict or r.samples_s or r.bitwise]
        assert {r.source for r in rows} <= {"predicted", "recorded"}
        for row in rows:
            row.check()
        predicted = [r for r in rows if r.source == "predicted"]
        if profile == "a100":
            assert all("sm_90 or later, a100 is sm_80" in (r.skipped or "") for r in predicted)
            continue
        assert not [r.skipped for r in predicted if r.skipped]
        times = {(r.variant, r.backend): r.time_s for r in predicted if r.time_s}
        assert (times["pdl_entry", "cu"] or 0) < (times["plain", "cu"] or 0)
        assert all("at best" in " ".join(r.notes) for r in predicted if r.variant.startswith("pdl"))
    assert not report.sections(rows, False)


def test_recorded_rows_are_the_record_s() -> None:
    def ratios(chain: str, kv: int | None = None) -> list[float | None]:
        return [r.ratio_to_baseline for r in report.recorded(ChainCase(id=chain, chain=chain, kv=kv))]

    assert ratios("bandwidth24") == [0.999] and ratios("compute24") == [1.028]
    assert ratios("decode13", 128) == pytest.approx([1 / 0.974, 1 / 0.982])
    (gap,) = report.recorded(ChainCase(id="empty", chain="empty"))
    assert gap.time_s == pytest.approx(48e-6)


def test_a_row_with_a_kv_length_has_an_id_of_its_own() -> None:
    row = Row(probe="l2", case="decode13", variant="plain", backend="cu", source="measured", kv=128)
    assert (row.id, row.group) == ("l2/decode13@128/plain/cu", "decode13@128")
    assert Row.from_json(row.to_json()) == row


def test_what_fits_beside_a_last_wave() -> None:
    h200 = profiles.load("h200")
    few, many = Resources(32), Resources(64)
    config = LaunchConfig(1, 256)
    assert last_wave(432, 132, 3) == 1 and last_wave(396, 132, 3) == 3 and last_wave(1, 132, 8) == 1
    assert beside((few, config), 8, (few, config), h200) == 0
    assert beside((few, config), 3, (few, config), h200) == 5
    assert beside((few, config), 0, (many, config), h200) == 4
    assert beside((many, config), 2, (few, config), h200) == 4
    assert beside((few, config), 1, (few, LaunchConfig(1, 256, 120_000)), h200) == 1
