"""`asfl.Simulation`: the loop, round by round; nothing is written."""

from importlib import util
from pathlib import Path
from typing import Any, Self

from asfl.api.run import configuration
from asfl.config.errors import MissingExtraError
from asfl.config.load import ConfigLike
from asfl.runs.records import RoundRecord
from asfl.runs.run import check_training
from asfl.schemes import scheme_named

if util.find_spec("torch") is None:
    raise MissingExtraError("training", "train")

from asfl.data import load_data
from asfl.runs.simulation import Simulation as _Simulation


class Simulation(_Simulation):
    """One scheme being trained: `for record in asfl.Simulation("demo", rounds=20): print(record.accuracy)`.

    Between two rounds everything is there to look at: `state`, `trainer`, `evaluate()`, `average_model()`. Arguments as
    in `asfl.run`.
    """

    def __init__(
        self,
        config: ConfigLike = "demo",
        scheme: str = "asfl",
        *,
        rounds: int | None = None,
        seed: int | None = None,
        data_dir: str | Path | None = None,
        **settings: Any,
    ) -> None:
        chosen = scheme_named(scheme)
        wanted = configuration(config, rounds, seed, settings).for_scheme(chosen.name)
        where = None if data_dir is None else Path(data_dir)
        check_training(wanted, where)
        super().__init__(wanted, chosen, load_data(wanted, where))

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> RoundRecord:
        """Play a round."""
        if self.finished:
            raise StopIteration
        return self.play_round()
