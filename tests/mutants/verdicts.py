"""Changes to what is made of samples: verdict/ and the rules of engine/."""

# ruff: noqa: E501  # texts of the product stand here as they are

from __future__ import annotations

from tests.mutants import Mutant

STATISTICS = ("tests/engine/test_block_rule.py", "tests/verdict/test_blocks.py")
BARS = ("tests/engine/test_outcomes.py", "tests/verdict/test_bars.py")
CONTESTS = ("tests/engine/test_contests.py",)
RULE = ("tests/engine/test_block_rule.py",)
JUDGE = ("tests/engine/test_block_rule.py", "tests/engine/test_outcomes.py", "tests/engine/test_best.py")


def blocks(old: str, new: str, why: str, tests: tuple[str, ...] = STATISTICS) -> Mutant:
    return Mutant("probes/verdict/blocks.py", old, new, why, tests)


def bars(old: str, new: str, why: str, tests: tuple[str, ...] = BARS) -> Mutant:
    return Mutant("probes/verdict/bars.py", old, new, why, tests)


def contests(old: str, new: str, why: str) -> Mutant:
    return Mutant("probes/engine/contests.py", old, new, why, CONTESTS)


def rule(old: str, new: str, why: str) -> Mutant:
    return Mutant("probes/engine/block_rule.py", old, new, why, RULE)


def judge(old: str, new: str, why: str, tests: tuple[str, ...] = JUDGE) -> Mutant:
    return Mutant("probes/engine/judge.py", old, new, why, tests)


OF_BLOCKS = (
    blocks("LOOKS: dict[int, int] = {16: 3, 32: 8, 64: 21}", "LOOKS: dict[int, int] = {16: 4, 32: 8, 64: 21}",
           "the first look's ends a rank inside"),
    blocks("LOOKS: dict[int, int] = {16: 3, 32: 8, 64: 21}", "LOOKS: dict[int, int] = {16: 3, 32: 9, 64: 21}",
           "the second look's ends a rank inside"),
    blocks("LOOKS: dict[int, int] = {16: 3, 32: 8, 64: 21}", "LOOKS: dict[int, int] = {16: 3, 32: 8, 64: 22}",
           "the third look's ends a rank inside"),
    blocks("LEAST = 8\n", "LEAST = 4\n", "four blocks make an interval"),
    blocks("PRIOR = 0.002", "PRIOR = 0.0", "pairs that lack are taken for perfect",
           ("tests/engine/test_block_rule.py", "tests/engine/test_contests.py", "tests/verdict/test_blocks.py")),
    blocks("REACH = 3.3", "REACH = 1.0", "tau moves an end by one standard deviation"),
    blocks("SLOWED = 0.97", "SLOWED = 0.5", "a low clock is half of the usual one"),
    blocks("LOW_BLOCKS = 8", "LOW_BLOCKS = 64", "only a whole run at a low clock counts"),
    blocks("np.where(np.arange(r.size) % 2 == 0, r, -r)", "r", "who comes first is not looked at"),
    blocks("float(values[k - 1]), float(values[values.size - k])", "float(values[k]), float(values[values.size - k - 1])",
           "ends one value inside"),
    blocks("lacking * prior**2", "0 * prior**2", "A/A pairs that lack count for nothing"),
    blocks("(e.m**2, (e.half / spread(n)) ** 2) for", "(e.m**2, 0.0) for", "a pair's own noise taken for placement"),
    blocks("(len(pairs) * low +", "(len(pairs) * low / 100 +", "tau a tenth"),
    blocks("(math.hypot(h, REACH * tau_) for h in (e.m - e.low, e.high - e.m))", "(h for h in (e.m - e.low, e.high - e.m))",
           "ends not moved out"),
    blocks("(math.hypot(h, REACH * tau_) for h in (e.m - e.low, e.high - e.m))",
           "(math.hypot(h, REACH * tau_) for h in (e.half, e.half))", "ends moved out alike on both sides"),
    blocks("/ whole / mean", "/ whole", "a sum's ends not over its mean"),
    blocks("math.fsum(w * math.exp(e.m) for w, e in parts) / whole", "math.fsum(math.exp(e.m) for w, e in parts) / len(parts)",
           "a sum not weighed"),
    blocks("float(np.quantile(known, 0.9))", "float(np.quantile(known, 0.5))", "the usual clock is the median"),
    blocks("(c > 0) & (c < SLOWED * usual_hz)", "c < SLOWED * usual_hz", "an unknown clock is low"),
    blocks("max((x for x in LOOKS if x <= n), default=n) if n <= max(LOOKS) else n", "n",
           "blocks past the last look decide"),
)  # fmt: skip

