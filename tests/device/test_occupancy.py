"""Occupancy against NVIDIA's calculator: pinned answers always, its header where it is installed."""

from __future__ import annotations

import importlib.util
import random
import shutil
import subprocess
from pathlib import Path

import pytest

from probes.core.types import BadInput, Resources
from probes.device import facts as profiles
from probes.device.occupancy import Limiter, occupancy, tail_fraction, waves

DEVICES = ("gb10", "h200", "a100", "rtx4090")

# (registers, block, static B, dynamic B) -> blocks/SM on each of DEVICES, by cuda_occupancy.h of CUDA 13.0
PINNED = [
    ((48, 256, 0, 0), (5, 5, 5, 5)),
    ((40, 256, 0, 0), (6, 6, 6, 6)),
    ((32, 256, 0, 0), (6, 8, 8, 6)),
    ((24, 256, 0, 0), (6, 8, 8, 6)),
    ((56, 256, 32, 0), (4, 4, 4, 4)),
    ((64, 256, 0, 0), (4, 4, 4, 4)),
    ((80, 256, 0, 0), (3, 3, 3, 3)),
    ((128, 256, 0, 0), (2, 2, 2, 2)),
    ((168, 384, 0, 0), (1, 1, 1, 1)),
    ((255, 256, 0, 0), (1, 1, 1, 1)),
    ((255, 257, 0, 0), (0, 0, 0, 0)),
    ((255, 224, 0, 0), (1, 1, 1, 1)),
    ((33, 96, 0, 0), (16, 16, 16, 16)),
    ((16, 32, 0, 0), (24, 32, 32, 24)),
    ((16, 33, 0, 0), (24, 32, 32, 24)),
    ((48, 160, 0, 0), (8, 8, 8, 8)),
    ((64, 1024, 0, 0), (1, 1, 1, 1)),
    ((65, 1024, 0, 0), (0, 0, 0, 0)),
    ((32, 1024, 0, 0), (1, 2, 2, 1)),
    ((40, 256, 32, 40000), (2, 5, 4, 2)),
    ((32, 128, 0, 99328), (1, 2, 1, 1)),
    ((32, 128, 0, 101376), (1, 2, 1, 1)),
    ((32, 128, 0, 101377), (0, 2, 1, 0)),
    ((32, 128, 0, 232448), (0, 1, 0, 0)),
    ((32, 128, 0, 232449), (0, 0, 0, 0)),
    ((32, 64, 4096, 0), (20, 32, 32, 20)),
    ((32, 64, 1000, 24), (24, 32, 32, 24)),
    ((257, 32, 0, 0), (0, 0, 0, 0)),
    ((0, 64, 0, 0), (24, 32, 32, 24)),
]


@pytest.mark.parametrize(("case", "want"), PINNED)
def test_blocks_per_sm_equal_the_pinned_answers(
    case: tuple[int, int, int, int], want: tuple[int, ...]
) -> None:
    registers, block, static, dynamic = case
    got = [
        occupancy(Resources(registers, static), block, dynamic, profiles.load(d)).blocks_per_sm
        for d in DEVICES
    ]
    assert tuple(got) == want


@pytest.mark.parametrize(
    ("slug", "registers", "static", "blocks", "limiter"),
    [
        ("gb10", 48, 0, 5, "registers"),
        ("h200", 48, 0, 5, "registers"),
        ("h200", 40, 0, 6, "registers"),
        ("gb10", 40, 0, 6, "threads"),  # both allow six: the GPU's own limit is named
        ("gb10", 32, 0, 6, "threads"),
        ("h200", 32, 0, 8, "threads"),
        ("h200", 32, 40000, 5, "shared memory"),
    ],
)
def test_the_limiter_is_named(slug: str, registers: int, static: int, blocks: int, limiter: Limiter) -> None:
    o = occupancy(Resources(registers, static), 256, 0, profiles.load(slug))
    assert (o.blocks_per_sm, o.limiter) == (blocks, limiter)
    assert min(o.limits.values()) == blocks


def test_small_blocks_are_limited_by_block_slots() -> None:
    assert occupancy(Resources(16), 32, 0, profiles.load("gb10")).limiter == "blocks"


def test_allocation_granularities() -> None:
    h200 = profiles.load("h200")
    limits = occupancy(Resources(33, 1), 96, 0, h200).limits
    assert limits["registers"] == 16384 // 1280 * 4 // 3  # 33 x 32 rounded up to 256s, by partition
    assert limits["shared memory"] == h200.smem_per_sm_bytes // 1152  # 1 + 1024 reserved, in pieces of 128


def test_a_launch_that_cannot_be_says_why() -> None:
    assert occupancy(Resources(65), 1024, 0, profiles.load("h200")).limiter == "registers"
    assert occupancy(Resources(32), 128, 101_377, profiles.load("gb10")).limiter == "shared memory"


@pytest.mark.parametrize("block", [0, -1, 1025])
def test_a_bad_block_is_refused(block: int) -> None:
    with pytest.raises(BadInput, match=f"got {block}"):
        occupancy(Resources(32), block, 0, profiles.load("h200"))


