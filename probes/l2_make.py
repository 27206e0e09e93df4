"""Every chain of L2 by its case, made on the device."""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from dataclasses import dataclass

from probes import l2, l2_ring
from probes.bench import Bench
from probes.l2_buffers import SYNTHETIC, Kernels, Maker
from probes.l2_decode import Weights, decode_chains
from probes.l2_launch import Chain
from probes.l2_ring_buffers import matrix_chains

MAKERS: dict[str, Maker] = {**SYNTHETIC, **dict.fromkeys(l2_ring.MATRICES, matrix_chains)}


@dataclass
class Chains:
    """Makes chains; the decode layers' weights are made once, and live as long as `keep`."""

    bench: Bench
    args: argparse.Namespace
    kernels: Kernels
    keep: ExitStack
    weights: Weights | None = None

    def of(self, case: l2.Case, stack: ExitStack) -> list[Chain]:
        """A case's chain of each backend. Raises Unavailable where it does not fit, or has no room."""
        if case.id not in l2.DECODE:
            return MAKERS[case.id](self.bench, self.args, case, self.kernels, stack)
        self.weights = self.weights or Weights.make(self.bench, self.keep)
        return decode_chains(self.bench, self.args, case, self.kernels, self.weights, stack)
