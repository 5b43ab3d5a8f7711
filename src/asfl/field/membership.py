"""Who may take part: devices by name, with the key each has, its number, and codes that let new ones in once.

Two roles, and nothing in between: the operator, who can write to the server's folder, invites, revokes and starts runs;
a device takes part, and can ask for nothing. What happens is written to an audit log, line by line.

One file, read anew for every connection and request: a device that is revoked while a server runs is out at once.

How a device gets its certificate: both sides of the only port that strangers may call.

HTTPS, one call of a few kilobytes, nothing else:

    POST /enrol   {"code", "name", "request"}   a one-time code: its key is signed

A device knows the server's certificate by the fingerprint in the code that was pasted, later by the authority. Its key,
its certificate and where it belongs are in one folder of its own.
"""

import base64
import binascii
import hashlib
import http.client
import json
import logging
import re
import secrets
import ssl
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from cryptography import x509
from pydantic import TypeAdapter, ValidationError

from asfl.config.errors import AsflError, nearest, short, words_of
from asfl.field.certificates import (
    Authority,
    belong_together,
    certificate_in,
    key_digest,
    key_in,
    name_of,
    own_key,
    private_folder,
    request_for,
    write_private,
)
from asfl.runs.files import append_line, remove_abandoned, write_whole, writing
from asfl.runs.http_server import MOST_BYTES, Asked, HttpServer, Reply

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


_log = logging.getLogger(__name__)
_PIN_BYTES = 16
_TIMEOUT_S = 30.0


# ---------------------------------------------------------------------- the server
class EnrolmentServer(HttpServer):
    """Listens while it is open."""

    def __init__(self, host: str, port: int, authority: Authority, stream: str) -> None:
        """`stream`: the port that devices are told to go on to."""
        self._authority, self._registry, self._stream = authority, Registry(authority.folder), stream
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(*authority.server_files())
        self.fingerprint = authority.fingerprint
        try:
            super().__init__(host, port, self._reply, method="POST", context=context)
        except OSError as error:
            raise AsflError(f"can't listen on {host}:{port}: {error.strerror or error}") from None

    def _reply(self, asked: Asked) -> Reply:
        status, answer = 200, dict[str, Any]()
        try:
            said = json.loads(asked.body)
            if not isinstance(said, dict):
                raise ValueError("no object")
            answer = self._signed(asked, said) | {"stream": self._stream}
        except AccessError as error:
            _log.warning("enrolment: refused %s: %s", asked.who, error)
            status, answer = 403, {"error": str(error)}
        except AsflError as error:
            status, answer = 400, {"error": str(error)}
        except (ValueError, RecursionError):
            status, answer = 400, {"error": "not a request"}
        return Reply(json.dumps(answer).encode(), "application/json", status)

    def _signed(self, asked: Asked, said: dict[str, Any]) -> dict[str, Any]:
        if asked.path != "/enrol":
            raise AccessError("there is nothing here")
        name = str(said.get("name", ""))
        certificate, key = self._authority.sign(str(said.get("request", "")), name[:64] or "?")
        self._registry.enrol(str(said.get("code", "")), name, key)
        return {"certificate": certificate, "authority": self._authority.pem}


# ---------------------------------------------------------------------- a device
def pasted_code(fingerprint: bytes, code: str) -> str:
    """What is pasted on a device: who the server is, and the code."""
    return base64.b32encode(fingerprint[:_PIN_BYTES] + bytes.fromhex(code)).decode().rstrip("=").lower()


def _parts(pasted: str) -> tuple[bytes, str]:
    text = pasted.strip().upper()
    try:
        raw = base64.b32decode(text + "=" * (-len(text) % 8))
    except binascii.Error:
        raw = b""
    if len(raw) != 2 * _PIN_BYTES:
        raise AsflError("the code isn't whole: paste one that asfl serve printed, or ask for another one")
    return raw[:_PIN_BYTES], raw[_PIN_BYTES:].hex()


