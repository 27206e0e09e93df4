"""Changes to the probes' arms, to reports, and to how a command ends."""

# ruff: noqa: E501  # texts of the product stand here as they are

from __future__ import annotations

from tests.mutants import Mutant

SAFE = ("tests/engine/test_safeguards.py",)
OUTCOMES = ("tests/engine/test_outcomes.py",)
EDITED = ("tests/engine/test_outcomes.py", "tests/commands/test_replay_edited.py")
L2 = ("tests/l2/test_proofs.py",)
L3_PROOFS = ("tests/l3/test_l3_proofs.py",)
L3 = ("tests/l3/test_l3_rings.py", "tests/l3/test_l3_measure.py")
PROOFS = ("tests/l2/test_proofs.py",)
RULE = ("tests/engine/test_block_rule.py",)


def l1(old: str, new: str, why: str, tests: tuple[str, ...] = SAFE) -> Mutant:
    return Mutant("probes/l1/arms.py", old, new, why, tests)


def l2(old: str, new: str, why: str, tests: tuple[str, ...] = SAFE, file: str = "arms") -> Mutant:
    return Mutant(f"probes/l2/{file}.py", old, new, why, tests)


def l3(old: str, new: str, why: str, tests: tuple[str, ...] = L3) -> Mutant:
    return Mutant("probes/l3/arms.py", old, new, why, tests)


def rows(old: str, new: str, why: str, tests: tuple[str, ...] = RULE) -> Mutant:
    return Mutant("probes/report/rows.py", old, new, why, tests)


def replay(old: str, new: str, why: str, tests: tuple[str, ...] = OUTCOMES) -> Mutant:
    return Mutant("probes/commands/replay.py", old, new, why, tests)


PLACES = "read, out, counter = (b.address + k * b.pitch for b in (weights, w.outs, w.counters))"
L1_PLACES = "weights.address + {} * weights.pitch, w.outs.address + {} * w.outs.pitch, w.counters.address + {} * w.counters.pitch"


def placed(weights: str, outs: str, counters: str) -> str:
    return f"read, out, counter = {L1_PLACES.format(weights, outs, counters)}"


OF_L1 = (
    l1(PLACES, placed("0", "k", "k"), "all launches on copy 0"),
    l1(PLACES, placed("k", "0", "k"), "all launches write to one slot"),
    l1(PLACES, placed("k", "k", "0"), "all launches draw from one counter"),
    l1('        if v.role == "again":\n', "        if False:\n", "an arm again on the same weights"),
    l1("copies = timing.rotation(least,", "copies = timing.rotation(most,", "copies by the largest layout"),
    l1('held = len(needed) + len(self.kernels) * sum(v.role == "again" for v in variants)', "held = len(needed)",
       "no room for weights again"),
    l1("Output(w.outs, od, every, slots=w.copies), kept=kept)", "Output(w.outs, od, every), kept=kept)",
       "one slot of L1 checked"),
    l1("Output(w.outs, od, every, slots=w.copies), kept=kept)", "Output(w.outs, od, every, slots=w.copies))",
       "L1's counters not held to 0"),
    l1("np.zeros(1, np.uint32), slots=w.copies),) if drawn", "np.zeros(1, np.uint32)),) if drawn",
       "one of L1's counters held to 0"),
    l1("self.host.packed[v.layout.name].nbytes * self.copies", "self.host.packed[v.layout.name].nbytes * self.copies * 64",
       "a rotation overstated"),
    l1("want = w.host.streamed[v.layout.name] if stream else w.host.want", "want = w.host.want",
       "the stream form held to the sums", ("tests/l1/test_l1_measure.py",)),
)  # fmt: skip

