"""Files of others, opened with the suspicion they deserve: ordinary files, of a sensible size and depth, and no link
that would be written through.
"""

import errno
import json
import os
import stat
import tomllib
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from io import BufferedReader
from pathlib import Path
from typing import Any

from asfl.config.errors import AsflError, short

MAX_TEXT_BYTES = 64 << 20
"""A larger configuration or round file is taken for a mistake."""
MAX_FILE_BYTES = 1 << 33
"""A larger file in a run folder is taken for a mistake, even where its rounds or tensors are read one by one."""
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


def open_ordinary(path: Path, flags: int = os.O_RDONLY, mode: int = 0o666) -> int:
    """The descriptor of an ordinary file; an OSError for a pipe, a device or a folder, and for a link to write through.

    Windows has neither links that anybody may make nor pipes among its files, and none of these flags.
    """
    writes = flags & (os.O_WRONLY | os.O_RDWR)
    flags |= getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0) | getattr(os, "O_NOFOLLOW", 0) * bool(writes)
    try:
        handle = os.open(path, flags, mode)
    except OSError as error:
        if error.errno == errno.ELOOP and path.is_symlink():
            raise OSError(errno.ELOOP, "it is a link, and links aren't followed to write", str(path)) from None
        if error.errno == errno.ENXIO:
            raise OSError(errno.ENXIO, _NOT_ORDINARY, str(path)) from None
        raise
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, _NOT_ORDINARY, str(path))
    return handle


def open_to_read(path: Path, most: int = MAX_FILE_BYTES) -> BufferedReader:
    """An ordinary file of at most so many bytes; else an OSError."""
    file = os.fdopen(open_ordinary(path), "rb")
    size = os.fstat(file.fileno()).st_size
    if size > most:
        file.close()
        raise OSError(errno.EFBIG, f"it has {size:,} bytes, far more than such a file can need", str(path))
    return file


def read_file(path: Path, most: int = MAX_TEXT_BYTES) -> bytes:
    """All of an ordinary file of at most so many bytes; else an OSError."""
    with open_to_read(path, most) as file:
        check_memory(os.fstat(file.fileno()).st_size, f"reading {path}", "is it the right file?")
        return file.read(most)


def read_text(path: Path) -> str:
    """The text of an ordinary file in UTF-8, with or without a byte order mark."""
    check_file(path)
    try:
        return read_file(path).decode("utf-8-sig").replace("\r\n", "\n")
    except OSError as error:
        raise AsflError(f"can't read {path}: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise AsflError(f"can't read {path}: {error}") from None


def parse_toml(text: str, where: str) -> dict[str, Any]:
    """TOML as a dictionary; `where` names it in errors."""
    values: dict[str, Any] = _parsed(tomllib.loads, text, where, NotTomlError(f"{where} is not valid TOML"))
    return values


def parse_json(text: str, where: str) -> Any:
    """JSON as Python has it; `where` names it in errors."""
    loads = partial(json.loads, object_pairs_hook=no_key_twice)
    return _parsed(loads, text, where, AsflError(f"{where} is not valid JSON"))


class TwiceError(ValueError):
    """A key stands twice in an object of JSON, where the last would win without a word."""


def no_key_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON, for `json.loads(…, object_pairs_hook=…)`."""
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(key for place, (key, _) in enumerate(pairs) if key in dict(pairs[:place]))
        raise TwiceError(f"the key {short(twice)} stands twice in one object")
    return found


def _parsed(loads: Callable[[str], Any], text: str, where: str, malformed: AsflError) -> Any:
    """Values that the recursion and the printing behind a parser survive."""
    try:
        values = loads(text)
    except (tomllib.TOMLDecodeError, json.JSONDecodeError) as error:
        raise type(malformed)(f"{malformed}: {error}") from None
    except TwiceError as error:
        raise AsflError(f"{where}: {error}") from None
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


_NOT_ORDINARY = "it is a folder, a device or a pipe, not an ordinary file"
_TOO_MUCH = f"is nested more than {MAX_DEPTH} deep, or has a whole number above 2^{MAX_INTEGER_BITS}"

# ---------------------------------------------------------------------- memory
GB = 1e9
ALWAYS_THERE = 0.1 * GB
"""Less than this isn't worth a look."""
_OUT_OF_MEMORY = ("can't allocate memory", "not enough memory", "out of memory")
_GROUP = Path("/sys/fs/cgroup")


def check_memory(needed_bytes: float, purpose: str, advice: str) -> None:
    """Refuse what doesn't fit into this machine, before any of it is taken."""
    if needed_bytes < ALWAYS_THERE:
        return
    there = available_bytes()
    if needed_bytes > there:
        raise AsflError(
            f"{purpose} needs about {_gigabytes(needed_bytes)} of memory; here are {_gigabytes(there)}: {advice}"
        )


def is_out_of_memory(error: BaseException) -> bool:
    """PyTorch says so in a RuntimeError, in words of its own."""
    text = str(error) if isinstance(error, RuntimeError) else ""
    return isinstance(error, MemoryError) or any(words in text for words in _OUT_OF_MEMORY)


def available_bytes() -> float:
    """Memory that can still be had: what the kernel calls available, or what a control group leaves if that is less.

    Infinite where the system doesn't say.
    """
    return min(_of_machine(), _of_group())


def _of_machine() -> float:
    with suppress(OSError, ValueError, IndexError):
        lines = Path("/proc/meminfo").read_text("ascii").splitlines()
        return float(next(line for line in lines if line.startswith("MemAvailable:")).split()[1]) * 1024
    with suppress(OSError, ValueError, AttributeError):  # no Linux: all there is, since nobody says what is free
        return float(os.sysconf("SC_PAGE_SIZE")) * os.sysconf("SC_PHYS_PAGES")
    return float("inf")


def _of_group() -> float:
    """What is left of a container's limit."""
    with suppress(OSError, ValueError):  # no such file; or "max", which is no number
        return float((_GROUP / "memory.max").read_text("ascii")) - float((_GROUP / "memory.current").read_text("ascii"))
    return float("inf")


def _gigabytes(amount: float) -> str:
    return f"{amount / GB:,.0f} GB" if amount >= 10 * GB else f"{amount / GB:.2g} GB"
