"""Device profiles: complete, sourced, consistent, and refused with a clear line where they are not."""

from __future__ import annotations

import dataclasses
import tomllib
from importlib import resources

import pytest

from probes.core.types import BadInput
from probes.device import facts as profiles


def table(slug: str) -> dict[str, object]:
    text = (resources.files("probes.device") / "profiles" / f"{slug}.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def test_the_two_devices_of_the_verdicts_are_there() -> None:
    assert {"gb10", "h200"} <= set(profiles.slugs())
    gb10, h200 = profiles.load("gb10"), profiles.load("h200")
    assert (gb10.arch, gb10.sms, gb10.max_threads_per_sm, gb10.max_blocks_per_sm) == ("sm_121", 48, 1536, 24)
    assert (h200.arch, h200.sms, h200.max_threads_per_sm, h200.max_blocks_per_sm) == ("sm_90", 132, 2048, 32)
    assert gb10.l2_bytes == 24 * 2**20 and round(h200.l2_bytes / 1e6, 1) == 62.9
    assert gb10.dram_bps == 273e9 and h200.dram_bps == 4.8e12
    assert (gb10.dram_fetch_bytes, h200.dram_fetch_bytes) == (64, 32)
    assert gb10.sources["dram_fetch_bytes"].startswith("hypothesis")


@pytest.mark.parametrize("slug", profiles.slugs())
def test_every_fact_has_a_source_and_the_facts_agree(slug: str) -> None:
    d = profiles.load(slug)
    stated = {f.name for f in dataclasses.fields(d) if getattr(d, f.name) is not None}
    assert set(d.sources) == stated - {"name", "slug", "match", "sources"}
    assert all(len(text) > 10 for text in d.sources.values())
    assert d.max_warps_per_sm * profiles.WARP == d.max_threads_per_sm
    assert d.smem_per_block_max_bytes + d.smem_reserved_per_block_bytes == d.smem_per_sm_bytes
    assert d.regs_per_sm == 65536
    assert 32 <= d.dram_fetch_bytes <= 64
    assert d.read_ceiling_bps is None or 0.8 * d.dram_bps < d.read_ceiling_bps < d.dram_bps
    assert d.ceiling_bps == (d.read_ceiling_bps or d.dram_bps)
    assert profiles.find(d.name) is d


def test_a_name_is_found_only_as_a_word_of_its_own() -> None:
    h200 = profiles.find("NVIDIA H200")
    assert h200 is not None and h200.slug == "h200"
    assert profiles.find("NVIDIA GH200 480GB") is None
    assert profiles.find("NVIDIA H200NVL") is None
    assert profiles.find("Tesla T4") is None


@pytest.mark.parametrize(("arch", "want"), [("sm_90", (9, 0)), ("sm_121", (12, 1)), ("sm_90a", (9, 0))])
def test_compute_capability(arch: str, want: tuple[int, int]) -> None:
    assert dataclasses.replace(profiles.load("h200"), arch=arch).compute_capability == want


def test_a_bad_arch_is_refused() -> None:
    with pytest.raises(BadInput, match=r"sm_90, got 'compute_90'"):
        _ = dataclasses.replace(profiles.load("h200"), arch="compute_90").compute_capability


def test_an_unknown_slug_offers_a_close_one() -> None:
    with pytest.raises(BadInput, match=r"no device profile 'gb1'; did you mean 'gb10'"):
        profiles.load("gb1")
    with pytest.raises(BadInput, match=r"there are .*h200"):
        profiles.load("zzz")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sms": None}, "fact 'sms' is missing"),
        ({"sms": "many"}, "sms must be a number from 0 to 1e.18, got 'many'"),
        ({"sms": 1.5}, "sms must be a number"),
        ({"sms": True}, "sms must be a number"),
        ({"l2_bytes": -1}, "l2_bytes must be a number from 0 to 1e.18, got -1"),
        ({"colour": 3}, "unknown fact 'colour'"),
        ({"dram_latency_s": 5e-7}, "fact 'dram_latency_s' has no source"),
    ],
)
def test_a_bad_profile_names_its_fault(change: dict[str, object], message: str) -> None:
    bad = {k: v for k, v in (table("gb10") | change).items() if v is not None}
    with pytest.raises(BadInput, match=message):
        profiles._parse("gb10", bad)


def test_a_stray_source_is_refused() -> None:
    bad = table("gb10")
    bad["sources"] = {**bad["sources"], "weight": "a scale"}
    with pytest.raises(BadInput, match="names 'weight', which is no fact"):
        profiles._parse("gb10", bad)
