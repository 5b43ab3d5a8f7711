"""CIFAR is read as it was written, every kind of damage is named, and a download is checked before it is unpacked."""

import hashlib
import socket
import tarfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from tiny_cifar import TINY, pack, random_batch, write_cifar

from asfl.config import load_config
from asfl.config.errors import AsflError
from asfl.data import load_data
from asfl.data.cifar import CIFAR, Cifar, fetch, find_cifar, is_complete, read_cifar


@pytest.mark.parametrize("kind", TINY.values(), ids=TINY)
def test_images_are_read_as_they_were_written(kind: Cifar, tmp_path: Path) -> None:
    folder = write_cifar(kind, tmp_path)
    assert find_cifar(kind, [tmp_path]) == find_cifar(kind, [folder]) == folder
    data = read_cifar(kind, folder)
    batches = [random_batch(kind, name) for name in kind.train_files]
    pixels, labels = random_batch(kind, kind.test_file)
    assert data.input_shape == (3, 32, 32)
    assert np.array_equal(data.train_images.reshape(-1, 3072), np.concatenate([pixels for pixels, _ in batches]))
    assert np.array_equal(data.train_labels, np.concatenate([labels for _, labels in batches]))
    assert np.array_equal(data.test_images.reshape(-1, 3072), pixels)
    assert np.array_equal(data.test_labels, labels)
    assert (data.train_images.dtype.name, data.train_labels.dtype.name) == ("uint8", "int64")
    assert (data.num_classes, data.scale) == (kind.num_classes, 255)
    assert data.mean == pytest.approx((data.train_images / 255).mean(axis=(0, 2, 3)))
    assert data.std == pytest.approx((data.train_images / 255).std(axis=(0, 2, 3)))


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda raw: raw[:-3073], "33,803 bytes instead of 12 records"),  # cut exactly between two records
        (lambda raw: raw + bytes(3073), "39,949 bytes instead of 12 records"),
        (lambda raw: raw[: 3 * 3073] + bytes([10]) + raw[3 * 3073 + 1 :], "the label of record 3 is 10, but cifar10"),
        (lambda raw: None, "can't be read: No such file"),
    ],
)
def test_damaged_files_are_named(damage: Callable[[bytes], bytes | None], words: str, tmp_path: Path) -> None:
    kind = TINY["cifar10"]
    file = write_cifar(kind, tmp_path) / "data_batch_3.bin"
    damaged = damage(file.read_bytes())
    file.unlink()
    if damaged is not None:
        file.write_bytes(damaged)
    with pytest.raises(AsflError) as caught:
        read_cifar(kind, file.parent)
    for word in (words, "data_batch_3.bin", "asfl data fetch cifar10"):
        assert word in str(caught.value)


def test_where_it_is_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """--data-dir, else ASFL_DATA_DIR; then ./data."""
    kind = TINY["cifar10"]
    monkeypatch.setitem(CIFAR, "cifar10", kind)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ASFL_DATA_DIR", raising=False)
    config = load_config("small-cifar10").config
    with pytest.raises(AsflError) as caught:
        load_data(config, tmp_path / "nothing")
    for word in (str(tmp_path / "nothing"), " or data ", "asfl data fetch cifar10", "--data-dir", "ASFL_DATA_DIR"):
        assert word in str(caught.value)
    last = load_data(config, write_cifar(kind, tmp_path / "data").parent)
    assert load_data(config) is last
    assert load_data(config, tmp_path / "x" / ".." / "data") is last
    assert load_data(config, tmp_path / "nothing") is last

    places = {name: write_cifar(kind, tmp_path / name) for name in ("environment", "option")}
    monkeypatch.setenv("ASFL_DATA_DIR", str(tmp_path / "environment"))
    asked: list[Path] = []
    monkeypatch.setattr("asfl.data.load.read_cifar", lambda _kind, folder: asked.append(folder))
    load_data(config)
    load_data(config, tmp_path / "option")
    assert asked == [places["environment"], places["option"]]


