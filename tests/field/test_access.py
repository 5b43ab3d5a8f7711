"""Which devices take part: keys and certificates, codes that let one in once, enrolment, and whole runs of devices."""

import json
import os
import socket
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given, strategies as st
from small_runs import tiny
from waiting import LONG_S, wait_until

from asfl.config import Config
from asfl.config.errors import AsflError
from asfl.data import load_data
from asfl.field.certificates import (
    SERVER_NAME,
    Authority,
    belong_together,
    certificate_in,
    key_digest,
    key_in,
    request_for,
)
from asfl.field.membership import (
    AUDIT_FILE,
    AccessError,
    EnrolmentServer,
    Member,
    Membership,
    Registry,
    enrol,
    enrol_here,
    pasted_code,
)
from asfl.field.messages import Agreement
from asfl.field.serve import Dashboard, Listening, MetricsPage, Waiting, serve_run
from asfl.field.stream import Pending, StreamLink, StreamServer, work
from asfl.runs.http_server import PLACES
from asfl.runs.records import RoundRecord, read_records

Value = TypeVar("Value")


# ---------------------------------------------------------------------- the list of devices
def certificate_of(authority: Authority, name: str) -> x509.Certificate:
    key = ec.generate_private_key(ec.SECP256R1())
    return x509.load_pem_x509_certificate(authority.sign(request_for(key, name), name)[0].encode())


def enrolled(folder: Path, *names: str) -> tuple[Registry, list[x509.Certificate]]:
    registry, authority = Registry(folder), Authority.of(folder)
    certificates = [certificate_of(authority, name) for name in names]
    for name, code, certificate in zip(names, registry.invite(len(names), 1), certificates, strict=True):
        registry.enrol(code, name, key_digest(certificate))
    return registry, certificates


def test_a_code_works_once_for_one_key_and_not_for_ever(tmp_path: Path) -> None:
    """With the same key, an enrolment that broke off may be repeated."""
    registry = Registry(tmp_path)
    code, second, old = *registry.invite(2, 1), registry.invite(1, -1)[0]
    for _ in range(2):
        assert registry.enrol(code, "one", "aa").number == 0
    for wrong, name, key in ((code, "two", "aa"), (code, "one", "bb"), (old, "two", "bb"), ("", "two", "bb")):
        with pytest.raises(AccessError, match="wrong, too old, or was used"):
            registry.enrol(wrong, name, key)
    for name in ("one", "Two", "a b", "-x", "x" * 41, "../one"):  # which cost no code
        with pytest.raises(AsflError, match="name"):
            registry.enrol(second, name, "bb")
    assert registry.enrol(second, "two", "bb").number == 1
    registry.revoke("one")
    with pytest.raises(AccessError, match="was used before"):
        registry.enrol(code, "one", "aa")
    assert code not in (tmp_path / "devices.json").read_text()  # only its digest
    assert [device.name for device in Registry(tmp_path).read().active] == ["two"]


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
    with pytest.raises(AccessError, match="with this key"):  # a name alone opens nothing
        registry.member(certificate_of(Authority.of(tmp_path), "two"))
    with pytest.raises(AsflError, match="revoked before"):
        registry.revoke("one")
    with pytest.raises(AsflError, match="did you mean 'two'"):
        registry.revoke("tvo")
    new = certificate_of(Authority.of(tmp_path), "four")
    assert registry.enrol(registry.invite(1, 1)[0], "four", key_digest(new)).number == 0
    events = [json.loads(line)["event"] for line in (tmp_path / AUDIT_FILE).read_text().splitlines()]
    assert events == ["invited", *["enrolled"] * 3, "revoked", "invited", "enrolled"]
    shown = two.public_bytes(serialization.Encoding.PEM).decode()
    assert Member.admitted(registry, shown, 2).client == 1
    with pytest.raises(AsflError, match="this run has 1"):
        Member.admitted(registry, shown, 1)
    with pytest.raises(AccessError, match="no certificate"):
        Member.admitted(registry, "", 1)
    for content in (b"", b"[]", b'{"devices": [{"name": 1}]}', b"\xff"):
        (tmp_path / "devices.json").write_bytes(content)
        with pytest.raises(AsflError, match=r"devices\.json: can't be read"):
            registry.read()


