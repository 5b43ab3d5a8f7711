"""Seals: by which a file shows that nothing in it was changed, cut off or exchanged since it was written.

A JSON file of a few lines carries a checksum of the rest of itself. Beside a file of numbers lies a small JSON file
with its length and SHA-256, and with what it belongs to: the run, and the rounds before it. Checksums, not signatures:
they tell accidents, not forgers.
"""

import hashlib
import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from asfl._version import __version__
from asfl.config.errors import AsflError
from asfl.config.files import MAX_TEXT_BYTES, no_key_twice, read_file
from asfl.runs.files import write_whole

_SEAL = "seal"
MAX_JSON_BYTES = 1 << 30
"""A manifest may hold what ASFL decided in every round."""
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
LineSeal = Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]


# ---------------------------------------------------------------------- of a JSON file, in itself
def sealed_json(data: dict[str, Any]) -> bytes:
    return json.dumps({**data, _SEAL: _checksum(data)}, indent=2).encode()


def read_sealed_json(file: Path, format_: int) -> dict[str, Any]:
    """What is in such a file; `AsflError` if it isn't of this format or was changed, ValueError if it isn't JSON."""
    try:
        data = json.loads(read_file(file, MAX_JSON_BYTES), object_pairs_hook=no_key_twice)
    except (OSError, RecursionError) as error:
        raise ValueError(getattr(error, "strerror", None) or str(error)) from None
    if not isinstance(data, dict) or "format" not in data:
        raise ValueError("no format in it")
    if data["format"] != format_:
        raise AsflError(
            f"{file}: format {ascii(data['format'])[:40]}, but this asfl ({__version__}) reads format {format_}"
        )
    if _SEAL not in data:
        raise ValueError("no seal in it")
    try:
        return _opened(data)
    except ValueError:
        raise AsflError(
            f"{file} was changed or damaged after it was written: its seal doesn't match; bring back the file as it was"
        ) from None


def _opened(data: Any) -> dict[str, Any]:
    """Without its seal, which must match."""
    if not isinstance(data, dict) or data.pop(_SEAL, None) != _checksum(data):
        raise ValueError("the seal doesn't match")
    return data


def _checksum(data: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


# ---------------------------------------------------------------------- of a file of numbers, beside it
class Seal(BaseModel):
    """What is written beside a checkpoint or a model."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    round: Annotated[int, Field(ge=0)]
    """How many rounds were played."""
    bytes: Annotated[int, Field(ge=0)]
    sha256: Sha256
    fingerprint: Sha256
    """Of the run."""
    records: LineSeal
    """Of the last of those rounds, in rounds.jsonl; so also of all before it."""
    before: "Seal | None" = None
    """Of the file that is being replaced: until the new one is in its place, the old one is valid."""


def seal_of(file: Path) -> Path:
    return file.with_suffix(".json")


def write_sealed(
    file: Path, content: bytes, *, round_index: int, fingerprint: str, records: str, mode: int = 0o666
) -> None:
    """First the content, then the seal that makes it valid; what was sealed before is replaced in one step."""
    seal = Seal(
        round=round_index,
        bytes=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
        fingerprint=fingerprint,
        records=records,
    )
    put_sealed(file, seal, lambda: write_whole(file, content, mode))


def put_sealed(file: Path, seal: Seal, put: Callable[[], object]) -> None:
    """`put` puts the content in its place. At every moment the seal fits what is there, unless it is the first."""
    with suppress(DamagedError):
        before, _ = read_sealed(file)
        if before.sha256 != seal.sha256:
            _write_seal(file, seal.model_copy(update={"before": before}))
    put()
    _write_seal(file, seal)


def _write_seal(file: Path, seal: Seal) -> None:
    write_whole(seal_of(file), sealed_json(seal.model_dump(exclude_none=True)))


class DamagedError(Exception):
    """A sealed file isn't what was written. The message says in which way."""


def read_seal(content: bytes) -> Seal:
    """ValueError if it was changed."""
    return Seal.model_validate(_opened(json.loads(content, object_pairs_hook=no_key_twice)))


def read_sealed(file: Path) -> tuple[Seal, bytes]:
    """Seal and content, if they belong together; else `DamagedError`."""
    if not file.is_file():
        raise DamagedError("it is gone")
    try:
        seal = read_seal(read_file(seal_of(file)))
    except FileNotFoundError:
        raise DamagedError("it has no seal: its writing was never finished, or the seal was removed") from None
    except (OSError, ValueError, RecursionError):  # a ValidationError is a ValueError
        raise DamagedError(f"its seal, {seal_of(file).name}, was changed or can't be read") from None
    try:
        content = read_file(file, max(seal.bytes, seal.before.bytes if seal.before else 0, MAX_TEXT_BYTES))
    except OSError as error:
        raise DamagedError(f"it can't be read ({error.strerror})") from None
    checksum = hashlib.sha256(content).hexdigest()
    if seal.before is not None and checksum == seal.before.sha256:
        return seal.before, content
    if len(content) != seal.bytes:
        raise DamagedError(f"it has {len(content):,} bytes instead of {seal.bytes:,}")
    if checksum != seal.sha256:
        raise DamagedError("its content was changed: the checksum doesn't match")
    return seal.model_copy(update={"before": None}), content
