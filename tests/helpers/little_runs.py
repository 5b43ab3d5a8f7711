"""Real trainings that take a second."""

from pathlib import Path

from fork_server import QUICK_TO_START

from asfl.config import load_config
from asfl.runs.comparison import Comparison, plan_comparison
from asfl.runs.jobs import Job, train
from asfl.runs.manifest import MODEL_FILE
from asfl.runs.records import RECORDS_FILE

ROUNDS = 8
LITTLE = (
    "scenario.clients=3", "training.batch_size=8", "output.checkpoint_every=2", "output.test_samples=50",
    *QUICK_TO_START,
)  # fmt: skip


def little_comparison(folder: Path, schemes: str = "asfl", seeds: int = 1, rounds: int = ROUNDS) -> Comparison:
    config = load_config("demo", [*LITTLE, f"training.rounds={rounds}"]).config
    return plan_comparison(config, schemes.split(","), range(1, 1 + seeds), folder)


def train_here(job: Job, rounds: int = ROUNDS) -> bool:
    """Train in this process, at most until a round."""
    played: list[int] = []
    return train(job, lambda record: played.append(record.round), lambda: played[-1] >= rounds)


def outcome(folder: Path) -> tuple[bytes, bytes]:
    """What must be the same however a run was trained: the rounds and the model."""
    return (folder / RECORDS_FILE).read_bytes(), (folder / MODEL_FILE).read_bytes()
