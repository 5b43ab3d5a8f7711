"""Valid credentials as a file: with it, a server that was restarted lets in the clients it had.

The file has digests only, and nobody gets in with a digest. It belongs to one run.
"""

import hashlib
import json
import re
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from asfl.config.errors import AsflError
from asfl.field.protocol.messages import Agreement
from asfl.runs.files import sync_folder, write_whole
from asfl.runs.manifest import comparable

_FORMAT = 1
_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class KeyFile:
    """For each client, the digests of what it may come in with."""

    path: Path
    run: str
    """The run's fingerprint."""

    @classmethod
    def of(cls, path: Path, agreement: Agreement) -> "KeyFile":
        """The file at this path, for this run."""
        text = json.dumps([agreement.scheme, comparable(agreement.config)], sort_keys=True)
        return cls(path, hashlib.sha256(text.encode()).hexdigest())

    def exists(self) -> bool:
        try:
            self.path.stat()
        except FileNotFoundError:
            return False
        except OSError as error:
            raise AsflError(f"can't read {self.path}: {error.strerror or error}") from None
        return True

    def write(self, valid: Sequence[Sequence[bytes]]) -> None:
        """When this returns, the disk has it, and has it after a power failure too."""
        digests = [[digest.hex() for digest in of_client] for of_client in valid]
        content = json.dumps({"format": _FORMAT, "run": self.run, "clients": digests}, indent=1)
        write_whole(self.path, content.encode(), mode=0o600)
        sync_folder(self.path.parent)

    def read(self, num_clients: int) -> list[list[bytes]]:
        """What `write` wrote, of this run with so many clients; else one clear error."""
        try:
            mode, text = self.path.stat().st_mode, self.path.read_text("utf-8")
        except FileNotFoundError:
            raise AsflError(
                f"there is no file {self.path}; without the keys of the earlier server its clients can't be let in"
            ) from None
        except OSError as error:
            raise AsflError(f"can't read {self.path}: {error.strerror or error}") from None
        except UnicodeDecodeError:
            raise AsflError(f"{self.path} is no file of keys: it is not text") from None
        if mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise AsflError(f"{self.path} can be written to by others, who could let anybody in (chmod go-w would do)")
        return self._parse(text, num_clients)

    def _parse(self, text: str, num_clients: int) -> list[list[bytes]]:
        try:
            data = json.loads(text)
        except (ValueError, RecursionError):
            raise AsflError(f"{self.path} is no file of keys: it is not JSON") from None
        if not isinstance(data, dict) or data.keys() != {"format", "run", "clients"}:
            raise AsflError(f"{self.path} is no file of keys: it must have format, run and clients, and nothing else")
        if data["format"] != _FORMAT:
            raise AsflError(f"{self.path}: format {ascii(data['format'])[:20]}, but this asfl reads format {_FORMAT}")
        if data["run"] != self.run:
            raise AsflError(f"{self.path} has the keys of a run with another configuration or scheme")
        clients = data["clients"]
        if not isinstance(clients, list) or len(clients) != num_clients or not all(map(_is_digests, clients)):
            raise AsflError(f"{self.path} is damaged: it must have digests for each of {num_clients} clients")
        return [[bytes.fromhex(digest) for digest in digests] for digests in clients]


def _is_digests(value: object) -> bool:
    """At least one."""
    if not isinstance(value, list) or not value:
        return False
    return all(isinstance(entry, str) and _DIGEST.fullmatch(entry) for entry in value)