# ---------------------------------------------------------------------- download
@dataclass
class Server:
    """What the server sends, and how often it was asked."""

    content: bytes = b""
    cut_after: int | None = None
    status: int = 200
    url: str = ""
    asked: int = 0


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    state = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            state.asked += 1
            if state.status != 200:
                self.send_error(state.status)
                return
            self.send_response(200)
            self.send_header("Content-Length", str(len(state.content)))
            self.end_headers()
            self.wfile.write(state.content[: state.cut_after])

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


@pytest.fixture
def kind(server: Server, tmp_path: Path) -> Cifar:
    """Whose archive the server has."""
    server.content = pack(write_cifar(TINY["cifar10"], tmp_path / "made"), tmp_path / "made.tar.gz").read_bytes()
    return replace(TINY["cifar10"], md5=hashlib.md5(server.content).hexdigest())


def test_fetch_and_read(server: Server, kind: Cifar, tmp_path: Path) -> None:
    """What is there isn't fetched again; damaged files are mended, and files of others stay."""
    seen: list[tuple[int, int | None]] = []
    folder = tmp_path / "deep" / "data"
    target = fetch(kind, folder, server.url, lambda have, total: seen.append((have, total)))
    assert target == folder / kind.folder
    assert seen[-1] == (len(server.content), len(server.content))
    (target / "notes.txt").write_text("mine")
    (target / "data_batch_2.bin").write_bytes(b"short")
    assert not is_complete(kind, folder)
    fetch(kind, folder, server.url)
    assert server.asked == 1
    (folder / kind.archive).write_bytes(b"damaged")
    fetch(kind, folder, server.url)
    assert server.asked == 2
    assert is_complete(kind, folder)
    assert {path.name for path in folder.iterdir()} == {kind.archive, kind.folder}
    assert (target / "notes.txt").read_text() == "mine"
    assert len(read_cifar(kind, find_cifar(kind, [folder])).train_labels) == 60


def test_what_is_cut_or_wrong_is_thrown_away(server: Server, kind: Cifar, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    server.cut_after = 70_000
    with pytest.raises(AsflError, match=rf"its md5 is .* instead of {kind.md5}; the download was thrown away"):
        fetch(kind, folder, server.url)
    assert list(folder.iterdir()) == []
    server.status = 404
    with pytest.raises(AsflError, match=r"can't download http://.*: Not Found; without a network, put cifar-10-"):
        fetch(kind, folder, server.url)


def test_a_flood_is_refused(server: Server, kind: Cifar, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asfl.data.cifar.MAX_BYTES", 50)
    with pytest.raises(AsflError, match="is larger than 50 bytes"):
        fetch(kind, tmp_path, server.url)


def test_nothing_is_written_elsewhere(server: Server, tmp_path: Path) -> None:
    """Not even by an archive with the right checksum, nor through a link."""
    member = tarfile.TarInfo("../evil")
    with tarfile.open(tmp_path / "evil.tar.gz", "w:gz") as tar:
        tar.addfile(member)
    server.content = (tmp_path / "evil.tar.gz").read_bytes()
    kind = replace(TINY["cifar10"], md5=hashlib.md5(server.content).hexdigest())
    with pytest.raises(AsflError, match="evil"):
        fetch(kind, tmp_path / "data", server.url)
    assert not (tmp_path / "evil").exists()
    (tmp_path / "data" / kind.archive).unlink()
    (tmp_path / "data" / f"{kind.archive}.part").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(AsflError, match="it is a link"):
        fetch(kind, tmp_path / "data", server.url)
    assert not (tmp_path / "elsewhere").exists()


def test_no_server_and_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silence = f"http://127.0.0.1:{silent.getsockname()[1]}/x"
        with pytest.raises(AsflError, match=r"can't download .*: Connection refused; without a network, put cifar-10-"):
            fetch(TINY["cifar10"], tmp_path, silence)
        silent.listen()
        monkeypatch.setattr("asfl.data.cifar.TIMEOUT_S", 0.05)
        with pytest.raises(AsflError, match=r"can't download .*: no answer for 0\.05 s"):
            fetch(TINY["cifar10"], tmp_path, silence)
