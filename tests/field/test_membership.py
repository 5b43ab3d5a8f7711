"""Who may take part: codes that work once, names, numbers, and who is out."""

import json
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given, strategies as st

from asfl.config.errors import AsflError
from asfl.field.certificates import Authority, key_digest, request_for, share_left
from asfl.field.membership import AUDIT_FILE, AccessError, Device, Member, Registry


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.of(tmp_path_factory.mktemp("authority"))


def certificate_of(authority: Authority, name: str) -> x509.Certificate:
    key = ec.generate_private_key(ec.SECP256R1())
    return x509.load_pem_x509_certificate(authority.sign(request_for(key, name), name)[0].encode())


def enrolled(folder: Path, *names: str) -> tuple[Registry, list[x509.Certificate]]:
    registry, authority = Registry(folder), Authority.of(folder)
    certificates = [certificate_of(authority, name) for name in names]
    for name, code, certificate in zip(names, registry.invite(len(names), 1), certificates, strict=True):
        registry.enrol(code, name, key_digest(certificate))
    return registry, certificates


def test_a_code_works_once_and_not_for_ever(tmp_path: Path) -> None:
    registry = Registry(tmp_path)
    code, old = registry.invite(1, 1)[0], registry.invite(1, -1)[0]
    assert code not in (tmp_path / "devices.json").read_text()
    assert registry.enrol(code, "one", "aa").number == 0
    for wrong in (code, old, "0" * 32, ""):
        with pytest.raises(AccessError, match="wrong, too old, or was used"):
            registry.enrol(wrong, "two", "bb")


def test_a_code_that_was_refused_for_a_name_can_be_used_again(tmp_path: Path) -> None:
    registry = Registry(tmp_path)
    first, second = registry.invite(2, 1)
    registry.enrol(first, "one", "aa")
    for name in ("one", "Two", "a b", "-x", "x" * 41, "../one"):
        with pytest.raises(AsflError, match="name"):
            registry.enrol(second, name, "bb")
    assert registry.enrol(second, "two", "bb").number == 1


def test_the_first_number_of_images_a_device_says_stays_with_its_key(tmp_path: Path) -> None:
    registry, (one, two) = enrolled(tmp_path, "one", "two")
    member = Member(registry, one, 0)
    assert [member.agreed(images) for images in (100, 10**9, 40)] == [100, 100, 40]
    assert [device.images for device in Registry(tmp_path).read().devices] == [100, 0]
    assert Member(registry, two, 1).agreed(7) == 7
    registry.revoke("one")
    assert not member.still_in
    (tmp_path / "devices.json").write_text("?")
    assert member.still_in  # a list that can't be read throws no device out
    assert member.agreed(3) == 3


def test_a_device_that_is_revoked_is_out_and_its_place_is_free(tmp_path: Path) -> None:
    registry, (one, two, _) = enrolled(tmp_path, "one", "two", "three")
    assert [registry.member(each).number for each in (one, two)] == [0, 1]
    registry.revoke("one")
    with pytest.raises(AccessError, match="one was revoked"):
        registry.member(one)
    with pytest.raises(AsflError, match="revoked before"):
        registry.revoke("one")
    with pytest.raises(AsflError, match="did you mean 'two'"):
        registry.revoke("tvo")
    new = certificate_of(Authority.of(tmp_path), "four")
    assert registry.enrol(registry.invite(1, 1)[0], "four", key_digest(new)).number == 0
    events = [json.loads(line)["event"] for line in (tmp_path / AUDIT_FILE).read_text().splitlines()]
    assert events == ["invited", *["enrolled"] * 3, "revoked", "invited", "enrolled"]


def test_a_name_alone_opens_nothing(tmp_path: Path) -> None:
    registry, _ = enrolled(tmp_path, "one")
    impostor = certificate_of(Authority.of(tmp_path), "one")
    with pytest.raises(AccessError, match="with this key"):
        registry.member(impostor)


def test_only_devices_with_a_place_are_in_a_run(tmp_path: Path) -> None:
    registry, certificates = enrolled(tmp_path, "one", "two")
    shown = [each.public_bytes(serialization.Encoding.PEM).decode() for each in certificates]
    assert Member.admitted(registry, shown[0], 1).client == 0
    with pytest.raises(AsflError, match="this run has 1"):
        Member.admitted(registry, shown[1], 1)
    with pytest.raises(AccessError):
        Member.admitted(registry, "", 1)


def test_certificates_hold_on_clocks_of_the_past_and_outlive_a_long_run(tmp_path: Path) -> None:
    authority = Authority.of(tmp_path)
    for certificate in (certificate_of(authority, "one"), authority.certificate):
        assert certificate.not_valid_before_utc.year == 1970
        assert (certificate.not_valid_after_utc - certificate.not_valid_before_utc).days > 365 * 50
    assert 0.99 < share_left(certificate_of(authority, "one")) <= 1
    fingerprint = authority.fingerprint
    assert Authority.of(tmp_path).fingerprint == fingerprint
    assert Authority.of(tmp_path).certificate == authority.certificate


@given(text=st.text(max_size=200))
def test_what_is_no_request_is_refused(authority: Authority, text: str) -> None:
    with pytest.raises(AsflError, match="not a request"):
        authority.sign(text, "one")


def test_a_damaged_file_is_one_clear_error(tmp_path: Path) -> None:
    for content in (b"", b"[]", b'{"devices": [{"name": 1}]}', b"\xff"):
        (tmp_path / "devices.json").write_bytes(content)
        with pytest.raises(AsflError, match=r"devices\.json: can't be read"):
            Registry(tmp_path).read()


def test_devices_are_what_they_were(tmp_path: Path) -> None:
    registry, _ = enrolled(tmp_path, "one", "two")
    assert [device.name for device in Registry(tmp_path).read().active] == ["one", "two"]
    assert isinstance(registry.read().devices[0], Device)
