"""A server and its devices, from the line that is pasted to the model; devices are threads here."""

import json
import socket
import ssl
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest
from small_runs import tiny
from waiting import LONG_S, wait_until

from asfl.config import Config
from asfl.config.errors import AsflError
from asfl.data import load_data
from asfl.field import enrolment
from asfl.field.certificates import SERVER_NAME, Authority
from asfl.field.device import take_part, work
from asfl.field.enrolment import (
    EnrolmentServer,
    Membership,
    _keep,
    clock_warning,
    enrol,
    pasted_code,
    renew_if_due,
)
from asfl.field.membership import AUDIT_FILE, Registry
from asfl.field.messages import Agreement
from asfl.field.serve import Dashboard, Listening, MetricsPage, Waiting, serve_run
from asfl.field.stream import Pending, StreamLink, StreamServer
from asfl.runs.http_server import PLACES
from asfl.runs.records import RoundRecord, read_records

SIZES = (20, 60)


def private(rounds: int = 3) -> Config:
    return tiny("data.name=private_1x8x8_10", f"scenario.clients={len(SIZES)}", "data.augment=false", rounds=rounds)


def images_of(folder: Path) -> list[Path]:
    data, files, start = load_data(tiny()), [], 0
    for number, size in enumerate(SIZES):
        files.append(folder / f"images{number}.npz")
        own = slice(start, start + size)
        np.savez(files[-1], images=data.train_images[own], labels=data.train_labels[own], scale=16)
        start += size
    return files


class Running:
    """A call in a thread."""

    def __init__(self, call: Callable[[], object]) -> None:
        self.error: BaseException | None = None
        self.value: object = None

        def target() -> None:
            try:
                self.value = call()
            except BaseException as error:
                self.error = error

        self._thread = threading.Thread(target=target, daemon=True)
        self._thread.start()

    def result(self) -> object:
        self._thread.join(LONG_S)
        if self.error is not None:
            raise self.error
        return self.value

    @property
    def over(self) -> bool:
        return not self._thread.is_alive()


class Invited(list[tuple[str, str]]):
    """Where to enrol, and a code."""

    def __call__(self, waiting: Waiting) -> None:
        self.extend((waiting.enrolment, code) for code in waiting.codes)


def test_a_run_from_the_pasted_line_to_the_model(tmp_path: Path) -> None:
    config, lines, rounds = private(rounds=4), Invited(), list[RoundRecord]()
    server = Running(
        lambda: serve_run(
            config, "asfl", tmp_path / "run", tmp_path / "home", Listening(port=0),
            on_listening=lines, on_round=rounds.append,
        )
    )  # fmt: skip
    wait_until(lambda: lines or server.over)
    devices = []
    for number, (line, file) in enumerate(zip(lines, images_of(tmp_path), strict=True)):
        where, code = line
        member = enrol(tmp_path / f"device{number}", where, code, f"device-{number}", str(file))
        with pytest.raises(AsflError, match="was used before"):
            enrol(tmp_path / f"thief{number}", where, code, f"thief-{number}", "")
        devices.append(Running(lambda n=number, m=member: work(tmp_path / f"device{n}", m, once=True)))  # type: ignore[misc]
    assert server.result() is True
    for device in devices:
        device.result()
    assert len(rounds) == 4
    assert all(record.accuracy is not None for record in read_records(tmp_path / "run"))
    events = [json.loads(line) for line in (tmp_path / "home" / AUDIT_FILE).read_text().splitlines()]
    happened = ["invited", "enrolled", "enrolled", "run begins", "images", "images", "run finished"]
    assert [one["event"] for one in events] == happened
    status = json.loads((tmp_path / "home" / "status.json").read_text())
    assert status["devices"]["device-0"]["received_bytes"] > 0


