"""Errors that are meant for people: one sentence that names the field, the value and what would be valid."""

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

from asfl.config.removed import INSTEAD


class AsflError(Exception):
    """Something the user can mend. The command line prints it without a traceback and exits with 2."""


class MissingExtraError(AsflError):
    """An optional dependency is needed and not installed."""

    def __init__(self, purpose: str, extra: str) -> None:
        super().__init__(f"{purpose} needs an optional dependency: pip install 'asfl[{extra}]'")


def nearest(word: str, valid: Iterable[str]) -> str:
    """A hint: what to use instead of a word that is gone, the valid word closest to it, or all valid ones."""
    if word in INSTEAD:
        return f"it is gone: {INSTEAD[word]}"
    options = sorted(valid)
    close = get_close_matches(word[:200], options, n=1, cutoff=0.6)
    return f"did you mean '{close[0]}'?" if close else f"valid: {', '.join(options)}"


def printable(name: str) -> str:
    """The name of a file that can be written anywhere: bytes in it that are no text are spelt out."""
    return name.encode("utf-8", "backslashreplace").decode()


def short(value: Any, length: int = 60) -> str:
    """A value as a person wrote it, cut to a length that fits a message."""
    text = f"'{value}'" if isinstance(value, str) else repr(value)
    return text if len(text) <= length else text[: length - 3] + "..."


MOST_LETTERS = 500
"""Of text that another machine wrote."""


def words_of(text: str) -> str:
    """Text of another machine, for records, logs and errors: cut, and nothing in it moves a terminal's cursor."""
    return "".join(letter if letter.isprintable() else "?" for letter in text[:MOST_LETTERS])
