"""Downloading against a real server on loopback: good, without ranges, cut, wrong, and malicious."""

import hashlib
import tarfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from tiny_cifar import TINY, evil_archive, pack, write_binary

from asfl.config.errors import AsflError
from asfl.data.cifar import Cifar, find_cifar, read_cifar
from asfl.data.fetch import fetch, is_complete

KIND = TINY["cifar10"]


@dataclass
class Server:
    """What the server does, and what it was asked."""

    content: bytes = b""
    ranges: bool = True
    shift: int = 0
    """Continue this many bytes beside what was asked for."""
    cut_after: int | None = None
    status: int = 200
    url: str = ""
    asked: list[str | None] = field(default_factory=list)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    state = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            wanted = self.headers.get("Range")
            state.asked.append(wanted)
            start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted and state.ranges else 0
            if start >= len(state.content) > 0:
                self.send_error(416)
                return
            if state.status != 200:
                self.send_error(state.status)
                return
            start += state.shift if start else 0
            body = state.content[start:]
            self.send_response(206 if start else 200)
            if start:
                self.send_header("Content-Range", f"bytes {start}-{len(state.content) - 1}/{len(state.content)}")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body if state.cut_after is None else body[: state.cut_after])

        def log_message(self, format: str, *args: object) -> None:
            pass

    listener = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state.url = f"http://127.0.0.1:{listener.server_address[1]}/cifar.tar.gz"
    thread = threading.Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield state
    listener.shutdown()
    thread.join()
    listener.server_close()


def offer(server: Server, archive: Path) -> Cifar:
    """Let the server offer this archive; gives the kind whose checksum it has."""
    server.content = archive.read_bytes()
    return replace(KIND, binary_md5=hashlib.md5(server.content).hexdigest())


@pytest.fixture
def kind(server: Server, tmp_path: Path) -> Cifar:
    return offer(server, pack(write_binary(KIND, tmp_path / "made"), tmp_path / "made.tar.gz"))


def check_fetched(kind: Cifar, folder: Path) -> None:
    names = {kind.binary_archive, kind.binary_folder}
    assert {path.name for path in folder.iterdir()} == names  # no .part, nothing temporary
    assert is_complete(kind, folder)
    assert len(read_cifar(kind, find_cifar(kind, [folder])).train_labels) == 60


def test_fetch_and_read(server: Server, kind: Cifar, tmp_path: Path) -> None:
    seen: list[tuple[int, int | None]] = []
    folder = tmp_path / "deep" / "data"
    assert (
        fetch(kind, folder, server.url, lambda have, total: seen.append((have, total))) == folder / kind.binary_folder
    )
    check_fetched(kind, folder)
    assert seen[0] == (0, len(server.content))
    assert seen[-1] == (len(server.content), len(server.content))