def test_certificates_hold_on_clocks_of_the_past_and_outlive_a_long_run(tmp_path: Path) -> None:
    authority = Authority.of(tmp_path)
    for certificate in (certificate_of(authority, "one"), authority.certificate):
        assert certificate.not_valid_before_utc.year == 1970
        assert certificate.not_valid_after_utc.year > 2040
    assert Authority.of(tmp_path).fingerprint == authority.fingerprint
    assert Authority.of(tmp_path).certificate == authority.certificate


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.of(tmp_path_factory.mktemp("authority"))


@given(text=st.text(max_size=200))
def test_what_is_no_request_is_refused(authority: Authority, text: str) -> None:
    with pytest.raises(AsflError, match="not a request"):
        authority.sign(text, "one")


# ---------------------------------------------------------------------- deaths while keys are written
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


def test_a_server_that_died_at_any_write_of_its_keys_starts(tmp_path: Path) -> None:
    for step in count():
        home = tmp_path / str(step)
        died = survived(step, lambda home=home: Authority.of(home).server_files())  # type: ignore[misc]
        Authority.of(home).server_files()
        assert_whole(home)
        if not died:
            break
    assert step > 10


@contextmanager
def enrolling(home: Path) -> Iterator[tuple[EnrolmentServer, str, Callable[[], str]]]:
    """Where devices enrol, and new codes."""
    authority, registry = Authority.of(home), Registry(home)
    with EnrolmentServer("127.0.0.1", 0, authority, "7400") as server:
        where = f"127.0.0.1:{server.server_port}"
        yield server, where, lambda: pasted_code(server.fingerprint, registry.invite(1, 1)[0])


def test_a_device_that_died_at_any_write_enrols_with_the_same_code(tmp_path: Path) -> None:
    with enrolling(tmp_path / "home") as (_, where, new_code):
        for step in count():
            home, code = tmp_path / str(step), new_code()

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
    active = Registry(tmp_path / "home").read().active
    assert [device.number for device in active] == list(range(step + 1))


def damage(file: Path, content: bytes | None) -> None:
    file.unlink()
    if content is not None:
        file.write_bytes(content)


@pytest.mark.parametrize("content", [None, b"", b"half"])
def test_what_is_half_written_is_repaired_unless_devices_trust_it(tmp_path: Path, content: bytes | None) -> None:
    for name in ("authority.key", "authority.pem", "server.key", "server.pem"):
        Authority.of(tmp_path).server_files()
        damage(tmp_path / name, content)
        Authority.of(tmp_path).server_files()
        assert_whole(tmp_path)
    before = Authority.of(tmp_path)
    Registry(tmp_path).invite(1, 1)
    damage(tmp_path / "authority.pem", content)  # its key certifies itself again
    assert Authority.of(tmp_path).certificate.public_key() == before.certificate.public_key()
    damage(tmp_path / "authority.key", content)
    with pytest.raises(AsflError, match=r"authority\.key is missing, damaged, .* put it back from a copy"):
        Authority.of(tmp_path)


@pytest.mark.parametrize("name", ["device.key", "device.pem", "authority.pem"])
@pytest.mark.parametrize("content", [None, b"half"])
def test_a_device_without_a_whole_key_says_what_to_do(tmp_path: Path, name: str, content: bytes | None) -> None:
    device = tmp_path / "device"
    with enrolling(tmp_path / "home") as (_, where, new_code):
        member = enrol(device, where, new_code(), "one", "")
        damage(device / name, content)
        with pytest.raises(AsflError, match=r"asfl join SERVER .* asfl devices revoke one"):
            member.files(device)
        if name == "device.key":
            Registry(tmp_path / "home").revoke("one")
        assert enrol(device, where, new_code(), "one", "").files(device)


