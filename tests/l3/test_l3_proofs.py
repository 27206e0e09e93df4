"""L3's proofs of where blocks ran, on the stand-in GPU: each is missed when it is not there."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from tests.host_gpu import HostGpu, Running
from tests.host_run import Commands

ARGV = ("--backend", "cu", "--windows", "2", "--blocks", "16", "--nf", "96", "--variant", "form_b")


def test_a_block_that_tells_no_SM_was_left_out(l3_gpu: HostGpu, commands: Commands) -> None:
    usual = l3_gpu.kernels["l3_form_b_traced"]

    def run(x: Running, *args: Any) -> None:
        usual.run(x, *args)
        x.gpu.at(args[-1], np.uint32, x.launch.grid)[1] = 0xFFFFFFFF

    l3_gpu.kernels["l3_form_b_traced"] = replace(usual, run=run)
    done = commands("l3", *ARGV)
    assert done.code == 1 and "l3_form_b_traced left a block out: element 1" in done.err


def test_blocks_outside_a_partition_are_seen(l3_gpu: HostGpu, commands: Commands) -> None:
    l3_gpu.smid = lambda block: block
    done = commands("l3", *ARGV)
    assert "SMs where there are 2: the partition does not hold" in done.err + done.report + done.out
    assert done.code in (2, 3) and not [r for r in done.rows if r.variant == "form_b" and r.samples_s]


def test_load_is_told_over_all_SMs(l3_gpu: HostGpu, commands: Commands) -> None:
    l3_gpu.smid = lambda block: 0
    by = commands("l3", *ARGV).by()
    assert by["form_b"].load_balance == 2.0, "three blocks on one of two SMs"


def test_the_sums_between_a_pair_s_kernels_are_held_to_the_oracle(
    l3_gpu: HostGpu, commands: Commands
) -> None:
    """Spoilt once the second kernel has read them, so that its own words are right."""

    def change(x: Running) -> None:
        x.gpu.at(x.launch.args[0], np.float32, 4)[2] += 1
        x.gpu.allocation(x.launch.args[0]).written()

    l3_gpu.wrong("l3_swiglu_quant", change=change)
    done = commands("l3", "--backend", "cu", "--windows", "2", "--nf", "32", "--variant", "pair")
    assert done.code == 1 and "pair/cu, before timing (1 of 64 differ): element 2" in done.err
