"""Changes to the kernels, seen on the host's emulators or in the machine code."""

# ruff: noqa: E501  # texts of the product stand here as they are

from __future__ import annotations

from tests.mutants import Mutant

_RING = "tests/kernels/test_l1_ring.py"
L1_RING = (
    f"{_RING}::test_no_count_of_rows_or_stages_hangs_or_drops_a_row",
    f"{_RING}::test_a_ring_equals_the_oracle[host-cu-37x3584-ring]",
    f"{_RING}::test_a_ring_equals_the_oracle[host-cu-11x13824-ring]",
)
L1_NUMBA = ("tests/kernels/test_l1_ring_numba.py",)
_NUMBA = "tests/kernels/test_ring_numba.py"
RING_NUMBA = (
    f"{_NUMBA}::test_l2_s_ring_kernels_equal_the_oracle_and_hand_on",
    f"{_NUMBA}::test_every_group_is_quantised_once_whoever_has_its_rows",
)
L3_HOST = ("tests/kernels/test_l3_kernels.py::test_form_c_is_right_with_any_number_of_groups",)
WAITS = ("tests/kernels/test_waits.py",)
SASS = ("tests/l2/test_table.py::test_the_machine_code_waits_where_it_should[sm_90-cu]",)


RELEASE = ("tests/kernels/test_ring_release.py",)


def cu(file: str, old: str, new: str, why: str, tests: tuple[str, ...]) -> Mutant:
    return Mutant(f"kernels_cu/{file}", old, new, why, tests)


def numba(file: str, old: str, new: str, why: str, tests: tuple[str, ...]) -> Mutant:
    return Mutant(f"kernels_numba/{file}.py", old, new, why, tests)


WAIT, NUMBA_WAIT = "    late_wait<K>();\n", "        late_wait()\n"

LOADS = (
    "    late_wait<K>();\n"
    "\n"
    "    // Everything that the block reads is asked for at once, before the first barrier, which no load crosses. Four\n"
    "    // lanes side by side have the same part of four keys, so that a query's part is one address for them.\n"
    "    alignas(16) __shared__ float query[kQuery], weight[kDecode_group][kDecode_chunk];\n"
    "    alignas(16) __shared__ uint8_t value[kDecode_chunk * kRow];\n"
    "    const int key_lane = lane >> 2, position = warp * 8 + (lane & 3);\n"
    "    const float* queries = q + kv_head * kQuery;\n"
    "    const bool brings = t < kQuery / 4;\n"
    "    Words4 four{}, piece[kPieces];\n"
    "    if (brings) four = Plain::w4(reinterpret_cast<const uint8_t*>(queries + t * 4));\n"
    "    KeyPart key[kKeys];\n"
    "    const uint8_t *my_keys = keys + position * kRow + key_lane * 8, *my_values = values + t * 16;\n"
    "#pragma unroll\n"
    "    for (int k = 0; k < kKeys; ++k) key[k] = key_part(my_keys + 4 * k * kRow, position + 4 * k < count);\n"
    "#pragma unroll\n"
    "    for (int k = 0; k < kPieces; ++k)  // past the end zeros, under a weight of zero\n"
    "        piece[k] = t / 16 + k * 16 < count ? Plain::w4(my_values + k * kThreads * 16) : Words4{};\n"
)
"""attention_split's wait, and all that it loads behind it."""

NUMBA_LOADS = (
    "        late_wait()\n"
    "        # Everything that the block reads is asked for at once, before the first barrier: no load crosses it.\n"
    "        # Four lanes side by side have the same part of four keys: a query's part is one address for them.\n"
    "        query = cuda.shared.array(QUERIES, uint32, alignment=16)  # their bits\n"
    "        weight = cuda.shared.array(WEIGHTS, float32, alignment=16)\n"
    "        value = cuda.shared.array(VALUES, uint32, alignment=16)\n"
    "        other = cuda.shared.array(QUERIES, float32, alignment=16)\n"
    "        key_lane, position = int32(uint32(lane) >> uint32(2)), int32(warp * 8 + (lane & 3))\n"
    "        four = none\n"
    "        if t < QUERIES // 4:\n"
    "            four = load16(advance(q, int64(kv_head) * QUERIES + t * 4), 0)\n"
    "        my_keys, my_values = advance(keys, position * ROW + key_lane * 8), advance(values, t * 16)\n"
    "        a = key_part(my_keys, 0, position < count)\n"
    "        b = key_part(my_keys, 4 * ROW, position + 4 < count)\n"
    "        rows = int32(count - (t >> 4))\n"
    "        v0, v1 = piece(my_values, 0, rows), piece(my_values, 1, rows)\n"
    "        v2, v3 = piece(my_values, 2, rows), piece(my_values, 3, rows)\n"
)