# ---------------------------------------------------------------------- enrolment
def test_a_server_that_is_another_one_gets_no_code(tmp_path: Path) -> None:
    with enrolling(tmp_path / "home") as (_, where, new_code):
        wrong = pasted_code(b"\1" * 32, Registry(tmp_path / "home").invite(1, 1)[0])
        for code, words in ((wrong, "not the server that gave this code"), ("abc", "isn't whole")):
            with pytest.raises(AsflError, match=words):
                enrol(tmp_path / "device", where, code, "one", "")
        assert enrol(tmp_path / "device", where, new_code(), "one", "").stream.endswith(":7400")
    with pytest.raises(AsflError, match="can't be reached"):
        enrol(tmp_path / "device", where, wrong, "one", "")
    member = Membership("one", where, "host:7400", "images.npz")
    member.write(tmp_path)
    assert Membership.read(tmp_path) == member
    (tmp_path / "member.json").write_text("{}")
    with pytest.raises(AsflError, match=r"member\.json: can't be read"):
        Membership.read(tmp_path)


@pytest.fixture(scope="module")
def open_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with enrolling(tmp_path_factory.mktemp("home")) as (_, where, _):
        yield where


def stranger() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


@pytest.mark.parametrize("path", ["/enrol", "/../devices.json"])
@pytest.mark.parametrize("body", [b"", b"{}", b"[]", b"\xff" * 100, b'{"request": 3}', b"x" * (1 << 15)])
def test_strangers_get_nothing(open_port: str, path: str, body: bytes) -> None:
    with pytest.raises((urllib.error.HTTPError, urllib.error.URLError, ConnectionError)) as found:
        urllib.request.urlopen(f"https://{open_port}{path}", body, LONG_S, context=stranger())
    if isinstance(found.value, urllib.error.HTTPError):
        assert found.value.code in (400, 403)
        found.value.close()


def test_what_strangers_say_moves_no_cursor(caplog: pytest.LogCaptureFixture, open_port: str) -> None:
    host, _, port = open_port.partition(":")
    with (
        caplog.at_level("DEBUG"),
        socket.create_connection((host, int(port)), LONG_S) as plain,
        stranger().wrap_socket(plain) as caller,
    ):
        caller.send(b"POST /\x1b[1A" + b"x" * 5000 + b" HTTP/1.0\r\nContent-Length: 2\r\n\r\n{}")
        assert b"403" in caller.recv(1000)
    lines = [record.getMessage() for record in caplog.records if "enrolment: " in record.getMessage()]
    assert lines
    assert all(line.isprintable() and len(line) < 600 for line in lines)


HALF_A_HANDSHAKE = b"\x16\x03\x01\x40\x00\x01\x00\x3f\xfc"


def test_drippers_of_the_same_address_keep_no_device_out(tmp_path: Path) -> None:
    """40 connections that say a byte now and then, and call again when they are closed."""
    over = threading.Event()

    def drip(place: tuple[str, int]) -> None:
        while not over.is_set():
            with suppress(OSError), socket.create_connection(place, LONG_S) as connection:
                connection.send(HALF_A_HANDSHAKE)
                while not over.wait(0.1):
                    connection.send(b"\0")

    with enrolling(tmp_path / "home") as (server, where, new_code):
        for _ in range(40):
            threading.Thread(target=drip, args=(("127.0.0.1", server.server_port),), daemon=True).start()
        wait_until(lambda: len(server._visits) >= PLACES, "all places are taken")
        for number in range(3):
            assert enrol(tmp_path / f"device{number}", where, new_code(), f"device-{number}", "").enrolment == where
        over.set()


