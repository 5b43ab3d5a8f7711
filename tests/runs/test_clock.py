"""Links that follow the clock of the simulation, which every scheme's rounds fill differently."""

from pathlib import Path

import numpy as np
import pytest

from asfl.config import Config, load_config
from asfl.costs.world import World
from asfl.radio.channel import ClockedTrace
from asfl.radio.link import ChannelState
from asfl.runs.play import play
from asfl.runs.records import RECORDS_FILE, RoundRecord, read_records
from asfl.runs.run import resume, run
from asfl.schemes import scheme_named
from asfl.schemes.base import budgets_of


@pytest.fixture
def clocked(tmp_path: Path) -> Config:
    """A trace of 10 ms steps, in a world whose rounds take some 100 ms."""
    snr_db = np.random.default_rng(3).normal(20, 6, size=(3, 4000))
    np.savez(tmp_path / "trace.npz", snr_db=snr_db, dt_s=0.01)
    return load_config(
        "demo",
        [
            "scenario.clients=3", "radio.num_rbs=3", "model.width=0.1", "training.batch_size=8", "training.rounds=5",
            "output.checkpoint_every=2", "output.test_samples=50", "scenario.channel.kind=trace",
            f"scenario.channel.trace_file={tmp_path / 'trace.npz'}", 'scenario.channel.trace_samples_per_round="clock"',
        ],
    ).config  # fmt: skip


def test_the_same_time_gives_the_same_links_whatever_the_round(clocked: Config) -> None:
    world = World.of(clocked)
    assert world.has_clock
    first, later = world.begin_round(0, time_s=1.234), world.begin_round(7, time_s=1.2341)
    assert (first.channel_gain == later.channel_gain).all()
    assert (first.channel_gain != world.begin_round(0, time_s=2.5).channel_gain).any()
    assert not World.of(load_config("demo").config).has_clock


def test_a_world_without_movement_has_no_use_for_the_clock() -> None:
    world = World.of(load_config("demo").config)
    assert (world.begin_round(3, time_s=99.0).channel_gain == world.begin_round(3).channel_gain).all()


def test_rounds_begin_when_the_ones_before_are_over(clocked: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World.of(clocked)
    asked: list[float] = []
    at_time = ClockedTrace.at_time

    def listen(self: ClockedTrace, time_s: float) -> ChannelState:
        asked.append(time_s)
        return at_time(self, time_s)

    monkeypatch.setattr(ClockedTrace, "at_time", listen)
    scheme = scheme_named("asfl")
    played = list(play(world, scheme, 6, budgets_of(world, scheme)))
    assert asked == pytest.approx(np.concatenate([[0], np.cumsum([one.delay_s for one in played])[:-1]]))


@pytest.mark.parametrize("scheme", ["asfl", "sfl"])
def test_a_resumed_run_is_the_same_run(clocked: Config, scheme: str, tmp_path: Path) -> None:
    assert run(clocked, scheme, tmp_path / "whole", threads=1)
    rounds: list[RoundRecord] = []
    broken = tmp_path / "broken"
    assert not run(clocked, scheme, broken, threads=1, on_round=rounds.append, should_stop=lambda: len(rounds) == 3)
    assert resume(broken)
    whole, again = ((tmp_path / name / RECORDS_FILE).read_text() for name in ("whole", "broken"))
    assert whole == again
    assert len(read_records(broken)) == 5
