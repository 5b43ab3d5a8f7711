"""How a run is watched, and with what it runs here: nothing of it changes results but the number of threads."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypedDict

from asfl.runs.callbacks.base import Tracker
from asfl.runs.records import RoundRecord

OnRound = Callable[[RoundRecord], None]
ShouldStop = Callable[[], bool]
DIVERGED = "training has diverged"
"""What the reason for a failure says if numbers went to infinity: the setting is to blame, not the machine."""


class RunOptions(TypedDict, total=False):
    """What everybody who trains a run may be told besides what to train."""

    on_round: OnRound
    """Called when a round's record is on the disk."""
    should_stop: ShouldStop
    """Asked after each round: if it says so, a checkpoint is written and the run stops."""
    trackers: Sequence[Tracker]
    """Who is shown the rounds besides those that `output.track` names."""
    data_dir: Path | None
    """Where data sets lie."""
    threads: int | None
    """Of PyTorch, for a run that begins; one that goes on keeps its own."""
    changed_data: bool
    """Go on although data, trace or plugins aren't what they were when the run began."""
    lose_rounds: bool
    """Give up measured rounds whose records or checkpoints are damaged, and go on before them."""