@pytest.mark.parametrize("ranges", [True, False])
def test_a_cut_download_continues(server: Server, kind: Cifar, ranges: bool, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    server.cut_after, server.ranges = 70_000, ranges
    with pytest.raises(AsflError, match=r"the connection ended after 70,000 of .* the same command continues"):
        fetch(kind, folder, server.url)
    assert [path.name for path in folder.iterdir()] == [f"{kind.binary_archive}.part"]
    server.cut_after = None
    fetch(kind, folder, server.url)
    assert server.asked == [None, "bytes=70000-"]
    check_fetched(kind, folder)


@pytest.mark.parametrize("case", ["there", "complete", "too long", "elsewhere"])
def test_what_is_there_is_used(server: Server, kind: Cifar, case: str, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    part = {"too long": server.content + b"more", "elsewhere": server.content[:100]}.get(case, server.content)
    (folder / (kind.binary_archive + ".part" * (case != "there"))).write_bytes(part)
    server.shift = 7
    fetch(kind, folder, server.url)
    assert len(server.asked) == (2 if case in ("too long", "elsewhere") else 0)
    check_fetched(kind, folder)


def test_incomplete_files_are_mended(server: Server, kind: Cifar, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    target = fetch(kind, folder, server.url)
    (target / "notes.txt").write_text("mine")
    (target / "data_batch_2.bin").write_bytes(b"short")
    (folder / kind.binary_archive).write_bytes(b"damaged")
    assert not is_complete(kind, folder)
    fetch(kind, folder, server.url)
    assert len(server.asked) == 2
    check_fetched(kind, folder)
    assert (target / "notes.txt").read_text() == "mine"


def test_a_wrong_checksum_is_refused_and_nothing_kept(server: Server, kind: Cifar, tmp_path: Path) -> None:
    server.content = b"x" * 1000
    with pytest.raises(AsflError, match=rf"its md5 is .* instead of {kind.binary_md5}; the download was thrown away"):
        fetch(kind, tmp_path / "data", server.url)
    assert list((tmp_path / "data").iterdir()) == []
    server.status = 404
    with pytest.raises(AsflError, match=r"can't download http://.*: the server says 404 Not Found"):
        fetch(kind, tmp_path / "data", server.url)


def test_no_server_and_no_answer(kind: Cifar, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import socket

    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silence = f"http://127.0.0.1:{silent.getsockname()[1]}/x"
        with pytest.raises(AsflError, match=r"can't download .*: Connection refused; without a network, put cifar-10-"):
            fetch(kind, tmp_path, silence)
        silent.listen()
        monkeypatch.setattr("asfl.data.fetch.TIMEOUT_S", 0.05)
        with pytest.raises(AsflError, match=r"can't download .*: no answer for 0\.05 s"):
            fetch(kind, tmp_path, silence)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        *((url, "give an http or https address") for url in ("file:///etc/passwd", "ftp://a.org/x", "cifar.tar.gz")),
        ("http://[bad", r"can't download http://\[bad: "),
        ("http://127.0.0.1:9/x", "can't write below .*file"),
    ],
)
def test_addresses_and_folders_that_cannot_be_used(url: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(AsflError, match=words):
        fetch(KIND, tmp_path / "file" if "write" in words else tmp_path, url)


INSIDE = f"{KIND.binary_folder}/data_batch_1.bin"


@pytest.mark.parametrize(
    ("name", "kind_of_member", "words"),
    [
        ("../evil", tarfile.REGTYPE, "lies outside"),
        (f"{KIND.binary_folder}/../../evil", tarfile.REGTYPE, "lies outside"),
        ("/tmp/evil", tarfile.REGTYPE, "lies outside"),
        ("evil", tarfile.REGTYPE, "lies outside"),
        (INSIDE, tarfile.SYMTYPE, "neither a file nor a folder"),
        (INSIDE, tarfile.LNKTYPE, "neither a file nor a folder"),
        (INSIDE, tarfile.FIFOTYPE, "neither a file nor a folder"),
        (INSIDE, tarfile.CHRTYPE, "neither a file nor a folder"),
    ],
)
def test_malicious_archives_are_refused(
    name: str, kind_of_member: bytes, words: str, server: Server, tmp_path: Path
) -> None:
    """Even with the right checksum nothing is unpacked."""
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind_of_member, "../../evil"
    content = b"evil" if kind_of_member == tarfile.REGTYPE else b""
    kind = offer(server, evil_archive(tmp_path / "evil.tar.gz", member, content))
    with pytest.raises(AsflError, match=f"refused, '{name}' .*{words}|refused, '{name}' {words}"):
        fetch(kind, tmp_path / "data", server.url)
    assert {path.name for path in (tmp_path / "data").iterdir()} == {kind.binary_archive}
    assert not (tmp_path / "evil").exists()


def test_bombs_and_incomplete_archives_are_refused(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = offer(server, evil_archive(tmp_path / "some.tar.gz", tarfile.TarInfo(INSIDE), bytes(100_000)))
    with pytest.raises(AsflError, match=r"doesn't hold all of data_batch_1\.bin, .*test_batch\.bin"):
        fetch(kind, tmp_path / "some", server.url)
    monkeypatch.setattr("asfl.data.fetch.MAX_BYTES", 50_000)
    with pytest.raises(AsflError, match="unpacks to more than 50,000 bytes"):
        fetch(kind, tmp_path / "bomb", server.url)
    monkeypatch.setattr("asfl.data.fetch.MAX_BYTES", 50)
    with pytest.raises(AsflError, match="is larger than 50 bytes"):
        fetch(kind, tmp_path / "flood", server.url)
    kind = offer(server, write_binary(KIND, tmp_path / "made") / "data_batch_1.bin")
    monkeypatch.undo()
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with pytest.raises(AsflError, match="can't be unpacked"):
        fetch(kind, tmp_path / "no", server.url)
