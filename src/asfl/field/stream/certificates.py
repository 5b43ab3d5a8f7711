"""Certificates for tests and trials: an authority of one's own that signs one server certificate and is forgotten."""

import ipaddress
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from asfl.config.errors import AsflError, MissingExtraError
from asfl.runs.files import sync_folder, write_whole

try:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
except ModuleNotFoundError as error:
    raise MissingExtraError("making certificates", "field") from error

_EARLIER = timedelta(minutes=5)
"""Clocks differ."""


@dataclass(frozen=True)
class Certificates:
    """Files in PEM."""

    authority: Path
    """What clients check the server's certificate with."""
    certificate: Path
    key: Path
    """Private: for the server only."""


def make_certificates(folder: Path, hosts: Sequence[str], days: int = 30) -> Certificates:
    """Write the certificate of a server with these names and addresses, its key, and the authority behind it.

    The authority's own key is never written: it can't sign anything else.
    """
    if not hosts:
        raise AsflError("certificates: give at least one host, a name or an address")
    authority_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    begin = datetime.now(UTC) - _EARLIER
    issuer = _name("asfl field authority")

    def unsigned(subject: x509.Name, public: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(begin)
            .not_valid_after(begin + timedelta(days=days))
        )

    authority = (
        unsigned(issuer, authority_key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(authority_key, hashes.SHA256())
    )
    certificate = (
        unsigned(_name("asfl field server"), key.public_key())
        .add_extension(x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    private_folder(folder)
    pem = serialization.Encoding.PEM
    unlocked = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    files = Certificates(folder / "authority.pem", folder / "server.pem", folder / "server.key")
    taken = next((file for file in (files.authority, files.certificate, files.key) if file.exists()), None)
    if taken is not None:
        raise AsflError(f"{taken} exists already; give another folder")
    write_private(files.key, unlocked)
    write_private(files.certificate, certificate.public_bytes(pem))
    write_private(files.authority, authority.public_bytes(pem))
    return files


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def private_folder(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        mode = folder.stat().st_mode
    except OSError as error:
        raise AsflError(f"can't make the folder {folder}: {error.strerror or error}") from None
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise AsflError(f"{folder} can be written to by others; a key doesn't belong there (chmod go-w would do)")


def write_private(file: Path, content: bytes) -> None:
    """Only the owner can read it, from the first moment on. It is written whole or not at all; no link is followed."""
    write_whole(file, content, mode=0o600)
    sync_folder(file.parent)
