"""L2's chains of ring kernels without a GPU: geometry, arguments, activations, expected words."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from probes import cli
from probes.core.types import Resources, Shape, Unavailable
from probes.device import facts as profiles
from probes.device import pipeline, resources
from probes.device.tuning import Geometry
from probes.engine import judge, predict
from probes.engine import run as engine
from probes.engine.bench import Bench
from probes.formats import layer as decode_layer
from probes.formats import q6k, q8
from probes.formats.layouts import layout
from probes.formats.packing import pack
from probes.l2 import analysis, arms, chains, data, overlap, plan, report, table
from probes.l2.chains import ChainRing
from probes.l2.table import ChainCase
from tests.fixtures import L2_FACTS, L2_LAUNCHES, L2_SHAPE
from tests.host_gpu import HostGpu, Running
from tests.host_run import Commands, Ran, cold

H200 = profiles.load("h200")


def chain_case(name: str, kv: int | None = None) -> ChainCase:
    return ChainCase(id=name, chain=name, kv=kv)


CASES = [chain_case("ffn_down24"), chain_case("attn_v24"), chain_case("decode13_ring", 128)]
"""The chains of ring kernels."""


def arguments(*argv: str) -> Any:
    """Flags of a run."""
    return cli.parser("l2").parse_args(list(argv))


def measured(commands: Commands, *argv: str) -> Ran:
    return commands("l2", "--backend", "cu", *argv)


# Tables


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.id)
@pytest.mark.parametrize("profile", ["h200", "gb10"])
def test_a_launch_and_its_successor_fit_on_an_sm(case: ChainCase, profile: str) -> None:
    facts = replace(profiles.load(profile), slug="nobody-s")  # by rule: a tuned row may fill an SM
    rings = [s for s in chains.steps(case, facts) if s.smem_bytes]
    assert len(rings) == (4 if case.kv else 24)
    for s in rings:
        nbe, stride, od, rows, stages, ahead = s.args[4:]
        assert isinstance(rows, int) and isinstance(stages, int) and isinstance(stride, int)
        assert s.smem_bytes == stages * pipeline.stage_bytes(rows, stride) and ahead == 0
        per_block = s.smem_bytes + facts.smem_reserved_per_block_bytes
        assert chains.SHARE * per_block <= facts.smem_per_sm_bytes
        assert s.grid <= facts.sms and s.weight_bytes == int(od) * stride
        assert stages >= 2 or -(-int(od) // rows) <= s.grid, "a stage is summed while another one fills"
        units = int(nbe) * (8 if s.kernel == "q6k_ring" else 4)
        assert s.block == 32 * (pipeline.consumer_warps(units) + 1)


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.id)
def test_the_h200_s_tuned_rows_fit_it(case: ChainCase, plain: bool) -> None:
    for s in chains.steps(case, H200, plain=plain):
        if s.smem_bytes:
            choice = chains.tuned("h200", case.id, s.name)
            assert choice, f"{s.name} has no row"
            blocks = (choice.plain if plain and choice.plain else choice.ring).blocks_per_sm
            assert blocks * (s.smem_bytes + H200.smem_reserved_per_block_bytes) <= H200.smem_per_sm_bytes
            assert s.grid <= blocks * H200.sms


def test_the_h200_s_geometry_by_rule() -> None:
    found = {
        s.name: (s.args[-3:-1], s.grid, s.block)
        for case in CASES
        for s in chains.steps(case, replace(H200, slug="nobody-s"))
        if s.smem_bytes
    }
    assert found == {
        "ffn_down": ((4, 2), 132, 288), "attn_v": ((4, 2), 132, 192), "down": ((4, 2), 132, 288),
        "qkv": ((8, 4), 132, 128), "o": ((8, 4), 132, 128), "gate_up": ((8, 4), 132, 128),
    }  # fmt: skip
    huge = chains.Matrix("huge", "q6k", Shape(8, 1 << 19))
    assert chains.default_geometry(huge, H200) == Geometry(1, 1)
    with pytest.raises(Unavailable, match="bytes of shared memory per block"):
        chains.step_of(huge, ("w", "x", "n", "o"), ChainRing(Geometry(1, 1)), H200)
    with pytest.raises(Unavailable, match="sm_90"):
        chains.steps(CASES[0], profiles.load("a100"))


def test_a_chain_hands_its_activations_on() -> None:
    steps = chains.steps(CASES[0], H200)
    reads, writes = [s.args[1] for s in steps], [s.args[2] for s in steps]
    assert reads == ["start8", *writes[:-1]] and set(writes) == {"a8", "b8"}
    assert [s.args[0] for s in steps] == [f"w.{k}" for k in range(24)]
    assert [s.args[3] for s in steps] == [f"out.{k}" for k in range(24)]
    assert {s.weight_bytes for s in steps} == {5120 * 11344} and steps[0].weight_bytes == 3545 * 16384
    assert chains.steps(CASES[1], H200)[0].weight_bytes == 263 * 16384


def test_decode13_ring_is_decode13_with_four_rings() -> None:
    plain, rings = chains.decode_steps(128), chains.steps(CASES[2], H200)
    assert sum(s.weight_bytes for s in rings) == chains.layer_bytes(128)
    for a, b in zip(plain, rings, strict=True):
        assert (a.name, a.weight_bytes) == (b.name, b.weight_bytes)
        if a == b:
            assert not a.smem_bytes and a.kernel not in ("q4k", "q6k")
            continue
        assert b.kernel == f"{a.kernel}_ring" and b.args[2] == chains.NULL
        assert (b.args[0], b.args[1], b.args[3], b.args[4]) == a.args[:4]
        assert isinstance(b.args[6], int) and b.args[6] == a.grid * (8 if a.kernel == "q4k" else 1)
    given = {"down": ChainRing(Geometry(2, 2), 3)}
    changed = chains.steps(CASES[2], H200, given)
    assert [a.name for a, b in zip(changed, rings, strict=True) if a != b] == ["down"]
    assert changed[11].args[-3:] == (2, 2, 3) and changed[11].grid == 264


def test_flags_by_kernel_and_arm() -> None:
    start, tail = chains.TRIGGER, chains.TAIL
    for s in (*chains.steps(CASES[2], H200), *chains.decode_steps(1), *chains.stream_steps()):
        knows = s.kernel in ("stream", "q4k", "q6k", "q4k_ring", "q6k_ring")
        assert [s.flags(t) for t in ("end", "start", "tail")] == [0, start, tail if knows else start]
    assert {a.name: a.trigger for a in table.ARMS if a.trigger != "end" and not a.form} == {
        "pdl_entry_trigger": "start", "pdl_late_trigger": "start", "pdl_late_tail": "tail",
        "pdl_late_off": "start", "eager_pdl": "start",
    }  # fmt: skip


def test_activations_are_rotated_by_units() -> None:
    x8 = data.activations(chains.MATRICES["attn_v24"], 3)
    d, q, s = q8.unpack(x8)
    for count in (0, 1, 23, 160):
        turned = q8.unpack(data.rotate(x8, count))
        for was, now in zip((d, q, s), turned, strict=True):
            for u in range(160):
                np.testing.assert_array_equal(now[(u + count) % 160], was[u])
    values = q8.dequantise(x8)
    assert 0.9 < values.std() < 1.1 and not np.array_equal(data.rotate(x8, 1), x8)


# On the stand-in


CU = arguments("--backend", "cu")


def opened(bench: Bench, case: ChainCase, stack: ExitStack) -> arms.Opened:  # internals
    """A case on the device, in C++."""
    made = arms.make(bench, CU, engine.load("l2", bench, CU), stack)
    found = made.open(case, table.variants(CU, case), stack)
    assert isinstance(found, arms.Opened)
    return found


def steps_of(bench: Bench, case: ChainCase, arm: table.Launching) -> tuple[chains.Step, ...]:
    """What an arm launches, by its plan."""
    return plan.plan(arm, case, bench.gpu.facts, CU, "cu").steps


def test_arguments_of_every_arm(small_l2: HostGpu, host_bench: Bench) -> None:
    case = chain_case("decode13_ring", 9)
    with ExitStack() as stack:
        chain = opened(host_bench, case, stack).chains["cu"]
        for name in (*table.AGAIN, *table.JUDGED):
            arm = table.arm(name)
            steps = steps_of(host_bench, case, arm)
            for copy in chain.launches(steps, arm):
                for step, launch in zip(steps, copy.launches, strict=True):
                    own = arm.kind if step.kernel in chains.LATE or arm.kind != "late" else "entry"
                    assert launch.kernel.name == f"l2_{step.kernel}_{own}"
                    assert launch.args[-2].value == step.flags(arm.trigger) and launch.args[-1] == 0
                    assert launch.config.pdl is arm.pdl
                    if step.smem_bytes:
                        assert launch.args[2] == 0 and isinstance(launch.args[2], int)
                        assert [a.value for a in launch.args[4:10]] == list(step.args[4:])
                    assert launch.config.smem_bytes == step.smem_bytes
        ring_kernels = [k for n, k in chain.kernels.items() if n.startswith("l2_q4k_ring")]
        assert {k.handle.carveout for k in ring_kernels} == {100}
        split = chain.kernels["l2_add_plain"].handle.carveout
        assert split == 100, "one split of an SM for all of the chain"
    assert {k.handle.carveout for k in chain.kernels.values()} == {-1}, "and none for the chains after it"


def test_the_expected_words_are_the_oracle_s(small_l2: HostGpu, host_bench: Bench) -> None:
    case = chain_case("ffn_down24")
    with ExitStack() as stack:
        found = opened(host_bench, case, stack)
        chain = found.chains["cu"]
        words = chain.output.want.reshape(L2_LAUNCHES, L2_SHAPE.od)
        raw = decode_layer.weights(L2_SHAPE, host_bench.seed + 11, "q6_K")
        x8 = data.activations(chains.MATRICES["ffn_down24"], host_bench.seed + 12)
        for k in range(L2_LAUNCHES):
            want = q6k.reference(raw, np.roll(x8.reshape(-1, 40), k, axis=0).reshape(-1))
            np.testing.assert_array_equal(words[k], want.view(np.uint32))
        assert len({words[k].tobytes() for k in range(L2_LAUNCHES)}) == L2_LAUNCHES
        assert found.size == 7 * 16384 and {*found.reads} == {16384, 8192}
        steps = steps_of(host_bench, case, table.arm("plain"))
        assert sum(s.weight_bytes for s in steps) == L2_LAUNCHES * found.size
        assert [a["w.3"] - a["w.0"] for a in chain.copies] == [3 * 7 * 16384] * 2
        assert len({a["w.0"] for a in chain.copies}) == 2, "every copy has weights of its own"


def test_a_wrong_plain_kernel_does_not_pass_as_expected(
    small_l2: HostGpu, commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    def change(x: Running) -> None:
        x.gpu.at(x.launch.args[2], np.float32, L2_SHAPE.od)[:] += 1

    monkeypatch.setattr(overlap, "ORACLE_ROWS", 16)
    small_l2.wrong("l2_q6k_plain", change=change)
    done = measured(commands, "--case", "ffn_down24")
    assert done.code == 1 and "ffn_down launch 0, l2_q6k_plain" in done.err


@pytest.mark.parametrize("kind", ["plain", "entry", "late"])
def test_activations_that_are_not_handed_on_show(small_l2: HostGpu, commands: Commands, kind: str) -> None:
    def change(x: Running) -> None:  # as if it had not been rotated
        given, handed = (x.gpu.at(a, np.uint8, L2_SHAPE.id // 32 * 40) for a in x.launch.args[1:3])
        handed[:] = given

    small_l2.wrong(f"l2_q6k_ring_{kind}", change=change)
    done = measured(commands, "--case", "attn_v24")
    assert done.code == 1 and "WRONG RESULT" in done.err and "/cu" in done.err


def test_decode13_ring_must_end_as_decode13_does(small_l2: HostGpu, commands: Commands) -> None:
    argv = ("--case", "decode13_ring", "--kv", "9", "--windows", "2")
    alone = measured(commands, *argv)
    assert alone.rows and all(r.bitwise for r in alone.rows if r.samples_s)

    def change(x: Running) -> None:
        x.gpu.at(x.launch.args[3], np.float32, 4)[1] += 1

    small_l2.wrong("l2_q4k_ring_plain", change=change)
    done = measured(commands, *argv)
    assert done.code == 1 and "decode13_ring qkv/cu at KV 9" in done.err


def test_rows_hold_the_read_of_the_same_bytes_and_the_report_its_blocks(
    small_l2: HostGpu, commands: Commands
) -> None:
    small_l2.gap = lambda x: -2e-6 if x.pdl else 1e-6
    rows = measured(commands, "--case", "ffn_down24", "--case", "compute24", "--windows", "8").rows
    for row in rows:
        row.check()
    mine = {r.variant: r for r in rows if r.case == "ffn_down24"}
    assert mine["plain"].fraction_of_same_bytes_read == pytest.approx(0.7, rel=1e-3)
    assert mine["pdl_late_tail"].fraction_of_same_bytes_read == pytest.approx(0.68 / 0.85, rel=1e-3)
    assert mine["pdl_entry"].fraction_of_same_bytes_read == pytest.approx(0.68 / 0.99, rel=1e-3)
    assert mine["read_chain_pdl"].ratio_to_baseline is None and mine["read_chain"].bitwise
    assert "ring: 4 stages of 8 rows" not in " ".join(mine["kernel_ffn_down"].notes)
    assert any(n.startswith("ring: ") for n in mine["kernel_ffn_down"].notes)
    cold(rows)
    for markdown in (False, True):
        text = "\n\n".join(report.sections(rows, markdown))
        assert "How near the ring chains come" in text and "What the same arms do to compute24" in text
        near = next(x for x in text.splitlines() if "ffn_down24" in x and "0.85" in x)
        assert "pdl_late_tail" in near and near.rstrip("| ").endswith("not reached")
    verdicts = judge.judge(rows, table.CONTESTS, analysis)
    assert "Chains of ring kernels" in report.readme([*rows, *verdicts])
    assert {r.case for r in verdicts} == {"ffn_down24"}
    assert [r.variant for r in verdicts] == ["pdl_late_tail", *table.JUDGED[:-1], "pdl_best"]
    assert {r.variant: r.verdict for r in verdicts} == {
        "pdl_late_tail": "GO", "pdl_late_trigger": "GO", "pdl_late": "NO-GO", "pdl_entry_trigger": "NO-GO",
        "pdl_entry": "NO-GO", "pdl_best": "GO",
    }  # fmt: skip
    reason = verdicts[0].reason or ""
    assert "2.00 us before" in reason and "80.0 % of a PDL chain that reads the same bytes" in reason


def test_rows_that_do_not_fit_are_skipped_with_the_reason(small_l2: HostGpu, commands: Commands) -> None:
    small_l2.facts = replace(L2_FACTS, smem_per_sm_bytes=2048, smem_per_block_max_bytes=1024)
    done = measured(commands, "--case", "ffn_down24", "--sweep")
    assert {r.case for r in done.rows} == {"ffn_down24", "sweep_ring_ffn_down24"}
    rows = 9 + 2 * len(table.ROWS["ffn_down24"])
    assert len(done.rows) == rows and all("bytes of shared memory" in (r.skipped or "") for r in done.rows)
    assert not done.verdicts


def test_a_flag_that_makes_no_sense_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main("l2", ["--case", "ffn_down24", "--arm", "eager", "--mode", "predict"]) == 2
    assert "--arm eager does not run on ffn_down24" in capsys.readouterr().err
    assert cli.main("l2", ["--sweep", "--mode", "predict"]) == 2
    assert "--sweep measures launches, and this run would predict: it needs a GPU" in capsys.readouterr().err
    assert cli.main("l2", ["--list"]) == 0
    listed = capsys.readouterr().out
    own = [c.bar for c in table.CONTESTS]
    for word in (*table.RING, *own, "pdl_late_tail", "read_chain_pdl", "l2.chain"):
        assert word in listed


@pytest.mark.parametrize("profile", ["h200", "gb10"])
def test_predicted_rows_of_the_ring_chains(profile: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "recorded_resources", lambda backend, name, arch: Resources(96))
    facts = profiles.load(profile)
    argv = [x for c in table.RING for x in ("--case", c)]
    for rows in predict.predicted("l2", facts, arguments(*argv, "--arm", "pdl_late_tail")):
        for row in rows:
            row.check()
        assert not [r.skipped for r in rows if r.skipped]
        times = {r.variant: r.time_s for r in rows if r.time_s and r.backend == "cu"}
        assert set(times) == {"plain", "pdl_late_tail"} and times["pdl_late_tail"] < times["plain"]
        kernels = [r for r in rows if any(n.startswith("ring: ") for n in r.notes)]
        assert kernels and all(r.smem_bytes and r.blocks_per_sm and r.blocks_per_sm >= 2 for r in kernels)


def test_packed_weights_are_whole_tiles() -> None:
    """What a chain of reads needs, of the small matrix here and of the real ones."""
    assert pack(decode_layer.weights(L2_SHAPE, 1, "q6_K"), layout("dpl")).nbytes % 16384 == 0
    for m in chains.MATRICES.values():
        assert m.shape.od * m.row_stride % 16384 == 0