OF_BARS = (
    bars("if g.low > bar.bar if bar.strict else g.low >= bar.bar:", "if g.gain > bar.bar if bar.strict else g.gain >= bar.bar:",
         "the middle decides GO"),
    bars("if g.low > bar.bar if bar.strict else g.low >= bar.bar:", "if g.low >= bar.bar:", "a strict bar is not"),
    bars("    if g.high < bar.bar:", "    if g.gain < bar.bar:", "the middle decides NO-GO"),
    bars('    if blocked:\n        return Verdict("INCONCLUSIVE", f"{told}: {blocked}")\n', "", "a doubt does not block"),
    bars('floor = 1 / (1 - floor) - 1 if floor < 1 else float("inf")', "floor = floor * 1.0",
         "a speed-up's floor not converted"),
    bars("return Gain(1 / ratio - 1, 1 / high - 1, 1 / low - 1)", "return Gain(1 - ratio, 1 - high, 1 - low)",
         "a speed-up by time saved"),
    bars('for decision in ("NO-GO", "INCONCLUSIVE", "GO"):', 'for decision in ("GO", "NO-GO", "INCONCLUSIVE"):',
         "one part's GO is the whole's"),
    bars('return 3 if "INCONCLUSIVE" in verdicts else 0', "return 0", "INCONCLUSIVE ends with 0"),
    bars("    if reaches and gain > floor:", "    if reaches:", "the old floor gates no GO"),
    bars("        if floor < bar:\n", "        if True:\n", "the old floor gates no NO-GO"),
)  # fmt: skip

OF_CONTESTS = (
    contests("            return look >= REPEATED", "            return True", "A/A pairs end at the first look"),
    contests("REPEATED = 32", "REPEATED = 16", "A/A pairs of 16 blocks"),
    contests("FINE = 0.005", "FINE = 0.5", "parts of a sum need not be fine"),
    contests("return all(self._enough", "return any(self._enough", "one of a pair's contests closes it"),
    contests('decided and (fine or contest.over != "sum")', "decided", "sums of coarse parts"),
    contests("[*self.surveyed, *self.repeats, *now]", "[*self.surveyed, *now]", "the cases before are forgotten"),
    contests("now = self.rows(taken, keep=False)", "now = self.rows(taken)", "a look remembers its A/A pairs"),
    contests("if own.retaken > max(own.count, min(blocks.LOOKS)):", "if own.retaken > 1 << 30:",
             "bad blocks do not stop a pair"),
    contests("0.0 if np.isnan(c) else c for c", "1e9 if np.isnan(c) else c for c", "an unknown clock made up"),
    contests("zip(out, self.pairs, strict=True) if p.again]", "zip(out, self.pairs, strict=True)]",
             "contests remembered as A/A pairs"),
    contests('!= "INCONCLUSIVE"\n', '== "GO"\n', "a NO-GO goes on to the last look"),
)  # fmt: skip

