"""Checkpoints: everything a run needs to go on, in files that can't be half right.

A checkpoint is a safetensors file, which holds numbers and no code, and beside it a small JSON file with its length
and checksum, written last. What doesn't match is torn, and the checkpoint before it is taken; so two are kept.
"""

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from asfl.config.errors import AsflError
from asfl.runs.files import write_whole

KEPT = 2
_NAME = re.compile(r"round-(\d{6,})\.safetensors")


def save_checkpoint(folder: Path, round_index: int, tensors: dict[str, Tensor], fingerprint: str) -> None:
    """Save the state after `round_index` rounds; older checkpoints but the last are removed."""
    content = save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})
    file = folder / f"round-{round_index:06d}.safetensors"
    seal = {
        "round": round_index,
        "bytes": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
        "fingerprint": fingerprint,
    }
    write_whole(file, content)
    write_whole(_seal_of(file), json.dumps(seal).encode())
    for old in [path for number, path in _files(folder) if number <= round_index][KEPT:]:
        _seal_of(old).unlink(missing_ok=True)
        old.unlink(missing_ok=True)


def load_checkpoint(folder: Path, fingerprint: str) -> dict[str, Tensor] | None:
    """The newest checkpoint that is whole, or None. One of another configuration is refused."""
    for _, file in _files(folder):
        try:
            seal = json.loads(_seal_of(file).read_text("utf-8"))
            content = file.read_bytes()
            whole = len(content) == seal["bytes"] and hashlib.sha256(content).hexdigest() == seal["sha256"]
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if not whole:
            continue
        if seal.get("fingerprint") != fingerprint:
            raise AsflError(
                f"{file} belongs to another configuration or scheme than the manifest beside it; "
                "remove it, or bring back the manifest it was made with"
            )
        try:
            return load(content)
        except SafetensorError:
            continue
    return None


def _files(folder: Path) -> Iterator[tuple[int, Path]]:
    """Checkpoints, newest first."""
    found = [(int(match[1]), path) for path in folder.glob("*") if (match := _NAME.fullmatch(path.name))]
    return iter(sorted(found, reverse=True))


def _seal_of(file: Path) -> Path:
    return file.with_suffix(".json")
