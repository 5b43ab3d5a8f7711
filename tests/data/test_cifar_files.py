"""CIFAR is read the same from every layout, and every kind of damage is named."""

import os
import pickle
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tiny_cifar import TINY, pack, python2_pickle, python3_pickle, random_batch, write_binary, write_python

from asfl.config import load_config
from asfl.config.errors import AsflError
from asfl.data import ImageData, load_data
from asfl.data.cifar import CIFAR, Cifar, find_cifar, read_cifar
from asfl.data.images import channel_statistics

Layout = Callable[[Cifar, Path], Path]


def as_folder(write: Layout, kind: Cifar, folder: Path) -> Path:
    return write(kind, folder).parent


def as_renamed(write: Layout, kind: Cifar, folder: Path) -> Path:
    return write(kind, folder).rename(folder / "mine")


def as_archive(write: Layout, kind: Cifar, folder: Path) -> Path:
    written = write(kind, folder)
    pack(written, folder / (kind.binary_archive if write is write_binary else kind.python_archive))
    shutil.rmtree(written)
    return folder


def read(kind: Cifar, *folders: Path) -> ImageData:
    return read_cifar(kind, find_cifar(kind, folders))


@pytest.mark.parametrize("kind", TINY.values(), ids=TINY)
@pytest.mark.parametrize("write", [write_binary, write_python])
@pytest.mark.parametrize("shape", [as_folder, as_renamed, as_archive])
def test_every_layout_gives_the_same_images(
    kind: Cifar, write: Layout, shape: Callable[[Layout, Cifar, Path], Path], tmp_path: Path
) -> None:
    data = read(kind, shape(write, kind, tmp_path))
    batches = [random_batch(kind, name) for name in kind.train_files]
    pixels, labels = random_batch(kind, kind.test_file)
    assert data.input_shape == (3, 32, 32)
    assert np.array_equal(data.train_images.reshape(-1, 3072), np.concatenate([pixels for pixels, _ in batches]))
    assert np.array_equal(data.train_labels, np.concatenate([labels for _, labels in batches]))
    assert np.array_equal(data.test_images.reshape(-1, 3072), pixels)
    assert np.array_equal(data.test_labels, labels)
    assert (data.train_images.dtype.name, data.train_labels.dtype.name) == ("uint8", "int64")
    assert (data.num_classes, data.scale) == (kind.num_classes, 255)
    assert len(list(tmp_path.iterdir())) == 1  # reading an archive unpacks nothing
    assert data.mean == pytest.approx((data.train_images / 255).mean(axis=(0, 2, 3)))
    assert data.std == pytest.approx((data.train_images / 255).std(axis=(0, 2, 3)))


def test_statistics_of_many_blocks_and_of_constant_channels() -> None:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 17, (5, 2, 1500, 1500), dtype=np.uint8)  # more than one block of pixels
    images[:, 1] = 16
    mean, std = channel_statistics(images, scale=16)
    assert mean == pytest.approx((images[:, 0].mean() / 16, 1))
    assert std == pytest.approx((images[:, 0].std() / 16, 1))


def test_a_saved_again_pickle_is_read(tmp_path: Path) -> None:
    kind = TINY["cifar100"]
    folder = write_python(kind, tmp_path)
    before = read(kind, folder)
    for name in kind.records:
        pixels, labels = random_batch(kind, name)
        (folder / name).write_bytes(python3_pickle(pixels, labels.tolist(), kind.label_key))
    read_cifar.cache_clear()
    assert np.array_equal(read(kind, folder).train_labels, before.train_labels)


def wrong_label(raw: bytes) -> bytes:
    return raw[: 3 * 3073] + bytes([10]) + raw[3 * 3073 + 1 :]


@pytest.mark.parametrize("archived", [False, True])
@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda raw: raw[:-5], "36,871 bytes instead of 12 records of 3,073 bytes; cut short"),
        (lambda raw: raw[: -(3072 + 1)], "11 records instead of 12 records of 3,073 bytes; cut short"),
        (lambda raw: b"", "0 bytes instead of 12 records"),
        (lambda raw: raw + bytes(3073), "13 records instead of 12 records of 3,073 bytes; not a file of cifar10"),
        (wrong_label, "the label of record 3 is 10, but cifar10 has 0 … 9"),
        (lambda raw: None, "no data_batch_3.bin in it"),
    ],
)
def test_damaged_files_are_named(
    damage: Callable[[bytes], bytes | None], words: str, archived: bool, tmp_path: Path
) -> None:
    kind = TINY["cifar10"]
    folder = write_binary(kind, tmp_path)
    file = folder / "data_batch_3.bin"
    damaged = damage(file.read_bytes())
    file.unlink()
    if damaged is not None:
        file.write_bytes(damaged)
    if archived:
        pack(folder, tmp_path / kind.binary_archive)
        shutil.rmtree(folder)
    with pytest.raises(AsflError) as caught:
        read(kind, tmp_path)
    assert words in str(caught.value)
    assert "data_batch_3.bin" in str(caught.value)
    assert "asfl data fetch cifar10" in str(caught.value)


