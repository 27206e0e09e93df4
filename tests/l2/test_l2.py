"""L2 without a GPU: flags, tables, the flip, predictions, machine code; bad input in one line."""

from __future__ import annotations

from typing import Any

import pytest
from probes.device.coresident import beside, last_wave

from probes import cli, l2, l2_chains, l2_predict, l2_report, sass
from probes.core.types import BadInput, LaunchConfig, Resources, Unavailable
from probes.device import facts as profiles
from probes.report.rows import Row

ARCHS = ("sm_90", "sm_121")


def arguments(*argv: str) -> Any:
    return cli.parser("l2").parse_args(list(argv))


def test_cases_and_arms_follow_the_flags() -> None:
    ids = [(c.id, c.kv) for c in l2.cases(arguments())]
    assert ids == [
        ("bandwidth24", None), ("compute24", None), ("decode13", 128), ("decode13", 3254),
        ("ffn_down24", None), ("decode13_ring", 128), ("decode13_ring", 3254), ("empty", None),
    ]  # fmt: skip
    swept = {c.id for c in l2.cases(arguments("--sweep"))}
    assert swept == {*l2.CASES} and set(l2.SWEEP_CASES) == swept - {i for i, _ in ids}
    assert [(c.id, c.kv) for c in l2.cases(arguments("--case", "decode13", "--kv", "77"))] == [
        ("decode13", 77)
    ]
    some = [a.name for a in l2.arms(arguments("--arm", "pdl_late"), "decode13")]
    assert some == ["plain", "plain_aa", "plain_ab", "pdl_late"]
    again = l2.child_flags(arguments("--arm", "eager", "--kv", "5", "--sweep"))
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
        l2.cases(arguments(*argv))
    assert "\n" not in str(error.value)


def test_the_flip_is_the_environment() -> None:
    for a in l2.ARMS:
        assert l2.dispatch(a, {"PROBES_PDL": "0"}) is False
        assert l2.dispatch(a, {}) is (a.pdl and a.env is None)
    off = l2.arm("pdl_entry_off")
    assert (off.kind, off.trigger) == (l2.arm("pdl_entry").kind, l2.arm("pdl_entry").trigger)
    assert [a.trigger for a in l2.ARMS if a.name.endswith("_trigger")] == ["start", "start"]


