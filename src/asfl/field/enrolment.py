"""How a device gets its certificate: both sides of the only port that strangers may call.

HTTPS, two calls of a few kilobytes, nothing else:

    POST /enrol   {"code", "name", "request"}   a one-time code: its key is signed
    POST /renew   {"request"}                   with its certificate, which is about to end

A device knows the server's certificate by the fingerprint in the code that was pasted, later by the authority. Its key,
its certificate and where it belongs are in one folder of its own.
"""

import base64
import binascii
import hashlib
import http.client
import json
import logging
import ssl
import time
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

from cryptography import x509
from pydantic import AliasChoices, Field, TypeAdapter, ValidationError

from asfl.config.errors import AsflError
from asfl.field.certificates import (
    LEAST_LEFT,
    Authority,
    belong_together,
    certificate_in,
    key_in,
    own_key,
    private_folder,
    request_for,
    share_left,
    write_private,
)
from asfl.field.membership import AccessError, Registry
from asfl.field.wire import words_of
from asfl.runs.files import remove_abandoned
from asfl.runs.http_server import MOST_BYTES, Asked, HttpServer, Reply

_log = logging.getLogger(__name__)
_PIN_BYTES = 16
_TIMEOUT_S = 30.0
_CLOCK_SLACK_S = 3600.0


# ---------------------------------------------------------------------- the server
class EnrolmentServer(HttpServer):
    """Listens while it is open."""

    def __init__(self, host: str, port: int, authority: Authority, stream: str) -> None:
        """`stream`: the port that devices are told to go on to."""
        self._authority, self._registry, self._stream = authority, Registry(authority.folder), stream
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(*authority.server_files())
        context.load_verify_locations(authority.folder / "authority.pem")
        context.verify_mode = ssl.CERT_OPTIONAL
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
            answer = self._signed(asked, said) | {"stream": self._stream, "now": time.time()}
        except AccessError as error:
            _log.warning("enrolment: refused %s: %s", asked.who, error)
            status, answer = 403, {"error": str(error)}
        except AsflError as error:
            status, answer = 400, {"error": str(error)}
        except (ValueError, RecursionError):
            status, answer = 400, {"error": "not a request"}
        return Reply(json.dumps(answer).encode(), "application/json", status)

    def _signed(self, asked: Asked, said: dict[str, Any]) -> dict[str, Any]:
        request = str(said.get("request", ""))
        if asked.path == "/enrol":
            name = str(said.get("name", ""))
            certificate, key = self._authority.sign(request, name[:64] or "?")
            self._registry.enrol(str(said.get("code", "")), name, key)
        elif asked.path == "/renew" and asked.certificate is not None:
            device = self._registry.member(x509.load_der_x509_certificate(asked.certificate))
            certificate, key = self._authority.sign(request, device.name)
            if key != device.key:
                raise AccessError("another key")
            self._registry.audit("renewed", device=device.name)
        else:
            raise AccessError("there is nothing here")
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
    enrolment: Annotated[str, Field(validation_alias=AliasChoices("enrolment", "door"))]
    """host:port, where it enrolled; a door in files of earlier versions."""
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
    answer = _call(server, "/enrol", said, context, fingerprint)
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


def renew_if_due(home: Path, member: Membership) -> bool:
    """Whether the certificate was about to end, and is renewed."""
    certificate = x509.load_pem_x509_certificate(member.files(home)[1])
    if share_left(certificate) > LEAST_LEFT:
        return False
    if share_left(certificate) <= 0:
        ends, clock = certificate.not_valid_after_utc, datetime.now(UTC)
        raise AsflError(
            f"the certificate of {member.name} ended on {ends:%Y-%m-%d}, and this device's clock says "
            f"{clock:%Y-%m-%d %H:%M} UTC; if the clock is wrong, set it, else enrol again with a new code"
        )
    context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=str(home / "authority.pem"))
    context.check_hostname = False  # addresses may change; this authority signs one server, and devices can't serve
    context.load_cert_chain(home / "device.pem", home / "device.key")
    _keep(
        home,
        _call(member.enrolment, "/renew", {"request": request_for(own_key(home / "device.key"), member.name)}, context),
    )
    return True


def _keep(home: Path, answer: dict[str, Any]) -> None:
    write_private(home / "device.pem", answer["certificate"].encode())
    write_private(home / "authority.pem", answer["authority"].encode())
    now = answer.get("now")
    if isinstance(now, float) and (warning := clock_warning(now)):
        _log.warning("%s", warning)


def clock_warning(server_now: float) -> str:
    """If this device's clock is far from the server's; empty if it isn't."""
    late_s = server_now - time.time()
    if abs(late_s) < _CLOCK_SLACK_S:
        return ""
    return (
        f"this device's clock is {abs(late_s) / 86400:.1f} days {'behind' if late_s > 0 else 'ahead of'} the server's; "
        "certificates work from 1970 on, but its logs will be hard to read (timedatectl set-ntp true)"
    )


def _call(
    server: str, path: str, said: dict[str, str], context: ssl.SSLContext, fingerprint: bytes | None = None
) -> dict[str, Any]:
    host, _, port = server.rpartition(":")
    if not host or not port.isdecimal():
        raise AsflError(f"server '{server}': write it as host:port, as in the line that asfl serve printed")
    connection = http.client.HTTPSConnection(host.strip("[]"), int(port), timeout=_TIMEOUT_S, context=context)
    try:
        connection.connect()
        shown = connection.sock.getpeercert(True)
        if fingerprint is not None and hashlib.sha256(shown or b"").digest()[:_PIN_BYTES] != fingerprint:
            raise AsflError(f"{server} is not the server that gave this code: its certificate is another one")
        connection.request("POST", path, json.dumps(said), {"Content-Type": "application/json"})
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
