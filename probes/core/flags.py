"""Words that a user may misspell: a parser that says what is near in one line, and the PROBES_* switches."""

from __future__ import annotations

import argparse
import difflib
import os
import re
from collections.abc import Iterable, Mapping
from typing import NoReturn

from probes.core import escaping
from probes.core.types import BadInput

SWITCHES = ("PROBES_PDL", "PROBES_Q6K_DPL", "PROBES_Q6K_PF")
"""Variables that are on or off; where one is not set, it is on."""

OTHERS = ("PROBES_BUILD_DIR", "PROBES_GIT", "PROBES_MUTANT")
"""Variables of other values: the builds' folder, a copy's revision, the mark of a run under one change."""

_MEANS = dict.fromkeys(("1", "true", "on", "yes"), True) | dict.fromkeys(("0", "false", "off", "no"), False)


def near(word: str, known: Iterable[str], most: int = 3, cutoff: float = 0.6) -> str:
    """The known words that look like `word`, as '; did you mean a or b?'; '' where none does."""
    found = difflib.get_close_matches(word, list(known), n=most, cutoff=cutoff)
    return f"; did you mean {' or '.join(found)}?" if found else ""


def switched(name: str, env: Mapping[str, str]) -> bool:
    """Whether a switch is on in `env`. BadInput for a word that is neither on nor off."""
    value = env.get(name, "1")
    if value.strip().lower() not in _MEANS:
        raise BadInput(f"{name} is {value!r}: give 1, true, on or yes, or 0, false, off or no")
    return _MEANS[value.strip().lower()]


def check_environment(env: Mapping[str, str] = os.environ) -> None:
    """BadInput for a PROBES_* variable that nothing reads, or a switch that is neither on nor off."""
    known = (*SWITCHES, *OTHERS)
    for name in sorted(env):
        if name.startswith("PROBES_") and name not in known:
            told = near(name, known, 1, 0.8) or f"; there are {', '.join(known)}"
            raise BadInput(f"nothing reads the variable {name}{told}")
    for name in SWITCHES:
        switched(name, env)


class Parser(argparse.ArgumentParser):
    """An ArgumentParser whose errors are one line: no usage before it, the near flags behind it."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        kwargs.setdefault("allow_abbrev", False)
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]  # handed on as they came

    def _shown(self) -> list[str]:
        return [s for s, a in self._option_string_actions.items() if a.help != argparse.SUPPRESS]

    def error(self, message: str) -> NoReturn:
        """Print one line and end with exit code 2."""
        if message.startswith("unrecognized arguments: "):
            words = message.partition(": ")[2].split()
            flag = next((w.partition("=")[0] for w in words if w.startswith("-")), words[0] if words else "")
            told = near(flag, self._shown()) or f"; see {self.prog} --help"
            message = f"there is no {'flag' if flag.startswith('-') else 'place for'} {flag}{told}"
        elif found := re.search(r"invalid choice: '([^']*)' \(choose from (.*)\)", message, re.DOTALL):
            message += near(found[1], re.findall(r"[\w.-]+", found[2]))
        self.exit(2, f"error: {escaping.shown(' '.join(message.split()))}\n")