def test_the_tables_are_the_record_s_chains() -> None:
    steps = l2_chains.decode_steps(3254)
    assert len(steps) == 13 == len(l2_chains.WRITES)
    assert [s.kernel for s in steps].count("q4k") == 3
    assert [s.grid for s in steps if s.kernel == "q4k"] == [7168 // 8, 5120 // 8, 27648 // 8]
    assert steps[3].grid == 8 * 51
    assert l2_chains.layer_bytes(3254) - l2_chains.layer_bytes(0 + 1) == 2 * 2 * 3253 * 1024
    assert len(l2_chains.stream_steps()) == len(l2_chains.compute_steps(9)) == 24
    reads = [s.args[-2] for s in l2_chains.stream_steps()]
    writes = [s.args[-1] for s in l2_chains.stream_steps()]
    assert reads == ["start", *writes[:-1]]
    for kind in ("plain", "entry", "late"):
        assert {s.entry_point(kind) for s in steps} <= set(l2_chains.kernel_names())
    assert l2_chains.tail_grid(48, 6, 1.5) == 432


@pytest.mark.toolchain
def test_every_kernel_of_the_tables_exists_in_both_languages() -> None:
    from kernels_cu import build
    from kernels_numba import l2 as twins

    wanted = {*l2_chains.kernel_names(), "l2_sleeper"}
    assert set(twins.kernels()) == wanted
    try:
        assert {o.name for o in build.offline("l2.cu", "sm_90")} == wanted
    except Unavailable as error:
        pytest.skip(str(error))


@pytest.mark.toolchain
@pytest.mark.parametrize("backend", ["cu", "numba"])
@pytest.mark.parametrize("arch", ARCHS)
def test_the_machine_code_waits_where_it_should(backend: Any, arch: str) -> None:
    """The wait is in every entry and late kernel, in no plain one, before the loads or after the prefetch."""
    names = l2_chains.kernel_names()
    if backend == "numba":  # a disassembly each
        names = [n for n in names if n.rpartition("_")[0] in ("l2_stream", "l2_q4k", "l2_q6k_ring")]
    try:
        found = sass.kernels("l2", names, backend, arch)
    except Unavailable as error:
        pytest.skip(str(error))
    for name, ops in found.items():
        base, _, kind = name.rpartition("_")
        waits, load = sass.first(ops, sass.WAIT), sass.first(ops, sass.LOAD)
        kernel, triggers = base.removeprefix("l2_"), sass.count(ops, sass.TRIGGER)
        assert sass.count(ops, sass.WAIT) == (0 if kind == "plain" else 1), name
        if kernel in l2_chains.RINGS:  # the feeder copies, the consumers wait: two warps' code
            assert sass.count(ops, sass.COPY) > 0, name
            assert triggers >= 2 if kind != "plain" else triggers == 0, "at once, and at the tail"
            assert sass.count(ops, sass.PREFETCH) == (1 if kind == "late" else 0), name
            continue
        assert triggers == (0 if kind == "plain" else 2 if kernel in l2_chains.TAILS else 1), name
        if kind == "entry":
            assert load == -1 or waits < load, name
            assert sass.first(ops, sass.TRIGGER) < waits and sass.first(ops, sass.PREFETCH) == -1
        if kind == "late" and base == "l2_stream":
            assert load < waits, "the weights are read before the wait"
            assert sass.count(ops[:waits], sass.LOAD) == 4
        elif kind == "late" and base not in ("l2_compute", "l2_wide"):
            assert 0 <= sass.first(ops, sass.PREFETCH) < waits, name


@pytest.mark.toolchain
def test_what_a_predecessor_wrote_is_never_read_as_constant() -> None:
    """ld.global.nc may be moved above the wait, so only weights, gamma and rope tables are read that way."""
    try:
        found = sass.kernels("l2", l2_chains.kernel_names(), "cu", "sm_90")
    except Unavailable as error:
        pytest.skip(str(error))
    constant = {
        name.rpartition("_")[0]: sum(op.startswith("LDG") and "CONSTANT" in op for op in ops)
        for name, ops in found.items()
    }
    assert {k for k, n in constant.items() if n} == {
        "l2_stream",
        "l2_q4k",
        "l2_q6k",
        "l2_rms_quantise",
        "l2_rope_store",
    }
    assert (constant["l2_stream"], constant["l2_q4k"], constant["l2_q6k"]) == (4, 3, 6)
    assert (constant["l2_rms_quantise"], constant["l2_rope_store"]) == (1, 2)


@pytest.mark.toolchain
@pytest.mark.parametrize("arch", ARCHS)
def test_every_numba_kernel_compiles(arch: str) -> None:
    from kernels_numba import compile as numba_compile

    found = {o.name: o.resources for o in numba_compile.offline("l2", arch)}
    assert set(found) == {*l2_chains.kernel_names(), "l2_sleeper"}
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
    for rows in l2_predict.predict(facts, arguments()):
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
    assert not l2_report.sections(rows, False)


def test_recorded_rows_are_the_record_s() -> None:
    ratios = {
        c: [r.ratio_to_baseline for r in l2_predict.recorded_rows(l2.Case(c))]
        for c in ("bandwidth24", "compute24")
    }
    assert ratios == {"bandwidth24": [0.999], "compute24": [1.028]}
    short = [r.ratio_to_baseline for r in l2_predict.recorded_rows(l2.Case("decode13", 128))]
    assert short == pytest.approx([1 / 0.974, 1 / 0.982])
    (gap,) = l2_predict.recorded_rows(l2.Case("empty"))
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