@dataclass(frozen=True)
class Membership:
    """What a device remembers."""

    name: str
    enrolment: str
    """host:port, where it enrolled."""
    stream: str
    """host:port"""
    data: str = ""
    """Its images (`asfl.data.private`), or the folder for data sets."""

    @classmethod
    def read(cls, home: Path) -> "Membership | None":
        try:
            return TypeAdapter(cls).validate_json((home / "member.json").read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValidationError) as error:
            reason = str(error).partition("\n")[0]
            raise AsflError(f"{home / 'member.json'}: can't be read: {reason}") from None

    def write(self, home: Path) -> None:
        """The last file of an enrolment: with it, the others are there."""
        write_private(home / "member.json", json.dumps(asdict(self), indent=1).encode())

    def files(self, home: Path) -> tuple[bytes, bytes, bytes]:
        """The device's key, its certificate, and the authority's, in PEM."""
        files = [home / name for name in ("device.key", "device.pem", "authority.pem")]
        key, own, authority = key_in(files[0]), certificate_in(files[1]), certificate_in(files[2])
        if own is None or authority is None or not belong_together(key, own):
            raise AsflError(
                f"{', '.join(file.name for file in files)} in {home}: one is missing or damaged. Put it back from a "
                "copy, or enrol again with a new code: asfl join SERVER (if the key is lost, first run asfl devices "
                f"revoke {self.name} on the server)"
            )
        return files[0].read_bytes(), files[1].read_bytes(), files[2].read_bytes()


def enrol(home: Path, server: str, pasted: str, name: str, data: str) -> Membership:
    """Make a key, and have the server sign it; nothing of the key leaves."""
    fingerprint, code = _parts(pasted)
    private_folder(home)
    remove_abandoned(home)
    key = own_key(home / "device.key")
    said = {"code": code, "name": name, "request": request_for(key, name)}
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # the fingerprint says more
    answer = _call(server, said, context, fingerprint)
    host = server.rpartition(":")[0]
    member = Membership(name, server, f"{host}:{answer['stream']}", data)
    _keep(home, answer)
    member.write(home)
    return member


def enrol_here(home: Path, authority: Authority, name: str, enrolment: str, stream: str, data: str = "") -> Membership:
    """Likewise for a device whose folder is on the server's own machine: no call is needed."""
    private_folder(home)
    certificate, key = authority.sign(request_for(own_key(home / "device.key"), name), name)
    registry = Registry(authority.folder)
    registry.enrol(registry.invite(1, 1.0)[0], name, key)
    _keep(home, {"certificate": certificate, "authority": authority.pem})
    member = Membership(name, enrolment, stream, data)
    member.write(home)
    return member


def _keep(home: Path, answer: dict[str, Any]) -> None:
    write_private(home / "device.pem", answer["certificate"].encode())
    write_private(home / "authority.pem", answer["authority"].encode())


def _call(server: str, said: dict[str, str], context: ssl.SSLContext, fingerprint: bytes) -> dict[str, Any]:
    host, _, port = server.rpartition(":")
    if not host or not port.isdecimal():
        raise AsflError(f"server '{server}': write it as host:port, as in the line that asfl serve printed")
    connection = http.client.HTTPSConnection(host.strip("[]"), int(port), timeout=_TIMEOUT_S, context=context)
    try:
        connection.connect()
        shown = connection.sock.getpeercert(True)
        if hashlib.sha256(shown or b"").digest()[:_PIN_BYTES] != fingerprint:
            raise AsflError(f"{server} is not the server that gave this code: its certificate is another one")
        connection.request("POST", "/enrol", json.dumps(said), {"Content-Type": "application/json"})
        response = connection.getresponse()
        answer = json.loads(response.read(8 * MOST_BYTES))
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise AsflError(f"{server} can't be reached: {getattr(error, 'strerror', None) or error}") from None
    finally:
        connection.close()
    answer = answer if isinstance(answer, dict) else {}
    if response.status != 200:
        raise AsflError(f"{server} refused: {words_of(str(answer.get('error', '')))}")
    if not all(isinstance(answer.get(name), str) for name in ("certificate", "authority", "stream")):
        raise AsflError(f"{server} gave no certificate: is it asfl serve?")
    return answer
