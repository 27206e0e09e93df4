"""Single changes to the product, each of which a test must see: `python -m tests.mutants` runs them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """One change: `old` stands in `file` exactly once, `new` in its place; `tests` should fail then."""

    file: str
    old: str
    new: str
    why: str
    tests: tuple[str, ...]
    survives: str = ""  # the reason, where no test can see it

    @property
    def name(self) -> str:
        """One line."""
        return f"{self.file}: {self.why}"
