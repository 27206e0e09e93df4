"""All changes."""

from __future__ import annotations

from tests.mutants import Mutant, kernels, runs, samples, verdicts

MUTANTS: tuple[Mutant, ...] = (*samples.MUTANTS, *verdicts.MUTANTS, *runs.MUTANTS, *kernels.MUTANTS)
