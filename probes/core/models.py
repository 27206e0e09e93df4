"""Which q6_K tensors a model holds, what a second layout of them costs, and what a gain is worth.

A q4_K_M file keeps q6_K for the ffn_down and attn_v of the first and last eighth of its layers
and of every third layer between (llama.cpp's rule), and for lm_head: 24 of 48 layers in a 14B
model and 14 of 28 in a 7B one (Qwen2.5's shapes). An engine that keeps a second layout beside
the one it loads holds those bytes twice: 2.14 GB and 1.25 GB.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from probes.core.types import BadInput, Shape


@dataclass(frozen=True, slots=True)
class Tensor:
    """One kind of q6_K tensor in a model: the case's id, its shape, and how often a step runs it."""

    case: str
    shape: Shape
    count: int


@dataclass(frozen=True, slots=True)
class Model:
    """A model's q6_K tensors. `name` is the suffix of its cases, `title` what a report prints."""

    name: str
    title: str
    layers: int
    tensors: tuple[Tensor, ...]


def q6k_layers(layers: int) -> int:
    """Layers whose ffn_down and attn_v a q4_K_M file keeps in q6_K, by llama.cpp's rule."""
    eighth = layers // 8
    return sum(i < eighth or i >= 7 * layers // 8 or (i - eighth) % 3 == 2 for i in range(layers))


def _model(name: str, layers: int, hidden: int, ffn: int, kv: int, vocabulary: int) -> Model:
    count = q6k_layers(layers)
    tensors = (
        Tensor(f"ffn_down_{name}", Shape(hidden, ffn), count),
        Tensor(f"lm_head_{name}", Shape(vocabulary, hidden), 1),
        Tensor(f"attn_v_{name}", Shape(kv, hidden), count),
    )
    return Model(name, f"{name.upper()} q4_K_M", layers, tensors)


MODELS: tuple[Model, ...] = (
    _model("14b", layers=48, hidden=5120, ffn=13824, kv=1024, vocabulary=152064),
    _model("7b", layers=28, hidden=3584, ffn=18944, kv=512, vocabulary=152064),
)


def model(name: str) -> Model:
    """The model called `name`; BadInput for any other."""
    for one in MODELS:
        if one.name == name:
            return one
    raise BadInput(f"no model is called {name!r}; there are {', '.join(m.name for m in MODELS)}")


def fold(step_s: float, parts: Iterable[tuple[int, float]]) -> float:
    """What kernel savings are worth in decode speed: step / (step - sum n * dt) - 1.

    step_s: seconds of one decode step before. parts: (launches per step, seconds saved per
    launch); negative savings are losses. The step must have been timed on the device that the
    savings come from. Raises BadInput where the savings reach the whole step.
    """
    saved = sum(n * dt for n, dt in parts)
    if not step_s > 0.0:
        raise BadInput(f"a decode step must take a positive time, got {step_s} s")
    if not saved < step_s:
        raise BadInput(f"savings of {saved} s do not fit a decode step of {step_s} s")
    return step_s / (step_s - saved) - 1.0
