"""Files that people give, read with the suspicion they deserve: ordinary files, of a sensible size and depth."""

import json
import stat
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from asfl.config.errors import AsflError

MAX_TEXT_BYTES = 64 << 20
"""A larger configuration or round file is taken for a mistake."""
MAX_DEPTH = 32
"""Nothing that is read here is nested deeper than 5."""
MAX_INTEGER_BITS = 128
"""No count or seed is larger, and Python refuses to print numbers that are much larger."""


class NotTomlError(AsflError):
    """A text that isn't TOML."""


def check_file(path: Path, named: str = "") -> None:
    """Refuse what isn't an ordinary file: a pipe may never end, and a device never does."""
    named = named or str(path)
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        raise AsflError(f"{named}: no such file") from None
    except (OSError, ValueError) as error:  # a name too long, a loop of links; a NUL in it
        raise AsflError(f"{named}: can't be read: {getattr(error, 'strerror', None) or error}") from None
    if not stat.S_ISREG(mode):
        raise AsflError(f"{named}: {'a folder' if stat.S_ISDIR(mode) else 'a device or a pipe'}, not a file")


def read_text(path: Path) -> str:
    """The text of an ordinary file in UTF-8."""
    check_file(path)
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_TEXT_BYTES + 1)
        if len(raw) > MAX_TEXT_BYTES:
            raise AsflError(f"{path} has more than {MAX_TEXT_BYTES >> 20} MB, far more than such a file can need")
        return raw.decode("utf-8").replace("\r\n", "\n")
    except (OSError, UnicodeDecodeError) as error:
        raise AsflError(f"can't read {path}: {error}") from None


def parse_toml(text: str, where: str) -> dict[str, Any]:
    """TOML as a dictionary; `where` names it in errors."""
    values: dict[str, Any] = _parsed(tomllib.loads, text, where, NotTomlError(f"{where} is not valid TOML"))
    return values


def parse_json(text: str, where: str) -> Any:
    """JSON as Python has it; `where` names it in errors."""
    return _parsed(json.loads, text, where, AsflError(f"{where} is not valid JSON"))


def _parsed(loads: Callable[[str], Any], text: str, where: str, malformed: AsflError) -> Any:
    """Values that the recursion and the printing behind a parser survive."""
    try:
        values = loads(text)
    except (tomllib.TOMLDecodeError, json.JSONDecodeError) as error:
        raise type(malformed)(f"{malformed}: {error}") from None
    except (RecursionError, ValueError):
        raise AsflError(f"{where} {_TOO_MUCH}") from None
    level = [values]
    for _ in range(MAX_DEPTH):
        if any(isinstance(value, int) and value.bit_length() > MAX_INTEGER_BITS for value in level):
            break
        if any(isinstance(value, str) and not is_text(value) for value in level):
            raise AsflError(f"{where} has half of a letter in it (a lone surrogate), which is no text")
        below = [
            [*value, *value.values()] if isinstance(value, dict) else value
            for value in level
            if isinstance(value, dict | list)
        ]
        level = [value for inside in below for value in inside]
        if not level:
            return values
    raise AsflError(f"{where} {_TOO_MUCH}")


def is_text(value: str) -> bool:
    """Whether it can be written: JSON and command lines let halves of letters pass."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


_TOO_MUCH = f"is nested more than {MAX_DEPTH} deep, or has a whole number above 2^{MAX_INTEGER_BITS}"
