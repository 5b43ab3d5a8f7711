"""Keys and certificates. The server's own authority signs the server's certificate and those of devices.

Every certificate is valid from 1970 on, and as long as the authority. A device without a battery for its clock believes
that it is the past, and limits protect nothing: the registry decides which devices are let in
(`asfl.field.membership`).
"""

import hashlib
import logging
import ssl
import stat
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from asfl.config.errors import AsflError, MissingExtraError
from asfl.runs.files import sync_folder, write_whole, writing

try:
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID, ObjectIdentifier
except ModuleNotFoundError as error:
    raise MissingExtraError("devices and their certificates", "field") from error

_log = logging.getLogger(__name__)
SERVER_NAME = "asfl-server"
"""What every server's certificate is for: devices check the authority and this, so addresses may change."""
_DAYS = 20 * 365
_BEGIN = datetime(1970, 1, 1, tzinfo=UTC)
_PEM = serialization.Encoding.PEM


@dataclass(frozen=True)
class Authority:
    """Files in a folder that only the operator can write to."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey
    folder: Path

    @classmethod
    def of(cls, folder: Path) -> "Authority":
        """The one that is there, or a new one.

        The key is written first, so a reader of the certificate has seen a whole authority. Without a whole key or
        certificate there was none, or the key certifies itself again, and devices that trust it notice nothing.
        """
        private_folder(folder)
        file, key_file = folder / "authority.pem", folder / "authority.key"
        with writing(folder / "changes"):
            for left in folder.glob(".*.key.*.tmp"):  # by a server that died while it wrote
                left.unlink(missing_ok=True)
            key, certificate = key_in(key_file), certificate_in(file)
            if key is None or (certificate is not None and not belong_together(key, certificate)):
                if (folder / "devices.json").exists():
                    raise AsflError(
                        f"{key_file} is missing, damaged, or not the key of {file.name}, and devices trust it: put it "
                        f"back from a copy. If there is none, remove {folder}, and let all devices enrol again"
                    )
                if key_file.exists() or file.exists():
                    _log.warning("%s: a server died while it made its key; there is a new one", folder)
                key, certificate = _new_key(key_file), None
            if certificate is None:
                name, whole = _name("asfl authority"), x509.BasicConstraints(ca=True, path_length=0)
                builder = _builder(name, name, key.public_key()).add_extension(whole, critical=True)
                certificate = builder.sign(key, hashes.SHA256())
                write_private(file, certificate.public_bytes(_PEM))
        return cls(certificate, key, folder)

    @property
    def pem(self) -> str:
        return self.certificate.public_bytes(_PEM).decode()

    def server_files(self) -> tuple[Path, Path]:
        """The server's own certificate and key; made when there is none, or a part is missing."""
        file, key_file = self.folder / "server.pem", self.folder / "server.key"
        with writing(self.folder / "changes"):
            certificate = certificate_in(file)
            if (
                certificate is None
                or not belong_together(key_in(key_file), certificate)
                or not self._has_signed(certificate)
            ):
                key = _new_key(key_file)
                names = x509.SubjectAlternativeName([x509.DNSName(SERVER_NAME)])
                usage = ExtendedKeyUsageOID.SERVER_AUTH
                certificate = self._signed(SERVER_NAME, key.public_key(), usage, names)
                write_private(file, certificate.public_bytes(_PEM))
        return file, key_file

    @property
    def fingerprint(self) -> bytes:
        """Of the server's certificate: what devices know the server by before they have its authority."""
        return hashlib.sha256(ssl.PEM_cert_to_DER_cert(self.server_files()[0].read_text())).digest()

    def _has_signed(self, certificate: x509.Certificate) -> bool:
        try:
            certificate.verify_directly_issued_by(self.certificate)
        except (ValueError, TypeError, InvalidSignature):
            return False
        return True

    def sign(self, request: str, name: str) -> tuple[str, str]:
        """The certificate of a device for the key in its request, as PEM; and the digest of that key."""
        try:
            asked = x509.load_pem_x509_csr(request.encode())
            key = asked.public_key()
            if not asked.is_signature_valid or not isinstance(key, ec.EllipticCurvePublicKey):
                raise ValueError("not signed with its own key, or that is none of an elliptic curve")
        except (ValueError, InvalidSignature, UnsupportedAlgorithm) as error:
            raise AsflError(f"not a request for a certificate: {error}") from None
        certificate = self._signed(name, key, ExtendedKeyUsageOID.CLIENT_AUTH)
        return certificate.public_bytes(_PEM).decode(), key_digest(certificate)

    def _signed(
        self,
        name: str,
        key: ec.EllipticCurvePublicKey,
        usage: ObjectIdentifier,
        names: x509.SubjectAlternativeName | None = None,
    ) -> x509.Certificate:
        builder = _builder(_name(name), self.certificate.subject, key)
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        builder = builder.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        builder = builder if names is None else builder.add_extension(names, critical=False)
        return builder.sign(self.key, hashes.SHA256())


def request_for(key: ec.EllipticCurvePrivateKey, name: str) -> str:
    """What a device sends to have its key signed."""
    request = x509.CertificateSigningRequestBuilder().subject_name(_name(name)).sign(key, hashes.SHA256())
    return request.public_bytes(_PEM).decode()


def own_key(file: Path) -> ec.EllipticCurvePrivateKey:
    """Made here, and never leaves; the one that is there if there is a whole one."""
    return key_in(file) or _new_key(file)


def _new_key(file: Path) -> ec.EllipticCurvePrivateKey:
    key = ec.generate_private_key(ec.SECP256R1())
    unlocked = serialization.NoEncryption()
    write_private(file, key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, unlocked))
    return key


def key_in(file: Path) -> ec.EllipticCurvePrivateKey | None:
    """None: there is no file, or nothing in it is a key."""
    try:
        key = serialization.load_pem_private_key(_content(file), None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        return None
    return key if isinstance(key, ec.EllipticCurvePrivateKey) else None


def certificate_in(file: Path) -> x509.Certificate | None:
    """Likewise."""
    try:
        return x509.load_pem_x509_certificate(_content(file))
    except ValueError:
        return None


def _content(file: Path) -> bytes:
    """Nothing, if there is no file."""
    try:
        return file.read_bytes()
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise AsflError(f"can't read {file}: {error.strerror or error}") from None


def belong_together(key: ec.EllipticCurvePrivateKey | None, certificate: x509.Certificate) -> bool:
    return key is not None and certificate.public_key() == key.public_key()


def name_of(certificate: x509.Certificate) -> str:
    return str(certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value)


def key_digest(certificate: x509.Certificate) -> str:
    """Names the key; the same in every certificate for it."""
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return hashlib.sha256(certificate.public_key().public_bytes(serialization.Encoding.DER, form)).hexdigest()


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(_BEGIN)
        .not_valid_after(datetime.now(UTC) + timedelta(days=_DAYS))
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


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