OF_L2 = (
    l2("chain.output, stale=chain.stale, whole=True", "chain.output, whole=True", "the KV cache's last position not poisoned"),
    l2("chain.output, stale=chain.stale, whole=True", "chain.output, stale=chain.stale", "a chain's first copy checked alone"),
    l2("caches.address + k * caches.pitch + at, *size", "caches.address + at, *size", "the first layer's last position poisoned alone", PROOFS),
    l2("own = {name: b.address + k * b.pitch for name, b in (*w.device.items()", "own = {name: b.address for name, b in (*w.device.items()",
       "all layers on copy 0"),
    l2("b.address + k * b.pitch for x, b", "b.address + k % n * b.pitch for x, b", "all chains on copy 0"),
    l2("b.address + k * b.pitch for x, b", "b.address + k // n * b.pitch for x, b", "all launches of a chain on one copy"),
    l2("if table.dispatch(v) and found < edges:", "if False:", "edges that are not programmatic pass", L2),
    l2("if not table.dispatch(v) and found:", "if False:", "programmatic edges without the attribute pass", L2),
    l2("        if v.graph and table.dispatch(v):\n", "        if False:\n", "replays not held to eager launches", L2),
    l2("out.overlap_s, out.notes = seen.median_s,", "out.overlap_s, out.notes = 0.0,", "overlap not looked at", L2),
    l2("            for region in chain.stale:\n                region.poison()\n", "", "replays over a KV cache that is not poisoned", PROOFS, "overlap"),
    l2('    if (words == clean.reshape(count, 2)).any():', "    if False:", "missing time stamps pass", ("tests/l2/test_proofs.py",), "overlap"),
    l2("machine_code.first(found[n], machine_code.WAIT) >= 0]", "machine_code.first(found[n], machine_code.WAIT) >= -1]",
       "a wait is always found", L2, "overlap"),
    l2('        data.compare(got, want[name], f"{chain.case.id} {step.name}{where}")\n', "", "a layer's kernels not held to the oracle",
       ("tests/l2/test_measure.py::test_a_wrong_kernel_is_caught_and_named", "tests/l2/test_proofs.py"), "overlap"),
    l2('    data.compare(caches.download(np.float16, cache.size), cache, f"{chain.case.id} KV cache{where}")\n', "",
       "the KV cache not held to the oracle", ("tests/l2/test_proofs.py",), "overlap"),
    l2('        data.compare(found[k, rows], want, f"{m.name} launch {k}, {plain.name}")\n', "", "a matrix not held to the oracle",
       ("tests/l2/test_rings.py::test_a_wrong_plain_kernel_does_not_pass_as_expected",), "overlap"),
    l2("early = np.median(ns[:, :-1, 1] - ns[:, 1:, 0], axis=0)", "early = np.median(ns[:, 1:, 0] - ns[:, :-1, 1], axis=0)",
       "a gap is an overlap", L2, "overlap"),
    l2("            where.poison()\n            for region", "            for region", "replays not poisoned", ("tests/l2/test_proofs.py",), "overlap"),
    l2('weights=tuple(str(*s.args[:1]).startswith("w.") for s in steps)', "weights=(True,)", "only a chain's first launch is looked at", SAFE, "plan"),
    l2('return "no overlap was looked for" if row.overlap_s is None else None', "return None", "nobody looked at the starts, and it is judged",
       ("tests/l2/test_overlap.py",), "analysis"),
)  # fmt: skip

OF_L3 = (
    l3("return self.weights.address + k * self.weights.pitch", "return self.weights.address", "L3 on copy 0"),
    l3("(o.buffer.address + k * o.buffer.pitch for o in outputs)", "(o.buffer.address for o in outputs)", "L3 writes to one slot"),
    l3("words = kept[0].buffer.address + k * kept[0].buffer.pitch if kept else 0", "words = kept[0].buffer.address if kept else 0",
       "L3 hands over in one slot"),
    l3("also=tuple(outputs[1:]), kept=kept)", "kept=kept)", "a pair's intermediate not checked", L3_PROOFS),
    l3("also=tuple(outputs[1:]), kept=kept)", "also=tuple(outputs[1:]))", "L3's words not held to 0",
       ("tests/gpu/test_harness.py::test_a_counter_that_a_kernel_leaves_is_seen", *L3)),
    l3("w.size, w, slots=d.copies)", "w.size, w)", "one slot of L3 checked"),
    l3("        if (seen == 0xFFFFFFFF).any():", "        if False:",
       "a block that was left out passes", ("tests/l3/test_l3_proofs.py",)),
    l3("        if counts.size > sms:\n", "        if False:\n", "blocks outside a partition pass", ("tests/l3/test_l3_proofs.py",)),
    l3("return float(counts.max() / (launch.grid / sms))", "return float(counts.max() / counts.mean())", "load over the SMs that were used", L3_PROOFS),
    Mutant("probes/l3/analysis.py", "if r.geometry and (r.waves or 0.0) > 1.0:", "if r.geometry and (r.waves or 0.0) > 9.0:",
           "a ring that does not fit at once is judged", ("tests/l3/test_l3_judge.py",)),
)  # fmt: skip

