"""What doesn't fit is refused before it is begun."""

import pytest

from asfl.config import load_config
from asfl.config.errors import AsflError
from asfl.config.files import available_bytes, check_memory
from asfl.costs.world import World
from asfl.runs.estimate import MAX_ROUNDS, MAX_RUNS, check_count, check_run, least_bytes, least_seconds


def test_memory_is_known_and_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert available_bytes() > 1e6
    monkeypatch.setattr("asfl.config.files.available_bytes", lambda: 23e9)
    check_memory(22e9, "this", "less")
    with pytest.raises(AsflError, match=r"^this needs about 40 GB of memory; here are 23 GB: choose less$"):
        check_memory(40e9, "this", "choose less")


def test_runs_that_do_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asfl.config.files.available_bytes", lambda: 4e9)
    demo = load_config("demo").config
    check_run(demo, side_by_side=100)
    wide = load_config("demo", ["training.batch_size=1000000000"]).config
    with pytest.raises(AsflError, match=r"this run: cnn-digits with 6 clients and training.batch_size = 1,000,000,000"):
        check_run(wide)
    half = load_config("demo", ["training.batch_size=60000"]).config
    assert 2e9 < least_bytes(half) < 4e9
    check_run(half)
    with pytest.raises(AsflError, match=r"2 such runs side by side \(--workers\).*or fewer workers"):
        check_run(half, side_by_side=2)


def test_runs_that_never_end() -> None:
    endless = load_config("demo", ["training.rounds=1000000000", "training.local_steps=1000000"]).config
    assert least_seconds(load_config("demo").config) < 60
    with pytest.raises(AsflError, match=r"takes at least .* years here: training.rounds = 1,000,000,000"):
        check_run(endless)


def test_runs_are_counted() -> None:
    check_count(MAX_RUNS, MAX_ROUNDS // MAX_RUNS, "all")
    with pytest.raises(AsflError, match=r"all: 10,001 runs of 1 rounds"):
        check_count(MAX_RUNS + 1, 1, "all")
    with pytest.raises(AsflError, match=r"rounds in all"):
        check_count(2, MAX_ROUNDS, "all")


def test_worlds_that_do_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asfl.config.files.available_bytes", lambda: 1e9)
    with pytest.raises(AsflError, match=r"a world of scenario.clients = 100,000 needs about 2.4 GB"):
        World.of(load_config("demo", ["scenario.clients=100000"]).config)