CPP = (
    cu("ring.cuh", "if (p == P - 1 && k == K - 1) barrier_arrive_if", "if (p == 0 && k == 0) barrier_arrive_if",
       "a stage released after its first read", L1_RING),
    cu("ring.cuh", "        barrier_arrive(&here->summed);\n", "", "sums never told", L1_RING),
    cu("ring.cuh", "        barrier_wait(&here->full, parity);\n", "", "rows read before they are there", L1_RING),
    cu("ring_feed.cuh", "            barrier_wait(&at.slot->empty, at.parity);\n", "", "a stage filled while it is read", L1_RING),
    cu("ring_feed.cuh", "            barrier_wait(&at.slot->summed, at.parity);\n", "", "sums taken before they are there", L1_RING),
    cu("ring_feed.cuh", "last = all + step - base - 1;", "last = all + step - base;", "the tickets' counter not back at 0", L1_RING),
    cu("ring_feed.cuh", "if (!told && tickets.all_asked()) {", "if (!told) {", "a tail trigger at the start", WAITS),
    cu("ring_gated.cuh", "            take_back(fill.at);\n", "", "handed-over words not back at 0", L3_HOST),
    cu("attention.cuh", "    prefetch<K>(values, count * kRow);\n    late_wait<K>();\n", "    prefetch<K>(values, count * kRow);\n",
       "attention does not wait", WAITS),
    cu("attention.cuh", "        piece[k] = t / 16 + k * 16 < count ? Plain::w4(my_values + k * kThreads * 16) : Words4{};\n",
       "        piece[k] = t / 16 + k * 16 < count ? Plain::w4(my_values + k * kThreads * 16) : Words4{};\n    late_wait<K>();\n",
       "a wait too many", SASS),
    cu("attention.cuh", "(static_cast<ptrdiff_t>(row) * kv + kv - 1) * kDecode_head + i", "(static_cast<ptrdiff_t>(row) * kv) * kDecode_head + i",
       "keys and values stored at the first position", ("tests/kernels/test_l2_kernels.py::test_every_kernel_of_a_layer_equals_the_oracle",)),
    cu("attention.cuh", LOADS, LOADS.replace(WAIT, "") + WAIT, "keys and values loaded before the wait", WAITS),
    cu("l2_ring.cuh", "        late_wait<K>();\n        const uint32_t consumers", "        const uint32_t consumers",
       "a ring's consumers do not wait", WAITS),
    cu("l2.cu", "    tail<K>(flags);\n    late_wait<K>();  // not", "    tail<K>(flags);  // not", "stream does not wait", WAITS),
    cu("pdl.cuh", "    if constexpr (K == kEntry) grid_wait();\n", "", "the entry kind does not wait", WAITS),
    cu("pdl.cuh", "    if constexpr (K == kLate) grid_wait();\n", "", "the late kind does not wait", WAITS),
    cu("pdl.cuh", "        if (flags & kTrigger) grid_trigger();\n", "        grid_trigger();\n", "a trigger that nobody asked for", WAITS),
)  # fmt: skip

NUMBA = (
    numba("ring_rows", "        a = term(piece(row, s[1]), s[0], group)\n        return add(a, leaving(piece(row, s[3]), s[2], group, slot, last))",
          "        a = leaving(piece(row, s[1]), s[0], group, slot, last)\n        return add(a, term(piece(row, s[3]), s[2], group))",
          "a stage released after its first read", RELEASE),
    numba("ring_block", "            arrive(uint32(slot + uint32(SUMMED)))\n            first = go_on(first, step, me[3])\n            at = step_on(kept, at)",
          "            first = go_on(first, step, me[3])\n            at = step_on(kept, at)", "sums never told", L1_NUMBA),
    numba("ring_feed", "                wait(uint32(at[2] + uint32(EMPTY)), at[3])\n", "", "a stage filled while it is read", L1_NUMBA),
    numba("ring_feed", "        wait(uint32(at[2] + uint32(SUMMED)), at[3])\n", "", "sums taken before they are there", L1_NUMBA),
    numba("ring_feed", "last = uint32(every + step - base - uint32(1))", "last = uint32(every + step - base)", "the tickets' counter not back at 0",
          L1_NUMBA),
    numba("ring_feed", "if dealt and rows == uint32(0) and not told:", "if dealt and not told:", "a tail trigger at the start", RING_NUMBA),
    numba("ring_gated", "                take_back(words)\n", "", "handed-over words not back at 0", RING_NUMBA),
    numba("l2_ring", "        late_wait()\n", "", "a ring's consumers do not wait", RING_NUMBA),
    numba("attention", "        prefetch(values, count * ROW)\n        late_wait()\n", "        prefetch(values, count * ROW)\n",
          "attention does not wait", WAITS),
    numba("attention", "        prefetch(table, HEAD * 4)\n        late_wait()\n", "        prefetch(table, HEAD * 4)\n",
          "rope_store does not wait", WAITS),
    numba("attention", NUMBA_LOADS, NUMBA_LOADS.replace(NUMBA_WAIT, "") + NUMBA_WAIT, "keys and values loaded before the wait", WAITS),
    numba("pdl", 'late_wait = waits if kind == "late" else nothing', "late_wait = nothing", "the late kind does not wait",
          ("tests/l2/test_table.py::test_the_machine_code_waits_where_it_should[sm_90-numba]",)),
    numba("pdl", 'early = waits if kind == "entry" else nothing', "early = nothing", "the entry kind does not wait",
          ("tests/l2/test_table.py::test_the_machine_code_waits_where_it_should[sm_90-numba]",)),
)  # fmt: skip

MUTANTS = (*CPP, *NUMBA)