OF_REPORTS = (
    rows("TOLERANCE = 0.02", "TOLERANCE = 0.5", "1.25 of a read passes"),
    rows('            ("the read ceiling", self.fraction_of_ceiling),\n', "", "above the ceiling passes"),
    rows('            ("a plain read of the same bytes", self.fraction_of_same_bytes_read),\n', "", "faster than a read of its bytes passes"),
    rows("(cold := dram / self.content_bytes) < 0.98", "(cold := dram / self.content_bytes) < 0.5", "half from DRAM is cold"),
    rows("if dram is not None and self.content_bytes and (cold", "if dram and self.content_bytes and (cold", "no byte from DRAM is cold"),
    rows("        if self.throttled:\n", "        if False:\n", "a low clock not told", ("tests/engine/test_bench.py",)),
    rows("if abs(off := self._off(self.event_loop_time_s)) > 0.03:", "if abs(off := self._off(self.event_loop_time_s)) > 3:",
         "an event loop that differs not told", ("tests/report/test_rows.py",)),
    rows("if count and self.windows is not None and count != want:", "if False:", "samples that are not the windows'", ("tests/report/test_rows.py",)),
    rows("if blocks % 4 or clocks not in (0, blocks // 4):", "if blocks % 4:", "clocks that are not the blocks'", ("tests/report/test_rows.py", *OUTCOMES)),
    Mutant("probes/engine/processes.py", "--seed={args.seed + k}", "--seed={args.seed}", "every process has the same seed", ("tests/engine/test_bench.py",)),
    Mutant("probes/engine/processes.py", "len(r.blocks_s) // 8 * 8", "len(r.blocks_s) // 4 * 4", "an odd count turns who comes first round", OUTCOMES),
    Mutant("probes/engine/processes.py", "None if first.cold is None else all(r.cold for r in rows)", "None if first.cold is None else any(r.cold for r in rows)",
           "hot in one process is cold", ("tests/engine/test_processes.py",)),
    Mutant("probes/engine/old_rule.py", "why or _apart(part.row, part.base))", "why)", "an old report without overlap is judged", ("tests/engine/test_outcomes.py", "tests/engine/test_judge.py")),
    Mutant("probes/engine/old_rule.py", "windows.floor_of(floors)) if floors", "0.0) if floors", "an old report without its floor", ("tests/engine/test_outcomes.py", "tests/engine/test_judge.py")),
    Mutant("probes/engine/run.py", "tuple(n for n in blocks.LOOKS if n <= most)", "tuple(blocks.LOOKS)", "--blocks is not heard", OUTCOMES),
    Mutant("probes/engine/run.py", "rows = bench.measure(name, [*bound, *read], case.id, contests=not case.sweep)",
           "rows = bench.measure(name, [*bound, *read], case.id, contests=False)", "no contest is timed", ("tests/engine/test_neighbour.py",)),
    Mutant("probes/engine/recheck.py", "for i in before.keys() - now.keys()", "for i in ()", "lost verdicts without an exit code", OUTCOMES),
    Mutant("probes/engine/recheck.py", "if each in seen and len(set(each)) > 1:", "if False:", "copied samples pass", EDITED),
    replay("    if wrong:\n        return 4", "    if wrong:\n        return 3", "a file that differs ends as INCONCLUSIVE"),
    replay("for r in again]) if again else 3", "for r in again]) if again else 0", "nothing judged ends with 0"),
    replay("    if head.schema < BLOCKS_SCHEMA:\n        return old_rule.Windows(head.seed)\n", "", "an old report by today's rule"),
    replay("return old_rule.Windows(head.seed)", "return old_rule.Windows(head.seed + 1)", "an old report by another bootstrap", ("tests/engine/test_judge.py",)),
    replay("contests = tuple(c for c in contests if not c.sides)", "pass", "best against best asked of an old report"),
    replay("and (r.bitwise or not r.samples_s)]", "]", "rows that no check stands behind decide"),
    replay("    if head.rows_sha256 != store.rows_sha256(rows):", "    if False:", "the rows' hash unread", EDITED),
    replay("out += recheck.samples(head, rows) + recheck.figures(rows)", "out += recheck.figures(rows)", "samples not looked at", EDITED),
    replay("out += recheck.samples(head, rows) + recheck.figures(rows)", "out += recheck.samples(head, rows)", "figures not looked at", EDITED),
    replay("    if head.bars_sha256 != bars.bars_sha256(*names) and", "    if False and", "bars that moved pass", EDITED),
    replay("known = float(highest) if isinstance(highest, int | float) else None", "known = None", "the device's highest clock unread"),
    Mutant("probes/cli.py", '3 if done.head.mode == "measure" and not reached else', '3 if False else', "a run without a verdict ends with 0", OUTCOMES),
    Mutant("probes/cli.py", "if sweep.swept(done.rows):  #", "if False:  #", "a sweep ends as INCONCLUSIVE", OUTCOMES),
)  # fmt: skip

MUTANTS = (*OF_L1, *OF_L2, *OF_L3, *OF_REPORTS)
