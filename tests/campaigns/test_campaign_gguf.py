"""Mutated GGUF headers: bytes, lengths, counts and cuts."""

from __future__ import annotations

import random
import resource
from pathlib import Path

import pytest

from probes.core.types import BadInput
from probes.formats import gguf
from tests.campaigns import WORST_MIB, Tally, budget

DATA = Path(__file__).parents[1] / "data"
FILES = ("minilm-ffn_down-48rows.gguf", "minilm-q4k-64rows.gguf")
HEADER = 700
ODD = (0, 1, 7, 0x7F, 0xFF, 0xFFFF, 0xFFFFFFFF, 1 << 31, 1 << 40, 1 << 63, (1 << 64) - 1)


def mutated(data: bytes, dice: random.Random) -> bytes:
    """One to four changes, most of them in the header."""
    out = bytearray(data)
    for _ in range(dice.randint(1, 4)):
        at = dice.randrange(min(HEADER, len(out)) if dice.random() < 0.9 else len(out))
        kind = dice.randrange(5)
        if kind == 0:
            out[at] ^= 1 << dice.randrange(8)
        elif kind == 1:
            out[at : at + 8] = dice.choice(ODD).to_bytes(8, "little")
        elif kind == 2:
            out[at : at + 4] = (dice.choice(ODD) & 0xFFFFFFFF).to_bytes(4, "little")
        elif kind == 3:
            del out[at : at + dice.randint(1, 40)]
        else:
            del out[max(1, at) :]
        if len(out) < 8:
            break
    return bytes(out)


def test_mutated_gguf_files_are_read_or_refused(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    real = [(DATA / name).read_bytes() for name in FILES]
    tally = Tally("GGUF", budget(request))
    path = tmp_path / "mutated.gguf"

    def run(seed: int) -> bool:
        dice = random.Random(seed)
        data = mutated(dice.choice(real), dice)
        path.write_bytes(data)
        gguf._tensors.cache_clear()  # two files of one size within a clock tick look the same
        said = ""
        try:
            for info in gguf.tensors(path):
                assert info.offset >= 0 and info.offset + info.bytes <= len(data)
                if info.type_name in ("Q6_K", "Q4_K"):
                    shape = gguf.check(path, info.name, info.type_name)
                    raw, same = gguf.read(path, info.name, info.type_name)
                    assert same == shape and raw.tobytes() == data[info.offset : info.offset + info.bytes]
        except BadInput as error:
            said = str(error)
        assert "\n" not in said and len(said) < 1000
        return bool(said)

    for seed in tally.inputs():
        tally.take(lambda seed=seed: run(seed))  # type: ignore[misc]  # a lambda's default has no type
    print(tally)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 < WORST_MIB or tally.seconds < 60
    assert tally.refused > tally.tried // 4 and tally.refused < tally.tried
