"""Keys and certificates after a death at any write: the same command goes on, or says what to do."""

import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from asfl.config.errors import AsflError
from asfl.field.certificates import Authority, belong_together, certificate_in, key_in
from asfl.field.enrolment import EnrolmentServer, Membership, enrol, pasted_code
from asfl.field.membership import Registry


class DeathError(BaseException):
    """Of the process: nothing catches it, nothing is cleaned up."""


@contextmanager
def dying_at(step: int) -> Iterator[None]:
    """Of all moments at which this thread has half written a file, written it, or is about to rename or remove one."""
    steps, mortal = count(), threading.get_ident()

    def dies() -> None:
        if threading.get_ident() == mortal and next(steps) == step:
            raise DeathError

    def watched(act: Callable[..., Any]) -> Callable[..., Any]:
        def call(path: Path, *arguments: Any, **named: Any) -> Any:
            if path.name != ".lock":  # which the system lets go of
                dies()
            return act(path, *arguments, **named)

        return call

    class Dying:
        """A file that may be left half written."""

        def __init__(self, file: Any) -> None:
            self._file = file

        def write(self, content: bytes) -> None:
            self._file.write(content[: len(content) // 2])
            self._file.flush()
            dies()
            self._file.write(content[len(content) // 2 :])
            self._file.flush()
            dies()

        def __enter__(self) -> "Dying":
            return self

        def __exit__(self, *error: object) -> None:
            self._file.close()

        def __getattr__(self, name: str) -> Any:
            return getattr(self._file, name)

    open_ = os.fdopen
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fdopen", lambda *arguments, **named: Dying(open_(*arguments, **named)))
        patch.setattr(Path, "replace", watched(Path.replace))
        patch.setattr(Path, "unlink", watched(Path.unlink))
        yield


def survived(step: int, act: Callable[[], object]) -> bool:
    """Whether it died there."""
    try:
        with dying_at(step):
            act()
    except DeathError:
        return True
    return False


def assert_whole(home: Path) -> None:
    for name in ("authority", "server"):
        certificate = certificate_in(home / f"{name}.pem")
        assert certificate is not None
        assert belong_together(key_in(home / f"{name}.key"), certificate)
        assert (home / f"{name}.key").stat().st_mode & 0o777 == 0o600
    assert not list(home.glob(".*.key.*"))


def test_a_server_that_died_at_any_write_of_its_keys_begins_again(tmp_path: Path) -> None:
    for step in count():
        home = tmp_path / str(step)
        died = survived(step, lambda home=home: Authority.of(home).server_files())  # type: ignore[misc]
        Authority.of(home).server_files()
        assert_whole(home)
        if not died:
            break
    assert step > 10


def test_a_renewal_that_died_leaves_a_server_that_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = Authority.of(tmp_path).pem
    for step in count():
        with monkeypatch.context() as patch:
            patch.setattr("asfl.field.certificates.LEAST_LEFT", 2.0)
            died = survived(step, lambda: Authority.of(tmp_path).server_files())
        Authority.of(tmp_path).server_files()
        assert_whole(tmp_path)
        if not died:
            break
    assert Authority.of(tmp_path).pem == before


def test_a_device_that_died_at_any_write_enrols_with_the_same_code(tmp_path: Path) -> None:
    authority, registry = Authority.of(tmp_path / "home"), Registry(tmp_path / "home")
    with EnrolmentServer("127.0.0.1", 0, authority, registry, "7400") as door:
        where = f"127.0.0.1:{door.server_port}"
        for step in count():
            home, code = tmp_path / str(step), pasted_code(door.fingerprint, registry.invite(1, 1)[0])

            def join(home: Path = home, code: str = code, step: int = step) -> Membership:
                return enrol(home, where, code, f"device-{step}", "")

            died = survived(step, join)
            if Membership.read(home) is None:
                assert join().files(home)
            with pytest.raises(AsflError, match="was used before"):
                enrol(tmp_path / "thief", where, code, "thief", "")
            if not died:
                break
    assert step > 8
    assert [device.number for device in registry.read().active] == list(range(step + 1))


@pytest.mark.parametrize("name", ["authority.key", "authority.pem", "server.key", "server.pem"])
@pytest.mark.parametrize("content", [None, b"", b"half"])
def test_what_earlier_versions_left_half_written_is_repaired(tmp_path: Path, name: str, content: bytes | None) -> None:
    Authority.of(tmp_path).server_files()
    damage(tmp_path / name, content)
    Authority.of(tmp_path).server_files()
    assert_whole(tmp_path)


@pytest.mark.parametrize("content", [None, b"", b"half"])
def test_an_authority_that_devices_trust_is_not_replaced(tmp_path: Path, content: bytes | None) -> None:
    before = Authority.of(tmp_path)
    Registry(tmp_path).invite(1, 1)
    damage(tmp_path / "authority.pem", content)  # its key certifies itself again
    assert Authority.of(tmp_path).certificate.public_key() == before.certificate.public_key()
    before.server_files()
    assert certificate_in(tmp_path / "server.pem") is not None
    damage(tmp_path / "authority.key", content)
    with pytest.raises(AsflError, match=r"authority\.key is missing, damaged, .* put it back from a copy"):
        Authority.of(tmp_path)


@pytest.mark.parametrize("name", ["device.key", "device.pem", "authority.pem"])
@pytest.mark.parametrize("content", [None, b"", b"half"])
def test_a_device_without_a_whole_key_says_what_to_do(tmp_path: Path, name: str, content: bytes | None) -> None:
    home, device = tmp_path / "home", tmp_path / "device"
    registry = Registry(home)
    with EnrolmentServer("127.0.0.1", 0, Authority.of(home), registry, "7400") as door:
        where, codes = f"127.0.0.1:{door.server_port}", [
            pasted_code(door.fingerprint, code) for code in registry.invite(2, 1)
        ]  # fmt: skip
        member = enrol(device, where, codes[0], "one", "")
        damage(device / name, content)
        with pytest.raises(AsflError, match=r"asfl join SERVER .* asfl devices revoke one"):
            member.files(device)
        if name == "device.key":
            registry.revoke("one")
        assert enrol(device, where, codes[1], "one", "").files(device)


def damage(file: Path, content: bytes | None) -> None:
    file.unlink()
    if content is not None:
        file.write_bytes(content)


def test_the_code_that_a_device_came_with_is_a_digest(tmp_path: Path) -> None:
    registry = Registry(tmp_path)
    code = registry.invite(1, 1)[0]
    assert registry.enrol(code, "one", "key").number == registry.enrol(code, "one", "key").number == 0
    for name, key in (("two", "key"), ("one", "other")):
        with pytest.raises(AsflError, match="was used before"):
            registry.enrol(code, name, key)
    registry.revoke("one")
    with pytest.raises(AsflError, match="was used before"):
        registry.enrol(code, "one", "key")
    assert code not in json.dumps((tmp_path / "devices.json").read_text())
