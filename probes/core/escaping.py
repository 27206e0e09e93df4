"""The one way by which words that are not ours leave: out of a file, a driver, a path, a command line.

A terminal obeys control characters, a reader believes a line that looks like ours, a browser runs a tag.
"""

from __future__ import annotations

import re

LONGEST = 2000
"""Characters of one piece that are shown; the longest reason of a committed report has under a thousand."""

_MARKED = re.compile(r"[\\`*|]|<|](?=[(:])")
"""What begins a tag, code, emphasis or a cell, and what makes a link or an image of words in brackets."""


def shown(words: object, longest: int = LONGEST) -> str:
    """One line that does nothing to a terminal: what is not printable as an escape such as \\n or \\x1b.

    Of more than `longest` characters the first and last are kept, and how many are left out is said.
    """
    text = str(words)
    if len(text) > longest:
        half = longest // 2
        text = f"{text[:half]}... ({len(text) - 2 * half} characters) ...{text[len(text) - half :]}"
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def quoted(value: object, longest: int = 80) -> str:
    """A value as Python writes it, on one line and short: for messages that quote what was received."""
    if isinstance(value, str | list | tuple) and len(value) > longest:
        return f"{shown(repr(value[:longest]), longest)} ({len(value)} long)"
    return shown(repr(value), longest)


def markdown(words: object, longest: int = LONGEST) -> str:
    """The same for Markdown and the HTML in it: no tag, link, image, table cell or emphasis begins in it."""
    return _MARKED.sub(lambda m: "&lt;" if m[0] == "<" else f"\\{m[0]}", shown(words, longest))