def test_a_damaged_archive_is_named(tmp_path: Path) -> None:
    kind = TINY["cifar100"]
    archive = pack(write_binary(kind, tmp_path / "made"), tmp_path / kind.binary_archive)
    whole = archive.read_bytes()
    for damaged in (whole[: len(whole) // 2], b"<html>not found</html>", b""):
        archive.write_bytes(damaged)
        with pytest.raises(AsflError, match=r"cifar-100-binary\.tar\.gz: (can't be read|no t)"):
            read(kind, tmp_path)


def test_the_official_number_of_records_is_required(tmp_path: Path) -> None:
    """A file cut exactly between two records looks whole: only the number of records gives it away."""
    write_binary(TINY["cifar100"], tmp_path)
    config = load_config("small-cifar100").config
    with pytest.raises(AsflError, match="12 records instead of 50,000 records"):
        load_data(config, tmp_path)


class Evil:
    def __reduce__(self) -> tuple[object, ...]:
        return os.system, ("touch evil",)


PIXELS = np.zeros((2, 3072), dtype=np.uint8)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (pickle.dumps(Evil()), r"refused, for it would run (posix|nt)\.system"),
        (pickle.dumps({"data": Evil()}, protocol=0), r"refused, for it would run (posix|nt)\.system"),
        (b"cbuiltins\neval\n(S'1'\ntR.", r"refused, for it would run (__builtin__|builtins)\.eval"),
        (pickle.dumps({"data": np.array([{}])}, protocol=2), "it has an array of 'O8', and CIFAR has only numbers"),
        (pickle.dumps([1]), "holds a list instead of a dictionary"),
        (pickle.dumps({"data": [1], "labels": [1]}), "'data' must be an array of uint8, found a list"),
        (python2_pickle(PIXELS, [1, 2], "other"), "'labels' must be a list of whole numbers, found a NoneType"),
        (python2_pickle(PIXELS, [1, 10], "labels"), "the label of record 1 is 10"),
        (python2_pickle(PIXELS, [1], "labels"), "1 labels and images"),
        (python2_pickle(PIXELS, [1, 2], "labels")[:-40], "can't be read as a pickled batch"),
        (python2_pickle(PIXELS[:, :-1], [1, 2], "labels"), r"images \[2, 3071\] instead of 2 labels and \[2, 3072\]"),
        (b"", "can't be read as a pickled batch"),
        (b"garbage", "can't be read as a pickled batch"),
        (b"\x80\x02Nr\x00\x00\x00\x40.", "it asks for more memory than a batch can need"),
        (b"\x80\x05\x96" + (1 << 34).to_bytes(8, "little") + b"abc.", "can't be read as a pickled batch"),
        (b"cnumpy\nndarray\n((J\xff\xff\xff\x7ftR.", "can't be read as a pickled batch"),
        (
            python2_pickle(PIXELS, [1, 2], "labels").replace(b"J\x02\x00\x00\x00e", b"\x8a\x10" + b"\x7f" * 16 + b"e"),
            "no labels",
        ),
    ],
)
def test_pickles_are_not_trusted(content: bytes, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    kind = replace(TINY["cifar10"], train_records=2)
    folder = write_python(kind, tmp_path)
    (folder / "data_batch_2").write_bytes(content)
    with pytest.raises(AsflError, match=words) as caught:
        read(kind, tmp_path)
    assert "data_batch_2" in str(caught.value)
    assert not (tmp_path / "evil").exists()


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
    last = load_data(config, write_binary(kind, tmp_path / "data").parent)
    assert load_data(config) is last
    assert load_data(config, tmp_path / "x" / ".." / "data") is last
    assert load_data(config, tmp_path / "nothing") is last

    places = {name: write_binary(kind, tmp_path / name).parent for name in ("environment", "option")}
    monkeypatch.setenv("ASFL_DATA_DIR", str(places["environment"]))
    found = {name: find_cifar(kind, [place]).path for name, place in places.items()}
    asked: list[Path] = []
    monkeypatch.setattr("asfl.data.load.read_cifar", lambda _kind, source: asked.append(source.path))
    load_data(config)
    load_data(config, places["option"])
    assert asked == [found["environment"], found["option"]]
