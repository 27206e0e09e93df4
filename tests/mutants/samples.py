"""Changes to what is sampled and checked: gpu/ and engine/bench.py."""

# ruff: noqa: E501  # texts of the product stand here as they are

from __future__ import annotations

from tests.mutants import Mutant

SAMPLING = ("tests/gpu/test_sampling.py",)
TIMING = ("tests/gpu/test_timing.py",)
HARNESS = ("tests/gpu/test_timing.py", "tests/gpu/test_harness.py")
ROTATION = ("tests/gpu/test_rotation.py",)
BENCH = ("tests/engine/test_bench.py",)
SAFE = ("tests/engine/test_safeguards.py",)


def timing(old: str, new: str, why: str, tests: tuple[str, ...] = TIMING) -> Mutant:
    return Mutant("probes/gpu/timing.py", old, new, why, tests)


def sampling(old: str, new: str, why: str, tests: tuple[str, ...] = SAMPLING) -> Mutant:
    return Mutant("probes/gpu/sampling.py", old, new, why, tests)


def bench(old: str, new: str, why: str, tests: tuple[str, ...] = BENCH) -> Mutant:
    return Mutant("probes/engine/bench.py", old, new, why, tests)


TIMED = (
    timing(
        "            self.poison()\n            for launch in self.launches if",
        "            for launch in self.launches if",
        "outputs not poisoned before the first check",
    ),
    timing(
        '            self.check(f"{self.name}, before timing")\n', "", "no check before timing"
    ),
    timing(
        "for launch in self.launches if self.whole else self.launches[:1]:", "for launch in self.launches[:1]:",
        "a chain's check launches one copy",
    ),
    timing("            self.poison()\n            self.graphs[0].replay()", "            self.graphs[0].replay()",
           "outputs not poisoned before the recheck", HARNESS),
    timing('            self.check(f"{self.name}, after timing", every=True)\n', "", "no recheck"),
    timing('after timing", every=True)', 'after timing")', "the recheck looks at the first slot alone"),
    timing(
        "        for output in (self.output, *self.also):\n            output.buffer.poison()",
        "        for output in (self.output,):\n            output.buffer.poison()",
        "only the first output is poisoned",
    ),
    timing("        for region in self.stale:\n            region.poison()\n", "",
           "what is written before it is read is not poisoned"),
    timing("(self.output, *self.also, *self.kept):", "(self.output, *self.also):", "counters not held to 0"),
    timing("(self.output, *self.also, *self.kept):", "(self.output, *self.kept):", "further outputs not checked"),
    timing("output.check(what, output.slots if every else 1)", "output.check(what, 1)", "one slot checked"),
    timing("        for slot in range(slots):", "        for slot in range(min(slots, 2)):", "two slots checked"),
    timing("bad = np.flatnonzero(seen != self.want)", "bad = np.flatnonzero(seen[:1] != self.want[:1])",
           "one word checked"),
    timing("seen = words if self.indices is None else words[self.indices]", "seen = words[: self.want.size]",
           "the wrong rows are held to the oracle"),
    timing("        if (once.nodes, twice.nodes) != (n, 2 * n):", "        if False:",
           "node counts unread", HARNESS),
    timing("return float(((end - middle) - (middle - start)) / counted * 1e-3)",
           "return float((end - middle) / counted * 1e-3)", "one replay not subtracted", HARNESS),
    timing("return float(((end - middle) - (middle - start)) / counted * 1e-3)",
           "return float(((end - middle) - (middle - start)) / counted * 0.5e-3)", "the slope halved", HARNESS),
    timing("counted = len(arm.launches) - arm.extra",
           "counted = len(arm.launches)", "planted launches counted"),
    timing("            for launch in arm.launches:\n", "            for launch in arm.launches[:1]:\n",
           "the event loop launches one copy", HARNESS),
    timing("floor, most = max(4 * l2_bytes, 1 << 30), free_bytes // 6",
           "floor, most = max(l2_bytes // 4, 1 << 26), free_bytes // 6", "the copies' floor a sixteenth", ROTATION),
    timing("floor, most = max(4 * l2_bytes, 1 << 30), free_bytes // 6",
           "floor, most = max(4 * l2_bytes, 1 << 30), free_bytes", "copies take all memory", ROTATION),
    timing("        copies = max(MOST_NODES, -(-floor // stored_bytes))", "        copies = MOST_NODES",
           "the node limit comes before cold", ROTATION),
    timing("            int(one.args[0])\n", "            int(one.args[1])\n",
           "copies counted from where launches write", (*TIMING, *SAFE)),
    timing("            if read\n        ]", "        ]", "copies counted over every launch of a step"),
    timing("self.launches[: len(self.launches) - self.extra]", "self.launches",
           "planted launches counted among the copies"),
    Mutant("probes/gpu/graph.py", "made = Graph(int(nodes), ", "made = Graph(len(list(launches)), ",
           "nodes counted here, not read back from the graph", HARNESS),
    Mutant("probes/gpu/graph.py", "return int(count), sum(k == wanted for k in kinds)",
           "return int(count), len(kinds)", "every edge programmatic", HARNESS),
    Mutant("probes/gpu/memory.py", "POISON = 0xFF ", "POISON = 0x00 ", "poison is zeros", HARNESS),
    Mutant("probes/gpu/memory.py", "POISON, self.width, self.height)", "POISON, self.width, 1)",
           "one row of a region poisoned", TIMING),
    Mutant("probes/gpu/memory.py", '        call("cuMemsetD8", self.address, POISON, self.size)',
           '        call("cuMemsetD8", self.address, POISON, self.size // 2)', "half of a buffer poisoned", HARNESS),
)  # fmt: skip

