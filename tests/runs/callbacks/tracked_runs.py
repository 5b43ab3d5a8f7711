"""Tiny runs to be tracked, and what trackers should show of them."""

from pathlib import Path

from asfl.config import Config, load_config
from asfl.runs.manifest import CHECKPOINTS
from asfl.runs.records import RoundRecord, read_records
from asfl.runs.run import resume, run

ROUNDS = 4
TINY = [
    "scenario.clients=3", "radio.num_rbs=3", "model.width=0.1", "training.batch_size=8", f"training.rounds={ROUNDS}",
    "output.checkpoint_every=1", "output.test_samples=50", "output.evaluate_every=2",
]  # fmt: skip


def tiny(track: str, *overrides: str) -> Config:
    return load_config("demo", [*TINY, f"output.track={track}", *overrides]).config


def play(folder: Path, track: str, rounds: int) -> None:
    """A run that is stopped after some rounds, or goes on for some more."""
    played: list[RoundRecord] = []
    run(tiny(track), "asfl", folder, threads=1, on_round=played.append, should_stop=lambda: len(played) == rounds)


def lose_newest_checkpoint(folder: Path) -> None:
    newest = max((folder / CHECKPOINTS).glob("*.safetensors"))
    newest.unlink()


def stopped_and_resumed(folder: Path, track: str) -> list[RoundRecord]:
    """Stopped after round 3, gone on from round 2, so that the tracker hears of round 3 twice; what was recorded."""
    play(folder, track, rounds=3)
    lose_newest_checkpoint(folder)
    again: list[int] = []
    assert resume(folder, on_round=lambda record: again.append(record.round))
    assert again == [3, 4]
    return read_records(folder)