OF_RULE = (
    rule('if r.role == "contest" and (r.group, r.of) in repeats])', 'if r.role == "contest"])', "tau from contests"),
    rule('repeats = {(r.group, r.variant) for r in rows if r.role == "again"}',
         'repeats = {(g.group, r.variant) for g in rows for r in rows if r.role == "again"}', "tau across groups"),
    rule("    return r[: blocks.looked(r.size)]", "    return r", "blocks past the last look decide"),
    rule("stop = pair.missing[0] if pair.missing else None", "stop = None", "bad blocks do not block"),
    rule("row, base, blocks.placed(e, self.tau), usual and", "row, base, e, usual and", "tau not added"),
    rule("usual = blocks.interval(r[~slow]) if count >= blocks.LOW_BLOCKS else None", "usual = None",
         "the clock never decides"),
    rule("weights = [n * (p.base.time_s or 0.0) for n, p in parts]", "weights = [float(n) for n, p in parts]",
         "a sum not weighed by time"),
    rule("        if len(known) < len(parts):", "        if not known:", "a sum of the parts that are known"),
    rule("stops[0] if stops else None, low\n", "None, low\n", "a part's bad blocks do not block a sum"),
    rule("some = any(p.usual_estimate for _, p in parts)", "some = False", "the clock never decides a sum"),
    rule("        why = part.stop or why\n", "", "what stops a part is not heard"),
    rule("            if other.verdict != decided.verdict:", "            if False:", "the clock may decide"),
    rule("usual_hz < blocks.SLOWED * highest_hz", "usual_hz < 0.5 * highest_hz", "a run at 0.7 of the clock not told"),
    rule('told = "; ".join(filter(None, [part.low, self.clock]))', 'told = ""', "the clock is not told"),
    rule('    if not usual_hz:\n        return "the SM clock is unknown"\n', "", "an unknown clock not told"),
)  # fmt: skip

OF_JUDGE = (
    judge("    if row.missing:\n        return row.missing[0]\n", "", "a missing proof does not block"),
    judge("if row.cold is False or base.cold is False:", "if row.cold is False:", "a hot baseline does not block"),
    judge("    for r in (row, base):\n        if stops", "    for r in (row,):\n        if stops",
          "a doubt of the baseline does not block"),
    judge("    return analysis.blocked(row, base)", "    return None", "a probe's own proof does not block"),
    judge("ceiling = max((r.content_gbps", "ceiling = min((r.content_gbps", "the slowest read as the ceiling"),
    judge("out[str(name)] = min(r.time_s,", "out[str(name)] = max(r.time_s,", "the slowest read of the same bytes"),
    judge("row.fraction_of_same_bytes_read = read_s, read_s / row.time_s",
          "row.fraction_of_same_bytes_read = read_s, row.time_s / read_s", "a share upside down"),
    judge("if like and like.baseline == pair.baseline else (pair,):", "if like else (pair,):",
          "a ratio over another baseline"),
    judge("and (r.bitwise or len(among) == 1)]", "and True]", "an unchecked row is a side"),
    judge("return min(found, key=lambda r: r.time_s or math.inf", "return max(found, key=lambda r: r.time_s or math.inf",
          "the slowest of a side"),
    judge("            if not self.contest.whole.get(model, frozenset()) <= {p.row.case for _, p in own}:\n                continue\n",
          "", "a model judged without all its cases"),
    judge('else Verdict("INCONCLUSIVE", "not measured")))', 'else Verdict("GO", "not measured")))',
          "a group that was not measured is GO", ("tests/l2/test_overlap.py",)),
    judge("self.by.decide(whole, self.bar, stops[0] if stops else None)", "self.by.decide(whole, self.bar, None)",
          "a doubt of a part does not block a sum", ("tests/engine/test_judge.py::test_one_such_row_is_enough_for_its_case_and_its_sum",)),
    judge("Rows(r for r in timed if r.backend == b) for b in BACKENDS}", "Rows(timed) for b in BACKENDS}",
          "one language's rows decide for the other"),
    judge('again and again.role == "again" and first and first.role != "again"', "again and first",
          "what is no repeat is an A/A pair", JUDGE),
    judge("any(not r.sweep and (not cases", "any((not cases", "a sweep's points judged"),
)  # fmt: skip

MUTANTS = (*OF_BLOCKS, *OF_BARS, *OF_CONTESTS, *OF_RULE, *OF_JUDGE)