SAMPLED = (
    sampling("        self._untimed(arms[0], thrown_away=True)\n        before",
             "        self._untimed(arms[0])\n        before", "the first sample is not thrown away"),
    sampling("            if arm is not before:", "            if False:", "no untimed replay before a change"),
    sampling("            before = arm\n            self._mark", "            self._mark",
             "the arm before is not remembered"),
    sampling("for graph in arm.graphs if thrown_away else arm.graphs[:1]:", "for graph in arm.graphs:",
             "a change replays both graphs"),
    sampling("        sampler.warm(arms)\n", "", "graphs not replayed before the first window"),
    sampling("known = (m[:, 0, 2] == m[:, 1, 2]) & (ns > 0)", "known = (ns > 0)",
             "a clock between two SMs is believed"),
    sampling("order = np.concatenate([out, out[::-1]])", "order = np.concatenate([out, out])",
             "a window is no order and back"),
    sampling("out = rng.permutation(len(arms))", "out = np.arange(len(arms))", "every window in one order"),
    sampling("bad = np.array(found) <= 0", "bad = np.array(found) < 0", "a slope of 0 is a time"),
    sampling("if not bad.any() or spare == 0:", "if True:", "bad windows not taken again"),
    sampling("    spare, told = windows, time.monotonic()", "    spare, told = 3 * windows, time.monotonic()",
             "bad windows taken again three times as often"),
    sampling("values = np.where(bad, np.nan, found)", "values = np.array(found)", "bad slopes kept"),
    sampling("    rng = np.random.default_rng(seed)\n    times, clocks", "    rng = np.random.default_rng(0)\n    times, clocks",
             "every process surveys in the same order"),
    sampling("    rng = np.random.default_rng(seed)\n    open_", "    rng = np.random.default_rng(0)\n    open_",
             "every process has the same rounds"),
    sampling("rng.permutation(due)]", "due]", "rounds in one order"),
    sampling("if taken[k].retaken > look}", "if taken[k].retaken > 4 * look}", "four times the cap of bad blocks"),
    sampling("            open_ -= set(closed(look, taken))", "            closed(look, taken)",
             "a closed pair goes on"),
    sampling("a, b = pairs[k] if taken[k].count % 2 == 0 else pairs[k][::-1]", "a, b = pairs[k]",
             "A B B A every time"),
    sampling("arms += [a, b, b, a]", "arms += [a, b, a, b]", "a block does not cancel a drift"),
    sampling("        if min(own) <= 0:", "        if False:", "bad blocks kept"),
    sampling("            taken[k].retaken += 1\n            continue", "            taken[k].retaken += 1",
             "bad blocks counted and kept"),
    sampling("float(np.min(clocks))", "float(np.max(clocks))", "a block's clock is its highest"),
    sampling("taken[k].after.append(arms[4 * i - 1].name if i else", "taken[k].after.append(arms[4 * i].name if i else",
             "the wrong predecessor is noted"),
)  # fmt: skip

BENCHED = (
    bench("not 0 < len(read) == len(set(read))", "not 0 < len(read)", "launch addresses not shown distinct", SAFE),
    bench("                spec.rotates(arm)\n", "", "no arm's addresses looked at", SAFE),
    Mutant("probes/engine/reads.py", "data.address + k * data.pitch, size, out.address",
           "data.address, size, out.address", "the read arm on copy 0", SAFE),
    bench("row.cold = spec.rotation_bytes >= max(4 * facts.l2_bytes, 1 << 30)",
          "row.cold = spec.rotation_bytes >= max(facts.l2_bytes // 4, 1 << 26)", "the limit at a sixteenth", SAFE),
    bench("row.cold = spec.rotation_bytes >= max(4 * facts.l2_bytes, 1 << 30)",
          "row.cold = True", "a hot row not marked", SAFE),
    bench('                row.notes.append("hot: too little memory to rotate over cold copies")', "                pass",
          "a hot row not told", SAFE),
    bench("rows = self._survey(probe, graphs, what)", "rows = self._survey(probe, arms, what)",
          "eager launches surveyed among the graphs"),
    bench("                arm.recheck()\n", "", "no arm rechecked"),
    bench("                arm.recheck()\n", "                if arm.graph:\n                    arm.recheck()\n",
          "eager arms not rechecked"),
    bench("LOOPED_S = 50e-6", "LOOPED_S = 5e-6", "event loops of short launches"),
    bench("self.seed + 1, contests.closed", "self.seed, contests.closed", "contests with the survey's seed"),
    bench("np.flatnonzero(clocks < blocks.SLOWED * usual_hz)", "np.flatnonzero(clocks < 0.5 * usual_hz)",
          "the throttle mark at 0.5"),
    bench("clocks = samples.clock_hz.reshape(-1)[np.isfinite(times)]", "clocks = samples.clock_hz.reshape(-1)",
          "throttled places of samples that are not there"),
    bench("        known = times[np.isfinite(times)]\n", "        known = np.nan_to_num(times, nan=1e-9)\n",
          "bad samples made up"),
    bench("if (rows[spec.name].time_s or 0.0) >= LOOPED_S:", "if False:", "no event loop"),
    bench("            row.notes.append(told)\n", "", "samples left out and not told"),
    Mutant(
        "probes/engine/run.py", "[*row.notes, *proof.notes]", "proof.notes", "proofs take a row's own notes away",
        ("tests/engine/test_outcomes.py",),
    ),
    Mutant(
        "probes/engine/run.py", "row.missing, row.notes = proof.missing, [", "row.notes = [", "missing proofs forgotten",
        ("tests/l2/test_proofs.py",),
    ),
)  # fmt: skip

MUTANTS = (*TIMED, *SAMPLED, *BENCHED)