def test_a_caller_that_speaks_slowly_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A byte now and then of a handshake of 16 KiB."""
    monkeypatch.setattr("asfl.runs.http_server.WITHIN_S", 0.3)
    with (
        enrolling(tmp_path / "home") as (opened, _, _),
        socket.create_connection(("127.0.0.1", opened.server_port), LONG_S) as slow,
    ):
        slow.send(HALF_A_HANDSHAKE)

        def closed() -> bool:
            with suppress(OSError):
                return not slow.send(b"\0")
            return True

        wait_until(closed, "it is closed", 60.0)


def test_a_devices_certificate_is_none_of_a_server(tmp_path: Path) -> None:
    """No device can play the server to other devices."""
    device = tmp_path / "device"
    enrol_here(device, Authority.of(tmp_path / "home"), "one", "", "")
    fake = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    fake.load_cert_chain(device / "device.pem", device / "device.key")
    honest = ssl.create_default_context(cafile=str(device / "authority.pem"))
    honest.check_hostname = False
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = fake.wrap_bio(incoming, outgoing, server_side=True)
    client = honest.wrap_bio(outgoing, incoming, server_hostname=SERVER_NAME)
    with pytest.raises(ssl.SSLCertVerificationError, match="purpose"):
        _shake_hands(client, server)


def _shake_hands(*sides: ssl.SSLObject) -> None:
    for side in sides * 10:
        with suppress(ssl.SSLWantReadError):
            side.do_handshake()


# ---------------------------------------------------------------------- whole runs; devices are threads
SIZES = (20, 60)


def private(rounds: int = 3) -> Config:
    return tiny("data.name=private_1x8x8_10", f"scenario.clients={len(SIZES)}", "data.augment=false", rounds=rounds)


def images_of(folder: Path) -> list[Path]:
    data, files = load_data(tiny()), [folder / f"images{number}.npz" for number in range(len(SIZES))]
    for file, start, stop in zip(files, (0, *SIZES), np.cumsum(SIZES), strict=False):
        np.savez(file, images=data.train_images[start:stop], labels=data.train_labels[start:stop], scale=16)
    return files


def in_thread(call: Callable[[], Value]) -> "Future[Value]":
    future: Future[Value] = Future()

    def target() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=target, daemon=True).start()
    return future


@contextmanager
def serving(folder: Path, config: Config, **watching: Any) -> Iterator[tuple["Future[bool]", str, Sequence[str]]]:
    """A server that waits for its devices: whether it finished, where they enrol, and codes for them."""
    told: list[Waiting] = []
    stop = threading.Event()
    server = in_thread(
        lambda: serve_run(
            config, "asfl", folder / "run", folder / "home", Listening(port=0), on_listening=told.append,
            should_stop=stop.is_set, **watching,
        )
    )  # fmt: skip
    wait_until(lambda: told or server.done())
    yield server, told[0].enrolment, told[0].codes
    stop.set()
    server.result(LONG_S)


def test_a_run_from_the_pasted_line_to_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And nothing that devices send up is on the server's disk, neither labels nor activations."""
    seen, received, rounds = list[bytes](), StreamLink.received, list[RoundRecord]()

    def listen(link: StreamLink, connection: Any, data: Any) -> None:
        seen.append(bytes(memoryview(data.numpy())))
        received(link, connection, data)

    monkeypatch.setattr(StreamLink, "received", listen)
    with serving(tmp_path, private(rounds=4), on_round=rounds.append) as (server, where, codes):
        devices = []
        for number, (code, file) in enumerate(zip(codes, images_of(tmp_path), strict=True)):
            home = tmp_path / f"device{number}"
            member = enrol(home, where, code, f"device-{number}", str(file))
            with pytest.raises(AsflError, match="was used before"):
                enrol(tmp_path / f"thief{number}", where, code, f"thief-{number}", "")
            devices.append(in_thread(lambda home=home, member=member: work(home, member, once=True)))  # type: ignore[misc]
        assert server.result(LONG_S) is True
        for device in devices:
            device.result(LONG_S)
    assert len(rounds) == 4
    assert all(record.accuracy is not None for record in read_records(tmp_path / "run"))
    events = [json.loads(line)["event"] for line in (tmp_path / "home" / AUDIT_FILE).read_text().splitlines()]
    assert events == ["invited", "enrolled", "enrolled", "run begins", "images", "images", "run finished"]
    status = json.loads((tmp_path / "home" / "status.json").read_text())
    assert status["devices"]["device-0"]["received_bytes"] > 0
    files = [file for folder in ("run", "home") for file in (tmp_path / folder).rglob("*") if file.is_file()]
    stored = [file.read_bytes() for file in files]
    packets = [data for data in seen if b'"op": "activations"' in data[:200]]
    assert packets
    for packet in packets:
        middle = packet[len(packet) // 2 : len(packet) // 2 + 64]
        assert middle.strip(b"\0")
        assert not any(packet[-64:] in content or middle in content for content in stored)


def test_a_device_whose_images_do_not_fit_says_so_and_leaves(tmp_path: Path) -> None:
    np.savez(tmp_path / "large.npz", images=np.zeros((40, 9, 9), np.uint8), labels=np.zeros(40, int))
    with serving(tmp_path, private()) as (_, where, codes):
        member = enrol(tmp_path / "device", where, codes[0], "device", str(tmp_path / "large.npz"))
        with pytest.raises(AsflError, match="1×9×9"):
            work(tmp_path / "device", member, once=True)
        Registry(tmp_path / "home").revoke("device")
        with pytest.raises(AsflError, match="isn't enrolled here, or was revoked"):
            work(tmp_path / "device", member, once=True)


def test_a_revoked_device_is_out_at_once_though_another_has_its_number(tmp_path: Path) -> None:
    """Not every two seconds: the next request finds it out, and what it was asked before is lost."""
    authority, home = Authority.of(tmp_path / "home"), tmp_path / "device"
    with StreamServer("127.0.0.1:0", Agreement(private(), "asfl", threads=1), authority) as server:
        registry, link = server.registry, server.links[0]
        member = enrol_here(home, authority, "old", "", server.address, str(images_of(tmp_path)[0]))
        device = in_thread(lambda: work(home, member, once=True))
        wait_until(lambda: link.connected or device.done())
        assert (link.trouble, link.key) == (None, registry.read().active[0].key)
        link._pending = under_way = Pending("ping", b"", float("inf"), Future())
        registry.revoke("old")
        assert registry.enrol(registry.invite(1, 1)[0], "new", "another key").number == 0
        assert link.trouble == "not connected"
        for one in (under_way.future, device):
            with pytest.raises(AsflError, match="revoked"):
                one.result(LONG_S)


# ---------------------------------------------------------------------- what is shown
def test_health_and_metrics(tmp_path: Path) -> None:
    registry = Registry(tmp_path)
    for code, name in zip(registry.invite(2, 1), ("one", "two"), strict=True):
        registry.enrol(code, name, name)
    dashboard = Dashboard(tmp_path, registry, [StreamLink(), StreamLink()], "run", 10)
    dashboard.round(record_of_a_round())
    with MetricsPage("127.0.0.1", 0, dashboard) as page:

        def get(path: str) -> str:
            with urllib.request.urlopen(f"http://127.0.0.1:{page.server_port}{path}", timeout=LONG_S) as answer:
                return str(answer.read().decode())

        assert get("/health") == "well\n"
        lines = dict(line.rsplit(" ", 1) for line in get("/metrics").splitlines())
        with pytest.raises(urllib.error.HTTPError, match="404") as found:
            get("/else")
        found.value.close()
    expected = {'faults{device="two"}': "1", 'arrived{device="one"}': "1", 'connected{device="one"}': "0"}
    assert lines["asfl_rounds_total"] == "7"
    assert {name: lines[f"asfl_device_{name}"] for name in expected} == expected
    (fault,) = [json.loads(line) for line in (tmp_path / AUDIT_FILE).read_text().splitlines() if '"fault"' in line]
    assert (fault["device"], fault["stage"]) == ("two", "forward")


def record_of_a_round() -> RoundRecord:
    none: list[float] = [0.0, 0.0]
    return RoundRecord(
        round=7, cut=2, rb_count=[1.0, 1.0], tx_power_w=[1.0, 1.0], packet_error_rate=none, arrived=[1, 0], delay_s=0.5,
        resplit_delay_s=0.0, uplink_stage_delay_s=0.2, server_stage_delay_s=0.3, energy_j=[1.0, 2.0],
        resplit_energy_j=none, total_delay_s=1.0, total_energy_j=3.0, delay_queue=0.0, energy_queue=none,
        participation_queue=none, train_loss=1.5, update_norm2=[1.0, None], update_scale=1.0, spread=0.0,
        discrepancy=0.0, resplit_shift=0.0, accuracy=0.5, test_loss=1.0, client_accuracy=0.5,
        uncalibrated_accuracy=0.5,
        faults=[{"client": 1, "round": 7, "stage": "forward", "reason": "the connection broke"}],
    )  # fmt: skip
