"""Checkpoints: everything a run needs to go on, in files that can't be half right.

A checkpoint is a safetensors file, which holds numbers and no code, with a seal beside it, written last. What doesn't
match its seal is torn, and the checkpoint before it is taken; so two are kept.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from asfl.config.errors import AsflError
from asfl.runs.files import refuse_links
from asfl.runs.seals import DamagedError, Seal, read_sealed, seal_of, write_sealed

KEPT = 2
_NAME = re.compile(r"round-(\d{6,})\.safetensors")


@dataclass(frozen=True)
class Checkpoint:
    """One that is whole."""

    file: Path
    seal: Seal
    tensors: dict[str, Tensor]


def save_checkpoint(
    folder: Path, round_index: int, tensors: dict[str, Tensor], fingerprint: str, records_seal: str
) -> None:
    """Save the state after `round_index` rounds; older checkpoints but the last are removed.

    Others may not read it: it holds the sides of all clients.
    """
    content = save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})
    file = folder / f"round-{round_index:06d}.safetensors"
    refuse_links(folder)
    write_sealed(file, content, round_index=round_index, fingerprint=fingerprint, records=records_seal, mode=0o600)
    for old in [path for number, path in checkpoint_files(folder) if number <= round_index][KEPT:]:
        remove_checkpoint(old)


def read_checkpoint(file: Path, fingerprint: str) -> Checkpoint:
    """`DamagedError` if it isn't whole, `AsflError` if it is one of another run."""
    seal, content = read_sealed(file)
    if seal.fingerprint != fingerprint:
        raise AsflError(
            f"{file} belongs to another configuration or scheme than the manifest beside it; "
            "remove it, or bring back the manifest it was made with"
        )
    if file.name != f"round-{seal.round:06d}.safetensors":
        raise DamagedError(f"it is the checkpoint of round {seal.round} under another name")
    try:
        return Checkpoint(file, seal, load(content))
    except SafetensorError as error:
        raise DamagedError(f"it holds no tensors ({error})") from None


def checkpoint_files(folder: Path) -> Iterator[tuple[int, Path]]:
    """Checkpoints and the round of each, newest first."""
    found = [(int(match[1]), path) for path in folder.glob("*") if (match := _NAME.fullmatch(path.name))]
    return iter(sorted(found, reverse=True))


def remove_checkpoint(file: Path) -> None:
    """First the seal: without it the rest isn't valid."""
    refuse_links(file.parent)
    seal_of(file).unlink(missing_ok=True)
    file.unlink(missing_ok=True)
