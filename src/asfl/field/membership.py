"""Who may take part: devices by name, with the key each has, its number, and codes that let new ones in once.

Two roles, and nothing in between: the operator, who can write to the server's folder, invites, revokes and starts runs;
a device takes part, and can ask for nothing. What happens is written to an audit log, line by line.

One file, read anew for every connection and request: a device that is revoked while a server runs is out at once.
"""

import hashlib
import json
import re
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from cryptography import x509
from pydantic import TypeAdapter, ValidationError

from asfl.config.errors import AsflError, nearest, short
from asfl.field.certificates import key_digest, name_of
from asfl.runs.files import append_line, write_whole, writing

AUDIT_FILE, REGISTRY_FILE = "audit.jsonl", "devices.json"
NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,39}")
_CODE_BYTES = 16
Out = TypeVar("Out")


@dataclass(frozen=True)
class Device:
    """A device that has enrolled."""

    name: str
    number: int
    """Which client it is, in every run."""
    key: str
    """SHA-256 of its public key."""
    enrolled_at: str
    revoked_at: str = ""
    images: int = 0
    """How many it said it trains with when it first took part; from then on, it counts for no more. 0: not said yet."""
    code: str = ""
    """The digest of the code it came with: with the same key, an enrolment that broke off may be repeated."""


@dataclass(frozen=True)
class Invitation:
    """A code that works once."""

    digest: str
    until: float
    """Seconds since 1970, by the server's clock."""


@dataclass(frozen=True)
class Book:
    """All of the file."""

    devices: tuple[Device, ...] = ()
    invitations: tuple[Invitation, ...] = ()

    def named(self, name: str) -> Device:
        for device in self.devices:
            if device.name == name:
                return device
        raise AsflError(f"there is no device {short(name)}: {nearest(name, [one.name for one in self.devices])}")

    @property
    def active(self) -> list[Device]:
        return [device for device in self.devices if not device.revoked_at]


class AccessError(AsflError):
    """Not admitted."""


class Registry:
    """The file, in the server's folder."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._file = folder, folder / REGISTRY_FILE

    def read(self) -> Book:
        try:
            return TypeAdapter(Book).validate_json(self._file.read_bytes())
        except FileNotFoundError:
            return Book()
        except (OSError, ValidationError, ValueError) as error:
            reason = str(error).partition("\n")[0]
            raise AsflError(f"{self._file}: can't be read as a list of devices: {reason}") from None

    def change(self, change: Callable[[Book], tuple[Book, Out]]) -> Out:
        with writing(self._folder / "changes"):
            book, out = change(self.read())
            write_whole(self._file, json.dumps(asdict(book), indent=1).encode(), mode=0o600)
        return out

    # ------------------------------------------------------------------ the operator
    def invite(self, count: int, hours: float) -> list[str]:
        """So many codes that let one device in each, until they are too old."""
        codes, now = [secrets.token_hex(_CODE_BYTES) for _ in range(count)], time.time()
        new = [Invitation(_digest(code), now + 3600 * hours) for code in codes]

        def change(book: Book) -> tuple[Book, None]:
            valid = [one for one in book.invitations if one.until > now]
            return replace(book, invitations=(*valid, *new)), None

        self.change(change)
        self.audit("invited", devices=count, hours=hours)
        return codes

    def revoke(self, name: str) -> None:
        """Out at once, and for good: its key opens nothing any more, and its number is free."""

        def change(book: Book) -> tuple[Book, None]:
            gone = replace(book.named(name), revoked_at=now())
            return replace(book, devices=tuple(gone if one.name == name else one for one in book.devices)), None

        if self.read().named(name).revoked_at:
            raise AsflError(f"{name} was revoked before")
        self.change(change)
        self.audit("revoked", device=name)

    # ------------------------------------------------------------------ devices
    def enrol(self, code: str, name: str, key: str) -> Device:
        """Take a code for a device with this key; `AccessError` if it is none."""
        if NAME.fullmatch(name) is None:
            raise AsflError(f"name = {short(name)}: give a–z, 0–9 and -, 40 letters at most")

        def change(book: Book) -> tuple[Book, Device]:
            left = tuple(one for one in book.invitations if not secrets.compare_digest(one.digest, _digest(code)))
            used = next((one for one in book.invitations if one not in left), None)
            if used is None or used.until < time.time():
                again = (one for one in book.active if one.name == name and one.key == key)
                if (device := next(again, None)) is not None and secrets.compare_digest(device.code, _digest(code)):
                    return book, device
                raise AccessError("this code is wrong, too old, or was used before")
            others = [one for one in book.active if one.name != name]
            same = next((one for one in book.active if one.name == name), None)
            if same is not None and same.key != key:
                raise AsflError(f"there is a device {name} already; give another --name, or revoke that one")
            taken = {one.number for one in others}
            free = next(number for number in range(len(taken) + 1) if number not in taken)
            device = replace(same or Device(name, free, key, now()), code=_digest(code))
            kept = [one for one in book.devices if one.name != name]
            return Book((*kept, device), left), device

        device = self.change(change)
        self.audit("enrolled", device=name, number=device.number)
        return device

    def member(self, certificate: x509.Certificate) -> Device:
        """The device whose certificate this is, which the authority has signed; `AccessError` if it is out."""
        name, key = name_of(certificate), key_digest(certificate)
        device = next((one for one in self.read().devices if one.name == name), None)
        if device is None or device.key != key:
            raise AccessError(f"{short(name)} isn't enrolled with this key")
        if device.revoked_at:
            raise AccessError(f"{name} was revoked")
        return device

    # ------------------------------------------------------------------ what happened
    def audit(self, event: str, **facts: Any) -> None:
        """One line; when, what, who."""
        with suppress(AsflError):  # a full disk must not end a run
            append_line(self._folder / AUDIT_FILE, json.dumps({"at": now(), "event": event, **facts}) + "\n")


@dataclass(frozen=True)
class Member:
    """A device that was let in to a run, by the certificate it showed."""

    registry: Registry
    certificate: x509.Certificate
    client: int
    """Which client of the run it is."""

    @classmethod
    def admitted(cls, registry: Registry, certificate: str, clients: int) -> "Member":
        """To a run with so many clients; the certificate is one that the authority has signed, in PEM."""
        try:
            shown = x509.load_pem_x509_certificate(certificate.encode())
        except ValueError:
            raise AccessError("no certificate") from None
        device = registry.member(shown)
        if device.number >= clients:
            raise AsflError(f"{device.name} is device {device.number}, and this run has {clients}")
        return cls(registry, shown, device.number)

    @property
    def key(self) -> str:
        """SHA-256 of its public key."""
        return key_digest(self.certificate)

    @property
    def still_in(self) -> bool:
        """By its key: its number may be another device's by now."""
        try:
            return self.registry.member(self.certificate).number == self.client
        except AccessError:
            return False
        except AsflError:  # the list can't be read at the moment, which throws no device out
            return True

    def agreed(self, samples: int) -> int:
        """How many images count of those that it says it has: the first number a device says stays with its key."""

        def change(book: Book) -> tuple[Book, None]:
            first = [replace(one, images=samples) if one.key == self.key else one for one in book.devices]
            return replace(book, devices=tuple(first)), None

        try:
            device = self.registry.member(self.certificate)
            if device.images:
                return min(samples, device.images)
            self.registry.change(change)
        except AsflError:  # it is out, which ends its stream, or the list can't be written, which ends no run
            return samples
        self.registry.audit("images", device=device.name, images=samples)
        return samples


def _digest(code: str) -> str:
    return hashlib.sha256(code.encode()).hexdigest()


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