def test_negative_resources_are_refused() -> None:
    with pytest.raises(BadInput, match="negative"):
        occupancy(Resources(32), 128, -1, profiles.load("h200"))


def test_the_recorded_geometry_is_one_and_a_half_waves() -> None:
    assert waves(432, 48, 6) == 1.5
    assert tail_fraction(1.5) == 0.25
    assert waves(432, 48, 5) == 1.8


@pytest.mark.parametrize(("w", "tail"), [(1.0, 0.0), (3.0, 0.0), (0.25, 0.75), (1.25, 0.375)])
def test_tail_fraction(w: float, tail: float) -> None:
    assert tail_fraction(w) == tail


@pytest.mark.parametrize("w", [0.0, -1.0, float("nan"), float("inf")])
def test_bad_waves_are_refused(w: float) -> None:
    with pytest.raises(BadInput):
        tail_fraction(w)


def test_waves_need_something_resident() -> None:
    with pytest.raises(BadInput, match="got 432, 48, 0"):
        waves(432, 48, 0)


# The header itself

CALCULATOR = r"""
#include <climits>
#include <cstdio>
#include <cstring>
#include <cuda_occupancy.h>
int main() {
    int a[12];
    for (;;) {
        for (int& x : a)
            if (scanf("%d", &x) != 1) return 0;
        cudaOccDeviceProp p;
        p.computeMajor = a[0], p.computeMinor = a[1], p.maxThreadsPerBlock = 1024, p.warpSize = 32;
        p.maxThreadsPerMultiprocessor = a[2], p.regsPerMultiprocessor = p.regsPerBlock = a[3];
        p.sharedMemPerMultiprocessor = a[4], p.sharedMemPerBlock = a[5], p.sharedMemPerBlockOptin = a[6];
        p.reservedSharedMemPerBlock = a[7], p.numSms = 1;
        cudaOccFuncAttributes f;
        f.maxThreadsPerBlock = 1024, f.numRegs = a[8], f.sharedSizeBytes = a[10], f.numBlockBarriers = 1;
        f.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN, f.maxDynamicSharedSizeBytes = a[11];
        cudaOccDeviceState s;
        cudaOccResult r;
        if (cudaOccMaxActiveBlocksPerMultiprocessor(&r, &p, &f, &s, a[9], a[11])) return 1;
        printf("%d %u\n", r.activeBlocksPerMultiprocessor, r.limitingFactors);
    }
}
"""
LIMIT_BITS: dict[Limiter, int] = {"threads": 1, "registers": 2, "shared memory": 4, "blocks": 8}


def header_folder() -> Path | None:
    """Where cuda_occupancy.h lies: a CUDA toolkit out of pip, or the one of an nvcc on PATH."""
    nvidia = importlib.util.find_spec("nvidia")
    roots = [] if nvidia is None else [Path(p) for p in nvidia.submodule_search_locations or ()]
    folders = [toolkit / "include" for root in roots for toolkit in sorted(root.glob("cu*"))]
    if nvcc := shutil.which("nvcc"):
        folders.append(Path(nvcc).resolve().parent.parent / "include")
    return next((f for f in folders if (f / "cuda_occupancy.h").is_file()), None)


def test_every_answer_equals_cuda_occupancy_h(tmp_path: Path) -> None:
    include, compiler = header_folder(), shutil.which("g++")
    if include is None or compiler is None:
        pytest.skip("needs cuda_occupancy.h (the cu13 extra or a CUDA toolkit) and g++")
    source, program = tmp_path / "occupancy.cpp", tmp_path / "occupancy"
    source.write_text(CALCULATOR)
    subprocess.run([compiler, "-O1", f"-I{include}", str(source), "-o", str(program)], check=True)
    rng = random.Random(2)
    cases = [(r, b, 0, 0) for r in range(258) for b in (32, 64, 96, 160, 256, 384, 512, 768, 1024)]
    cases += [
        (
            rng.randint(0, 257),
            rng.randint(1, 1024),
            rng.randint(0, 49152),
            rng.choice((0, rng.randint(0, 240_000))),
        )
        for _ in range(3000)
    ]
    for slug in profiles.slugs():
        d = profiles.load(slug)
        sm = (d.max_threads_per_sm, d.regs_per_sm, d.smem_per_sm_bytes, 49152)
        facts = (*d.compute_capability, *sm, d.smem_per_block_max_bytes, d.smem_reserved_per_block_bytes)
        text = "\n".join(" ".join(map(str, (*facts, *case))) for case in cases)
        out = subprocess.run([str(program)], input=text, capture_output=True, text=True, check=True).stdout
        answers = [tuple(map(int, line.split())) for line in out.splitlines()]
        assert len(answers) == len(cases)
        for (registers, block, static, dynamic), (blocks, factors) in zip(cases, answers, strict=True):
            got = occupancy(Resources(registers, static), block, dynamic, d)
            assert got.blocks_per_sm == blocks, (slug, registers, block, static, dynamic)
            if blocks:
                assert factors & LIMIT_BITS[got.limiter], (slug, registers, block, got.limits)
