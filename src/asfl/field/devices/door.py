"""The door that devices come to first: HTTPS, two calls of a few kilobytes, nothing else.

    POST /enrol   {"code", "name", "request"}   a one-time code: its key is signed
    POST /renew   {"request"}                   with its certificate, which is about to end

A device knows the server's certificate by the fingerprint in the line that was pasted, later by the authority.
"""

import hashlib
import json
import logging
import ssl
import time
from typing import Any

from cryptography import x509

from asfl.config.errors import AsflError
from asfl.field.devices.authority import Authority
from asfl.field.devices.registry import Registry
from asfl.field.stream.access import AccessError
from asfl.field.stream.certificates import Certificates
from asfl.runs.http_server import Asked, HttpServer, Reply

_log = logging.getLogger(__name__)


class Door(HttpServer):
    """Listens while it is open."""

    def __init__(self, host: str, port: int, authority: Authority, registry: Registry, stream: str) -> None:
        """`stream`: the port that devices are told to go on to."""
        certificates = authority.server_certificates()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(certificates.certificate, certificates.key)
        context.load_verify_locations(certificates.authority)
        context.verify_mode = ssl.CERT_OPTIONAL
        self.fingerprint = fingerprint_of(certificates)
        """Of the server's certificate."""

        def answer(asked: Asked) -> Reply:
            return _reply(authority, registry, stream, asked)

        try:
            super().__init__(host, port, answer, method="POST", context=context)
        except OSError as error:
            raise AsflError(f"can't listen on {host}:{port}: {error.strerror or error}") from None


def fingerprint_of(certificates: Certificates) -> bytes:
    """What devices know the server by before they have its authority."""
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(certificates.certificate.read_text())).digest()


def _reply(authority: Authority, registry: Registry, stream: str, asked: Asked) -> Reply:
    status, answer = 200, dict[str, Any]()
    try:
        said = json.loads(asked.body)
        if not isinstance(said, dict):
            raise ValueError("no object")
        answer = _answer(authority, registry, asked, said) | {"stream": stream, "now": time.time()}
    except AccessError as error:
        _log.warning("door: refused %s: %s", asked.who, error)
        status, answer = 403, {"error": str(error)}
    except AsflError as error:
        status, answer = 400, {"error": str(error)}
    except (ValueError, RecursionError):
        status, answer = 400, {"error": "not a request"}
    return Reply(json.dumps(answer).encode(), "application/json", status)


def _answer(authority: Authority, registry: Registry, asked: Asked, said: dict[str, Any]) -> dict[str, Any]:
    request = str(said.get("request", ""))
    if asked.path == "/enrol":
        name = str(said.get("name", ""))
        certificate, key = authority.sign(request, name[:64] or "?")
        registry.enrol(str(said.get("code", "")), name, key)
    elif asked.path == "/renew" and asked.certificate is not None:
        device = registry.member(x509.load_der_x509_certificate(asked.certificate))
        certificate, key = authority.sign(request, device.name)
        if key != device.key:
            raise AccessError("another key")
        registry.audit("renewed", device=device.name)
    else:
        raise AccessError("there is nothing here")
    return {"certificate": certificate, "authority": authority.pem}
