"""Certificates for trials."""

import ssl
import stat
from pathlib import Path

import pytest
from cryptography import x509

from asfl.config.errors import AsflError
from asfl.field.stream.certificates import make_certificates


def test_only_the_owner_can_read_them(tmp_path: Path) -> None:
    files = make_certificates(tmp_path / "pem", ["127.0.0.1", "localhost"])
    assert stat.S_IMODE((tmp_path / "pem").stat().st_mode) == 0o700
    assert {file.name for file in (tmp_path / "pem").iterdir()} == {"authority.pem", "server.pem", "server.key"}
    for file in (files.authority, files.certificate, files.key):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_the_authority_vouches_for_these_hosts_only(tmp_path: Path) -> None:
    files = make_certificates(tmp_path / "pem", ["127.0.0.1", "server.example"])
    certificate = x509.load_pem_x509_certificate(files.certificate.read_bytes())
    authority = x509.load_pem_x509_certificate(files.authority.read_bytes())
    certificate.verify_directly_issued_by(authority)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["server.example"]
    assert [str(address) for address in names.get_values_for_type(x509.IPAddress)] == ["127.0.0.1"]
    assert not certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(files.certificate, files.key)


def test_nothing_is_overwritten_and_no_key_is_put_where_others_write(tmp_path: Path) -> None:
    make_certificates(tmp_path / "pem", ["localhost"])
    before = (tmp_path / "pem" / "server.key").read_bytes()
    with pytest.raises(AsflError, match="exists already"):
        make_certificates(tmp_path / "pem", ["localhost"])
    assert (tmp_path / "pem" / "server.key").read_bytes() == before
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(AsflError, match="can be written to by others"):
        make_certificates(tmp_path / "open", ["localhost"])
    assert not any((tmp_path / "open").iterdir())
    (tmp_path / "file").touch()
    with pytest.raises(AsflError, match="can't make the folder"):
        make_certificates(tmp_path / "file", ["localhost"])
    with pytest.raises(AsflError, match="at least one host"):
        make_certificates(tmp_path / "none", [])