def test_nothing_that_devices_send_up_is_on_the_servers_disk(tmp_path: Path) -> None:
    """Labels of a mini-batch are 8 whole numbers of 8 bytes; activations are floats. Neither is in any file."""
    config, lines = private(rounds=2), Invited()
    seen = list[bytes]()
    received = StreamLink.received

    def listen(link: StreamLink, connection: object, data: object) -> None:
        seen.append(bytes(memoryview(data.numpy())))  # type: ignore[attr-defined]
        received(link, connection, data)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StreamLink, "received", listen)
        server = Running(
            lambda: serve_run(
                config, "asfl", tmp_path / "run", tmp_path / "home", Listening(port=0), on_listening=lines
            )
        )
        wait_until(lambda: lines or server.over)
        for number, (line, file) in enumerate(zip(lines, images_of(tmp_path), strict=True)):
            where, code = line
            member = enrol(tmp_path / f"device{number}", where, code, f"device-{number}", str(file))
            Running(lambda n=number, m=member: work(tmp_path / f"device{n}", m, once=True))  # type: ignore[misc]
        assert server.result() is True
    packets = [data for data in seen if b'"op": "activations"' in data[:200] or b'"op":"activations"' in data[:200]]
    assert packets
    files = [file for folder in ("run", "home") for file in (tmp_path / folder).rglob("*") if file.is_file()]
    stored = [file.read_bytes() for file in files]
    for packet in packets:
        middle = packet[len(packet) // 2 : len(packet) // 2 + 64]
        assert middle.strip(b"\0")
        assert not any(packet[-64:] in content or middle in content for content in stored)


def test_a_device_whose_images_do_not_fit_says_so_and_leaves(tmp_path: Path) -> None:
    np.savez(tmp_path / "large.npz", images=np.zeros((40, 9, 9), np.uint8), labels=np.zeros(40, int))
    lines, stop = Invited(), threading.Event()
    server = Running(
        lambda: serve_run(
            private(), "asfl", tmp_path / "run", tmp_path / "home", Listening(port=0),
            on_listening=lines, should_stop=stop.is_set,
        )
    )  # fmt: skip
    wait_until(lambda: lines or server.over)
    where, code = lines[0]
    member = enrol(tmp_path / "device", where, code, "device", str(tmp_path / "large.npz"))
    with pytest.raises(AsflError, match="1×9×9"):
        work(tmp_path / "device", member, once=True)
    Registry(tmp_path / "home").revoke("device")
    with pytest.raises(AsflError, match="isn't enrolled here, or was revoked"):
        work(tmp_path / "device", member, once=True)
    stop.set()
    assert server.result() is False


def test_a_revoked_device_is_out_at_once_though_another_has_its_number(tmp_path: Path) -> None:
    """No one looks every two seconds here: the next request finds it out, and what it was asked before is lost."""
    home, file = tmp_path / "home", images_of(tmp_path)[0]
    authority, registry = Authority.of(home), Registry(home)
    agreement = Agreement(private(), "asfl", threads=1)
    with StreamServer("127.0.0.1:0", agreement, authority) as server:
        with EnrolmentServer("127.0.0.1", 0, authority, registry, server.address.rpartition(":")[2]) as door:
            code = pasted_code(door.fingerprint, registry.invite(1, 1)[0])
            member = enrol(tmp_path / "device", f"127.0.0.1:{door.server_port}", code, "old", str(file))
        device, link = Running(lambda: work(tmp_path / "device", member, once=True)), server.links[0]
        wait_until(lambda: link.connected or device.over)
        key = registry.read().active[0].key
        assert (link.trouble, link.key) == (None, key)
        link._pending = under_way = Pending("ping", b"", float("inf"), Future())
        registry.revoke("old")
        assert registry.enrol(registry.invite(1, 1)[0], "new", "another key").number == 0
        assert link.trouble == "not connected"
        with pytest.raises(AsflError, match="revoked"):
            under_way.future.result(LONG_S)
        with pytest.raises(AsflError, match="revoked"):
            device.result()


# ---------------------------------------------------------------------- the door
@contextmanager
def door_of(home: Path) -> Iterator[tuple[EnrolmentServer, Registry, str]]:
    authority, registry = Authority.of(home), Registry(home)
    with EnrolmentServer("127.0.0.1", 0, authority, registry, "7400") as door:
        yield door, registry, f"127.0.0.1:{door.server_port}"


def test_a_server_that_is_another_one_gets_no_code(tmp_path: Path) -> None:
    with door_of(tmp_path / "home") as (door, registry, where):
        code = registry.invite(1, 1)[0]
        with pytest.raises(AsflError, match="not the server that gave this code"):
            enrol(tmp_path / "device", where, pasted_code(b"\1" * 32, code), "one", "")
        with pytest.raises(AsflError, match="isn't whole"):
            enrol(tmp_path / "device", where, "abc", "one", "")
        assert enrol(tmp_path / "device", where, pasted_code(door.fingerprint, code), "one", "").stream.endswith(
            ":7400"
        )
    with pytest.raises(AsflError, match="can't be reached"):
        enrol(tmp_path / "device", where, pasted_code(b"\1" * 32, code), "one", "")


def test_certificates_are_renewed_for_the_same_key_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, device = tmp_path / "home", tmp_path / "device"
    with door_of(home) as (door, registry, where):
        member = enrol(device, where, pasted_code(door.fingerprint, registry.invite(1, 1)[0]), "one", "")
        before = (device / "device.pem").read_bytes()
        assert not renew_if_due(device, member)
        monkeypatch.setattr(enrolment, "LEAST_LEFT", 2.0)
        assert renew_if_due(device, member)
        assert (device / "device.pem").read_bytes() != before
        key = (device / "device.key").read_bytes()
        (device / "device.key").unlink()
        with pytest.raises(AsflError, match="one is missing or damaged"):
            renew_if_due(device, member)
        (device / "device.key").write_bytes(key)
        registry.revoke("one")
        with pytest.raises(AsflError, match="refused"):
            renew_if_due(device, member)
    monkeypatch.setattr(enrolment, "share_left", lambda certificate: -0.1)
    with pytest.raises(AsflError, match="this device's clock says"):
        renew_if_due(device, member)


@pytest.mark.parametrize("path", ["/", "/enrol", "/renew", "/../devices.json"])
@pytest.mark.parametrize("body", [b"", b"{}", b"[]", b"\xff" * 100, b'{"request": 3}', b"x" * (1 << 15)])
def test_strangers_get_nothing_at_the_door(door: str, path: str, body: bytes) -> None:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with pytest.raises((urllib.error.HTTPError, urllib.error.URLError, ConnectionError)) as found:
        urllib.request.urlopen(f"https://{door}{path}", body, LONG_S, context=context)
    if isinstance(found.value, urllib.error.HTTPError):
        assert found.value.code in (400, 403)
        found.value.close()


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with door_of(tmp_path_factory.mktemp("home")) as (_, _, where):
        yield where


@pytest.mark.parametrize("port", ["enrolment", "metrics"])
def test_drippers_of_the_same_address_keep_no_device_out(tmp_path: Path, port: str) -> None:
    """40 connections that say a byte now and then, and call again when they are closed."""
    over = threading.Event()

    def drip(place: tuple[str, int]) -> None:
        while not over.is_set():
            with suppress(OSError), socket.create_connection(place, LONG_S) as connection:
                connection.send(b"\x16\x03\x01\x40\x00\x01\x00\x3f\xfc" if port == "enrolment" else b"GET / HT")
                while not over.wait(0.1):
                    connection.send(b"\0")

    dashboard = Dashboard(tmp_path, Registry(tmp_path), [StreamLink()], "run", 10)
    with door_of(tmp_path / "home") as (opened, registry, where), MetricsPage("127.0.0.1", 0, dashboard) as page:
        server = opened if port == "enrolment" else page
        for _ in range(40):
            threading.Thread(target=drip, args=(("127.0.0.1", server.server_port),), daemon=True).start()
        wait_until(lambda: len(server._visits) >= PLACES, "all places are taken")
        if port == "enrolment":
            for number, code in enumerate(registry.invite(3, 1)):
                pasted = pasted_code(opened.fingerprint, code)
                assert enrol(tmp_path / f"device{number}", where, pasted, f"device-{number}", "").enrolment == where
        else:
            with urllib.request.urlopen(f"http://127.0.0.1:{page.server_port}/health", timeout=LONG_S) as answer:
                assert answer.read() == b"well\n"
        over.set()


def test_who_speaks_slowly_at_the_door_is_closed_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A byte now and then of a handshake of 16 KiB."""
    monkeypatch.setattr("asfl.runs.http_server.WITHIN_S", 0.3)
    with (
        door_of(tmp_path / "home") as (opened, _, _),
        socket.create_connection(("127.0.0.1", opened.server_port), LONG_S) as slow,
    ):
        slow.send(b"\x16\x03\x01\x40\x00\x01\x00\x3f\xfc")

        def closed() -> bool:
            with suppress(OSError):
                return not slow.send(b"\0")
            return True

        wait_until(closed, "it is closed", 60.0)


def test_what_strangers_say_at_the_door_moves_no_cursor(caplog: pytest.LogCaptureFixture, door: str) -> None:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    host, _, port = door.partition(":")
    with (
        caplog.at_level("DEBUG"),
        socket.create_connection((host, int(port)), LONG_S) as plain,
        context.wrap_socket(plain) as stranger,
    ):
        stranger.send(b"POST /\x1b[1A" + b"x" * 5000 + b" HTTP/1.0\r\nContent-Length: 2\r\n\r\n{}")
        assert b"403" in stranger.recv(1000)
    lines = [record.getMessage() for record in caplog.records if "enrolment: " in record.getMessage()]
    assert lines
    assert all(line.isprintable() and len(line) < 600 for line in lines)


def test_a_devices_certificate_is_none_of_a_server(tmp_path: Path) -> None:
    """Nobody who enrolled can play the server to other devices."""
    with door_of(tmp_path / "home") as (door, registry, where):
        device = tmp_path / "device"
        enrol(device, where, pasted_code(door.fingerprint, registry.invite(1, 1)[0]), "one", "")
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


def test_a_stream_without_a_certificate_of_the_authority_never_opens(tmp_path: Path) -> None:
    home, other = tmp_path / "home", tmp_path / "other"
    stop, lines = threading.Event(), Invited()
    server = Running(
        lambda: serve_run(
            private(), "asfl", tmp_path / "run", home, Listening(port=0), on_listening=lines,
            should_stop=stop.is_set,
        )
    )  # fmt: skip
    wait_until(lambda: lines or server.over)
    where, code = lines[0]
    member = enrol(tmp_path / "device", where, code, "device", "")
    with door_of(other) as (door, registry, elsewhere):
        enrol(tmp_path / "stranger", elsewhere, pasted_code(door.fingerprint, registry.invite(1, 1)[0]), "device", "")
    stranger, root = tmp_path / "stranger", (tmp_path / "device" / "authority.pem").read_bytes()
    key, certificate = (stranger / "device.key").read_bytes(), (stranger / "device.pem").read_bytes()
    with pytest.raises(AsflError, match=r"no connection for|refused"):
        take_part(member.stream, (key, certificate, root), patience_s=0.5)
    stop.set()
    server.result()


# ---------------------------------------------------------------------- what is shown
def test_health_and_metrics(tmp_path: Path, finished_record: RoundRecord) -> None:
    registry = Registry(tmp_path)
    for code, name in zip(registry.invite(2, 1), ("one", "two"), strict=True):
        registry.enrol(code, name, name)
    dashboard = Dashboard(tmp_path, registry, [StreamLink(), StreamLink()], "run", 10)
    dashboard.round(finished_record)
    with MetricsPage("127.0.0.1", 0, dashboard) as page:

        def get(path: str) -> str:
            with urllib.request.urlopen(f"http://127.0.0.1:{page.server_port}{path}", timeout=LONG_S) as answer:
                return str(answer.read().decode())

        assert get("/health") == "well\n"
        lines = dict(line.rsplit(" ", 1) for line in get("/metrics").splitlines())
        with pytest.raises(urllib.error.HTTPError, match="404") as found:
            get("/else")
        found.value.close()
    assert lines["asfl_rounds_total"] == "7"
    assert lines['asfl_device_faults{device="two"}'] == "1"
    assert lines['asfl_device_arrived{device="one"}'] == "1"
    assert lines['asfl_device_connected{device="one"}'] == "0"
    (fault,) = [json.loads(line) for line in (tmp_path / AUDIT_FILE).read_text().splitlines() if '"fault"' in line]
    assert (fault["device"], fault["stage"]) == ("two", "forward")


@pytest.fixture
def finished_record() -> RoundRecord:
    none: list[float] = [0.0, 0.0]
    return RoundRecord(
        round=7, cut=2, rb_count=[1.0, 1.0], tx_power_w=[1.0, 1.0], packet_error_rate=none, arrived=[1, 0], delay_s=0.5,
        resplit_delay_s=0.0, uplink_stage_delay_s=0.2, server_stage_delay_s=0.3, energy_j=[1.0, 2.0],
        resplit_energy_j=none, total_delay_s=1.0, total_energy_j=3.0, delay_queue=0.0, energy_queue=none,
        participation_queue=none, train_loss=1.5, update_norm2=[1.0, None], update_scale=1.0, spread=0.0,
        discrepancy=0.0, resplit_shift=0.0, accuracy=0.5, test_loss=1.0, client_accuracy=0.5,
        faults=[{"client": 1, "round": 7, "stage": "forward", "reason": "the connection broke"}],
    )  # fmt: skip


def test_a_clock_that_is_wrong_is_said() -> None:
    assert clock_warning(time.time()) == ""
    assert "3.0 days behind" in clock_warning(time.time() + 3 * 86400)
    assert "ahead of" in clock_warning(time.time() - 3 * 86400)


def test_a_device_is_told_that_its_clock_is_wrong(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """When it enrols or renews, the server says what time it has."""
    _keep(tmp_path, {"certificate": "one", "authority": "other", "now": time.time() + 3 * 86400})
    assert "3.0 days behind" in caplog.text
    caplog.clear()
    _keep(tmp_path, {"certificate": "one", "authority": "other", "now": time.time()})
    assert not caplog.text


def test_a_device_remembers_whom_it_belongs_to(tmp_path: Path) -> None:
    assert Membership.read(tmp_path) is None
    member = Membership("one", "host:7401", "host:7400", "images.npz")
    member.write(tmp_path)
    assert Membership.read(tmp_path) == member
    (tmp_path / "member.json").write_text("{}")
    with pytest.raises(AsflError, match=r"member\.json: can't be read"):
        Membership.read(tmp_path)
