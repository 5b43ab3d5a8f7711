"""`asfl data` as a person uses it."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tiny_cifar import TINY, pack, write_cifar
from typer.testing import CliRunner

from asfl.cli import app
from asfl.config import load_config
from asfl.data import load_data, partition
from asfl.data.cifar import CIFAR
from conftest import Asfl, assert_refused

PNG = b"\x89PNG\r\n\x1a\n"


def test_show_as_table_json_and_picture(asfl: Asfl, tmp_path: Path) -> None:
    table = asfl("data", "show", "--plot", "mix.png")
    assert table.returncode == 0, table.stderr
    assert "digits: 1,437 training and 360 test images of 1×8×8, 10 classes; 6 clients" in table.stdout
    assert "3 training images stay unused" in table.stdout
    assert (tmp_path / "mix.png").read_bytes().startswith(PNG)
    shown = json.loads(asfl("data", "show", "demo", "--set", "scenario.clients=4", "--json").stdout)
    data = load_data(load_config("demo").config)
    parts = partition(data.train_labels, 4, 1.0, 1)
    assert shown["label_counts"] == [np.bincount(data.train_labels[part], minlength=10).tolist() for part in parts]
    assert shown["samples_per_client"] == [359] * 4
    assert len(shown["distance_from_global"]) == 4


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["show", "--set", "data.name=cifr10"], ["unknown data set 'cifr10': did you mean 'cifar10'?"]),
        (
            ["show", "small-cifar10", "--data-dir", "nowhere"],
            ["no cifar10 in nowhere or data", "asfl data fetch cifar10", "--data-dir", "ASFL_DATA_DIR"],
        ),
        (["fetch", "cifar10", "--url", "http://127.0.0.1:9/x"], ["can't download http://127.0.0.1:9/x"]),
        (["fetch", "cifr10"], ["no data set 'cifr10' to fetch: did you mean 'cifar10'"]),
        (["show", "--set", "data.name=no.npz"], ["no.npz': no such file"]),
        (["show", "--set", "scenario.clients=1438"], ["there can be 1 … 1,437 clients"]),
        (["show", "--plot", "mix.txt"], ["the name must end in"]),
    ],
)
def test_mistakes_are_refused(
    asfl: Asfl, monkeypatch: pytest.MonkeyPatch, arguments: list[str], words: list[str]
) -> None:
    monkeypatch.delenv("ASFL_DATA_DIR", raising=False)
    assert_refused(asfl("data", *arguments), *words)


def test_fetch_unpacks_then_says_it_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = TINY["cifar100"]
    folder = tmp_path / "data"
    folder.mkdir()
    archive = pack(write_cifar(kind, tmp_path / "made"), folder / kind.archive)
    kind = replace(kind, md5=hashlib.md5(archive.read_bytes()).hexdigest())
    monkeypatch.setitem(CIFAR, "cifar100", kind)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ASFL_DATA_DIR", raising=False)
    run = CliRunner()
    first = run.invoke(app, ["data", "fetch", "cifar100"], catch_exceptions=False)
    assert f"cifar100 is in {Path('data') / kind.folder}" in first.output
    again = run.invoke(app, ["data", "fetch", "cifar100"], catch_exceptions=False)
    assert "cifar100 is already in" in again.output
    assert "ships with asfl" in run.invoke(app, ["data", "fetch", "digits"]).output
    shown = run.invoke(app, ["data", "show", "small-cifar100", "--set", "scenario.clients=3"], catch_exceptions=False)
    assert "cifar100: 12 training and 5 test images of 3×32×32, 100 classes; 3 clients" in shown.output
