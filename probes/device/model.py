"""A first roofline estimate of a launch from resources, bytes and device facts. Never a measurement.

    dram     traffic_bytes over the device's read ceiling
    l1       L1 wavefronts over SMs x clock, one per cycle (a lower bound, see formats.traffic)
    latency  Little's law: the traffic over (bytes in flight / latency), where the device states one
    tail     what the part-filled last wave adds to the largest of these
    launch   the device's fixed cost of a launch in a graph, where stated

time = max(dram, l1, latency) + tail + launch, and the largest term binds. In the last wave l1 runs on the SMs
that still hold a block, latency with the blocks that are left, and dram does not slow down. A term that the
device cannot support is absent.

Known error, content rate predicted / known (no latency; the H200's are of trial kernels):

    gb10 recorded   ffn_down_14b  padded 233 / 176.5   dpl 248 / 212.9
                    lm_head_14b   padded 235 / 208.3   dpl 250 / 250.0 (sets the ceiling)
                    gate_up_14b   pair 249 / 247.8     form_b 249 / 193.2
    h200 measured   ffn_down_14b  padded 3894 / 2448   dpl 4128 / 2360
                    lm_head_14b   padded 4229 / 2366   dpl 4500 / 2021
                    attn_v_14b    padded 1863 / 1190   dpl 1914 / 1006

It is a bound, up to a third too fast on gb10 and 2.2 times on an H200, whose kernels wait on issue slots and
latency that this does not see. dpl gains 6 % everywhere here (17 % recorded on gb10, a loss measured on the
H200), and a kernel bound by dram has no tail (form_b's recorded one is 28 %). Read off it what DRAM alone
would allow; rank nothing by it that differs in instructions, registers or waves.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from probes.core.types import BadInput, LaunchConfig, Resources, Work
from probes.device.facts import DeviceFacts
from probes.device.occupancy import occupancy, waves

WAVEFRONT_BYTES = 128  # what L1 hands out per cycle at best


@dataclass(frozen=True, slots=True)
class Prediction:
    """An estimate: seconds, the term that binds, and all terms in seconds."""

    time_s: float
    limiter: str
    terms: dict[str, float]
    blocks_per_sm: int
    waves: float


def predict(
    work: Work, res: Resources, launch: LaunchConfig, dev: DeviceFacts, in_flight_bytes_per_thread: float,
    l1_requested_bytes: int, *, l1_wavefronts: int | None = None,
) -> Prediction:  # fmt: skip
    """Estimate one launch of `launch.grid` blocks on `dev`.

    in_flight_bytes_per_thread  weight bytes a thread has asked for at a time (26.25 per q6_K unit)
    l1_requested_bytes          bytes asked of L1, repeats included
    l1_wavefronts               L1 cycles if traced; else l1_requested_bytes / 128

    Raises BadInput if the kernel cannot be launched on `dev`, or for negative or missing amounts.
    """
    if work.traffic_bytes < 1 or l1_requested_bytes < 0 or in_flight_bytes_per_thread <= 0:
        raise BadInput(
            f"a prediction needs positive bytes, got {work.traffic_bytes} moved, "
            f"{l1_requested_bytes} asked of L1, {in_flight_bytes_per_thread} in flight per thread"
        )
    occ = occupancy(res, launch.block, launch.smem_bytes, dev)
    if occ.blocks_per_sm == 0:
        raise BadInput(f"{launch.block} threads with {res} do not fit on {dev.name}: {occ.limiter}")
    w = waves(launch.grid, dev.sms, occ.blocks_per_sm)
    full = {"dram": work.traffic_bytes / dev.ceiling_bps}  # seconds with every slot filled
    if dev.sm_clock_hz is not None:
        cycles = math.ceil(l1_requested_bytes / WAVEFRONT_BYTES) if l1_wavefronts is None else l1_wavefronts
        full["l1"] = cycles / (dev.sms * dev.sm_clock_hz)
    if dev.dram_latency_s is not None:
        threads = dev.sms * occ.blocks_per_sm * launch.block
        full["latency"] = work.traffic_bytes * dev.dram_latency_s / (threads * in_flight_bytes_per_thread)

    terms = {**full, "tail": _tail(full, launch.grid, dev.sms, occ.blocks_per_sm)}
    if dev.launch_s is not None:
        terms["launch"] = dev.launch_s
    time_s = max(full.values()) + terms["tail"] + terms.get("launch", 0.0)
    return Prediction(time_s, max(terms, key=lambda k: terms[k]), terms, occ.blocks_per_sm, w)


def _tail(full: dict[str, float], grid: int, sms: int, blocks_per_sm: int) -> float:
    """Seconds that the blocks of a part-filled last wave take beyond what full waves would charge them."""
    left = grid % (sms * blocks_per_sm)
    if not left:
        return 0.0
    share = left / grid
    speed = {"dram": 1.0, "l1": min(1.0, left / sms), "latency": left / (sms * blocks_per_sm)}
    return max(t * share / speed[k] for k, t in full.items()) - max(full.values()) * share
